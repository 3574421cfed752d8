"""The object by which the library mteb evaluates a model.

The live test runs with the Python that BERT_JAX_MTEB names, which has mteb and sentence-transformers:

    BERT_JAX_MTEB=mteb/bin/python python -m pytest -m slow tests/search/test_vector_tasks.py
"""

import dataclasses
import json
import os
import pathlib
import string
import subprocess
import sys
import sysconfig
import types

import numpy as np
import pytest
from pretrained_model import CONFIG, stored_model

from bert_jax.analysis.vector_tasks import MtebEncoder
from bert_jax.config import EmbeddingConfig
from bert_jax.errors import UserError
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "oracles" / "evaluate_with_mteb.py"


class Model:
    """What stands in for a loaded model: the vector of a text is its length and 1."""

    path, fingerprint, embedding = "runs/vectors", "0123456789abcdef0123", EmbeddingConfig(query_prompt="q: ")
    config = types.SimpleNamespace(hidden_size=2, longest_sequence=64)
    params = {"embeddings": {"word": np.zeros((4, 2))}, "encoder": {"kernel": np.zeros((3, 2))}}

    def embed(self, texts, **asked):
        self.asked = asked
        return np.array([[len(text), 1] for text in texts], np.float32)


def test_batches_of_mteb_are_embedded_with_the_prompt_of_their_kind():
    encoder = MtebEncoder(Model())
    batches = [{"text": ["a", "bb"], "title": ["", ""]}, {"text": ["ccc"]}]
    common = {"task_metadata": object(), "hf_split": "test", "hf_subset": "default"}
    found = encoder.encode(iter(batches), **common, prompt_type="query", batch_size=7, show_progress_bar=False)
    assert found.tolist() == [[1, 1], [2, 1], [3, 1]]
    assert encoder.model.asked == {"prompt": "query", "batch_size": 7, "progress": False}
    encoder.encode(batches, **common)
    assert encoder.model.asked["prompt"] is None


def test_vectors_are_compared_by_their_cosines():
    first, second = np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[0.0, 2.0], [-5.0, 0.0]])
    encoder = MtebEncoder(Model())
    np.testing.assert_allclose(encoder.similarity(first, second), [[0.8, -0.6], [0.0, -1.0]], atol=1e-7)
    np.testing.assert_allclose(encoder.similarity_pairwise(first, second), [0.8, -1.0], atol=1e-7)
    np.testing.assert_allclose(encoder.similarity(first[0], second), [[0.8, -0.6]], atol=1e-7)


def test_mteb_knows_models_by_their_parameters(monkeypatch):
    assert MtebEncoder(Model()).mteb_model_meta is None  # not loaded: nothing is imported for it
    meta = types.SimpleNamespace(create_empty=dict)
    monkeypatch.setitem(sys.modules, "mteb.models", types.SimpleNamespace(ModelMeta=meta))
    found = MtebEncoder(Model()).mteb_model_meta
    assert (found["name"], found["revision"]) == ("bert_jax/vectors", "0123456789abcdef")
    assert (found["n_parameters"], found["n_embedding_parameters"], found["embed_dim"]) == (14, 8, 2)
    assert found["max_tokens"] == 64 and found["use_instructions"]


@pytest.mark.parametrize(
    ("message", "batch", "options"),
    [
        (r"a batch is \['a'\]; expected a dict with a list of texts under 'text'", ["a"], {}),
        ("a batch is {'image'", {"image": [1]}, {}),
        ("a batch is {'text': 'one text'}", {"text": "one text"}, {}),
        (r"a batch is {'text': \[\['a'\]\]}", {"text": [["a"]]}, {}),
        ("precision='int8': vectors are float32", {"text": ["a"]}, {"precision": "int8"}),
        ("prompt_type='passage' must be query or document", {"text": ["a"]}, {"prompt_type": "passage"}),
    ],
)
def test_what_is_no_batch_of_texts_is_refused(message, batch, options):
    with pytest.raises(UserError, match=message):
        MtebEncoder(Model()).encode([batch], **options)


@pytest.mark.slow
def test_scores_of_mteb_are_those_of_sentence_transformers(tmp_path):
    """On an STS, a classification, a clustering and a retrieval task whose data are made by the script."""
    if "BERT_JAX_MTEB" not in os.environ:
        pytest.skip("BERT_JAX_MTEB names no Python that has mteb and sentence-transformers")
    letters = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase), ".", "?"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    config, tokenizer = dataclasses.replace(CONFIG, vocab_size=len(words)), Tokenizer(WordPiece(words, lowercase=True))
    embedding = EmbeddingConfig(pooling="mean", max_length=40)
    stored = stored_model(config, (), tokenizer=tokenizer, embedding=embedding)
    (tmp_path / "model").mkdir()
    write_huggingface(stored, tmp_path / "model", "model")
    command = [os.environ["BERT_JAX_MTEB"], str(SCRIPT), str(tmp_path / "model"), sysconfig.get_path("purelib")]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2]), "HF_HOME": str(tmp_path)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert process.returncode == 0, process.stderr[-2000:]
    found = json.loads(process.stdout)
    assert found["ours"] == pytest.approx(found["theirs"], abs=1e-6) and len(found["ours"]) == 4

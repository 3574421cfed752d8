"""Models written as programs: the directory, the comparison, refusals, integers, and a process without bert_jax."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from model_variants import variant
from pretrained_model import SMALL, loaded, stored_model

from bert_jax import load
from bert_jax.config import EmbeddingConfig, HeadConfig
from bert_jax.errors import UserError
from bert_jax.formats.conversion import new_directory, write_bert_jax
from bert_jax.tokenization.tokenizer import load_tokenizer
from bert_jax.tools.export import directory as directories
from bert_jax.tools.export.directory import convert, export_model
from bert_jax.tools.export.integers import as_integers, scaled_axes, whole, written_weights

ONE = variant(SMALL, num_layers=1)
CLASSIFIER = HeadConfig(labels=("no", "yes"))


def test_a_model_becomes_a_directory_that_says_what_it_is(tmp_path, capsys):
    model = loaded(stored_model(ONE, None, CLASSIFIER))
    compared = export_model(model, tmp_path / "out", to="stablehlo")
    assert 0 < compared.relative < 1e-5 and compared.longest == SMALL.longest_sequence
    printed = capsys.readouterr().out
    assert "output: logits [batch, 2]" in printed and f"{compared.difference:.1e}, in logits" in printed
    described = json.loads((tmp_path / "out" / "export.json").read_text())
    assert described["outputs"] == {"logits": ["batch", 2]} and described["labels"] == ["no", "yes"]
    assert described["inputs"] == ["input_ids", "attention_mask", "token_type_ids"]
    assert load_tokenizer(tmp_path / "out").fingerprint == model.tokenizer.fingerprint


def test_a_program_that_differs_is_not_kept(tmp_path, monkeypatch):
    model = loaded(stored_model(ONE, None, CLASSIFIER))
    wrong = lambda *inputs: {"logits": np.ones((len(inputs[0]), 2), np.float32)}
    monkeypatch.setattr(directories, "_opened", lambda *_: wrong)
    monkeypatch.setattr(directories, "_write", lambda *_: "")
    with pytest.raises(UserError, match="does not compute what .* the largest difference is"):
        export_model(model, tmp_path / "out", to="stablehlo")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused_before_anything_is_written(tmp_path):
    unsupported = EmbeddingConfig(unsupported="a module of type CNN")
    with pytest.raises(UserError, match="CNN"):
        export_model(loaded(stored_model(ONE, (), embedding=unsupported)), tmp_path / "out", to="stablehlo")
    with pytest.raises(UserError, match="has no vocabulary"):
        export_model(loaded(stored_model(ONE, (), tokenizer=None)), tmp_path / "out", to="stablehlo")
    with pytest.raises(UserError, match="must be onnx, stablehlo, saved_model"):
        export_model(loaded(stored_model(ONE, ())), tmp_path / "out", to="torchscript")
    with pytest.raises(UserError, match="int4"):
        export_model(loaded(stored_model(ONE, ())), tmp_path / "out", to="stablehlo", precision="int4")
    with pytest.raises(UserError, match="writes to a local directory, not to gs://bucket/out"):
        export_model(loaded(stored_model(ONE, ())), "gs://bucket/out", to="stablehlo")
    with pytest.raises(UserError, match="push and private are for to=huggingface"):
        convert("nowhere", tmp_path / "out", to="stablehlo", push="owner/name")
    with pytest.raises(UserError, match="precision=int8 is for programs"):
        convert("nowhere", tmp_path / "out", to="huggingface", precision="int8")
    assert not list(tmp_path.iterdir())


def test_integers_are_the_nearest_with_a_scale_for_each_output():
    random = np.random.default_rng(0)
    params = {
        "encoder/attention/query/kernel": random.standard_normal((2, 16, 4, 12)),
        "encoder/attention/output/kernel": random.standard_normal((2, 4, 12, 24)),
        "embeddings/word/table": random.standard_normal((97, 16)) * np.arange(97)[:, None],
        "pooler/bias": random.standard_normal(2048),
    }
    params = {path: values.astype(np.float32) for path, values in params.items()}
    written = written_weights(params, "int8")
    assert written["pooler/bias"].dtype == np.float32
    scales = {path: values.shape for path, values in written.items() if path.endswith(":scale")}
    assert scales == {
        "encoder/attention/query/kernel:scale": (2, 1, 4, 12),
        "encoder/attention/output/kernel:scale": (2, 1, 1, 24),
        "embeddings/word/table:scale": (97, 1),
    }
    for path, values in jax.device_get(whole(written)).items():
        largest = np.max(np.abs(params[path]), axis=scaled_axes(path, values.ndim), keepdims=True)
        exact = path == "pooler/bias"
        assert np.all(np.abs(values - params[path]) <= (0 if exact else largest / 127 / 2 + 1e-6)), path
    assert as_integers(np.zeros((2, 3), np.float32), (1,))[0].tolist() == [[0] * 3] * 2


ALONE = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("bert_jax", "flax"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
{lines}
np.savez("found.npz", **outputs)
"""


@pytest.mark.slow
def test_the_lines_of_the_read_me_run_where_there_is_no_bert_jax(tmp_path):
    stored = stored_model(SMALL, ("pooler", "mlm", "next_sentence"))
    with new_directory(tmp_path / "model") as directory:
        write_bert_jax(stored, directory)
    convert(tmp_path / "model", tmp_path / "out", to="stablehlo")
    lines = (tmp_path / "out" / "README.md").read_text().split("```")[1].removeprefix("python\n")
    rows = "import numpy as np\ninput_ids = np.array([[2, 5, 6, 3, 0], [2, 7, 3, 0, 0], [2, 3, 0, 0, 0]], np.int32)\n"
    rows += "attention_mask = np.minimum(input_ids, 1)\ntoken_type_ids = 0 * input_ids\n"
    subprocess.run(
        [sys.executable, "-c", ALONE.format(lines=rows + lines)],
        check=True,
        cwd=tmp_path / "out",
        env={**os.environ, "PYTHONPATH": ""},
    )
    found = np.load(tmp_path / "out" / "found.npz")
    ids = np.array([[2, 5, 6, 3, 0], [2, 7, 3, 0, 0], [2, 3, 0, 0, 0]], np.int32)
    expected = load(tmp_path / "model").encode_ids(ids, np.minimum(ids, 1)).last_hidden_state
    real = ids > 0
    np.testing.assert_allclose(found["last_hidden_state"][real], expected[real], atol=1e-5)
    assert found["logits"].shape == (3, 5, SMALL.vocab_size)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_tensorflow_runs_a_saved_model(tmp_path, precision):
    pytest.importorskip("tensorflow")
    model = loaded(stored_model(SMALL, (), embedding=EmbeddingConfig(normalize=True)))
    compared = export_model(model, tmp_path / "out", to="saved_model", precision=precision)
    assert compared.relative < (1e-5 if precision == "float32" else 0.2)


@pytest.mark.slow
def test_integers_change_the_results_little(tmp_path):
    model = loaded(stored_model(variant(SMALL, hidden_size=64), ("mlm",)))
    compared = export_model(model, tmp_path / "out", to="stablehlo", precision="int8")
    assert 1e-5 < compared.relative < 0.2
    sizes = {}
    for precision in ("float32", "int8"):
        if precision == "float32":
            export_model(model, tmp_path / precision, to="stablehlo")
        place = tmp_path / ("out" if precision == "int8" else precision)
        sizes[precision] = (place / "weights.npz").stat().st_size
    assert sizes["int8"] < 0.5 * sizes["float32"]

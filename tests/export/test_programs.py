"""Models written as programs: the directory, the comparison, refusals, integers, and a process without bert_jax."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from command_lines import succeed
from model_variants import variant
from pretrained_model import SMALL, loaded, stored_model

from bert_jax import load
from bert_jax.config import EmbeddingConfig, HeadConfig
from bert_jax.errors import UserError
from bert_jax.formats.conversion import new_directory, write_bert_jax
from bert_jax.pretrained.precision import as_integers
from bert_jax.tokenization.tokenizer import load_tokenizer
from bert_jax.tools.export import directory as directories
from bert_jax.tools.export.directory import convert, export_model
from bert_jax.tools.export.integers import scaled_axes, whole, written_weights

ONE = variant(SMALL, num_layers=1)


@pytest.fixture(scope="module")
def classifier():
    return loaded(stored_model(ONE, None, HeadConfig(labels=("no", "yes"))))


def test_a_model_becomes_a_directory_that_says_what_it_is(tmp_path, capsys, classifier):
    compared = export_model(classifier, tmp_path / "out", to="stablehlo")
    assert 0 < compared.relative < 1e-5 and compared.longest == SMALL.longest_sequence
    printed = capsys.readouterr().out
    assert "output: logits [batch, 2]" in printed and f"{compared.difference:.1e}, in logits" in printed
    described = json.loads((tmp_path / "out" / "export.json").read_text())
    assert described["outputs"] == {"logits": ["batch", 2]} and described["labels"] == ["no", "yes"]
    assert described["inputs"] == ["input_ids", "attention_mask", "token_type_ids"]
    assert load_tokenizer(tmp_path / "out").fingerprint == classifier.tokenizer.fingerprint


def test_a_program_that_differs_is_not_kept(tmp_path, monkeypatch, classifier):
    wrong = lambda *inputs: {"logits": np.ones((len(inputs[0]), 2), np.float32)}
    monkeypatch.setattr(directories, "_opened", lambda *_: wrong)
    monkeypatch.setattr(directories, "_write", lambda *_: "")
    with pytest.raises(UserError, match="does not compute what .* the largest difference is"):
        export_model(classifier, tmp_path / "out", to="stablehlo")
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
    assert not [path for path in written if ":" in path]  # no variable of TensorFlow has such a name
    scales = {path: values.shape for path, values in written.items() if path.endswith(".scale")}
    assert scales == {
        "encoder/attention/query/kernel.scale": (2, 1, 4, 12),
        "encoder/attention/output/kernel.scale": (2, 1, 1, 24),
        "embeddings/word/table.scale": (97, 1),
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


LIBRARIES = {"onnx": "onnxruntime", "stablehlo": "jax", "saved_model": "tensorflow"}


@pytest.mark.slow
@pytest.mark.parametrize("to", LIBRARIES)
def test_the_command_writes_either_precision(tmp_path, to):
    pytest.importorskip(LIBRARIES[to])
    with new_directory(tmp_path / "model") as directory:
        write_bert_jax(stored_model(variant(SMALL, hidden_size=64), ("mlm",)), directory)
    costs, sizes = {}, {}
    for precision in ("float32", "int8"):
        out = tmp_path / precision
        succeed("convert", tmp_path / "model", out, f"--to={to}", f"--precision={precision}")
        described = json.loads((out / "export.json").read_text())
        assert (described["format"], described["precision"]) == (to, precision)
        assert described["outputs"] == {"logits": ["batch", "length", 24], "last_hidden_state": ["batch", "length", 64]}
        costs[precision] = described["largest_difference"]
        sizes[precision] = sum(file.stat().st_size for file in out.rglob("*") if file.name != "tokenizer.json")
    assert costs["float32"] < 5e-5 and 1e-3 < costs["int8"] < 2
    assert sizes["int8"] < 0.8 * sizes["float32"]

"""`bert-jax analyze prune`: its files, and what the smaller model can do."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
import small_corpus
import small_finetuning
import written_teacher
from one_device import pretrain
from pretrained_model import CONFIG
from small_finetuning import sentences
from small_pretraining import nothing_held_out, run_config
from task_models import write_model

import bert_jax
from bert_jax import cli
from bert_jax.analysis import pruning, results
from bert_jax.config import PhaseConfig


@pytest.fixture(scope="module")
def place(small_store, tmp_path_factory) -> pathlib.Path:
    """A model of four layers with the vocabulary of a store, and texts."""
    place = tmp_path_factory.mktemp("prune")
    written_teacher.write(place / "model", small_store, ("pooler", "mlm", "next_sentence"))
    lines = [line for line in small_corpus.write(place / "corpus.txt", 12).read_text().splitlines() if line.strip()]
    (place / "texts.txt").write_text("\n".join(lines[:24]) + "\n")
    return place


def run(place: pathlib.Path, output: pathlib.Path, *words: str, model: str = "model") -> int:
    given = ["--depth=2", "--draws=0", f"--input={place}/texts.txt", f"--output={output}", *words]
    return cli._run(["bert-jax", "analyze", "prune", str(place / model), *given])


@pytest.fixture(scope="module")
def pruned(place) -> pathlib.Path:
    assert run(place, place / "out") == 0
    return place / "out"


@pytest.mark.slow
def test_prune_leaves_its_result_its_pictures_and_the_model(place, pruned, monkeypatch, capsys):
    assert sorted(path.name for path in pruned.iterdir()) == ["model", "prune.png", "prune.svg", "result.json"]
    result = json.loads((pruned / "result.json").read_text())["result"]
    kept = result["curves"][0]["layers"][-1]
    whole, smaller = bert_jax.load(place / "model"), bert_jax.load(pruned / "model")
    for name in ("attention/query/kernel", "feed_forward/output/bias"):
        leaves = [_leaf(model.params["encoder"], name) for model in (whole, smaller)]
        np.testing.assert_array_equal(leaves[0][kept], leaves[1])
    np.testing.assert_array_equal(whole.params["mlm"]["bias"], smaller.params["mlm"]["bias"])

    def refuse(*arguments, **options):
        raise AssertionError("computed again")

    monkeypatch.setattr(pruning, "prune", refuse)
    assert run(place, pruned, "--batch_size=5") == 0
    printed = capsys.readouterr().out
    assert "has this result already" in printed and "--model.num_layers=2" in printed


def _leaf(tree, path: str) -> np.ndarray:
    for name in path.split("/"):
        tree = tree[name]
    return np.asarray(tree)


def test_a_model_of_other_layers_is_not_replaced(place, pruned, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    shutil.copy(pruned / "result.json", tmp_path / "out")
    bert_jax.load(place / "model").save(tmp_path / "out" / "model")
    assert run(place, tmp_path / "out") != 0
    assert "holds a model that differs from this result; remove it" in capsys.readouterr().err
    assert bert_jax.load(tmp_path / "out" / "model").config.num_layers == 4


def test_the_smaller_model_exports_to_hugging_face(pruned, tmp_path):
    bert_jax.convert(pruned / "model", tmp_path / "hf", to="huggingface")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["num_hidden_layers"] == 2
    ours, theirs = bert_jax.load(pruned / "model"), bert_jax.load(tmp_path / "hf")
    text = ["The gardener waters the tulip."]
    np.testing.assert_array_equal(ours.encode(text).last_hidden_state, theirs.encode(text).last_hidden_state)


@pytest.mark.slow
def test_the_smaller_model_trains(pruned, small_store, tmp_path):
    base = run_config(small_store, tmp_path / "run", data=nothing_held_out(small_store))
    phase = PhaseConfig(steps=2, sequence_length=32, batch_size=16, learning_rate=1e-3, warmup_steps=1)
    model = dataclasses.replace(written_teacher.TEACHER, num_layers=2)
    config = dataclasses.replace(base, model=model, init_from=str(pruned / "model"), phases=(phase,))
    pretrain(config)
    before, after = bert_jax.load(pruned / "model"), bert_jax.load(tmp_path / "run")
    change = [np.abs(_leaf(model.params, "encoder/attention/query/kernel")).mean() for model in (before, after)]
    assert change[0] != change[1] and abs(change[1] / change[0] - 1) < 0.1  # two small steps from where it began


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--depth=0"], "depth=0 must be at least 1"),
        (["--depth=4"], "depth=4 must be at least 1 and below the 4 layers"),
        (["--texts=0"], "texts=0: pruning reads its texts"),
        (["--task=rte"], "task=rte needs its examples"),
    ],
    ids=["zero", "same", "texts", "task"],
)
def test_bad_options_are_one_line(place, tmp_path, words, message, capsys):
    assert run(place, tmp_path / "out", *words) != 0
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and not (tmp_path / "out" / "model").exists()


@pytest.mark.slow
def test_the_score_of_a_fine_tuned_model_is_that_of_predict(place, tmp_path):
    write_model(tmp_path / "tuned", "text", dataclasses.replace(CONFIG, num_layers=2))
    rows = [f"the cat sat on the mat {word}\t{label}" for word, label in zip("a big old dog ran".split(), "abaab")]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dev.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    (tmp_path / "texts.txt").write_text("\n".join(f"the {word} sat on a mat" for word in ["cat", "dog", "bird"] * 4))
    words = [f"--task_data={tmp_path}/data", f"--input={tmp_path}/texts.txt", "--depth=1"]
    assert run(tmp_path, tmp_path / "out", *words, model="tuned") == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())["result"]
    assert result["score_name"] == "text accuracy" and result["predictions"] == 0
    for number, directory in ((0, tmp_path / "tuned"), (-1, tmp_path / "out" / "model")):
        predicting = bert_jax.PredictConfig(
            input=str(tmp_path / "data" / "dev.tsv"), output=str(tmp_path / f"p{number}")
        )
        expected = bert_jax.predict(str(directory), predicting)
        assert result["curves"][0]["score"][number] == pytest.approx(expected["accuracy"])


@pytest.mark.slow
def test_a_pre_trained_model_is_fine_tuned_once_for_every_set_of_layers(tmp_path, monkeypatch, capsys):
    home = small_finetuning.write(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(row.split("\t")[0] for row in sentences(12, 3).splitlines()[1:]))
    words = ["--depth=1", f"--task_data={home}/data", "--epochs=1", "--max_length=16", f"--input={tmp_path}/texts.txt"]
    assert run(home, tmp_path / "out", *words, model="pretrained") != 0
    assert "is a pre-trained model, which is fine-tuned for a score; give --task=NAME" in capsys.readouterr().err
    words.append("--task=text")
    assert run(home, tmp_path / "out", *words, model="pretrained") == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())["result"]
    assert result["score_name"] == "text, fine-tuned"
    kept = {tuple(layers) for curve in result["curves"] for layers in curve["layers"]}
    files = sorted((tmp_path / "out" / "fine_tuned").iterdir())
    assert len(files) == len(kept) and all(file.suffix == ".json" for file in files)
    scores = {json.loads(file.read_text())["result"]["score"] for file in files}
    assert {score for curve in result["curves"] for score in curve["score"]} == scores
    (tmp_path / "out" / "result.json").unlink()
    monkeypatch.setattr(results, "finetune", None)
    assert run(home, tmp_path / "out", *words, model="pretrained") == 0
    assert json.loads((tmp_path / "out" / "result.json").read_text())["result"]["curves"] == result["curves"]

"""Work directories that an earlier version left: resumed, loaded and predicted with to its own figures (oracles/)."""

import json
import pathlib
import tarfile

import pytest
from one_device import finetune, pretrain
from threefry_dropout import use_threefry

import bert_jax
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.run_directory import read_config
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.json_form import from_dict
from bert_jax.training.sinks import read_rows

ARCHIVE = pathlib.Path(__file__).parents[1] / "oracles" / "old_workdirs.tar.gz"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The directory in which the earlier commands were started; paths in their settings are relative to it.

    Dropout draws the elements that it drew then, so that the figures can be compared.
    """
    use_threefry(monkeypatch)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def figures(workdir, kind: str = "train") -> dict[int, dict[str, float]]:
    """What was logged, by step, without the clock's share of it."""
    logged = [row for row in read_rows(pathlib.Path(workdir) / "metrics.jsonl") if row["kind"] == kind]
    names = ("loss", "mlm_loss", "mlm_accuracy", "next_sentence_loss", "learning_rate", "grad_norm", "dev_accuracy")
    return {row["step"]: {name: row[name] for name in names if name in row} for row in logged}


def test_a_run_of_pre_training_is_resumed(place):
    """From step 4, as if it had not come to step 6: the last two steps are those of the earlier version."""
    before = figures("pretraining"), figures("pretraining", "evaluation")
    assert list(before[0]) == [1, 2, 3, 4, 5, 6] and list(before[1]) == [3, 6]
    (place / "pretraining/checkpoints/step_000000006").rename(place / "taken")
    result = pretrain(read_config("pretraining"))
    assert result.step == 6 and Checkpoints("pretraining/checkpoints", read_only=True).steps() == [4, 6]
    after = figures("pretraining"), figures("pretraining", "evaluation")
    for old, new in zip(before, after, strict=True):
        assert list(new) == list(old)
        for step in old:
            assert new[step] == pytest.approx(old[step], rel=1e-5, abs=1e-7), step
    run = json.loads((place / "pretraining/run.json").read_text())
    assert [start["host"] == "host" for start in run["starts"]] == [True, False]
    assert bert_jax.load("pretraining").fill_mask("The [MASK] blooms in the morning.", top_k=3)[0]


def known(values: dict, before: dict) -> dict:
    return {
        name: known(values[name], old) if isinstance(old, dict) else values.get(name) for name, old in before.items()
    }


def test_a_finished_command_of_fine_tuning_is_left_as_it_is(place):
    before = json.loads((place / "finetuned/results.json").read_text())
    assert before["metrics"]["accuracy"] > 0.9
    results = finetune(from_dict(FinetuneConfig, before["config"])).results
    again, earlier = ({name: values[name] for name in values if name not in OWN} for values in (results, before))
    again["config"] = known(again["config"], earlier["config"])  # an option may have been added, to a group too
    for values in (again, earlier):
        del values["chosen"]["by"]  # a sentence
    assert again == earlier
    model = bert_jax.load("finetuned")
    rows = [line.split("\t") for line in (place / "texts/dev.tsv").read_text().splitlines()[1:]]
    answers = model.predict([text for text, _ in rows])
    right = sum(answer.name == label for answer, (_, label) in zip(answers, rows, strict=True))
    assert right / len(rows) == before["metrics"]["accuracy"]


OWN = {"commit", "versions"}
"""What results.json says of the program that wrote it."""


@pytest.mark.slow
def test_an_interrupted_command_of_fine_tuning_is_resumed(place):
    """To the figures of the same command of the earlier version that nothing interrupted."""
    whole = json.loads((place / "finetuned/results.json").read_text())
    (run,) = (place / "finetuning/runs").iterdir()
    (stopped,) = Checkpoints(run / "training", read_only=True).steps()[-1:]
    config = {**whole["config"], "workdir": "finetuning"}
    results = finetune(from_dict(FinetuneConfig, config)).results
    assert results["metrics"] == whole["metrics"]
    old, new = figures(place / "finetuned/runs" / run.name), figures(run)
    assert 5 < stopped < 100 and list(new) == list(old)
    for step in range(
        stopped + 1, stopped + 4
    ):  # the order of sums in another machine's products grows from step to step
        assert new[step]["loss"] == pytest.approx(old[step]["loss"], rel=1e-4), step

"""Runs that earlier versions began resume, and what they left opens: the promise of 0.1.0 to every 0.1.x.

If a change makes one of these tests fail, it breaks that promise: CONTRIBUTING.md says what it takes to do that.
"""

import json
import pathlib
import shlex
import tarfile

import numpy as np
import pytest
from small_pretraining import finetune, pretrain_by_words

import bert_jax
from bert_jax.config.finetuning import task_defaults
from bert_jax.console import parse
from bert_jax.data.store import open_store
from bert_jax.tools.doctor import check_run
from bert_jax.tools.status import read_run, status
from bert_jax.training.metrics import read_rows

RUNS = sorted((pathlib.Path(__file__).parents[1] / "oracles").glob("runs_*.tar.xz"))
# The same operations on float32 in another order, which XLA chooses by processor, threads and version: a few 1e-7 each,
# and no more than this after the steps that are left.
TOLERANCE = 1e-4


@pytest.fixture(params=RUNS, ids=lambda file: file.name)
def begun(request, tmp_path, monkeypatch) -> pathlib.Path:
    """The directory in which an earlier version ran, as the current one."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(workdir: pathlib.Path) -> list[str]:
    """The command that began a run, without `pretrain` or `finetune`: people give the same one to resume it."""
    facts = json.loads((workdir / "run.json").read_text())
    return shlex.split(facts["starts"][-1]["command"])[2:]


def check(workdir: pathlib.Path, expected: list[dict]) -> None:
    """Compare the losses that a run has logged, those of both versions, with what the earlier one went on to."""
    found = read_rows(workdir / "metrics.jsonl")
    assert [(row["kind"], row["step"]) for row in found] == [(row["kind"], row["step"]) for row in expected]
    for row, wanted in zip(found, expected, strict=True):
        wanted = {name: value for name, value in wanted.items() if name != "kind"}
        values = {name: row[name] for name in wanted}
        assert values == pytest.approx(wanted, rel=TOLERANCE), (wanted["step"], values)


def test_pre_training_resumes(begun, capfd):
    expected = json.loads((begun / "later.json").read_text())["pretraining"]
    before = len(read_rows(begun / "pretraining" / "metrics.jsonl"))
    result = pretrain_by_words(*words(begun / "pretraining"))
    assert result.exit_code == 0 and "resuming from step" in capfd.readouterr().out
    assert before < len(expected)
    check(begun / "pretraining", expected)


def test_fine_tuning_resumes(begun):
    expected = json.loads((begun / "later.json").read_text())
    task, *given = words(begun / "finetuning")
    finished = next((begun / "finetuning" / "runs").glob("*/results.json"))
    results = finetune(parse(task_defaults(task), given, "bert-jax finetune")).results
    assert [run["run"] for run in results["runs"]] == list(expected["metrics"])
    assert results["runs"][0] == json.loads(finished.read_text())  # not trained again
    for run in results["runs"]:
        check(begun / "finetuning" / "runs" / run["run"], expected["finetuning"][run["run"]])


def test_what_they_left_opens(begun):
    """Stores, models and the records of runs, by what reads each of them."""
    assert open_store(begun / "store").manifest.counts.documents == 40
    for name, expected in json.loads((begun / "later.json").read_text())["vectors"].items():
        found = bert_jax.load(name).embed(list(expected))
        np.testing.assert_allclose(found, list(expected.values()), atol=1e-5)
    progress = status(read_run("pretraining"), now=0.0), status(read_run("finetuning"), now=0.0)
    assert progress[0]["step"] == 8 and [run["finished"] for run in progress[1]["runs"].values()] == [True, False]
    assert not [
        check for name in ("pretraining", "finetuning") for check in check_run(read_run(name)) if not check.limit
    ]
    rows = [
        line.split("\t")
        for line in pathlib.Path("finetuning/predictions/dev/predictions_dev.tsv").read_text().splitlines()[1:]
    ]
    texts = [line.split("\t")[0] for line in pathlib.Path("data/dev.tsv").read_text().splitlines()[1:]]
    for (_, label, probability), answer in zip(rows, bert_jax.load("finetuning").predict(texts), strict=True):
        assert answer.name == label
        assert answer.probabilities[label] == pytest.approx(float(probability), abs=1e-4)  # written with four digits

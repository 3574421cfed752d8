"""Whole runs whose work directory, or a step in it, has changed: deleted, taken by another process, copied, renamed."""

import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import shutil
import threading

import pytest
from failing_disk import failing
from processes import wait_until
from small_finetuning import run_config as task_config
from small_pretraining import finetune, pretrain, rows, run_config
from workdirs import contents, held_by_another

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import read_record
from bert_jax.errors import UserError
from bert_jax.finetuning import run
from bert_jax.pretrained.model import load
from bert_jax.training.metrics import Metrics

# Orbax drops its other writes, never awaited, when the first one fails.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def once_after(monkeypatch, step: int, kind: str, action) -> None:
    """Calls `action` when the first row of this kind at or after `step` has been written."""
    write, done = Metrics.write, []

    def patched(self, at, metrics, *arguments, **options):
        write(self, at, metrics, *arguments, **options)
        if not done and at >= step and kind in (*arguments, *options.values(), "train"):
            done.append(action())

    monkeypatch.setattr(Metrics, "write", patched)


def run_id(workdir) -> str:
    return json.loads((pathlib.Path(workdir) / "run.json").read_text())["run_id"]


@pytest.mark.slow
def test_a_renamed_step_is_not_resumed_from(finished, tmp_path, caplog):
    config, result = finished
    workdir = tmp_path / "run"
    shutil.copytree(config.workdir, workdir)
    steps = workdir / "checkpoints"
    assert {read_record(step / "record")["run_id"] for step in steps.iterdir()} == {run_id(workdir)}
    shutil.rmtree(steps / "step_000000012")
    shutil.copytree(steps / "step_000000008", steps / "step_000000012")
    again = pretrain(dataclasses.replace(config, workdir=str(workdir)))
    assert "step 12 in" in caplog.text and "it is step 8 under another number" in caplog.text
    assert again == result and rows(workdir) == rows(config.workdir)
    assert read_record(steps / "step_000000012" / "record")["step"] == 12


def wait_for_steps(directory, *steps: int) -> None:
    wait_until(lambda: Checkpoints(directory / "checkpoints", read_only=True).steps() == list(steps))


def once_saving(monkeypatch, step: int, action) -> None:
    """Calls `action` when the save of this step has begun in the background."""
    save, done = Checkpoints.save, []

    def patched(self, at, *arguments, **options):
        begun = save(self, at, *arguments, **options)
        if not done and at == step:
            done.append(action())
        return begun

    monkeypatch.setattr(Checkpoints, "save", patched)


def delete_when_saved(path):
    wait_for_steps(path, 4)
    shutil.rmtree(path)


def rename(path):
    path.rename(path.with_name("elsewhere"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost_at, lose, left",
    [(4, delete_when_saved, [8, 12]), (4, rename, [8, 12]), (12, rename, [12])],
    ids=["deleted", "renamed as a save is under way", "renamed as the last save is under way"],
)
def test_a_directory_lost_in_a_run_is_whole_at_its_end(small_store, tmp_path, monkeypatch, caplog, lost_at, lose, left):
    config = run_config(small_store, tmp_path / "run")
    once_saving(monkeypatch, lost_at, lambda: lose(tmp_path / "run"))
    assert pretrain(config).step == 12
    assert f"{config.workdir} was deleted, renamed or replaced during this run" in caplog.text
    assert Checkpoints(tmp_path / "run" / "checkpoints", read_only=True).steps() == left
    logged = [row["step"] for row in rows(config.workdir)]
    # From the next save, that of the evaluation at step 6, on.
    assert logged == (list(range(7, 13)) if lost_at == 4 else [])
    there = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"run.json", "config.json", "tokenizer", "tensorboard", *(["curves.png"] if logged else [])} <= there
    longer = dataclasses.replace(config, phases=(dataclasses.replace(config.phases[0], steps=14),))
    assert pretrain(longer).step == 14
    assert [row["step"] for row in rows(config.workdir)] == [*logged, 13, 14]


MOMENTS = [
    (errno.ENOSPC, 3),
    *(pytest.param(*each, marks=pytest.mark.slow) for each in ((errno.EIO, 6), (errno.EDQUOT, 11))),
]
"""An error, and the step after whose row the disk begins to fail: before any save, during an evaluation, at the end."""


@pytest.mark.parametrize("code, at", MOMENTS)
def test_a_disk_that_fails_ends_a_run_and_keeps_what_was_saved(small_store, finished, tmp_path, monkeypatch, code, at):
    config, inside = run_config(small_store, tmp_path / "run"), f"{tmp_path}/run"
    with contextlib.ExitStack() as disk:
        once_after(
            monkeypatch, at, "train", lambda: disk.enter_context(failing(code, lambda path: path.startswith(inside)))
        )
        with pytest.raises(UserError, match=rf"saving the checkpoint .*{os.strerror(code)}"):
            pretrain(config)
    left = lambda: [each for each in threading.enumerate() if type(each).__module__.startswith("orbax.")]
    wait_until(lambda: not left())  # Python would wait for them, and they for ten minutes
    saved = Checkpoints(f"{inside}/checkpoints", read_only=True)
    assert {*saved.steps()} <= {step for step in (4, 6, 8) if step <= at}  # the failure may meet one that is under way
    for directory in saved.directories():
        load(directory)
    assert pretrain(config) == finished[1]
    assert rows(inside) == rows(finished[0].workdir)


@pytest.mark.parametrize("code, at", MOMENTS)
def test_a_run_does_not_need_what_it_writes_for_people(small_store, finished, tmp_path, monkeypatch, caplog, code, at):
    """Its checkpoints are written, and nothing else."""
    config, inside = run_config(small_store, tmp_path / "run"), f"{tmp_path}/run"
    fails = lambda path: path.startswith(inside) and "checkpoints" not in path
    with contextlib.ExitStack() as disk:
        once_after(monkeypatch, at, "train", lambda: disk.enter_context(failing(code, fails)))
        assert pretrain(config) == finished[1]
    told = "".join(record.getMessage() for record in caplog.records)
    assert all(f"{inside}/{name} lacks lines" in told for name in ("metrics.jsonl", "events.jsonl"))
    first, second = (Checkpoints(f"{path}/checkpoints", read_only=True) for path in (inside, finished[0].workdir))
    assert first.steps() == second.steps() == [8, 12]
    arrays = [read_record(each.directories()[-1] / "record")["arrays"] for each in (first, second)]
    assert arrays[0] == arrays[1]


def test_a_directory_taken_by_another_process_during_a_run_ends_it(small_store, tmp_path, monkeypatch):
    path, holders = tmp_path / "run", contextlib.ExitStack()
    config = run_config(small_store, path)

    def take_away():
        wait_for_steps(path, 4)  # Orbax would write the rest of a save that is under way into the new directory
        path.rename(tmp_path / "elsewhere")
        path.mkdir()
        holders.enter_context(held_by_another(path, 4711))

    once_after(monkeypatch, 5, "train", take_away)
    with holders:
        with pytest.raises(UserError, match=f"{path} is being written by process 4711 on "):
            pretrain(config)
        assert [file.name for file in path.iterdir()] == ["owner.json"]
        assert Checkpoints(tmp_path / "elsewhere" / "checkpoints", read_only=True).steps() == [4]


@pytest.mark.slow
def test_a_directory_deleted_during_fine_tuning_is_whole_at_its_end(pretrained, tmp_path, monkeypatch, caplog):
    work = tmp_path / "work"
    once_after(monkeypatch, 1, "evaluation", lambda: shutil.rmtree(work))
    results = finetune(task_config(pretrained, work)).results
    assert f"{work} was deleted, renamed or replaced during this run" in caplog.text
    assert json.loads((work / "results.json").read_text()) == results
    name = results["chosen"]["run"]
    assert read_record(next((work / "checkpoints").iterdir()) / "record")["run_id"] == run_id(work)
    assert load(work).predict(["The gardener digs before noon."])
    before = contents(work)
    monkeypatch.undo()
    assert finetune(task_config(pretrained, work)).results["runs"] == results["runs"]
    assert contents(work).keys() == before.keys() and (work / "runs" / name / "results.json").exists()


@pytest.mark.slow
def test_the_best_weights_of_a_run_deleted_before_its_end_are_named(pretrained, tmp_path, monkeypatch):
    """They were those of the first epoch, and the second is no better."""
    work = tmp_path / "work"
    monkeypatch.setattr(run, "evaluate", lambda *_: ({"accuracy": 0.5}, None))
    once_after(monkeypatch, 1, "evaluation", lambda: shutil.rmtree(work))
    message = f"the weights of .*_seed0 were deleted with {work} during the run; remove {work}/runs/"
    with pytest.raises(UserError, match=message):
        finetune(task_config(pretrained, work, select="best"))
    monkeypatch.undo()
    shutil.rmtree(next((work / "runs").iterdir()))
    assert finetune(task_config(pretrained, work, select="best")).results["metrics"]["accuracy"] > 0.8


@pytest.mark.slow
def test_weights_of_another_directory_are_published_over(pretrained, tmp_path, caplog):
    """They have the name and the figures of the chosen run, as they come from a command with another work directory."""
    ours, theirs = (task_config(pretrained, tmp_path / name, epochs=1, keep="all") for name in ("ours", "theirs"))
    results = finetune(ours).results
    finetune(theirs)
    published = tmp_path / "ours" / "checkpoints"
    shutil.rmtree(published)
    shutil.copytree(tmp_path / "theirs" / "checkpoints", published)
    with pytest.raises(UserError, match="it is a step of another run"):
        load(tmp_path / "ours")
    assert finetune(ours).results["runs"] == results["runs"]
    assert "it is a step of another run" in caplog.text
    assert load(tmp_path / "ours").history["metrics"] == results["metrics"]

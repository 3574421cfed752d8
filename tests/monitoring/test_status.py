"""What `bert-jax status` says of runs of every kind: live, dead, finished, torn, fine-tuning, no run at all."""

import io
import json
import os
import pathlib
import shutil
import time

import pytest
from etils import epath
from rich.console import Console

from bert_jax import cli
from bert_jax.checkpoints.workdir import read_config
from bert_jax.config import EmbeddingConfig
from bert_jax.config.json_form import to_dict
from bert_jax.config.pretraining import StatusConfig
from bert_jax.errors import UserError
from bert_jax.ownership import Owner, live_owner
from bert_jax.tools.status import RunHistory, read_run, run_status, status


@pytest.fixture
def workdir(finished, tmp_path) -> pathlib.Path:
    """A copy of a finished run, to be changed."""
    shutil.copytree(finished[0].workdir, tmp_path / "run")
    return tmp_path / "run"


def facts(workdir, now: float | None = None) -> dict:
    """The facts, which must be JSON in the strict sense."""
    found = status(read_run(workdir), time.time() if now is None else now)
    return json.loads(json.dumps(found, allow_nan=False))


def printed(workdir) -> str:
    out = io.StringIO()
    run_status(str(workdir), StatusConfig(), Console(file=out, width=200, highlight=False))
    return out.getvalue()


def lengthen(workdir, steps: int) -> None:
    file = workdir / "config.json"
    settings = json.loads(file.read_text())
    settings["phases"][0]["steps"] = steps
    file.write_text(json.dumps(settings))


def add(file: pathlib.Path, *rows: dict) -> None:
    with file.open("a") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def test_a_finished_run(finished):
    config, result = finished
    found = facts(config.workdir)
    assert (found["kind"], found["step"], found["total_steps"], found["finished"]) == ("pre-training", 12, 12, True)
    assert found["process"] is None and found["alarms"] == []
    assert found["checkpoint"]["step"] == 12 and found["starts"] == 1 and found["last_start"]["hosts"] == 1
    assert found["held_out"] == {"step": 12, **result.evaluation}
    assert found["rates"]["tokens_per_second"] > 0
    seconds = found["goodput"]["seconds"]
    assert found["goodput"]["share"] == pytest.approx(seconds["steps"] / sum(seconds.values()))
    shown = printed(config.workdir)
    assert "12 of 12 (100.0%)" in shown and "none; the run is finished" in shown and "lost to restarts" in shown
    assert "time left" not in shown


def test_a_live_process_is_seen_and_a_dead_one_is_an_alarm(workdir):
    lengthen(workdir, 100)
    assert live_owner(epath.Path(workdir)) is None
    (alarm,) = facts(workdir)["alarms"]
    assert "no process writes here and the run is at step 12 of 100" in alarm
    owner = Owner(epath.Path(workdir))
    try:
        last = read_run(workdir).last_sign()  # another test may have made the run long ago
        found = facts(workdir, last + 1)
        assert found["process"]["pid"] == os.getpid() and found["alarms"] == []
        (silent,) = facts(workdir, last + 3600)["alarms"]
        assert silent.startswith("nothing was written for 1 h 00 min")
        assert f"{os.getpid()} on " in printed(workdir)
    finally:
        owner.release()
    Owner(epath.Path(workdir)).release()  # looking has left no lock


@pytest.mark.parametrize(
    "last, words",
    [
        ({"event": "stopped", "signal": "SIGTERM"}, "it ended by SIGTERM"),
        ({"event": "failed", "error": "disk full"}, "it ended with an error: disk full"),
        ({"event": "hung", "seconds": 312.5, "place": "loop.py:42"}, "made no progress for 5 min 12 s, at loop.py:42"),
        ({"event": "hung"}, "it ended because it made no progress for ?, at ?"),
        ({"event": "saved"}, "it ended without a word"),
        ({"event": "unknown"}, "it ended without a word"),
    ],
)
def test_how_a_run_ended(workdir, last, words):
    lengthen(workdir, 100)
    add(workdir / "events.jsonl", {"time": time.time(), "step": 12, **last})
    assert words in facts(workdir)["alarms"][0]


def test_events_and_figures_that_deserve_a_look(workdir):
    row = {"kind": "train", "step": 12, "loss": "nan", "grad_norm": "inf", "learning_rate": 0.1, "skipped": 1.0}
    add(workdir / "metrics.jsonl", row)
    event = {"time": time.time(), "step": 11}
    add(workdir / "events.jsonl", *({**event, "event": "skipped"} for _ in range(3)))
    add(workdir / "events.jsonl", {**event, "event": "slow_host", "host": 7})
    add(workdir / "events.jsonl", {**event, "event": "rollback", "step": 11 - 1000})  # long ago
    alarms = facts(workdir)["alarms"]
    assert alarms[0] == "loss is nan at step 12"
    assert alarms[1].startswith("3 updates were skipped") and "host 7" in alarms[2] and len(alarms) == 3


def test_a_checkpoint_that_is_overdue(workdir):
    for step in (8, 12):
        (workdir / "checkpoints" / f"step_{step:09d}" / "record" / "metadata").write_text("torn")
    found = facts(workdir)
    assert "checkpoint" not in found  # neither is good
    assert found["alarms"] == ["there is no good checkpoint, though one is due every 4 steps"]


def test_a_local_save_is_told_where_it_is_newer_than_the_checkpoint(workdir):
    assert "local_save" not in facts(workdir)
    row = {"time": time.time() - 60, "event": "saved_locally", "seconds": 0.5}
    add(workdir / "events.jsonl", {**row, "step": 12})  # as new as the checkpoint
    assert "local_save" not in facts(workdir)
    add(workdir / "events.jsonl", {**row, "step": 13})
    found = facts(workdir)["local_save"]
    assert found["step"] == 13 and 60 <= found["seconds_old"] < 600
    assert "local save" in printed(workdir) and "step 13, " in printed(workdir)
    add(workdir / "events.jsonl", {**row, "event": "rollback", "step": 13})  # which deletes it
    assert "local_save" not in facts(workdir)


def test_a_disk_that_is_nearly_full(workdir, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 10**12, 5 * 10**8))
    (alarm,) = facts(workdir)["alarms"]
    assert "the disk has 0.5 GB left" in alarm


def test_torn_lines_and_damaged_files_leave_the_rest(workdir):
    with (workdir / "metrics.jsonl").open("a") as stream:
        stream.write('{"kind": "time", "step": 3}\n{"kind": "train", "step": 13, "lo')
    (workdir / "run.json").write_text('{"starts": ')
    found = facts(workdir)
    assert found["step"] == 12 and "run.json is not JSON" in found["alarms"][-1]
    (workdir / "run.json").write_text('{"starts": [7, {"hosts": {}}]}')
    (workdir / "config.json").write_text('{"phases": "many", "new": 1}')
    assert facts(workdir)["starts"] == 1 and "12" in printed(workdir)


def test_a_config_json_that_lacks_an_option_is_told(workdir):
    settings = json.loads((workdir / "config.json").read_text())
    del settings["data"]["packing"]
    (workdir / "config.json").write_text(json.dumps(settings))
    found = facts(workdir)
    (alarm,) = found["alarms"]
    says = "config.json is damaged, or another version of bert_jax wrote it: missing: data.packing"
    assert alarm == f"{workdir}/{says}" and found["step"] == 12 and "total_steps" not in found


def test_a_saved_model_of_a_run_may_say_how_it_embeds(workdir):
    settings = json.loads((workdir / "config.json").read_text())
    (workdir / "config.json").write_text(json.dumps({**settings, "embedding": to_dict(EmbeddingConfig())}))
    assert facts(workdir)["total_steps"] == 12 and facts(workdir)["alarms"] == []
    assert read_config(workdir) == read_run(workdir).config


@pytest.mark.parametrize("name", ["finetuned", "finetuning"])
def test_directories_of_fine_tuning(finetunings, name):
    found, shown = facts(finetunings / name), printed(finetunings / name)
    assert found["goodput"]["seconds"]["steps"] == (18 if name == "finetuned" else 9) and name in shown
    unfinished = [
        "no process writes here and it is not finished; it ended without a word, as kill -9 or a lost machine end it"
    ]
    assert found["alarms"] == (unfinished if name == "finetuning" else [])
    assert found["kind"] == "fine-tuning" and found["finished"] == (name == "finetuned")
    assert [run["finished"] for run in found["runs"].values()] == [name == "finetuned"]


def test_the_pace_of_a_fine_tuning_is_that_of_the_run_under_way(finetunings, monkeypatch):
    monkeypatch.setattr(RunHistory, "owner", lambda _: {"host": "here", "pid": 1, "since": "today"})
    for name in ("finetuned", "finetuning"):
        row = {"step": 3, "kind": "train", "loss": 0.5, "tokens_per_second": 800.0, "mfu": 0.25, "seconds_left": 1e6}
        for directory in (finetunings / name / "runs").iterdir():
            with (directory / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
        found, shown = facts(finetunings / name), printed(finetunings / name)
        if name == "finetuned":
            assert "rates" not in found and "time left" not in shown
        else:
            assert found["rates"] == {"tokens_per_second": 800.0, "mfu": 0.25} and "in this run" in shown


def test_the_facts_as_a_file_and_directories_that_are_none(finished, tmp_path, capsys):
    file = tmp_path / "status.json"
    assert cli._run(["bert-jax", "status", finished[0].workdir, f"--output={file}"]) == 0
    assert json.loads(file.read_text())["step"] == 12
    capsys.readouterr()
    for path, words in (
        (tmp_path, "neither run.json nor metrics.jsonl"),
        (tmp_path / "no", "there is no such"),
        (file, "it is a file"),
    ):
        with pytest.raises(UserError, match=words):
            read_run(path)
        assert cli._run(["bert-jax", "status", str(path)]) == 2
    assert cli._run(["bert-jax", "status", finished[0].workdir, "--output=/nowhere/x.json"]) == 2
    assert capsys.readouterr().err.count("error: ") == 4

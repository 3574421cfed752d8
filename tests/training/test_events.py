"""The history of a run: rows that no resume, crash, lost directory or lack of appending takes away."""

import json
import math
import shutil
import time

import jax
import pytest
from one_device import pretrain
from small_pretraining import rows, run_config

from bert_jax.config import PhaseConfig
from bert_jax.devices.signals import Stopped, StopSignals
from bert_jax.training import events as module
from bert_jax.training.events import Events, read_events


@pytest.fixture
def signals():
    return StopSignals()  # not entered: nothing is signalled


def names(directory) -> list[tuple[str, int]]:
    return [(row["event"], row["step"]) for row in read_events(directory / "events.jsonl")]


def test_rows_of_all_starts_stay_and_read_back(tmp_path, signals):
    begun = time.time()
    with Events(tmp_path, signals) as events:
        events.start(0, jax.devices()[:2], resumed=False)
        events.write("skipped", 3, loss=math.nan, grad_norm=math.inf, norms={"params/a": 0.5, "params/b": math.nan})
        for line in (tmp_path / "events.jsonl").read_text().splitlines():  # at once, and strict JSON
            json.loads(line, parse_constant=pytest.fail)
    with Events(tmp_path, signals) as events:
        events.start(2, jax.devices(), resumed=True, run="seed0")
    found = read_events(tmp_path / "events.jsonl")
    assert [(row["event"], row["step"]) for row in found] == [
        *(("start", 0), ("skipped", 3), ("finished", 0)),
        *(("start", 2), ("finished", 2)),
    ]
    assert all(begun <= row["time"] <= time.time() for row in found)
    assert math.isnan(float(found[1]["loss"])) and float(found[1]["norms"]["params/b"]) != 0.5
    first, second = found[0], found[3]
    assert (first["devices"], first["hosts"], first["resumed"]) == (2, 1, False) and "run" not in first
    assert (second["devices"], second["run"], second["resumed"]) == (8, "seed0", True)
    assert first["versions"]["jax"] == jax.__version__


def test_the_last_row_says_how_the_start_ended(tmp_path, signals, monkeypatch):
    with pytest.raises(ValueError), Events(tmp_path, signals) as events:
        events.step = 7
        raise ValueError("no room\nanywhere")
    monkeypatch.setattr(StopSignals, "exit_code", 143)
    with pytest.raises(Stopped), Events(tmp_path, signals) as events:
        raise Stopped
    failed, stopped = read_events(tmp_path / "events.jsonl")
    assert (failed["event"], failed["step"], failed["error"]) == ("failed", 7, "no room")
    assert (stopped["event"], stopped["signal"], stopped["exit_code"]) == ("stopped", "SIGTERM", 143)


@pytest.mark.parametrize(
    "line",
    [
        '{"time": 1.0, "event": "saved", "st',
        "7",
        "[" * 100_000,
        '{"event": "saved", "step": 3}',
        '{"time": true, "event": "saved", "step": 3}',
        '{"time": 1.0, "event": 5, "step": 3}',
        '{"time": 1.0, "event": "saved", "step": 3.0}',
        '{"time": NaN, "event": "saved", "step": 3}',
    ],
    ids=lambda line: line[:40],
)
def test_torn_and_foreign_lines_are_passed_over(tmp_path, signals, line):
    file, good = tmp_path / "events.jsonl", '{"time": 1.0, "event": "saved", "step": 3}\n'
    file.write_text(good + line + "\n" + good + line)
    expected = [json.loads(good)] * 2
    assert read_events(file) == expected
    Events(tmp_path, signals).close()
    assert file.read_text() == good + line + "\n" + good  # the torn end is gone, and nothing else


def test_a_lost_directory_gets_the_whole_history_again(tmp_path, signals):
    directory = tmp_path / "run"
    directory.mkdir()
    with Events(directory, signals) as events:
        events.write("saved", 4)
        shutil.rmtree(directory)
        events.write("saved", 8)
        events.reload()
        events.write("saved", 12)
    assert names(directory) == [("saved", 4), ("saved", 8), ("saved", 12), ("finished", 0)]


class Bucket:
    """An object of a remote store, which can be replaced as a whole; `uploads` counts how often it was."""

    contents, uploads, broken = b'{"time": 1.0, "event": "start", "step": 0}\n{"torn', 0, False

    def __init__(self, path: str):
        self.path = path

    def __truediv__(self, name: str) -> "Bucket":
        return Bucket(f"{self.path}/{name}")

    def exists(self) -> bool:
        return True

    def read_bytes(self) -> bytes:
        return Bucket.contents

    def write_bytes(self, contents: bytes) -> None:
        if Bucket.broken:
            raise OSError("503 Service Unavailable")
        Bucket.contents, Bucket.uploads = contents, Bucket.uploads + 1


def test_a_bucket_gets_the_first_row_at_once_and_all_in_the_end(monkeypatch, signals):
    monkeypatch.setattr(module.epath, "Path", Bucket)
    monkeypatch.setattr(Bucket, "contents", Bucket.contents)
    monkeypatch.setattr(module, "UPLOAD_SECONDS", 1000)
    uploads = Bucket.uploads
    with Events("gs://bucket/run", signals) as events:
        for step in range(1, 6):
            events.write("saved", step)
        assert Bucket.uploads == uploads + 1 and b'"step": 1}' in Bucket.contents
    assert [row["step"] for row in map(json.loads, Bucket.contents.splitlines())] == [0, 1, 2, 3, 4, 5, 0]
    monkeypatch.setattr(Bucket, "broken", True)
    with Events("gs://bucket/run", signals) as events:
        events.write("saved", 6)  # a run does not end for its diary


def test_only_the_first_host_writes(tmp_path, monkeypatch, signals):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with Events(tmp_path, signals) as events:
        events.write("saved", 4)
        events.reload()
    assert list(tmp_path.iterdir()) == []


def test_a_run_notes_what_it_does(small_store, tmp_path):
    """A start to step 6, and one that resumes from there."""
    phase = PhaseConfig(steps=6, sequence_length=32, batch_size=16)
    config = run_config(small_store, tmp_path / "run", phases=(phase,))
    pretrain(config)
    first = names(tmp_path / "run")
    assert first[:3] == [("start", 0), ("baseline", 0), ("compiled", 0)]
    assert first[-2:] == [("saved", 6), ("finished", 6)]
    assert sorted(first[3:-2]) == [("evaluated", 6), ("saved", 4)]  # a save ends in the background
    evaluated = next(row for row in read_events(tmp_path / "run/events.jsonl") if row["event"] == "evaluated")
    assert evaluated["mlm_loss"] == rows(config.workdir, "evaluation")[0]["mlm_loss"] and evaluated["seconds"] > 0
    pretrain(config)
    assert names(tmp_path / "run") == [*first, ("start", 6), ("finished", 6)]

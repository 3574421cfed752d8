"""What a run logs: metrics, events, trackers."""

import contextlib
import dataclasses
import errno
import importlib.util
import io
import json
import math
import os
import shutil
import struct
import sys
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clock import Clock
from etils import epath
from failing_disk import failing
from processes import wait_until
from rich.console import Console
from small_pretraining import finetune, pretrain, rows, run_config
from workdirs import held_by_another

from bert_jax.config.checks import check_trackers
from bert_jax.config.pretraining import SinksConfig
from bert_jax.devices.signals import Stopped, StopSignals
from bert_jax.errors import UserError
from bert_jax.finetuning.run import TaskSteps
from bert_jax.objectives.masked_words import MASKED_WORDS, NEXT_SENTENCE
from bert_jax.training import events as module
from bert_jax.training.events import Events, HostTimes, read_events
from bert_jax.training.metrics import (
    ConsoleLines,
    JsonLines,
    Metrics,
    Rates,
    draw_curves,
    duration,
    read_rows,
    smoothed,
)
from bert_jax.training.reporter import Reporter, Work, busy, say
from bert_jax.training.trackers import WAITING, Destination, trackers

TERMS = (MASKED_WORDS, NEXT_SENTENCE)


def test_rates():
    clock = Clock()
    rates = Rates(peak_flops=1e12, clock=clock)
    assert rates.report() == {}
    for _ in range(4):
        clock.now += 0.5
        rates.count(sequences=8, tokens=8 * 128, flops=2e11)
    with rates.paused("evaluation"):
        clock.now += 40
        with rates.paused("compile"):  # of the evaluation; it counts once
            clock.now += 60
    speeds = {"steps_per_second": 2, "sequences_per_second": 16, "tokens_per_second": 2048}
    assert rates.report(places_left=20_480) == pytest.approx(speeds | {"mfu": 0.4, "seconds_left": 10})
    clock.now += 1
    rates.count(sequences=8, tokens=1024)
    assert rates.report()["tokens_per_second"] == pytest.approx(1024)  # of the new stretch alone
    assert "mfu" not in Rates(clock=clock).report()


def test_rates_count_useful_tokens_and_the_time_left_by_places():
    clock = Clock()
    rates = Rates(clock=clock)
    clock.now += 2
    rates.count(sequences=8, tokens=768, places=1024)
    found = rates.report(places_left=5120)
    assert (found["tokens_per_second"], found["token_share"], found["seconds_left"]) == (384, 0.75, 10)


def test_steps_of_fine_tuning_count_the_tokens_and_operations_of_their_texts(tmp_path):
    clock = Clock()
    rates = Rates(peak_flops=1e6, clock=clock)
    with Metrics(tmp_path, total_steps=4) as metrics, Events(tmp_path, StopSignals()) as events:
        steps = TaskSteps(total=4, tail=1, flops_of=lambda lengths: 1000.0 * lengths.sum())
        reporter = Reporter(metrics, rates, HostTimes(events), steps, every=2, total=4, every_step=False)
        for step, lengths in enumerate(([3, 5], [8, 4]), 1):
            clock.now += 1
            values = {"loss": jnp.float32(step), "learning_rate": jnp.float32(1e-3), "skipped": jnp.float32(0)}
            work = steps.work(sequences=2, places=2 * 8 * step, lengths=np.array(lengths))
            reporter.dispatched(step, values, work)
    (row,) = [row for row in read_rows(tmp_path / "metrics.jsonl") if row["kind"] == "train"]
    assert (row["step"], row["loss"], row["tokens_per_second"], row["token_share"]) == (2, 1.5, 10, 20 / 48)
    assert row["mfu"] == pytest.approx(0.01) and row["seconds_left"] == pytest.approx(2)


def test_rates_begin_with_the_first_step():
    clock = Clock()
    rates = Rates(clock=clock)
    for seconds in (50, 100):  # the parameters are placed, the program is compiled
        clock.now += seconds
        with rates.paused("evaluation"):
            clock.now += seconds
    clock.now += 0.5
    rates.count(sequences=8, tokens=1024)
    assert rates.report()["tokens_per_second"] == pytest.approx(2048)


def float32_from_bits(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def test_rows_read_back_exactly(tmp_path):
    finite = np.random.default_rng(0).integers(0, 0x7F800000, 200)
    values = {f"v{i}": float32_from_bits(int(bits)) for i, bits in enumerate(finite)}
    values |= {"tenth": 0.1, "nan": math.nan, "up": math.inf, "down": -math.inf}
    with Metrics(tmp_path, total_steps=10) as metrics:
        metrics.write(1, values)
        metrics.write(1, {"mlm_loss": 2.5}, kind="evaluation")
        metrics.settle()
        for line in (tmp_path / "metrics.jsonl").read_text().splitlines():  # flushed, and strict JSON
            json.loads(line, parse_constant=pytest.fail)
    train, evaluation = read_rows(tmp_path / "metrics.jsonl")
    assert (train.pop("kind"), train.pop("step")) == ("train", 1)
    assert {name: struct.pack("<d", value) for name, value in train.items()} == {
        name: struct.pack("<d", value) for name, value in values.items()
    }
    assert evaluation == {"kind": "evaluation", "step": 1, "mlm_loss": 2.5}


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"a": ' * 100_000,
        "7",
        '{"kind": 3, "step": 2, "loss": 1.0}',
        '{"kind": "train", "loss": 1.0}',
        *(
            f'{{"kind": "train", "step": 2, "loss": {loss}}}'
            for loss in ("[[1]]", "{}", "null", "1" + "0" * 400, "1" + "0" * 5_000)
        ),
        *(f'{{"kind": "train", "step": {step}, "loss": 1.0}}' for step in ('"2"', "[2]", "2.0", "true", "null")),
    ],
    ids=lambda line: line[:60],
)
def test_a_line_that_no_run_writes_is_passed_over(tmp_path, line):
    """By whoever draws the curves and by the run that resumes, which both read on after it."""
    file = epath.Path(tmp_path / "metrics.jsonl")
    rows = [{"kind": "train", "step": step, "mlm_loss": 1.0 / step} for step in (1, 3, 4)]
    first, second, third = map(json.dumps, rows)
    file.write_text("\n".join([first, line, second, third]) + "\n")
    assert read_rows(file) == rows and draw_curves(file, tmp_path / "curves.png", TERMS)
    JsonLines(file, 3).close()
    assert file.read_text() == f"{first}\n{second}\n"


def test_resume_drops_later_rows_and_repairs_a_torn_line(tmp_path):
    file = epath.Path(tmp_path / "metrics.jsonl")
    lines = JsonLines(file, 0)
    for step in (10, 20, 30):
        lines.write(step, "train", {"loss": step / 7})
    lines.write(20, "evaluation", {"mlm_loss": 1.0})
    lines.close()
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"kind": "train", "step": 2')
    assert len(read_rows(file)) == 4
    lines = JsonLines(file, 20)
    lines.write(30, "train", {"loss": 0.5})
    lines.close()
    kept = [line for line in whole.splitlines() if b'"step": 30' not in line]
    assert file.read_bytes().splitlines() == [*kept, b'{"kind": "train", "step": 30, "loss": 0.5}']
    JsonLines(file, 0).close()
    assert file.read_bytes() == b""


class Bucket:
    """One object of a remote store: it can be read and replaced, not appended to."""

    contents = b'{"kind": "train", "step": 5, "loss": 1.0}\n'

    def __fspath__(self) -> str:
        return "gs://bucket/metrics.jsonl"

    def exists(self) -> bool:
        return True

    def stat(self):
        return types.SimpleNamespace(length=len(self.contents))

    def read_bytes(self) -> bytes:
        return self.contents

    def write_bytes(self, contents: bytes) -> None:
        self.contents = contents


def test_remote_rows_follow_those_of_the_earlier_start(monkeypatch):
    bucket = Bucket()
    monkeypatch.setattr(epath, "Path", lambda file: file)
    lines = JsonLines(bucket, 5)
    lines.write(6, "train", {"loss": 0.25})
    lines.close()
    assert bucket.contents == Bucket.contents + b'{"kind": "train", "step": 6, "loss": 0.25}\n'


def test_only_the_first_host_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with Metrics(tmp_path, total_steps=10) as metrics:
        metrics.advance(1)
        metrics.write(1, {"loss": 1.0})
    assert list(tmp_path.iterdir()) == [] and capsys.readouterr().out == ""


def test_tensorboard_holds_the_scalars(tmp_path):
    with Metrics(tmp_path, total_steps=10) as metrics:
        metrics.write(3, {"mlm_loss": 2.5})
        metrics.write(3, {"mlm_loss": 2.75}, kind="evaluation")
    from tensorboardX.proto.event_pb2 import Event

    (file,) = (tmp_path / "tensorboard").iterdir()
    data, found = file.read_bytes(), {}
    while data:  # TFRecord framing: length, its checksum, the message, its checksum
        (length,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + length])
        found |= {value.tag: (event.step, value.simple_value) for value in event.summary.value}
        data = data[16 + length :]
    assert found == {"train/mlm_loss": (3, 2.5), "evaluation/mlm_loss": (3, 2.75)}


def test_tensorboard_is_spared_what_it_cannot_draw(tmp_path, caplog):
    with Metrics(tmp_path, total_steps=10) as metrics:
        metrics.write(3, {"loss": math.nan, "grad_norm": math.inf, "learning_rate": 0.5})
    assert not caplog.records  # tensorboardX warns of each such value
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert b"train/learning_rate" in file.read_bytes() and b"train/loss" not in file.read_bytes()
    assert math.isnan(read_rows(tmp_path / "metrics.jsonl")[0]["loss"])


ROW = {
    **{"loss": 7.25, "mlm_loss": 6.5, "mlm_accuracy": 0.125, "next_sentence_loss": 0.75, "next_sentence_accuracy": 0.5},
    **{"learning_rate": 1e-4, "grad_norm": 1.5, "tokens_per_second": 12345.6, "mfu": 0.41, "seconds_left": 3900.0},
}


def test_console_lines():
    plain = io.StringIO()
    console = ConsoleLines(1000, 0, Console(file=plain, width=40), TERMS)
    console.advance(19)
    console.write(20, "train", ROW)
    console.write(20, "evaluation", {"mlm_loss": 6.25, "mlm_accuracy": 0.25, "perplexity": 518.01})
    console.close()
    assert plain.getvalue() == (
        "step 20/1,000 · loss 7.2500 · MLM 6.5000 (12.5%) · NSP 0.7500 (50.0%) · lr 1.00e-04 · grad 1.50 · "
        "12,346 tokens/s · MFU 41.0% · ETA 1 h 05 min\n"
        "evaluation at step 20 · perplexity 518.01 · MLM 6.2500 (25.0%)\n"
    )

    terminal = io.StringIO()
    console = ConsoleLines(1000, 0, Console(file=terminal, force_terminal=True, width=80, color_system=None), TERMS)
    console.write(20, "train", ROW)
    console.write(20, "evaluation", {"mlm_loss": 6.25, "mlm_accuracy": 0.25})
    console.close()
    shown = terminal.getvalue()
    assert "step 20/1,000" in shown and "MLM 6.5000 (12.5%) · 12,346 tokens/s · ETA 1 h 05 min" in shown
    assert "evaluation at step 20 · MLM 6.2500 (25.0%)\n" in shown


def test_a_bar_that_stands_still_says_for_how_long(monkeypatch):
    monkeypatch.setattr("bert_jax.training.metrics.STILL_SECONDS", -1)
    terminal = io.StringIO()
    console = ConsoleLines(1000, 0, Console(file=terminal, force_terminal=True, width=80, color_system=None), TERMS)
    console.write(20, "train", ROW)
    console.close()
    assert "compiling · for 0 s" in terminal.getvalue()


@pytest.mark.parametrize("every_step", [True, False])
def test_the_first_step_of_a_start_is_shown_and_not_written(tmp_path, capsys, every_step):
    clock = Clock()
    with Metrics(tmp_path, total_steps=20, start_step=10) as metrics, Events(tmp_path, StopSignals()) as events:
        steps = types.SimpleNamespace(observe=lambda step, values: None, left=lambda step: 0.0)
        times = HostTimes(events)
        reporter = Reporter(metrics, Rates(clock=clock), times, steps, every=4, total=20, every_step=every_step)
        for step in range(11, 21):
            values = {"loss": jnp.float32(step), "learning_rate": jnp.float32(1e-3), "skipped": jnp.float32(0)}
            clock.now += 1
            reporter.dispatched(step, values, Work(sequences=1, tokens=1.0, flops=0.0, places=1))
        reporter.finish()
    assert [row["step"] for row in rows(tmp_path)] == [12, 16, 20]
    shown = capsys.readouterr().out.splitlines()
    assert [line.partition(" · ")[0] for line in shown] == [f"step {step}/20" for step in (11, 12, 16, 20)]
    assert "loss 11.0000" in shown[0]


def test_what_takes_time_is_said_at_once_and_counted_on_a_terminal(monkeypatch, capsys):
    with busy("opening a store"):
        assert capsys.readouterr().out == "opening a store\n"
    terminal = io.StringIO()
    monkeypatch.setattr("bert_jax.training.reporter.screen", lambda **_: Console(file=terminal, force_terminal=True))
    with busy("opening a store"):
        assert terminal.getvalue().startswith("opening a store\n")
    assert "0:00:00" in terminal.getvalue()


@pytest.mark.parametrize(
    "seconds, text",
    [
        (12.4, "12 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3900, "1 h 05 min"),
        (183_600, "2 d 03 h"),
        (math.inf, "unknown"),
    ],
)
def test_durations_are_written_in_their_largest_units(seconds, text):
    assert duration(seconds) == text


def test_smoothing_keeps_straight_lines_and_passes_over_nan():
    line = np.arange(100.0)
    np.testing.assert_allclose(smoothed(line, 7)[7:-7], line[7:-7])  # no lag
    line[50] = np.nan
    values = smoothed(np.where(np.isnan(line), np.nan, 3.0), 7)
    np.testing.assert_allclose(values, 3.0)
    assert np.isnan(smoothed(np.full(5, np.nan), 2)).all()


def test_picture(tmp_path):
    file, picture = tmp_path / "metrics.jsonl", tmp_path / "curves.png"
    assert not draw_curves(file, picture, TERMS) and not picture.exists()
    lines = JsonLines(epath.Path(file), 0)
    for step in range(1, 60):
        lines.write(step, "train", {"mlm_loss": 7 / step, "mlm_accuracy": 0.01 * step, "learning_rate": 1e-4 / step})
    lines.write(30, "evaluation", {"mlm_loss": 0.5, "mlm_accuracy": 0.2})
    lines.close()
    unigram = {"mlm_loss": 6.0, "perplexity": 403.4, "mlm_accuracy": 0.05}
    assert draw_curves(file, picture, TERMS, unigram=unigram, title="a run")
    import matplotlib.image

    pixels = matplotlib.image.imread(picture)
    assert pixels.shape == (704, 1100, 4)
    blue, red = np.array([0x3B, 0x6F, 0xB6]) / 255, np.array([0xD1, 0x49, 0x5B]) / 255
    upper, lower = pixels[:352], pixels[352:]
    quarters = {"loss": upper[:, :550], "accuracy": upper[:, 550:], "pairs": lower[:, :550], "rate": lower[:, 550:]}
    drawn = {
        name: tuple(int((np.abs(part[..., :3] - colour) < 0.02).all(-1).sum() > 30) for colour in (blue, red))
        for name, part in quarters.items()
    }
    assert drawn == {"loss": (1, 1), "accuracy": (1, 1), "pairs": (0, 0), "rate": (1, 0)}  # pairs were not measured


def test_pictures_that_come_too_fast_are_drawn_once_with_the_rows_of_all(tmp_path, monkeypatch, caplog):
    begun, slow, drawn = threading.Event(), threading.Event(), []

    def draw(file, *_):
        begun.set()
        assert slow.wait(60)
        drawn.append(len(read_rows(file)))

    monkeypatch.setattr("bert_jax.training.metrics.draw_curves", draw)
    with Metrics(tmp_path, total_steps=9, start_step=0) as metrics:
        metrics.draw(TERMS)
        assert begun.wait(60)
        for step in range(1, 8):
            metrics.write(step, {"mlm_loss": 1.0})
            metrics.draw(TERMS)
        written = lambda: len(read_rows(tmp_path / "metrics.jsonl")) == 7
        threading.Thread(target=lambda: (wait_until(written), slow.set())).start()  # while the end is waited for
    assert drawn[1:] == [7] and not caplog.records


@pytest.fixture
def signals():
    return StopSignals()  # not entered: nothing is signalled


def names(directory) -> list[tuple[str, int]]:
    return [(row["event"], row["step"]) for row in read_events(f"{directory}/events.jsonl")]


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
    expected = [*(("start", 0), ("skipped", 3), ("finished", 0)), *(("start", 2), ("finished", 2))]
    assert [(row["event"], row["step"]) for row in found] == expected
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


class EventsBucket:
    """An object of a remote store, which can be replaced as a whole; `uploads` counts how often it was."""

    contents, uploads, broken = b'{"time": 1.0, "event": "start", "step": 0}\n{"torn', 0, False

    def __init__(self, path: str):
        self.path = path

    def __truediv__(self, name: str) -> "Bucket":
        return EventsBucket(f"{self.path}/{name}")

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def exists(self) -> bool:
        return True

    def stat(self):
        return types.SimpleNamespace(length=len(EventsBucket.contents))

    def read_bytes(self) -> bytes:
        return EventsBucket.contents

    def write_bytes(self, contents: bytes) -> None:
        if EventsBucket.broken:
            raise OSError("503 Service Unavailable")
        EventsBucket.contents, EventsBucket.uploads = contents, EventsBucket.uploads + 1


def test_a_bucket_gets_the_first_row_at_once_and_all_in_the_end(monkeypatch, signals):
    monkeypatch.setattr(module.epath, "Path", EventsBucket)
    monkeypatch.setattr(EventsBucket, "contents", EventsBucket.contents)
    monkeypatch.setattr(module, "UPLOAD_SECONDS", 1000)
    uploads = EventsBucket.uploads
    with Events("gs://bucket/run", signals) as events:
        for step in range(1, 6):
            events.write("saved", step)
        wait_until(lambda: EventsBucket.uploads > uploads)
        assert EventsBucket.uploads == uploads + 1 and b'"step": 1}' in EventsBucket.contents
    assert [row["step"] for row in map(json.loads, EventsBucket.contents.splitlines())] == [0, 1, 2, 3, 4, 5, 0]
    monkeypatch.setattr(EventsBucket, "broken", True)
    with Events("gs://bucket/run", signals) as events:
        events.write("saved", 6)  # a run does not end for its diary


def test_only_the_first_host_writes_events(tmp_path, monkeypatch, signals):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with Events(tmp_path, signals) as events:
        events.write("saved", 4)
        events.reload()
    assert list(tmp_path.iterdir()) == []


def test_a_run_notes_what_it_does(finished):
    config, _ = finished
    noted = names(config.workdir)
    assert noted[:3] == [("start", 0), ("baseline", 0), ("compiled", 0)]
    assert noted[-2:] == [("saved", 12), ("finished", 12)]
    between = [("evaluated", 6), ("evaluated", 12), ("saved", 4), ("saved", 6), ("saved", 8)]
    assert sorted(noted[3:-2]) == between  # a save ends in the background
    evaluated = next(row for row in read_events(f"{config.workdir}/events.jsonl") if row["event"] == "evaluated")
    assert evaluated["mlm_loss"] == rows(config.workdir, "evaluation")[0]["mlm_loss"] and evaluated["seconds"] > 0


def test_a_start_that_trains_nothing_changes_nothing(finished, tmp_path, capsys):
    """Neither files nor their times, even where it would have ended sooner; what would be refused still is."""
    config, result = finished
    workdir = tmp_path / "run"
    shutil.copytree(config.workdir, workdir)
    before = {path: (path.stat().st_mtime_ns, contents) for path, contents in contents_of(workdir).items()}
    shorter = dataclasses.replace(config.phases[0], steps=4)
    for phases in (config.phases, (shorter,)):
        again = pretrain(dataclasses.replace(config, workdir=str(workdir), phases=phases))
        assert (again.step, again.exit_code) == (12, 0) and "has reached its last step, 12" in capsys.readouterr().out
    assert before == {path: (path.stat().st_mtime_ns, contents) for path, contents in contents_of(workdir).items()}
    other = dataclasses.replace(config, workdir=str(workdir), seed=config.seed + 1)
    with pytest.raises(UserError, match="different settings"):
        pretrain(other)
    with held_by_another(workdir, 4711), pytest.raises(UserError, match="is being written by process 4711"):
        pretrain(dataclasses.replace(config, workdir=str(workdir)))


def contents_of(directory) -> dict:
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


BOTH = SinksConfig(wandb="project", mlflow="experiment")
CONFIG = {"seed": 3, "model": {"num_layers": 2}, "phases": [{"steps": 5}]}
FIND_SPEC = importlib.util.find_spec


def finds_services(name: str, package: str | None = None):
    """Find both packages, and everything else as usual: libraries look for others as they are first used."""
    return types.SimpleNamespace(name=name) if name in ("wandb", "mlflow") else FIND_SPEC(name, package)


class Recorder:
    """Stands for a module or an object of a service: notes every call by its name, and returns what it is told to."""

    def __init__(self, calls: list, answers: dict | None = None, name: str = ""):
        self.calls, self.answers, self.name = calls, answers or {}, name

    def __getattr__(self, name: str):
        def call(*arguments, **options):
            self.calls.append((name, arguments, options))
            answer = self.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def services(monkeypatch, **answers) -> tuple[list, list]:
    """Put recorders in the place of both packages; return the calls of each."""
    ours, theirs = [], []
    run = Recorder(ours, answers)
    wandb = Recorder(ours, {"init": run, **answers})
    experiment = types.SimpleNamespace(experiment_id="7")
    created = types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))
    usual = {"get_experiment_by_name": experiment, "search_runs": [], "create_run": created}
    client = Recorder(theirs, usual | answers)
    entities = types.ModuleType("mlflow.entities")
    entities.Metric = lambda key, value, timestamp, step: (key, value, step)
    mlflow = types.ModuleType("mlflow")
    mlflow.MlflowClient, mlflow.entities = lambda: client, entities
    for name, stub in (("wandb", wandb), ("mlflow", mlflow), ("mlflow.entities", entities)):
        monkeypatch.setitem(sys.modules, name, stub)
    return ours, theirs


def of(calls: list, name: str) -> list:
    return [(arguments, options) for called, arguments, options in calls if called == name]


def test_rows_reach_both_services(monkeypatch, tmp_path):
    ours, theirs = services(monkeypatch)
    make = lambda: trackers(BOTH, "0f0f", "run", CONFIG)
    with Metrics(tmp_path, total_steps=5, trackers=make) as metrics:
        metrics.write(2, {"loss": 1.5, "grad_norm": math.inf})
        metrics.write(2, {"mlm_loss": 2.5}, kind="evaluation")
    ((_, options),) = of(ours, "init")
    assert {**options, "settings": None} == {
        "project": "project", "id": "0f0f", "name": "run", "config": CONFIG, "resume": "allow", "settings": None
    }  # fmt: skip
    expected = [({"train/loss": 1.5, "step": 2},), ({"evaluation/mlm_loss": 2.5, "step": 2},)]
    assert [arguments for arguments, _ in of(ours, "log")] == expected
    assert of(ours, "define_metric")[1] == (("*",), {"step_metric": "step"}) and len(of(ours, "finish")) == 1
    expected = [{"metrics": [("train/loss", 1.5, 2)]}, {"metrics": [("evaluation/mlm_loss", 2.5, 2)]}]
    assert [options for _, options in of(theirs, "log_batch")] == expected
    assert of(theirs, "create_run") == [(("7",), {"tags": {"run_id": "0f0f"}, "run_name": "run"})]
    assert ("abc", "phases.0.steps", 5) in [arguments for arguments, _ in of(theirs, "log_param")]
    assert of(theirs, "set_terminated") == [(("abc",), {})]


def test_a_resumed_run_of_mlflow_is_continued(monkeypatch):
    earlier = types.SimpleNamespace(info=types.SimpleNamespace(run_id="old"))
    _, theirs = services(monkeypatch, search_runs=[earlier])
    (tracker,) = trackers(SinksConfig(mlflow="experiment"), "0f0f", "run", CONFIG)
    tracker.write(1, "train", {"loss": 1.0})
    tracker.close()
    assert of(theirs, "search_runs")[0][0] == (["7"], "tags.run_id = '0f0f'")
    assert not of(theirs, "create_run") and of(theirs, "log_batch")[0][0] == ("old",)


@pytest.mark.parametrize("fails", ["init", "log", "finish"])
def test_a_service_that_fails_is_one_warning(monkeypatch, tmp_path, caplog, fails):
    ours, _ = services(monkeypatch, **{fails: ConnectionError("no route\nto host")})
    make = lambda: trackers(SinksConfig(wandb="project"), "0f0f", "run", CONFIG)
    with Metrics(tmp_path, total_steps=5, trackers=make) as metrics:
        for step in (1, 2, 3):
            metrics.write(step, {"loss": 1.0})
    (record,) = caplog.records
    said = "Weights & Biases gets no more metrics of this run: ConnectionError: no route to host"
    assert record.getMessage() == said
    assert len(of(ours, "log")) == {"init": 0, "log": 1, "finish": 3}[fails]
    assert (tmp_path / "metrics.jsonl").read_text().count("loss") == 3


def test_a_service_that_never_answers_neither_stops_nor_delays(caplog):
    """It takes one row and never comes back; as many wait as there is room for, and the end of a run does not."""
    answer, written = threading.Event(), []
    stuck = types.SimpleNamespace(write=lambda *row: written.append(row) or answer.wait(), close=lambda: None)
    service = Destination("A service", lambda: stuck)
    for step in range(WAITING + 10):
        service.write(step, "train", {"loss": 1.0})
    service.close(seconds=0.01)
    answer.set()
    said = "A service gets no more metrics of this run: it does not keep up"
    assert [record.getMessage() for record in caplog.records] == [said]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT], ids=os.strerror)
def test_rows_that_a_full_disk_refuses_are_written_when_there_is_room(tmp_path, signals, caplog, code):
    """One warning per file; TensorBoard, whose records would be torn, gets nothing after its first failure."""
    at = np.random.default_rng(code).integers(1, 20, 2)
    full = range(int(min(at)), int(max(at)) + 1)

    with contextlib.ExitStack() as disk, Metrics(tmp_path, total_steps=20) as metrics:
        with Events(tmp_path, signals) as events:
            for step in range(1, 21):
                if step == full.start:
                    disk.enter_context(failing(code, lambda path: path.startswith(str(tmp_path))))
                if step == full.stop:
                    disk.close()
                metrics.write(step, {"loss": 1.0 / step})
                events.write("saved", step)
                metrics.settle()
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [*range(1, 21)]
    assert names(tmp_path)[:-1] == [("saved", step) for step in range(1, 21)]
    warnings = [record.getMessage() for record in caplog.records]
    assert all(os.strerror(code) in said for said in warnings)
    said = sorted(said.partition(" ")[0].rpartition("/")[2] for said in warnings)
    assert said == ["events.jsonl", "metrics.jsonl"]


def test_tensorboard_on_a_full_disk_is_one_warning(tmp_path, caplog, monkeypatch):
    """The thread of tensorboardX's own writer dies of it, and the eleventh value then waits for ever."""
    monkeypatch.setattr("bert_jax.training.metrics.FLUSH_SECONDS", -1)

    def full(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tensorboardX.record_writer.RecordWriter.flush", full)
    with Metrics(tmp_path, total_steps=5) as written:
        for step in range(100):
            written.write(step, {"loss": 1.0})
    (record,) = caplog.records
    said = "TensorBoard gets no more metrics of this run: OSError: [Errno 28] No space left on device"
    assert record.getMessage() == said and len(read_rows(written.file)) == 100


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_a_log_that_is_no_file_does_not_stop_a_run(tmp_path, signals, caplog, kind):
    for name in ("metrics.jsonl", "events.jsonl"):
        file = tmp_path / name
        {"pipe": os.mkfifo, "device": lambda it: it.symlink_to("/dev/zero"), "directory": os.mkdir}[kind](file)
    with Metrics(tmp_path, total_steps=5) as metrics, Events(tmp_path, signals) as events:
        for step in (1, 2):
            metrics.write(step, {"loss": 1.0})
            events.write("saved", step)
    assert all("jsonl" in record.getMessage() for record in caplog.records) and len(caplog.records) in (2, 3)
    with pytest.raises(OSError, match="not a regular file" if kind != "directory" else "directory"):
        read_rows(tmp_path / "metrics.jsonl")


class Broken(io.StringIO):
    """A terminal that has gone, a pipe that nobody reads, a log on a full disk."""

    def __init__(self, code: int):
        super().__init__()
        self._error = OSError(code, os.strerror(code))

    def flush(self) -> None:
        raise self._error


@pytest.mark.parametrize("code", [errno.EIO, errno.EPIPE, errno.ENOSPC], ids=os.strerror)
def test_a_run_goes_on_where_nothing_can_be_shown(tmp_path, monkeypatch, capsys, code):
    """rich would end it with status 1 for a pipe that nobody reads."""
    monkeypatch.setattr(sys, "stdout", Broken(code))
    say("a line")
    with Metrics(tmp_path, total_steps=5, terms=TERMS) as metrics:
        metrics.advance(1)
        metrics.write(1, ROW)
        metrics.write(1, ROW, kind="evaluation")
    assert len(read_rows(tmp_path / "metrics.jsonl")) == 2


@pytest.mark.slow
def test_a_run_sends_its_rows_under_its_own_id(finished, small_store, monkeypatch, tmp_path):
    ours, _ = services(monkeypatch)
    config = run_config(small_store, tmp_path / "run", sinks=SinksConfig(wandb="project"))
    monkeypatch.setattr("importlib.util.find_spec", finds_services)
    pretrain(config)
    ((_, options),) = of(ours, "init")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert options["id"] == run["run_id"] and options["name"] == "run" and options["config"]["seed"] == 0
    sent = [arguments[0] for arguments, _ in of(ours, "log")]
    logged = [(row["step"], row["loss"]) for row in rows(config.workdir)]
    assert [(row["step"], row["train/loss"]) for row in sent if "train/loss" in row] == logged
    assert rows(config.workdir) == rows(finished[0].workdir)  # it learns the same


@pytest.mark.slow
def test_each_run_of_a_fine_tuning_is_one_of_the_service(two_seeds, monkeypatch, tmp_path):
    ours, _ = services(monkeypatch)
    config = dataclasses.replace(two_seeds[0], workdir=str(tmp_path / "work"), sinks=SinksConfig(wandb="project"))
    monkeypatch.setattr("importlib.util.find_spec", finds_services)
    results = finetune(config).results
    names = [record["run"] for record in two_seeds[1]["runs"]]
    run_id = json.loads((tmp_path / "work" / "run.json").read_text())["run_id"]
    begun = [options for _, options in of(ours, "init")]
    assert len(names) == 2 and [options["name"] for options in begun] == [f"work/{name}" for name in names]
    assert [options["id"] for options in begun] == [f"{run_id}-{name}" for name in names]
    assert [options["config"]["seed"] for options in begun] == [config.seed, config.seed + 1]
    sent = [(row["step"], row["train/loss"]) for (row,), _ in of(ours, "log") if "train/loss" in row]
    assert sent == [(row["step"], row["loss"]) for name in names for row in rows(tmp_path / "work/runs" / name)]
    assert len(of(ours, "finish")) == 2
    metrics = [[record["metrics"] for record in each["runs"]] for each in (results, two_seeds[1])]
    assert metrics[0] == metrics[1]  # it learns the same
    finetune(dataclasses.replace(config, sinks=SinksConfig()))  # another service, or none, is no other run
    assert len(of(ours, "init")) == 2


def test_a_package_that_is_missing_is_named_before_anything_starts(monkeypatch, tmp_path, small_store):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"sinks.wandb needs wandb.*pip install 'bert_jax\[wandb\]'"):
        check_trackers(SinksConfig(wandb="project"))
    with pytest.raises(UserError, match=r"sinks.mlflow needs mlflow.*pip install 'bert_jax\[mlflow\]'"):
        check_trackers(SinksConfig(mlflow="experiment"))
    check_trackers(SinksConfig())


def test_only_the_first_host_sends(monkeypatch, tmp_path):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    Metrics(tmp_path, total_steps=5, trackers=lambda: pytest.fail("made on another host")).close()


@pytest.mark.filterwarnings("default")  # of packages that are not ours
def test_the_real_mlflow_continues_a_run(monkeypatch, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="the package is of the extra `mlflow`")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    for step in (1, 2):
        (tracker,) = trackers(SinksConfig(mlflow="experiment"), "0f0f", "run", CONFIG)
        tracker.write(step, "train", {"loss": 1.0 / step, "grad_norm": math.nan})
        tracker.close()
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("experiment").experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == [(1, 1.0), (2, 0.5)]
    assert run.data.params["model.num_layers"] == "2" and run.info.status == "FINISHED"


@pytest.mark.filterwarnings("default")
def test_the_real_weights_and_biases_writes_offline(monkeypatch, tmp_path):
    pytest.importorskip("wandb", reason="the package is of the extra `wandb`")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tracker,) = trackers(SinksConfig(wandb="project"), "0f0f", "run", CONFIG)
    tracker.write(1, "train", {"loss": 1.0})
    tracker.close()
    (written,) = (tmp_path / "wandb").glob("offline-run-*-0f0f/run-0f0f.wandb")
    assert b"train/loss" in written.read_bytes()

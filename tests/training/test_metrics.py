"""Rates from a clock in the test's hand, rows that read back exactly and survive a crash, console, picture."""

import io
import json
import math
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clock import Clock
from etils import epath
from rich.console import Console

from bert_jax.devices.signals import StopSignals
from bert_jax.finetuning.run import TaskSteps
from bert_jax.objectives.masked_words import MASKED_WORDS, NEXT_SENTENCE
from bert_jax.training.events import Events, HostTimes
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
from bert_jax.training.reporter import Reporter

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
    report = rates.report(places_left=20_480)
    assert report == pytest.approx(
        {"steps_per_second": 2, "sequences_per_second": 16, "tokens_per_second": 2048, "mfu": 0.4, "seconds_left": 10}
    )
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

    def read_bytes(self) -> bytes:
        return self.contents

    def write_text(self, text: str) -> None:
        self.contents = text.encode()


def test_remote_rows_follow_those_of_the_earlier_start():
    bucket = Bucket()
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
    "loss": 7.25,
    "mlm_loss": 6.5,
    "mlm_accuracy": 0.125,
    "next_sentence_loss": 0.75,
    "next_sentence_accuracy": 0.5,
    "learning_rate": 1e-4,
    "grad_norm": 1.5,
    "tokens_per_second": 12345.6,
    "mfu": 0.41,
    "seconds_left": 3900.0,
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
    assert draw_curves(
        file, picture, TERMS, unigram={"mlm_loss": 6.0, "perplexity": 403.4, "mlm_accuracy": 0.05}, title="a run"
    )
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

"""Times of a run: useful work, hosts, positions, profiles."""

import dataclasses
import gzip
import json
import pathlib

import jax
import numpy as np
import pytest
from clock import Clock
from small_model import FLOAT32
from small_pretraining import pretrain, run_config
from small_pretraining import rows as rows_of_profiler
from synthetic_store import VOCAB_SIZE, SyntheticStore, make_examples

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import Position, Span, read_record
from bert_jax.config import Config, ModelConfig, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.config.pretraining import ProfileConfig, traced_steps
from bert_jax.devices import hosts
from bert_jax.devices.signals import StopSignals
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.training.events import Events, HostTimes, read_events
from bert_jax.training.metrics import CATEGORIES, Metrics, Rates, WallTime, read_rows
from bert_jax.training.step import COUNTS, counts, flops_of_texts, useful_flops
from bert_jax.training.trackers import Profiler


@pytest.mark.parametrize("packing", ["on", "off"])
def test_operations_are_those_of_each_text_alone(packing):
    generator = np.random.default_rng(7)
    store = SyntheticStore([generator.integers(1, 12, generator.integers(1, 7)).tolist() for _ in range(80)])
    batch = make_examples(store, packing=packing).batch(np.arange(6))
    ids = batch.get("text_ids", batch["attention_mask"])
    lengths = [int((row == text).sum()) for row in ids for text in range(1, row.max() + 1)]
    found = {name: float(value) for name, value in jax.device_get(counts(batch)).items()}
    predictions = int(batch["masked_weights"].sum())
    assert [found[name] for name in COUNTS] == [sum(lengths), sum(n * n for n in lengths), len(lengths), predictions]
    # Scanned layers are computed at every position. Otherwise a prediction takes longer in a longer text.
    scan = dataclasses.replace(FLOAT32, layers="scan")
    model = BertForPreTraining(ModelConfig(vocab_size=VOCAB_SIZE, hidden_size=24, num_layers=2, num_heads=3), scan)
    expected = sum(model.training_flops(n, 0) for n in lengths)
    assert flops_of_texts(model, 64)(np.array(lengths)) == pytest.approx(expected, rel=1e-9)
    expected += predictions * (model.training_flops(0, 1) - model.training_flops(0, 0))
    assert useful_flops(model, 64, found) == pytest.approx(expected, rel=1e-9)


def test_operations_of_a_last_layer_that_is_computed_where_it_is_read():
    """Exact for texts of one length; five predictions in each."""
    model = BertForPreTraining(ModelConfig(vocab_size=VOCAB_SIZE, hidden_size=24, num_layers=2, num_heads=3), FLOAT32)
    found = dict(zip(COUNTS, (3 * 40.0, 3 * 1600.0, 3.0, 3 * 5.0), strict=True))
    assert useful_flops(model, 64, found) == pytest.approx(3 * model.training_flops(40, 5), rel=1e-9)
    # In 34 positions: query and output (24 × 24 each), feed-forward (2 × 24 × 96), scores and values (40 × 24 each).
    whole = dataclasses.replace(model, compute=dataclasses.replace(FLOAT32, layers="scan")).training_flops(40, 5)
    assert whole - model.training_flops(40, 5) == 3 * 2 * 34 * (2 * 24 * 24 + 2 * 24 * 96 + 2 * 40 * 24)


def watch() -> tuple[Clock, WallTime]:
    clock = Clock(1000.0)
    return clock, WallTime(clock, lambda: clock.now + 5e8)


def test_every_second_belongs_to_one_category():
    clock, wall_time = watch()
    clock.now += 7  # setup
    wall_time.switch("steps")
    clock.now += 100
    rates = Rates(clock=clock, wall_time=wall_time)
    with rates.paused("evaluation"):
        clock.now += 20
        with rates.paused("compile"):
            clock.now += 3
    clock.now += 1
    taken = wall_time.take()
    others = {"evaluation": 20, "checkpoint": 0, "compile": 3, "setup": 7}
    assert taken == {"time": 500_001_131, "steps": 101, "input": 0} | others
    clock.now += 2
    assert sum(wall_time.take()[name] for name in CATEGORIES) == 2


@pytest.mark.parametrize("busy, expected", [(False, (10, 4)), (True, (14, 0))])
def test_waiting_for_input_counts_if_the_device_waits_too(busy, expected):
    clock, wall_time = watch()
    wall_time.switch("steps")
    clock.now += 10
    with wall_time.awaiting(lambda: busy):
        clock.now += 4
    taken = wall_time.take()
    assert (taken["steps"], taken["input"]) == expected


def test_rows_of_time_follow_the_rows_of_steps_and_the_end(tmp_path):
    clock, wall_time = watch()
    with Metrics(tmp_path, total_steps=10, wall_time=wall_time) as metrics:
        clock.now += 5
        metrics.write(1, {"loss": 2.0})
        metrics.write(1, {"loss": 3.0}, kind="evaluation")
        clock.now += 3
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [(row["kind"], row["step"]) for row in rows] == [("train", 1), ("time", 1), ("evaluation", 1), ("time", 1)]
    assert [row["setup"] for row in rows if row["kind"] == "time"] == [5, 3]
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"train/loss" in events.read_bytes() and b"time/" not in events.read_bytes()


def test_a_run_accounts_for_all_of_its_time(finished):
    config, _ = finished
    rows = [row for row in read_rows(pathlib.Path(config.workdir) / "metrics.jsonl") if row["kind"] == "time"]
    assert [row["step"] for row in rows] == [*range(1, 13), 12]
    spent = sum(sum(row[name] for name in CATEGORIES) for row in rows[1:])
    assert spent == pytest.approx(rows[-1]["time"] - rows[0]["time"], abs=1e-2)  # two clocks, read one after the other
    total = {name: sum(row[name] for row in rows) for name in CATEGORIES}
    assert all(total[name] > 0 for name in CATEGORIES if name != "input")
    assert rows[0]["compile"] > 0 and rows[-1]["checkpoint"] > 0 and rows[-1]["evaluation"] > 0


@pytest.fixture
def heartbeats(monkeypatch) -> dict[int, dict]:
    """What the hosts have said; the test fills it."""
    said: dict[int, dict] = {}
    monkeypatch.setattr(hosts, "heartbeats", lambda: said)
    return said


def rows(tmp_path, heartbeats, monkeypatch, *times: dict[int, float]) -> tuple[list[dict], list[dict]]:
    """The row of metrics and all events after each of these sets of seconds by host, with steps of one second."""
    found, now = [], [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    with Events(tmp_path, StopSignals()) as events:
        measuring = HostTimes(events)
        for step, seconds in enumerate(times, 1):
            heartbeats.clear()
            for host, value in seconds.items():
                heartbeats[host] = {"name": f"worker-{host}", "input_seconds": value}
            with measuring.measured():
                now[0] += 0.01
            now[0] += 0.99
            found.append(measuring.row(step))
    return found, [row for row in read_events(tmp_path / "events.jsonl") if row["event"] == "slow_host"]


def test_a_slow_host_is_named_once(tmp_path, heartbeats, monkeypatch):
    even = dict.fromkeys(range(5), 0.01)
    slow = {**even, 3: 0.5}
    metrics, events = rows(tmp_path, heartbeats, monkeypatch, even, slow, slow, even, slow)
    assert [(row["step"], row["host"], row["name"]) for row in events] == [(2, 3, "worker-3"), (5, 3, "worker-3")]
    expected = {"host_input_seconds_median": 0.01, "host_input_seconds_p90": 0.5, "host_input_seconds_max": 0.5}
    assert metrics[1] == expected


def test_a_multiple_of_nothing_is_not_slow(tmp_path, heartbeats, monkeypatch):
    _, events = rows(tmp_path, heartbeats, monkeypatch, {0: 0.001, 1: 0.001, 2: 0.09}, {0: 0.001, 1: 0.001, 2: 0.11})
    assert [row["step"] for row in events] == [2]


def test_one_host_has_nobody_to_be_compared_with(tmp_path, heartbeats, monkeypatch):
    assert rows(tmp_path, heartbeats, monkeypatch, {}, {0: 5.0}) == ([{}, {}], [])


def test_a_host_says_its_mean(tmp_path, heartbeats, monkeypatch):
    said = []
    monkeypatch.setattr(hosts, "publish", lambda **facts: said.append(facts))
    rows(tmp_path, heartbeats, monkeypatch, {}, {})
    assert said == [{"input_seconds": pytest.approx(0.01)}] * 2


def test_what_is_empty_is_not_saved():
    position = Position.from_dict({"phase": 1, "examples_seen": 640})
    assert position == Position(1, 640) and position.to_dict() == {"phase": 1, "examples_seen": 640}


def test_a_position_goes_through_json():
    position = Position(1, 640, (Span(0, 32, 64), Span(1, 640, 960)), {"skipped": 2, "losses": [0.1]})
    assert Position.from_dict(json.loads(json.dumps(position.to_dict()))) == position


@pytest.mark.parametrize(
    "seen, behind",
    [
        (0, 0),
        (16, 16),
        (32, 96),  # over both, the second of which begins where the first ends
        (48, 96),
        (64, 96),
        (96, 96),
        (128, 128),
    ],
)
def test_spans_are_skipped_by_those_who_come_to_them(seen, behind):
    skipped = (Span(1, 64, 96), Span(0, 0, 1000), Span(1, 32, 64))
    assert Position(1, seen, skipped).seen_in(1) == behind


def test_a_later_phase_begins_at_its_first_example_or_behind_it():
    assert Position(0, 640).seen_in(1) == 0
    assert Position(0, 640, (Span(1, 0, 48),)).seen_in(1) == 48
    assert Position(0, 640, (Span(0, 640, 700),)).seen_in(1) == 0


def test_a_guard_s_memory_is_that_of_its_phase():
    position = Position(0, 640, guard={"skipped": 2})
    assert position.guard_of(0) == {"skipped": 2} and position.guard_of(1) == {}


def arrays(workdir) -> dict:
    newest = Checkpoints(pathlib.Path(workdir) / "checkpoints", read_only=True).directories()[-1]
    return read_record(newest / "record")["arrays"]


@pytest.mark.slow
def test_a_traced_run_learns_the_same(finished, small_store, tmp_path):
    """Steps 5 to 8 are traced, with an evaluation and a checkpoint between them."""
    config, _ = finished
    traced = dataclasses.replace(run_config(small_store, tmp_path / "run"), profile=ProfileConfig(steps="4:8"))
    assert pretrain(traced).step == 12
    assert rows_of_profiler(traced.workdir) == rows_of_profiler(config.workdir)
    assert rows_of_profiler(traced.workdir, "evaluation") == rows_of_profiler(config.workdir, "evaluation")
    assert arrays(traced.workdir) == arrays(config.workdir)  # fingerprints of every array
    (trace,) = (tmp_path / "run" / "profile").rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    steps = {int(event["args"]["step_num"]) for event in events if event.get("name") == "train"}
    assert steps == {4, 5, 6, 7}
    assert list(trace.parent.glob("*.xplane.pb"))  # what XProf reads


def test_a_trace_that_the_end_of_a_run_cuts_short_is_written(tmp_path):
    with Profiler(tmp_path, range(2, 100)) as profiler:
        for step in range(4):
            profiler.finish(step, ())
            with profiler.step(step, ()):
                jax.numpy.zeros(3).block_until_ready()
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_a_trace_that_cannot_begin_is_a_warning(tmp_path, caplog):
    jax.profiler.start_trace(tmp_path / "another")
    try:
        with Profiler(tmp_path, range(0, 2)) as profiler, profiler.step(0, ()):
            pass
    finally:
        jax.profiler.stop_trace()
    assert "no trace is written" in caplog.text and not (tmp_path / "profile").exists()


@pytest.mark.parametrize("steps", ["7", "5:5", "6:5", "90:101", "a:b", "-1:5", "1:2:3", "5:", "1" * 30 + ":2", "٣:٤"])
def test_a_range_that_cannot_be_traced_is_refused(steps):
    config = Config(phases=(PhaseConfig(steps=100),), profile=ProfileConfig(steps=steps))
    with pytest.raises(UserError, match="profile.steps=.*FROM:TO"):
        check(config)


def test_the_steps_that_are_traced_are_those_of_the_option():
    assert traced_steps(ProfileConfig(), 100) == range(0)
    assert traced_steps(ProfileConfig(steps="90:100"), 100) == range(90, 100)

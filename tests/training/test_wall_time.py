"""Where the seconds of a run went: from clocks in the test's hand, and in the rows of a whole run."""

import pathlib

import pytest
from clock import Clock

from bert_jax.training.metrics import CATEGORIES, Metrics, Rates, WallTime, read_rows


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
    assert taken == {
        "time": 500_001_131,
        "steps": 101,
        "input": 0,
        "evaluation": 20,
        "checkpoint": 0,
        "compile": 3,
        "setup": 7,
    }
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
    assert [(row["kind"], row["step"]) for row in rows] == [
        ("train", 1),
        ("time", 1),
        ("evaluation", 1),
        ("time", 1),
    ]
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

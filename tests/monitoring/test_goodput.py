"""Goodput of runs whose clock is in the test's hand: each second is known in advance."""

import pytest
from clock import Clock

from bert_jax.tools.status import LOST, goodput
from bert_jax.training.metrics import Metrics, Rates, WallTime, read_rows


def train(workdir, clock: Clock, begin: int, end: int, saves: int = 10) -> None:
    """Steps of a second, of which each tenth has a row; each tenth is saved in two seconds, after its row.

    Setting up takes 30 seconds, compiling 60. Input is late by half a second before each fifth step.
    """
    wall_time = WallTime(clock, lambda: 1e9 + clock.now)
    rates = Rates(clock=clock, wall_time=wall_time)
    with Metrics(workdir, total_steps=1000, start_step=begin, wall_time=wall_time) as metrics:
        clock.now += 30
        with rates.paused("compile"):
            clock.now += 60
        for step in range(begin + 1, end + 1):
            with wall_time.awaiting(lambda: False):
                clock.now += 0.5 if step % 5 == 0 else 0
            wall_time.switch("steps")
            clock.now += 1
            if step % 10 == 0:
                metrics.write(step, {"loss": 1.0})
            if step % saves == 0:
                with rates.paused("checkpoint"):
                    clock.now += 2


def test_an_uninterrupted_run(tmp_path):
    clock = Clock()
    train(tmp_path, clock, 0, 40)
    found = goodput(read_rows(tmp_path / "metrics.jsonl"))
    assert found.seconds == pytest.approx(
        {"steps": 40, "input": 4, "evaluation": 0, "checkpoint": 8, "compile": 60, "setup": 30, LOST: 0}
    )
    assert found.total == pytest.approx(clock.now) == 142
    assert found.restarts == 0 and found.share == pytest.approx(40 / 142)


def test_a_restart_costs_the_steps_done_again_and_the_time_without_a_process(tmp_path):
    """Step 40 is saved, the process dies after step 57, another one starts 300 seconds later."""
    clock = Clock()
    train(tmp_path, clock, 0, 40)
    resumable = (tmp_path / "metrics.jsonl").read_bytes()
    lost_from = clock.now
    train(tmp_path, clock, 40, 57)  # its rows are dropped when step 40 is resumed, as those of one process would be
    (tmp_path / "metrics.jsonl").write_bytes(resumable)
    clock.now += 300
    back = clock.now
    train(tmp_path, clock, 40, 60)
    found = goodput(read_rows(tmp_path / "metrics.jsonl"))
    assert found.seconds == pytest.approx(
        {
            "steps": 60,
            "input": 6,
            "evaluation": 0,
            "checkpoint": 12,
            "compile": 120,
            "setup": 60,
            LOST: back - lost_from,
        }
    )
    assert found.total == pytest.approx(clock.now) and found.restarts == 1


def test_rows_after_the_checkpoint_are_dropped_by_the_next_start(tmp_path):
    """The same through the files alone: a process that dies never closes them."""
    clock = Clock()
    wall_time = WallTime(clock, lambda: 1e9 + clock.now)
    wall_time.switch("steps")
    dying = Metrics(tmp_path, total_steps=100, wall_time=wall_time)
    for step in (10, 20, 30):
        clock.now += 10
        dying.write(step, {"loss": 1.0})
    clock.now += 5  # to step 35, of which nothing is left
    before = (tmp_path / "metrics.jsonl").read_bytes()
    dying.close()
    (tmp_path / "metrics.jsonl").write_bytes(before)
    clock.now += 100
    train(tmp_path, clock, 20, 40)
    found = goodput(read_rows(tmp_path / "metrics.jsonl"))
    assert found.seconds["steps"] == pytest.approx(20 + 20)
    assert found.seconds[LOST] == pytest.approx(10 + 5 + 100)
    assert found.total == pytest.approx(clock.now)


def test_a_rollback_within_a_start_loses_the_steps_taken_again(tmp_path):
    clock = Clock()
    wall_time = WallTime(clock, lambda: 1e9 + clock.now)
    wall_time.switch("steps")
    with Metrics(tmp_path, total_steps=100, wall_time=wall_time) as metrics:
        for step in (10, 20, 30):
            clock.now += 10
            metrics.write(step, {"loss": 1.0})
        clock.now += 5
        metrics.rewind(20)
        clock.now += 10
        metrics.write(30, {"loss": 1.0})
    found = goodput(read_rows(tmp_path / "metrics.jsonl"))
    assert (found.seconds["steps"], found.seconds[LOST], found.restarts) == pytest.approx((30, 15, 1))
    assert found.total == pytest.approx(clock.now)


def test_there_is_none_without_whole_rows_of_time():
    assert goodput([]) is None
    assert goodput([{"kind": "train", "step": 1, "loss": 2.0}]) is None
    assert goodput([{"kind": "time", "step": 1, "time": 3.0}]) is None

"""Traces of a range of steps: their files appear, and the numbers of the run are the same to the last bit."""

import dataclasses
import gzip
import json
import pathlib

import jax
import pytest
from one_device import pretrain
from small_pretraining import rows, run_config

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import read_record
from bert_jax.config import Config, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.config.pretraining import ProfileConfig, traced_steps
from bert_jax.errors import UserError
from bert_jax.training.trackers import Profiler


def arrays(workdir) -> dict:
    newest = Checkpoints(pathlib.Path(workdir) / "checkpoints", read_only=True).directories()[-1]
    return read_record(newest / "record")["arrays"]


@pytest.mark.slow
def test_a_traced_run_learns_the_same(finished, small_store, tmp_path):
    """Steps 5 to 8 are traced, with an evaluation and a checkpoint between them."""
    config, _ = finished
    traced = dataclasses.replace(run_config(small_store, tmp_path / "run"), profile=ProfileConfig(steps="4:8"))
    assert pretrain(traced).step == 12
    assert rows(traced.workdir) == rows(config.workdir)
    assert rows(traced.workdir, "evaluation") == rows(config.workdir, "evaluation")
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

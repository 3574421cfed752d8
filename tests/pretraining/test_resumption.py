"""Runs that are killed, stopped or moved to another mesh, and go on exactly as if they had not been."""

import dataclasses
import os
import signal
import subprocess

import forked_run
import pytest
from one_device import pretrain
from processes import EXHAUSTIVE, wait_until
from run_process import finish, log_of, start
from small_pretraining import SCANNED, nothing_held_out, rows, run_config

from bert_jax.config import CheckpointConfig, ComputeConfig, Config, DataConfig, EvaluationConfig, PhaseConfig
from bert_jax.config.pretraining import NoiseConfig
from bert_jax.pretrained.model import load
from bert_jax.training.evaluation import Evaluation


def wait_for_row(config: Config, step: int, process: subprocess.Popen):
    reached = lambda: any(row["step"] >= step for row in rows(config.workdir))
    wait_until(reached, lambda: process.poll() is None, lambda: log_of(config).read_text())


@pytest.mark.optimized
@pytest.mark.parametrize(
    "loader, noise, compute",
    [
        ("plain", 0.0, SCANNED),
        pytest.param("tf.data", 0.1, ComputeConfig(), marks=pytest.mark.slow),  # unrolled, as usual
    ],
    ids=["plain", "tf.data, noise"],
)
def test_kill_and_resume_are_bit_identical(small_store, tmp_path, loader, noise, compute):
    """kill -9 at an arbitrary moment; all losses and metrics of the resumed run equal the uninterrupted run's exactly.

    The uninterrupted run uses the plain loader, the killed one may use tf.data: their batches are equal too. Spelling
    errors in the training text are drawn anew by the resumed run.
    """
    changes = {
        "data": DataConfig(path=str(small_store), held_out=0.1, loader="plain", noise=NoiseConfig(rate=noise)),
        "compute": compute,
        "phases": (PhaseConfig(steps=30, sequence_length=32, batch_size=16, learning_rate=1e-3, warmup_steps=2),),
        "evaluation": EvaluationConfig(every_steps=15, sequences=64, batch_size=32),
        "checkpoint": CheckpointConfig(every_steps=5, keep_last=2),
    }
    uninterrupted = run_config(small_store, tmp_path / "uninterrupted", **changes)
    # In a process like the others: how XLA splits a product depends on the number of its threads.
    assert forked_run.run(uninterrupted)[0] == 0

    config = run_config(small_store, tmp_path / "killed", **changes)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, loader=loader))
    assert forked_run.run(config, dies_after=12)[0] == -signal.SIGKILL
    assert 12 <= rows(config.workdir)[-1]["step"] < 30
    code, output = forked_run.run(config)
    assert code == 0, output
    assert "resuming from step" in output
    assert rows(config.workdir) == rows(uninterrupted.workdir)
    assert rows(config.workdir, "evaluation") == rows(uninterrupted.workdir, "evaluation")


@pytest.mark.slow
@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), *([(signal.SIGINT, 130)] if EXHAUSTIVE else [])])
def test_a_signal_saves_and_leaves(small_store, tmp_path, number, code):
    config = run_config(
        small_store,
        tmp_path / "stopped",
        checkpoint=CheckpointConfig(every_steps=10_000),
        evaluation=EvaluationConfig(every_steps=0, sequences=64),
        phases=(PhaseConfig(steps=100_000, sequence_length=32, batch_size=16, learning_rate=1e-3),),
    )
    process = start(config)
    wait_for_row(config, 3, process)
    process.send_signal(number)
    ended, output = finish(process, config)
    assert ended == code, output
    last = rows(config.workdir)[-1]["step"]
    assert load(config.workdir).history["step"] == last


@pytest.mark.slow
def test_phases_with_a_restart_resume_exactly(small_store, tmp_path):
    phases = (
        PhaseConfig(steps=4, sequence_length=16, batch_size=16, learning_rate=1e-3, warmup_steps=1),
        PhaseConfig(
            steps=4,
            sequence_length=32,
            batch_size=8,
            learning_rate=5e-4,
            warmup_steps=2,
            schedule="restart",
            moments="reset",
        ),
    )
    cut = run_config(
        small_store,
        tmp_path / "cut",
        phases=phases,
        data=nothing_held_out(small_store),  # the rows of training are what counts, and evaluations are programs too
        checkpoint=CheckpointConfig(every_steps=3, keep_last=5, keep_best=0),
    )
    pretrain(cut)
    whole = rows(cut.workdir)
    assert len(whole) == 8 and whole[4]["learning_rate"] == 0.0  # the second schedule has a warm-up of its own
    for first, taken in enumerate(
        ([8, 6], [8, 6, 4])
    ):  # back to step 4 of 8, between the phases, and to 3, inside the first
        for step in taken:
            os.rename(tmp_path / "cut" / "checkpoints" / f"step_{step:09d}", tmp_path / f"taken_{first}_{step}")
        pretrain(cut)
        assert rows(cut.workdir) == whole


@pytest.mark.slow
def test_a_signal_during_the_last_evaluation_of_a_phase_loses_nothing(small_store, tmp_path, monkeypatch):
    """Its step is saved first, and the next start makes that evaluation, at that phase's length, before it trains."""
    phases = (
        PhaseConfig(steps=3, batch_size=8, sequence_length=32),
        PhaseConfig(steps=9, batch_size=8, sequence_length=64),
    )
    config = run_config(
        small_store,
        tmp_path / "run",
        phases=phases,
        checkpoint=CheckpointConfig(every_steps=100, keep_last=5, keep_best=0),
        evaluation=EvaluationConfig(every_steps=3, sequences=64, batch_size=32),
    )
    evaluate = Evaluation.run
    lengths = []

    def interrupted(self, *given):
        lengths.append(self.examples.sequence_length)
        if len(lengths) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, *given)

    monkeypatch.setattr(Evaluation, "run", interrupted)
    stopped = pretrain(config)
    assert (stopped.step, stopped.exit_code) == (3, 143)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_000000003"]
    assert pretrain(config).exit_code == 0
    assert [row["step"] for row in rows(config.workdir, "evaluation")] == [3, 6, 9, 12] and lengths == [
        32,
        32,
        64,
        64,
        64,
    ]

"""Runs that start again, also on other devices."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import forked_run
import jax
import numpy as np
import pytest
import run_record
from pod import finish as finish_hosts
from pod import logs
from pod import start as start_hosts
from processes import EXHAUSTIVE, wait_until
from run_process import finish, log_of, start
from small_pretraining import SCANNED, assert_resumed_exactly, nothing_held_out, pretrain, rows, run_config

from bert_jax import pretraining
from bert_jax.config import CheckpointConfig, Config, DataConfig, PhaseConfig, resolve_phases
from bert_jax.config.options import to_dict
from bert_jax.config.pretraining import ComputeConfig, EvaluationConfig, MeshConfig, NoiseConfig, ScheduleConfig
from bert_jax.pretrained.model import load
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.optimizers import learning_rate
from bert_jax.training_data import open_corpus


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
    }
    uninterrupted = run_config(small_store, tmp_path / "uninterrupted", **changes)
    # In a process like the others: how XLA splits a product depends on the number of its threads.
    assert forked_run.run(uninterrupted)[0] == 0

    config = run_config(small_store, tmp_path / "killed", **changes)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, loader=loader))
    assert forked_run.run(config, dies_after=7)[0] == -signal.SIGKILL
    assert 7 <= rows(config.workdir)[-1]["step"] < 12
    code, output = forked_run.run(config)
    assert code == 0, output
    assert "resuming from step" in output
    assert rows(config.workdir) == rows(uninterrupted.workdir)
    assert rows(config.workdir, "evaluation") == rows(uninterrupted.workdir, "evaluation")


@pytest.mark.slow
@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), *([(signal.SIGINT, 130)] if EXHAUSTIVE else [])])
def test_a_signal_saves_and_leaves(small_store, tmp_path, number, code):
    checkpoint = CheckpointConfig(every_steps=10_000)
    evaluation = EvaluationConfig(every_steps=0, sequences=64)
    phases = (PhaseConfig(steps=100_000, sequence_length=32, batch_size=16, learning_rate=1e-3),)
    config = run_config(small_store, tmp_path / "stopped", checkpoint=checkpoint, evaluation=evaluation, phases=phases)
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
    # Back to step 4 of 8, between the phases, and to 3, inside the first.
    for lost in ([8, 6], [8, 6, 4]):
        assert_resumed_exactly(cut, lost)


@pytest.mark.slow
def test_a_signal_during_the_last_evaluation_of_a_phase_loses_nothing(small_store, tmp_path, monkeypatch):
    """Its step is saved first, and the next start makes that evaluation, at that phase's length, before it trains."""
    phases = (
        PhaseConfig(steps=3, batch_size=8, sequence_length=32),
        PhaseConfig(steps=9, batch_size=8, sequence_length=64),
    )
    checkpoint = CheckpointConfig(every_steps=100, keep_last=5, keep_best=0)
    evaluation = EvaluationConfig(every_steps=3, sequences=64, batch_size=32)
    config = run_config(small_store, tmp_path / "run", phases=phases, checkpoint=checkpoint, evaluation=evaluation)
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
    assert [row["step"] for row in rows(config.workdir, "evaluation")] == [3, 6, 9, 12]
    assert lengths == [32, 32, 64, 64, 64]


HOSTS = 4 if EXHAUSTIVE else 2
PHASE = PhaseConfig(steps=4, sequence_length=32, batch_size=16, learning_rate=1e-3, warmup_steps=2)


def with_phase(config, **changes):
    return dataclasses.replace(config, phases=(dataclasses.replace(config.phases[0], **changes),))


def expected_examples(config, count: int) -> list[list[int]]:
    """The first examples of the only phase, made at once, without the batches of a run."""
    training = open_corpus(config).training[resolve_phases(config)[0].index]
    return [[place, mark] for place, mark in enumerate(run_record.marks(training.batch(np.arange(count))))]


def assert_restored_as_saved(directory: pathlib.Path, step: int) -> None:
    saved, restored = (run_record.state(directory, f"{name}-{step}") for name in ("saved", "restored"))
    assert saved.keys() == restored.keys() and any("optimizer_state" in path for path in saved)
    for path, array in saved.items():
        assert array.tobytes() == restored[path].tobytes(), path


@pytest.mark.slow
def test_the_batch_size_may_change_between_starts(small_store, tmp_path, monkeypatch):
    """16 sequences on one device, 32 on two that share the parameters, 8 on one: no example is repeated or skipped."""
    run_record.record(tmp_path, monkeypatch.setattr)
    kept = CheckpointConfig(every_steps=100, keep_best=0)
    data = nothing_held_out(small_store)
    config = run_config(small_store, tmp_path / "run", phases=(PHASE,), checkpoint=kept, data=data)
    pretraining.pretrain(config, devices=jax.devices()[:1])
    config = dataclasses.replace(config, elastic_batch=True, mesh=MeshConfig(fsdp=2))
    config = with_phase(config, steps=8, batch_size=32, learning_rate=2e-3)
    pretraining.pretrain(config, devices=jax.devices()[:2])
    config = with_phase(dataclasses.replace(config, mesh=MeshConfig()), steps=10, batch_size=8)
    assert pretraining.pretrain(config, devices=jax.devices()[:1]).step == 10
    assert run_record.examples(tmp_path) == expected_examples(config, 4 * 16 + 4 * 32 + 2 * 8)
    for step in (4, 8):
        assert_restored_as_saved(tmp_path, step)
    assert [row["step"] for row in rows(config.workdir)] == list(range(1, 11))
    rates = [row["learning_rate"] for row in rows(config.workdir)][8:]  # as the last start has them
    assert rates == [float(learning_rate(config.schedule, resolve_phases(config), step)) for step in (8, 9)]


@pytest.mark.slow
def test_one_host_several_hosts_and_one_again(small_store, tmp_path, monkeypatch):
    """One process of eight devices, then more that share them on another mesh, then one again: the losses of one start.

    On another mesh only the order of float32 sums differs. Examples, masks and arrays are compared one by one.
    """
    changes = {
        "phases": (PHASE,),
        "schedule": ScheduleConfig(name="constant"),  # the same rates whatever the last step is
        "checkpoint": CheckpointConfig(every_steps=100, keep_last=9, keep_best=0),
        "data": nothing_held_out(small_store),
        "mesh": MeshConfig(data=8),
    }
    whole = with_phase(run_config(small_store, tmp_path / "whole", **changes), steps=12)
    pretraining.pretrain(whole)

    (tmp_path / "records").mkdir()
    config = run_config(small_store, tmp_path / "run", **changes)
    with monkeypatch.context() as patch:
        run_record.record(tmp_path / "records", patch.setattr)
        pretraining.pretrain(config)
    on_several = with_phase(dataclasses.replace(config, mesh=MeshConfig(data=2, fsdp=2, tensor=2)), steps=8)
    file = tmp_path / "on_several.json"
    file.write_text(json.dumps(to_dict(on_several)))
    recording = dict.fromkeys(range(HOSTS), (sys.executable, run_record.__file__, str(tmp_path / "records")))
    hosts = start_hosts(["pretrain", str(file)], config.workdir, HOSTS, commands=recording, devices=8)
    assert finish_hosts(hosts, config) == [0] * HOSTS, logs(config)
    with monkeypatch.context() as patch:
        run_record.record(tmp_path / "records", patch.setattr)
        assert pretraining.pretrain(with_phase(config, steps=12)).step == 12

    assert run_record.examples(tmp_path / "records") == expected_examples(config, 12 * 16)
    for step in (4, 8):
        assert_restored_as_saved(tmp_path / "records", step)
    starts = json.loads((tmp_path / "run" / "run.json").read_text())["starts"]
    assert [(found["hosts"], found["devices"]) for found in starts] == [(1, 8), (HOSTS, 8), (1, 8)]
    ours, theirs = ([row["loss"] for row in rows(found.workdir)] for found in (config, whole))
    assert len(ours) == 12 and ours == pytest.approx(theirs, abs=1e-5)
    assert ours[:4] == theirs[:4] and ours[4:8] != theirs[4:8]

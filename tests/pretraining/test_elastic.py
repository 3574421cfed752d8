"""Other hosts, devices, meshes and batch sizes between the starts of a run: the same examples, and exact states."""

import dataclasses
import json
import pathlib
import sys

import jax
import numpy as np
import pytest
import run_record
from pod import finish, logs, start
from processes import EXHAUSTIVE
from small_pretraining import nothing_held_out, rows, run_config

from bert_jax import pretraining
from bert_jax.config import CheckpointConfig, MeshConfig, PhaseConfig, ScheduleConfig, resolve_phases
from bert_jax.config.json_form import to_dict
from bert_jax.data.mixtures import open_corpus
from bert_jax.training.optimizers import learning_rate

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
    assert rates == [float(learning_rate(config, step)) for step in (8, 9)]


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
    hosts = start(["pretrain", str(file)], config.workdir, HOSTS, commands=recording, devices=8)
    assert finish(hosts, config) == [0] * HOSTS, logs(config)
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

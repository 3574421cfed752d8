"""Runs whose batch grows: the examples of a run without a ramp, and resumed exactly at every step."""

import dataclasses
import os

import jax
import numpy as np
import pytest
from small_pretraining import nothing_held_out, rows, run_config

from bert_jax import pretraining
from bert_jax.checkpoints.record import read_record
from bert_jax.config import CheckpointConfig, MeshConfig, PhaseConfig
from bert_jax.data.mixtures import open_corpus
from bert_jax.errors import UserError

pytestmark = pytest.mark.slow
PLAIN = PhaseConfig(steps=7, sequence_length=48, batch_size=16, learning_rate=1e-3, warmup_steps=2)
RAMPED = dataclasses.replace(PLAIN, ramp_batch_sizes=(4, 8), ramp_steps=4)
SIZES = [4, 4, 8, 8, 16, 16, 16]


def config_of(store, workdir, phase):
    return run_config(
        store,
        workdir,
        phases=(phase,),
        data=nothing_held_out(store),
        checkpoint=CheckpointConfig(every_steps=1, keep_last=9, keep_best=0),
    )


def seen(monkeypatch, config) -> list[np.ndarray]:
    """The ids of every batch of a run, which is made."""
    batches, stream = [], pretraining._stream

    def noted(*args):
        for batch in stream(*args):
            batches.append(np.asarray(batch["input_ids"]))
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(pretraining, "_stream", noted)
        pretraining.pretrain(config, devices=jax.devices()[:1])
    return batches


def test_the_examples_are_those_without_a_ramp_and_a_resumed_run_is_the_same(small_store, tmp_path, monkeypatch):
    plain = open_corpus(config_of(small_store, tmp_path / "plain", PLAIN)).training[0]
    config = config_of(small_store, tmp_path / "ramped", RAMPED)
    ramped = seen(monkeypatch, config)
    assert [len(batch) for batch in ramped] == SIZES
    whole = np.concatenate(ramped)
    np.testing.assert_array_equal(whole, plain.batch(np.arange(sum(SIZES)))["input_ids"])
    place, logged = tmp_path / "ramped/checkpoints", rows(config.workdir)
    last = read_record(place / "step_000000007/record")
    assert last["position"] == {"phase": 0, "examples_seen": sum(SIZES)}
    for step in (3, 2):  # inside a stage, and where one ends
        for later in range(step + 1, 8):
            os.rename(place / f"step_{later:09d}", tmp_path / f"taken_{step}_{later}")
        pretraining.pretrain(config, devices=jax.devices()[:1])
        assert rows(config.workdir) == logged
        again = read_record(place / "step_000000007/record")
        assert (again["position"], again["arrays"]) == (last["position"], last["arrays"])


def test_every_batch_of_a_ramp_must_fit_the_devices(small_store, tmp_path):
    config = config_of(small_store, tmp_path / "run", RAMPED)
    with pytest.raises(UserError, match="ramp_batch_sizes=4,8: 4 is not divisible by 8"):
        pretraining.pretrain(dataclasses.replace(config, mesh=MeshConfig(data=8)), devices=jax.devices()[:8])

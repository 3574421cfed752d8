"""Whole runs with packed rows: resumed exactly, on any number of devices, and as they began."""

import dataclasses
import os

import jax
import pytest
from outside_objective import OutsideObjective
from small_pretraining import rows, run_config

from bert_jax.checkpoints.workdir import read_config
from bert_jax.config import CheckpointConfig, DataConfig, PhaseConfig, resolve_phases
from bert_jax.config.presets import google2018
from bert_jax.errors import UserError
from bert_jax.pretraining import pretrain

PHASE = PhaseConfig(steps=6, sequence_length=64, batch_size=8, learning_rate=1e-3, warmup_steps=2)
KEPT = CheckpointConfig(every_steps=3, keep_last=5, keep_best=0)


def packed_config(store, workdir, packing="on", **changes):
    data = DataConfig(path=str(store), held_out=0.1, loader="plain", packing=packing)
    return run_config(store, workdir, phases=(PHASE,), checkpoint=KEPT, data=data, **changes)


@pytest.fixture(scope="module")
def finished(small_store, tmp_path_factory):
    config = packed_config(small_store, tmp_path_factory.mktemp("packed") / "run")
    pretrain(config, devices=jax.devices()[:1])
    return config


@pytest.mark.slow
def test_resume_is_bit_identical(small_store, finished, tmp_path, capsys):
    config = packed_config(small_store, tmp_path / "cut")
    pretrain(config, devices=jax.devices()[:1])
    assert "packing up to 4 texts into a sequence" in capsys.readouterr().out
    os.rename(tmp_path / "cut/checkpoints/step_000000006", tmp_path / "taken")
    pretrain(config, devices=jax.devices()[:1])
    assert rows(config.workdir) == rows(finished.workdir)


@pytest.mark.slow
def test_evaluation_is_that_of_runs_without(small_store, tmp_path):
    untrained = (dataclasses.replace(PHASE, steps=1, warmup_steps=0, learning_rate=1e-30),)
    found = []
    for packing in ("on", "off"):
        config = packed_config(small_store, tmp_path / packing, packing=packing)
        found.append(pretrain(dataclasses.replace(config, phases=untrained)).evaluation)
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.slow
def test_devices_and_micro_batches_share_the_rows_of_one_batch(small_store, finished, tmp_path):
    config = packed_config(small_store, tmp_path / "four")
    config = dataclasses.replace(config, phases=(dataclasses.replace(PHASE, micro_batches=2),))
    model = dataclasses.replace(config.model, hidden_dropout=0.0, attention_dropout=0.0)
    whole = packed_config(small_store, tmp_path / "one", model=model)
    pretrain(whole, devices=jax.devices()[:1])
    pretrain(dataclasses.replace(config, model=model), devices=jax.devices()[:4])
    losses = [[row["loss"] for row in rows(each.workdir)] for each in (config, whole)]
    assert len(losses[0]) == PHASE.steps and losses[0] == pytest.approx(losses[1], abs=2e-5)


@pytest.mark.slow
def test_a_run_goes_on_as_it_began(finished):
    with pytest.raises(UserError, match="data.packing: on → off"):
        pretrain(dataclasses.replace(finished, data=dataclasses.replace(finished.data, packing="off")))
    assert read_config(finished.workdir).data.packing == "on"


@pytest.mark.slow
def test_auto_is_off_where_no_phase_is_long_and_for_objectives_that_may_not_know_of_it(small_store, tmp_path):
    config = packed_config(small_store, tmp_path / "run", packing="auto")
    assert not resolve_phases(config)[0].packed
    longer = dataclasses.replace(config, phases=(dataclasses.replace(PHASE, sequence_length=256),))
    assert resolve_phases(longer)[0].packed and not resolve_phases(google2018(longer))[0].packed
    pretrain(config, devices=jax.devices()[:1], objective=lambda model, config: OutsideObjective(model))
    assert read_config(config.workdir).data.packing == "off"

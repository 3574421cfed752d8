"""Copies of a state that differ in a bit: found on every mesh that has copies, and named."""

import shutil

import jax
import pytest
from flipped_bits import with_a_flipped_bit, wrong_at
from small_pretraining import rows, run_config
from tiny_run import Run, tiny

from bert_jax import pretraining
from bert_jax.config import FaultsConfig, MeshConfig
from bert_jax.devices.signals import StopSignals
from bert_jax.errors import UserError
from bert_jax.training.events import Events, read_events
from bert_jax.training.state import Replicas
from bert_jax.training.step import Program

MESHES = {
    "data": (MeshConfig(data=8), "encoder/attention/query/kernel", [5]),
    "fsdp": (MeshConfig(data=2, fsdp=4), "encoder/attention/query/kernel", [1, 5]),  # two copies of each share
    "tensor": (MeshConfig(data=4, tensor=2), "mlm/bias", [5]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MESHES)
def test_a_flipped_bit_is_found_and_named(name, tmp_path):
    mesh_config, path, named = MESHES[name]
    run = Run(*tiny(), mesh_config)
    with Events(tmp_path, StopSignals()) as events:
        replicas = Replicas(run.shardings, run.mesh, events)
        replicas.check(3, run.state)
        bad = with_a_flipped_bit(run.state, path, run.mesh.devices.flat[5].id)
        with pytest.raises(UserError, match=f"the copies of params/{path} are not the same after step 6") as error:
            replicas.check(6, bad)
    assert "delete the checkpoints after step 3, when they last agreed" in str(error.value)
    (row,) = [row for row in read_events(tmp_path / "events.jsonl") if row["event"] == "replica_mismatch"]
    expected = [f"device {run.mesh.devices.flat[at].id} (cpu) of host 0" for at in named]
    assert row["step"] == 6 and row["devices"] == {device: [f"params/{path}"] for device in expected}


@pytest.mark.slow
def test_a_run_stops_at_a_device_that_computed_wrongly_and_goes_on_from_before(
    finished, small_store, tmp_path, monkeypatch
):
    config = run_config(small_store, tmp_path / "run", faults=FaultsConfig(check_replicas_every=2))
    devices = jax.devices()[:2]

    with monkeypatch.context() as patch:
        patch.setattr(Program, "__call__", wrong_at(7, devices[1].id))
        with pytest.raises(UserError, match="not the same after step 8: .* delete the checkpoints after step 6"):
            pretraining.pretrain(config, devices)
    events = [row["event"] for row in read_events(f"{config.workdir}/events.jsonl")]
    assert [event for event in events if event != "saved"][-2:] == ["replica_mismatch", "failed"]
    for saved in (tmp_path / "run" / "checkpoints").glob("step_*"):
        if int(saved.name.removeprefix("step_")) > 6:
            shutil.rmtree(saved)
    pretraining.pretrain(config, devices)
    learned = [row["loss"] for row in rows(config.workdir)]
    assert learned == pytest.approx([row["loss"] for row in rows(finished[0].workdir)], rel=1e-4)

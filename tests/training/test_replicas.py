"""Copies of a state that differ in a bit: found on every mesh that has copies, and named."""

import jax
import numpy as np
import pytest
from tiny_run import Run, tiny

from bert_jax.config import MeshConfig
from bert_jax.devices.signals import StopSignals
from bert_jax.errors import UserError
from bert_jax.training.events import Events, read_events
from bert_jax.training.replicas import Replicas


def flipped(array: jax.Array, device: int) -> jax.Array:
    """The same array, but for the lowest bit of the last element of what one device holds."""
    parts = []
    for shard in array.addressable_shards:
        values = np.array(shard.data)
        if shard.device.id == device:
            values.view(np.uint32).reshape(-1)[-1] ^= 1
        parts.append(jax.device_put(values, shard.device))
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


MESHES = {
    "data": (MeshConfig(data=8), "encoder/attention/query/kernel", [5]),
    "fsdp": (MeshConfig(data=2, fsdp=4), "encoder/attention/query/kernel", [1, 5]),  # two copies of each share
    "tensor": (MeshConfig(data=4, tensor=2), "mlm/bias", [5]),
}


def changed_at(params: dict, path: str, change) -> dict:
    first, _, rest = path.partition("/")
    return {**params, first: changed_at(params[first], rest, change) if rest else change(params[first])}


@pytest.mark.parametrize("name", MESHES)
def test_a_flipped_bit_is_found_and_named(name, tmp_path):
    mesh_config, path, named = MESHES[name]
    run = Run(*tiny(), mesh_config)
    with Events(tmp_path, StopSignals()) as events:
        replicas = Replicas(run.shardings, run.mesh, events)
        replicas.check(3, run.state)
        params = changed_at(run.state.params, path, lambda leaf: flipped(leaf, run.mesh.devices.flat[5].id))
        bad = type(run.state)(run.state.step, params, run.state.optimizer_state)
        with pytest.raises(UserError, match=f"the copies of params/{path} are not the same after step 6") as error:
            replicas.check(6, bad)
    assert "delete the checkpoints after step 3, when they last agreed" in str(error.value)
    (row,) = [row for row in read_events(tmp_path / "events.jsonl") if row["event"] == "replica_mismatch"]
    expected = [f"device {run.mesh.devices.flat[at].id} (cpu) of host 0" for at in named]
    assert row["step"] == 6 and row["devices"] == {device: [f"params/{path}"] for device in expected}

"""Whether all copies of a state are the same to the bit, which a device that computes wrongly breaks silently."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bert_jax.checkpoints.fingerprint import hashed, leaf_paths
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.training.events import Events
from bert_jax.training.state import TrainState


class Replicas:
    """Compares the copies of every array of a state that the devices of a mesh hold.

    Each device hashes what it holds; the hashes of all devices go to all hosts, which come to the same result. A share
    of an array that only one device holds (mesh.fsdp or mesh.tensor of all devices) has no copy to compare.

    Args:
      shardings: of the state.
      mesh: the devices.
      events: where a difference is noted.
    """

    def __init__(self, shardings: TrainState, mesh: Mesh, events: Events):
        self._mesh, self._events, self._agreed = mesh, events, None
        specs = jax.tree.map(lambda each: each.spec, shardings)
        own = jax.shard_map(
            lambda state: jnp.stack([hashed(leaf) for leaf in jax.tree.leaves(state)])[None],
            mesh=mesh,
            in_specs=(specs,),
            out_specs=P(mesh.axis_names),
            check_vma=False,  # what should be the same on several devices is what is to be found out
        )
        self._hashes = jax.jit(lambda state: jax.lax.with_sharding_constraint(own(state), sharding.replicated(mesh)))

    def check(self, step: int, state: TrainState) -> None:
        """Compare the copies of `state`, which is that after `step` steps; every host calls this.

        Raises:
          UserError: a device holds something else than the others. The run does not go back and on by itself: the same
            device would compute wrongly again, and only people can leave it out.
        """
        hashes = np.asarray(jax.device_get(self._hashes(state)))  # uint32 [devices, arrays, 2]
        found = differing(hashes, leaf_paths(state), list(self._mesh.devices.flat))
        if not found:
            self._agreed = step
            return
        for device, paths in found.items():
            logging.error("%s differs from the other copies in %d arrays, such as %s", device, len(paths), paths[0])
        self._events.write("replica_mismatch", step, devices={device: paths[:5] for device, paths in found.items()})
        (device, paths), *others = found.items()
        since = (
            "the beginning of this start" if self._agreed is None else f"step {self._agreed}, when they last agreed,"
        )
        raise UserError(
            f"the copies of {paths[0]} are not the same after step {step}: that of {device} differs"
            + (f", and {len(others)} other devices have differences too" if others else "")
            + f". A device or its memory is faulty. Leave out its host, delete the checkpoints after {since} "
            "and start the same command again"
        )


def differing(hashes: np.ndarray, state: dict[str, Any], devices: list[Any]) -> dict[str, list[str]]:
    """Return the paths in which each device differs from most of those that hold the same share; {} if none does.

    Where as many devices hold one thing as another, all of them are named.

    Args:
      hashes: uint32 [devices, arrays, 2] of what each device holds of each array.
      state: arrays by path.
      devices: in the order of `hashes`.
    """
    found: dict[str, list[str]] = {}
    for number, (path, leaf) in enumerate(state.items()):
        shares: dict[str, list[int]] = {}
        indices = leaf.sharding.devices_indices_map(leaf.shape)
        for row, device in enumerate(devices):
            shares.setdefault(repr(indices[device]), []).append(row)
        for rows in shares.values():
            values, counts = np.unique(hashes[rows, number], axis=0, return_counts=True)
            right = values[counts > len(rows) / 2]
            for row in rows:
                if len(values) > 1 and not (right == hashes[row, number]).all(axis=-1).any():
                    found.setdefault(_named(devices[row]), []).append(path)
    return found


def _named(device: Any) -> str:
    return f"device {device.id} ({device.device_kind}) of host {device.process_index}"

"""The train state: everything a step reads and writes, as one pytree; and a comparison of its copies.

All copies of a state must be the same to the bit; a device that computes wrongly breaks that silently.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bert_jax.checkpoints.record import hashed, leaf_paths
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.models.protocol import Model
from bert_jax.parameters import check_complete, entries, state_entries
from bert_jax.training.events import Events
from bert_jax.training.optimizers import with_average_of


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    step: jax.Array
    """Updates begun so far, int32 []; skipped ones count."""
    params: dict[str, Any]
    optimizer_state: optax.OptState


def abstract_state(model: Model, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """Return ShapeDtypeStructs with shardings, into which a checkpoint is restored and for which a step is compiled.

    Raises:
      UserError: `model.parameters` lacks an array of the parameters or of the optimizer state, has a different shape
        for it, or has an array that the model does not make.
    """
    shapes, parameters = jax.eval_shape(lambda: _initial(model, optimizer, jnp.uint32(0))), model.parameters
    check_complete(parameters, shapes.params)

    def placed(leaf: Any, where: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    params = sharding.shardings(mesh, entries(parameters, shapes.params))
    optimizer_state = sharding.shardings(mesh, state_entries(parameters, shapes.optimizer_state))
    return TrainState(
        step=jax.tree.map(placed, shapes.step, sharding.replicated(mesh)),
        params=jax.tree.map(placed, shapes.params, params),
        optimizer_state=jax.tree.map(placed, shapes.optimizer_state, optimizer_state),
    )


def state_shardings(abstract: TrainState) -> TrainState:
    return jax.tree.map(lambda leaf: leaf.sharding, abstract)


def create_state(model: Model, optimizer: optax.GradientTransformation, mesh: Mesh, seed: int) -> TrainState:
    """Create the state at step 0 in place, and wait for it: no device ever holds more than its own part."""
    return created(initializer(model, optimizer, mesh), sharding.on_every_device(mesh, np.uint32(seed & 0xFFFF_FFFF)))


def initializer(model: Model, optimizer: optax.GradientTransformation, mesh: Mesh) -> jax.stages.Wrapped:
    """Return `create_state` for many seeds: a compiled function of a uint32 seed."""
    where = state_shardings(abstract_state(model, optimizer, mesh))
    options, level = {}, "xla_backend_optimization_level"
    if mesh.devices.flat[0].platform == "cpu" and level not in os.environ.get("XLA_FLAGS", ""):
        options[level] = 1  # compiles twice as fast, and the program runs only once; its values are the same
    return jax.jit(lambda seed: _initial(model, optimizer, seed), out_shardings=where, compiler_options=options)


def created(initialize: Callable[..., TrainState], seed: Any) -> TrainState:
    """Return the state that `initializer`'s function makes, once it is there.

    Where the memory of a CPU does not hold all of it, reading one of its values never returns, and waiting raises the
    error (jax 0.10.2).
    """
    return jax.block_until_ready(initialize(seed))


def reset_moments(state: TrainState, optimizer: optax.GradientTransformation) -> TrainState:
    """Return `state` with a fresh optimizer state; step, parameters and their moving average stay."""
    where = jax.tree.map(lambda leaf: leaf.sharding, state.optimizer_state)
    fresh = jax.jit(optimizer.init, out_shardings=where)(state.params)
    return dataclasses.replace(state, optimizer_state=with_average_of(fresh, state.optimizer_state))


def _initial(model: Model, optimizer: optax.GradientTransformation, seed: jax.Array) -> TrainState:
    # The steps' dropout keys are fold_in(key(seed), step); initialization folds in a number that no int32 step reaches.
    params = model.init(jax.random.fold_in(jax.random.key(seed), np.uint32(2**32 - 1)))
    return TrainState(step=jnp.zeros((), jnp.int32), params=params, optimizer_state=optimizer.init(params))


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
            check_vma=False,  # whether the devices hold the same is the question
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

"""The train state: everything a step reads and writes, as one pytree."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax.devices import sharding
from bert_jax.models.parameters import check_complete, entries, state_entries
from bert_jax.models.protocol import Model
from bert_jax.optim.averaging import with_average_of


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

"""One training step and one forward step for every objective (objectives/objective.py), compiled for a mesh."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from bert_jax.devices import sharding
from bert_jax.objectives.means import training_metrics
from bert_jax.objectives.objective import Batch, Objective
from bert_jax.optim.averaging import moved
from bert_jax.optim.holding import Holding, held, holding
from bert_jax.optim.optimizers import clip_by_global_norm
from bert_jax.training import useful_work
from bert_jax.training.batch_gradients import batch_gradients
from bert_jax.training.frozen import Frozen, frozen_shardings, reader
from bert_jax.training.state import TrainState


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    shardings: TrainState,
    *,
    clip_norm: float,
    micro_batches: int = 1,
    schedule: Callable[[jax.Array], jax.Array],
    seed: int = 0,
    frozen: Frozen = (),
) -> jax.stages.Wrapped:
    """Return a compiled (state, batch, *frozen) → (state, metrics); the state passed in is consumed (donated).

    Metrics are float32 scalars: loss, NAME_loss and NAME_accuracy of each term that the batch has, learning_rate,
    grad_norm (before clipping), skipped, and the `useful_work.counts` of the batch. A loss or gradient that is not
    finite leaves parameters and optimizer state as they were (skipped = 1); the step counter advances all the same.

    Args:
      objective: holds the model and makes the loss.
      optimizer: gives the direction of the update, without a learning rate.
      mesh: the devices.
      shardings: shardings of the state.
      clip_norm: largest global norm of the gradient; 0 for no clipping.
      micro_batches: number of parts in which a batch is computed; it divides the rows on every device. Metrics and
        update are those of the whole batch, except for which elements dropout drops.
      schedule: maps a step to the learning rate of the update from that step to the next.
      seed: determines dropout, together with the step.
      frozen: what the objective reads beside the parameters.
    """
    reading = reader(objective, frozen)

    def train_step(state: TrainState, batch: Batch, *arrays: Any) -> tuple[TrainState, dict[str, Any]]:
        step = _step(reading(arrays), optimizer, mesh, shardings, clip_norm, micro_batches)
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        state, metrics = step(state, batch, schedule(state.step), key, jax.random.fold_in(key, 0))
        return state, metrics | useful_work.counts(batch)

    return _compiled(train_step, mesh, shardings, frozen)


def make_shared_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    shardings: TrainState,
    *,
    clip_norm: float,
    micro_batches: int = 1,
    by_epoch: bool = False,
    frozen: Frozen = (),
) -> jax.stages.Wrapped:
    """Return `make_train_step` for runs that differ in rate and seed: (state, batch, rate, seed, *frozen).

    A batch in one part draws other dropout than it does in `make_train_step` with the same seed. With `by_epoch`, the
    number of the epoch, from 0, follows the seed, and the optimizer is one whose `update` takes it as `epoch`.
    """
    reading = reader(objective, frozen)

    def train_step(
        state: TrainState, batch: Batch, rate: jax.Array, seed: jax.Array, *arrays: Any
    ) -> tuple[TrainState, dict[str, Any]]:
        epochs, arrays = arrays[:by_epoch], arrays[by_epoch:]
        now = _in_epoch(optimizer, epochs[0]) if by_epoch else optimizer
        step = _step(reading(arrays), now, mesh, shardings, clip_norm, micro_batches)
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        return step(state, batch, rate, key, key)

    return _compiled(train_step, mesh, shardings, frozen, arguments=3 if by_epoch else 2)


def _in_epoch(optimizer: optax.GradientTransformation, epoch: jax.Array) -> Holding:
    """Return the optimizer as it is in one epoch."""
    return Holding(optimizer.init, functools.partial(holding(optimizer).update, epoch=epoch))


def _compiled(
    train_step: Callable[..., Any], mesh: Mesh, shardings: TrainState, frozen: Frozen, arguments: int = 0
) -> jax.stages.Wrapped:
    """Return the compiled function of state, batch, so many scalars and `frozen`."""
    alike = sharding.replicated(mesh)
    return jax.jit(
        sharding.under(mesh, train_step),
        donate_argnums=0,
        in_shardings=(shardings, sharding.batch_sharding(mesh), *(alike,) * arguments, *frozen_shardings(frozen)),
        out_shardings=(shardings, alike),
    )


def _step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    shardings: TrainState,
    clip_norm: float,
    micro_batches: int,
):
    """Return (state, batch, rate, key, key of a batch in one part) → (state, metrics), see `make_train_step`."""

    gradients_of = batch_gradients(objective, mesh, shardings, micro_batches)

    def step(
        state: TrainState, batch: Batch, rate: jax.Array, key: jax.Array, whole_key: jax.Array
    ) -> tuple[TrainState, dict[str, Any]]:
        gradients, sums, denominators = gradients_of(state.params, batch, key, whole_key)
        metrics = training_metrics(objective.terms, sums, denominators)
        state, taken = updated(state, gradients, metrics["loss"], optimizer, rate, clip_norm)
        return state, metrics | taken

    return step


def make_sums_step(objective: Objective, mesh: Mesh, shardings: Any, frozen: Frozen = ()) -> jax.stages.Wrapped:
    """Return a compiled (params, batch, *frozen) → the sums of the objective without dropout; see make_forward_step."""
    reading = reader(objective, frozen)
    sums = lambda params, batch, *arrays: reading(arrays).sums(params, batch)
    return make_forward_step(sums, mesh, shardings, frozen)


def make_forward_step(
    function: Callable[..., Any], mesh: Mesh, shardings: Any, frozen: Frozen = ()
) -> jax.stages.Wrapped:
    """Return a compiled `function` of (params, batch, *frozen), whose result is the same on every device.

    Args:
      function: takes the global batch.
      mesh: the devices.
      shardings: tree of the shardings of the parameters.
      frozen: what it reads beside them.
    """

    def forward_step(params: Any, batch: Batch, *arrays: Any):
        return function(sharding.gather(params, shardings), batch, *arrays)

    return jax.jit(
        sharding.under(mesh, forward_step),
        in_shardings=(shardings, sharding.batch_sharding(mesh), *frozen_shardings(frozen)),
        out_shardings=sharding.replicated(mesh),
    )


def updated(
    state: TrainState,
    gradients: Any,
    loss: jax.Array,
    optimizer: optax.GradientTransformation,
    rate: jax.Array,
    clip_norm: float,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Return the next state, and the metrics learning_rate, grad_norm (before clipping) and skipped.

    A loss or gradient that is not finite leaves parameters and optimizer state as they were (skipped = 1).
    """
    gradients, norm = clip_by_global_norm(gradients, clip_norm)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    updates, optimizer_state = holding(optimizer).update(gradients, state.optimizer_state, state.params, finite=finite)
    params = held(finite, jax.tree.map(lambda p, u: p - rate * u, state.params, updates), state.params)
    optimizer_state = moved(optimizer_state, params, state.step, finite)
    metrics = {"learning_rate": rate, "grad_norm": norm, "skipped": 1.0 - finite.astype(jnp.float32)}
    return TrainState(step=state.step + 1, params=params, optimizer_state=optimizer_state), metrics

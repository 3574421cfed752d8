"""The gradients of a whole batch: in parts or at once, summed over the devices and split like the parameters."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.devices import sharding
from bert_jax.devices.transfer import widened
from bert_jax.models.parameters import Parameter, ParameterTable, entries
from bert_jax.objectives.means import mean_loss
from bert_jax.objectives.objective import Batch, Objective
from bert_jax.training.frozen import Frozen, frozen_shardings, reader
from bert_jax.training.state import TrainState
from bert_jax.training.table_copies import copies_type, with_copies


def make_gradients(
    objective: Objective, mesh: Mesh, shardings: TrainState, *, micro_batches: int, seed: int, frozen: Frozen = ()
) -> jax.stages.Wrapped:
    """Return a compiled (state, batch, *frozen) → gradients, those that a training step clips.

    The state is not consumed.
    """
    reading = reader(objective, frozen)

    def gradients(state: TrainState, batch: Batch, *arrays: Any):
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        return batch_gradients(reading(arrays), mesh, shardings, micro_batches)(
            state.params, batch, key, jax.random.fold_in(key, 0)
        )[0]

    return jax.jit(
        sharding.under(mesh, gradients),
        in_shardings=(shardings, sharding.batch_sharding(mesh), *frozen_shardings(frozen)),
        out_shardings=shardings.params,
    )


def batch_gradients(objective: Objective, mesh: Mesh, shardings: TrainState, micro_batches: int) -> Callable[..., Any]:
    """Return (params, batch, key, key of a batch in one part) → (gradients, sums, denominators)."""

    def of_batch(params: Any, batch: Batch, key: jax.Array, whole_key: jax.Array) -> tuple[Any, ...]:
        batch = widened(batch)
        denominators = objective.denominators(batch)
        whole = sharding.gather(params, shardings.params)

        def part(rows: Batch, dropout_key: jax.Array) -> tuple[Any, ...]:
            return _gradients(objective, mesh, whole, rows, denominators, dropout_key, shardings.params)

        if micro_batches == 1:
            return *part(batch, whole_key), denominators
        rows = jax.tree.map(lambda x: _split_rows(x, micro_batches, mesh), batch)
        total = _sum_of_parts(lambda rows, i: part(rows, jax.random.fold_in(key, i)), rows, micro_batches)
        return *total, denominators

    return of_batch


def _gradients(
    objective: Objective,
    mesh: Mesh,
    params: Any,
    rows: Batch,
    denominators: dict[str, Any],
    dropout_key: jax.Array,
    shardings: Any,
) -> tuple[Any, ...]:
    """Return what `rows` add to the gradient of the mean loss of the batch, split like the parameters, and their sums.

    The weights of the whole batch are known before any of it is computed, so every micro-batch divides its sums by the
    totals right away and the parts simply add up.
    """

    copied = copies_type(objective.model, mesh)

    def loss(params: Any):
        if copied is not None:
            params = with_copies(params, mesh, shardings["embeddings"]["word"]["table"], copied)
        sums = objective.sums(params, rows, dropout_key)
        return mean_loss(objective.terms, sums, denominators), sums

    gradients, sums = jax.grad(loss, has_aux=True)(params)
    gradients = _tables_whole(objective.model.parameters, gradients, shardings, copied is not None)
    gradients = jax.lax.with_sharding_constraint(gradients, jax.tree.map(sharding.split_coarsely, shardings))
    return jax.lax.with_sharding_constraint(gradients, shardings), sums


def _tables_whole(parameters: ParameterTable, gradients: Any, shardings: Any, copies: bool):
    """Return the gradients with those of tables that are looked up whole over fsdp, before all are split.

    The word table is no exception where it was read from copies, whose gradients are summed like those of kernels.

    A scatter into a table that is split over the hidden axis would move every activation. All others are split as they
    are summed (reduce-scatter), which moves half of what summing whole gradients does and never keeps them whole.
    """

    def one(parameter: Parameter, gradient: jax.Array, whole: NamedSharding) -> jax.Array:
        of_copies = copies and parameter.path == "embeddings/word/table"
        scattered = parameter.use == "looked_up" and not of_copies
        return jax.lax.with_sharding_constraint(gradient, whole) if scattered else gradient

    return jax.tree.map(one, entries(parameters, gradients), gradients, sharding.gathered(shardings))


def _sum_of_parts(part: Callable[..., Any], rows: Batch, micro_batches: int):
    """Return the sum of part(rows[i], i) over the micro-batches, only one of which is in memory at a time."""
    first = jax.tree.map(lambda x: x[0], rows)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(part, first, 0))
    return jax.lax.scan(
        lambda total, xs: (jax.tree.map(jnp.add, total, part(*xs)), None), zeros, (rows, jnp.arange(micro_batches))
    )[0]


def _split_rows(x: jax.Array, micro_batches: int, mesh: Mesh) -> jax.Array:
    """Reshape [B, …] to [micro_batches, B / micro_batches, …] without moving a row to a different device.

    Micro-batch i takes rows i, i + micro_batches, …: each micro-batch then gets the same number of the consecutive rows
    that a device holds. Micro-batches of consecutive rows would each be on a few devices only.
    """
    parts = jnp.swapaxes(x.reshape(-1, micro_batches, *x.shape[1:]), 0, 1)
    return jax.lax.with_sharding_constraint(parts, NamedSharding(mesh, P(None, *sharding.BATCH)))

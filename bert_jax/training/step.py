"""One training step and one evaluation step, compiled for a mesh.

Losses and metrics are sums divided once by the sums of weights of the whole global batch, never means of means, so
neither the number of devices nor that of micro-batches changes what is optimised.
"""

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from bert_jax.devices import sharding
from bert_jax.config import Config, Phase
from bert_jax.models.bert import PRETRAINING_PARTS
from bert_jax.objectives import masked_language_model, next_sentence
from bert_jax.optim.optimizers import clip_by_global_norm
from bert_jax.optim.schedules import learning_rate
from bert_jax.training.state import TrainState

Batch = dict[str, jax.Array]  # input_ids [B, L] · masked_positions [B, M] · masked_weights [B, M] · …


def make_train_step(
    model, optimizer: optax.GradientTransformation, config: Config, phase: Phase, mesh: Mesh, shardings: TrainState
):
    """Compiled (state, batch) → (state, metrics) for one phase; the state passed in is consumed (donated).

    Metrics are float32 scalars: loss, mlm_loss, mlm_accuracy, learning_rate, grad_norm (before clipping), skipped and,
    where the batch has next_sentence_labels, next_sentence_loss and next_sentence_accuracy. A loss or gradient that is
    not finite leaves parameters and optimizer state as they were (skipped = 1); the step counter moves on all the same.
    """
    micro_batches, epsilon = phase.micro_batches, config.masking.loss_epsilon

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        key = jax.random.fold_in(jax.random.key(config.seed), state.step)
        gradients, sums = _gradients(model, state.params, batch, key, micro_batches, epsilon, shardings.params)
        metrics = _means(sums, epsilon)
        state, taken = updated(
            state, gradients, metrics["loss"], optimizer, learning_rate(config, state.step), config.optimizer.clip_norm
        )
        return state, metrics | taken

    return jax.jit(
        train_step,
        donate_argnums=0,
        in_shardings=(shardings, sharding.batch_sharding(mesh)),
        out_shardings=(shardings, sharding.replicated(mesh)),
    )


def updated(
    state: TrainState,
    gradients,
    loss: jax.Array,
    optimizer: optax.GradientTransformation,
    rate: jax.Array,
    clip_norm: float,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """The next state, and learning_rate, grad_norm (before clipping) and skipped.

    A loss or gradient that is not finite leaves parameters and optimizer state as they were (skipped = 1).
    """
    gradients, norm = clip_by_global_norm(gradients, clip_norm)
    updates, optimizer_state = optimizer.update(gradients, state.optimizer_state, state.params)
    params = jax.tree.map(lambda p, u: p - rate * u, state.params, updates)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    params, optimizer_state = jax.tree.map(
        lambda new, old: jnp.where(finite, new, old), (params, optimizer_state), (state.params, state.optimizer_state)
    )
    metrics = {"learning_rate": rate, "grad_norm": norm, "skipped": 1.0 - finite.astype(jnp.float32)}
    return TrainState(step=state.step + 1, params=params, optimizer_state=optimizer_state), metrics


def make_eval_step(model, mesh: Mesh, shardings):
    """Compiled (params, batch) → sums over the global batch (keys of the objectives' `loss_sums`), without dropout.

    `shardings` is the tree of the parameters' own.
    """

    def eval_step(params, batch: Batch) -> dict[str, jax.Array]:
        params = jax.lax.with_sharding_constraint(params, sharding.gathered(shardings))
        return loss_sums(model, params, batch, dropout_key=None)

    return jax.jit(
        eval_step, in_shardings=(shardings, sharding.batch_sharding(mesh)), out_shardings=sharding.replicated(mesh)
    )


def loss_sums(model, params, batch: Batch, dropout_key: jax.Array | None) -> dict[str, jax.Array]:
    """Sums over the batch: mlm_loss, mlm_correct, mlm_weight and, with labels, next_sentence_loss, …_correct, …_count.

    A model from elsewhere that lacks one of the two heads (evaluation only: no dropout) has no sums for it.
    """
    if set(PRETRAINING_PARTS) <= set(model.parts):
        mlm_logits, next_sentence_logits = model.apply(params, batch, dropout_key)
    else:
        mlm_logits = model.mlm_logits(params, batch) if "mlm" in model.parts else None
        next_sentence_logits = model.next_sentence_logits(params, batch) if mlm_logits is None else None
    sums = {}
    if mlm_logits is not None:
        sums |= masked_language_model.loss_sums(mlm_logits, batch["masked_ids"], batch["masked_weights"])
    if "next_sentence_labels" in batch and next_sentence_logits is not None:
        sums |= next_sentence.loss_sums(next_sentence_logits, batch["next_sentence_labels"])
    return sums


def _gradients(model, params, batch: Batch, key: jax.Array, micro_batches: int, epsilon: float, shardings) -> tuple:
    """Gradient of the mean loss of the whole batch, split like the parameters, and the sums its metrics come from.

    The weights of the whole batch are known before any of it is computed, so every micro-batch divides its sums by the
    totals at once and the parts simply add up.
    """
    mlm_weight = jnp.sum(batch["masked_weights"])
    whole = jax.lax.with_sharding_constraint(params, sharding.gathered(shardings))

    def part(rows: Batch, index) -> tuple:
        def loss(params):
            sums = loss_sums(model, params, rows, jax.random.fold_in(key, index))
            value = ratio(sums["mlm_loss"], mlm_weight + epsilon)
            if "next_sentence_labels" in batch:
                value += sums["next_sentence_loss"] / batch["next_sentence_labels"].size
            return value, sums

        gradients, sums = jax.grad(loss, has_aux=True)(whole)
        # In two stages: a scatter into a table that is split over the hidden axis would move every activation instead.
        gradients = jax.lax.with_sharding_constraint(gradients, sharding.gathered(shardings))
        return jax.lax.with_sharding_constraint(gradients, shardings), sums

    if micro_batches == 1:
        return part(batch, 0)
    rows = jax.tree.map(lambda x: _split_rows(x, micro_batches, shardings), batch)
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(part, jax.tree.map(lambda x: x[0], rows), 0)
    )
    return jax.lax.scan(
        lambda total, xs: (jax.tree.map(jnp.add, total, part(*xs)), None), zeros, (rows, jnp.arange(micro_batches))
    )[0]


def _split_rows(x: jax.Array, micro_batches: int, shardings) -> jax.Array:
    """[B, …] to [micro_batches, B / micro_batches, …] without moving a row to another device.

    Micro-batch i takes rows i, i + micro_batches, …: of the rows that a device holds, which are consecutive, each
    micro-batch then gets the same number. Consecutive micro-batches would each lie on a few devices only.
    """
    mesh = jax.tree.leaves(shardings)[0].mesh
    parts = jnp.swapaxes(x.reshape(-1, micro_batches, *x.shape[1:]), 0, 1)
    return jax.lax.with_sharding_constraint(parts, NamedSharding(mesh, P(None, *sharding.BATCH)))


def _means(sums: dict[str, jax.Array], epsilon: float) -> dict[str, jax.Array]:
    means = {
        "mlm_loss": ratio(sums["mlm_loss"], sums["mlm_weight"] + epsilon),
        "mlm_accuracy": ratio(sums["mlm_correct"], sums["mlm_weight"]),
    }
    if "next_sentence_loss" in sums:
        means |= {
            "next_sentence_loss": sums["next_sentence_loss"] / sums["next_sentence_count"],
            "next_sentence_accuracy": sums["next_sentence_correct"] / sums["next_sentence_count"],
        }
    return {"loss": means["mlm_loss"] + means.get("next_sentence_loss", 0.0), **means}


def ratio(total: jax.Array, weight: jax.Array) -> jax.Array:
    """0, not NaN, where nothing was weighed: a batch without a single prediction."""
    return total / jnp.where(weight > 0, weight, 1.0)

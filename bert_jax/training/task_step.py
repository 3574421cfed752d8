"""One step of fine-tuning and one of prediction, compiled for a mesh.

Learning rate and seed are arguments, not constants: all runs of a grid share the programs of their batch size.
"""

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from bert_jax.devices import sharding
from bert_jax.models.crf import without_edges
from bert_jax.models.task import BertForTask
from bert_jax.objectives import classification, regression, span, tagging
from bert_jax.training.state import TrainState
from bert_jax.training.step import ratio, updated

Batch = dict[str, jax.Array]  # as data/sequences/batching.py makes them


def make_train_step(
    model: BertForTask, optimizer: optax.GradientTransformation, clip_norm: float, mesh: Mesh, shardings: TrainState
):
    """Compiled (state, batch, rate, seed) → (state, metrics); the state passed in is consumed (donated).

    Metrics are float32 scalars: loss (mean over the rows, words or windows that count), learning_rate, grad_norm, skipped
    and, but for regression, accuracy. Dropout follows from seed and step.
    """

    def train_step(state: TrainState, batch: Batch, rate: jax.Array, seed: jax.Array) -> tuple[TrainState, dict]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)

        def loss(params):
            sums = loss_sums(model, params, batch, key)
            return ratio(sums["loss"], sums["weight"]), sums

        whole = jax.lax.with_sharding_constraint(state.params, sharding.gathered(shardings.params))
        (value, sums), gradients = jax.value_and_grad(loss, has_aux=True)(whole)
        # In two stages, as in pre-training: a scatter into a split table would move every activation instead.
        gradients = jax.lax.with_sharding_constraint(gradients, sharding.gathered(shardings.params))
        gradients = jax.lax.with_sharding_constraint(gradients, shardings.params)
        metrics = {"loss": value}
        if "correct" in sums:
            metrics["accuracy"] = ratio(sums["correct"], sums["weight"])
        state, taken = updated(state, gradients, value, optimizer, rate, clip_norm)
        return state, metrics | taken

    alike = sharding.replicated(mesh)
    return jax.jit(
        train_step,
        donate_argnums=0,
        in_shardings=(shardings, sharding.batch_sharding(mesh), alike, alike),
        out_shardings=(shardings, alike),
    )


def make_predict_step(model: BertForTask, mesh: Mesh, shardings):
    """Compiled (params, batch) → `predictions`, the same on every device. `shardings` is the tree of the parameters' own."""

    def predict_step(params, batch: Batch) -> jax.Array:
        return predictions(model, jax.lax.with_sharding_constraint(params, sharding.gathered(shardings)), batch)

    return jax.jit(
        predict_step, in_shardings=(shardings, sharding.batch_sharding(mesh)), out_shardings=sharding.replicated(mesh)
    )


def predictions(model: BertForTask, params, batch: Batch) -> jax.Array:
    """Scores [B, …] float32 of `BertForTask.apply`.

    With a CRF, 1 for the labels of the best path and 0 for the others: they are what the model says, word by word.
    """
    scores = model.apply(params, batch)
    if not model.head.crf:
        return scores
    paths = model.crf(params).best_paths(scores, *without_edges(batch["labels"]), model.head.labels)
    return jax.nn.one_hot(paths, model.head.outputs, dtype=jnp.float32)


def loss_sums(model: BertForTask, params, batch: Batch, dropout_key: jax.Array | None) -> dict[str, jax.Array]:
    """Sums over the batch of the head's objective: loss, weight and, but for regression and a CRF, correct."""
    scores = model.apply(params, batch, dropout_key)
    labels, weights, kind = batch["labels"], batch["weights"], model.head.kind
    if kind == "regression":
        return regression.loss_sums(scores, labels, weights)
    if kind == "span":
        return span.loss_sums(scores, labels, batch["attention_mask"], weights)
    if model.head.crf:
        losses = model.crf(params).negative_log_likelihood(scores, *without_edges(labels))
        return {"loss": jnp.sum(weights * losses), "weight": jnp.sum(weights[:, None] * (labels >= 0))}
    if kind == "tagging":
        classes, *_ = without_edges(labels)
        return tagging.loss_sums(scores, classes, weights)
    return classification.loss_sums(scores, labels, weights)

"""The objective of each kind of task head: one term, whose metrics are loss and accuracy; and its predictions.

Classification and choice: cross-entropy over the classes of a text, or over the candidates of a question. Several
labels per text: binary cross-entropy, a mean over the classes. Regression: squared error on the scale of the labels
(STS-B: 0 to 5). Spans: the mean cross-entropy of the first and the last token of the answer, each a choice among the
positions. Tagging: cross-entropy at the first piece of each word; the other positions do not count.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.task import BertForTask, without_edges
from bert_jax.objectives.objective import Batch, Sums, Term


@dataclasses.dataclass(frozen=True)
class TaskLoss:
    """What counts how much in the loss of a classifier of texts; see `TaskLossConfig`."""

    class_weights: tuple[float, ...] = ()
    """Weights of the C classes; (): all have 1."""
    label_smoothing: float = 0.0
    focal_gamma: float = 0.0

    def weights_of(self, labels: jax.Array, weights: jax.Array) -> jax.Array:
        """Return the weights [B] of examples with these labels, int32 [B], times those that they have already."""
        return weights * jnp.asarray(self.class_weights, jnp.float32)[labels] if self.class_weights else weights

    def each(self, logits: jax.Array) -> jax.Array:
        """Return the weight of the class of each of the logits [B, C]."""
        return jnp.broadcast_to(jnp.asarray(self.class_weights or 1.0, jnp.float32), logits.shape)


PLAIN = TaskLoss()
"""The loss in which all classes and examples count alike."""


def classification_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array, loss: TaskLoss = PLAIN) -> Sums:
    """Return sums over the batch; the mean is formed once, from the sums of all devices.

    Args:
      logits: [B, C]; here and below B stands for [B, T] where T sequences share a row.
      labels: [B] int32.
      weights: [B] float32, 0 for what does not count, such as rows that only fill the batch.
      loss: with weights of classes, an example has that of its class, by whose sum the loss is divided; so is what
        smoothing spreads over the classes, each with its own weight, as in torch's CrossEntropyLoss.

    Returns:
      Losses (cross-entropy) in nats.
    """
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    losses = -jnp.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]
    correct = jnp.argmax(logits, axis=-1) == labels
    own = loss.weights_of(labels, weights)
    if loss.focal_gamma:
        losses *= jnp.exp(loss.focal_gamma * _log_of_others(log_probabilities, labels))
    losses = own * losses
    if loss.label_smoothing:
        evenly = -weights * jnp.mean(loss.each(logits) * log_probabilities, axis=-1)
        losses = (1 - loss.label_smoothing) * losses + loss.label_smoothing * evenly
    return Sums(jnp.sum(losses), jnp.sum(own), jnp.sum(own * correct))


def _log_of_others(log_probabilities: jax.Array, labels: jax.Array) -> jax.Array:
    """Return log(1 - p) [B] of the classes `labels` [B], which has a slope also where 1 - p is 0 in float32."""
    right = jax.nn.one_hot(labels, log_probabilities.shape[-1], dtype=jnp.bool_)
    return jax.nn.logsumexp(jnp.where(right, -jnp.inf, log_probabilities), axis=-1)


def multilabel_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array, loss: TaskLoss = PLAIN) -> Sums:
    """Return sums over the batch; the mean over texts is formed once, from the sums of all devices.

    Args:
      logits: [B, C].
      labels: float32 [B, C], 1 for the classes of a text, else 0.
      weights: [B] float32, 0 for rows that only fill the batch.
      loss: its weight of a class counts where a text has it, as `pos_weight` in torch's BCEWithLogitsLoss.

    Returns:
      Losses (binary cross-entropy, a mean over the classes) in nats; correct are texts all of whose classes are on the
      right side of 0.5.
    """
    logits, smoothing = logits.astype(jnp.float32), loss.label_smoothing
    present, absent = jax.nn.softplus(-logits), jax.nn.softplus(logits)  # -log p and -log(1 - p)
    if loss.focal_gamma:
        present, absent = (
            present * jnp.exp(-loss.focal_gamma * absent),
            absent * jnp.exp(-loss.focal_gamma * present),
        )
    if loss.class_weights:
        present *= loss.each(logits)
    targets = labels * (1 - smoothing) + smoothing / 2 if smoothing else labels
    losses = jnp.mean(targets * present + (1 - targets) * absent, axis=-1)
    correct = jnp.all((logits > 0) == (labels > 0), axis=-1)
    return Sums(jnp.sum(weights * losses), jnp.sum(weights), jnp.sum(weights * correct))


def regression_sums(predictions: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
    """Return sums over the batch of squared errors and weights; no prediction is right or wrong.

    Args:
      predictions: [B], or [B, T] like the others where T sequences share a row.
      labels: [B] float32.
      weights: [B] float32, 0 for rows that only fill the batch.
    """
    errors = jnp.square(predictions.astype(jnp.float32) - labels)
    return Sums(jnp.sum(weights * errors), jnp.sum(weights))


OUTSIDE = -1e9  # logit of padding: never chosen, and exp of it is 0


def span_sums(logits: jax.Array, labels: jax.Array, mask: jax.Array, weights: jax.Array) -> Sums:
    """Return sums over the batch; the mean is formed once, from the sums of all devices.

    Args:
      logits: [B, L, 2], start and end.
      labels: [B, 2] int32 positions, (0, 0) where the window holds no answer; one outside the sequence is ignored.
      mask: [B, L], 1 for real tokens. The original lets padding compete; here the loss does not depend on it.
      weights: [B] float32, 0 for rows that only fill the batch.

    Returns:
      Losses in nats; correct are windows with both ends right. A window counts as two halves.
    """
    logits = jnp.where(mask[:, :, None] > 0, logits.astype(jnp.float32), OUTSIDE)
    inside = _inside(labels, mask)
    halves = end_weights(labels, mask, weights)
    log_probabilities = jax.nn.log_softmax(logits, axis=1)
    positions = jnp.where(inside, labels, 0)
    losses = -jnp.take_along_axis(log_probabilities, positions[:, None, :], axis=1)[:, 0]
    correct = jnp.all((jnp.argmax(logits, axis=1) == labels) & inside, axis=1)
    return Sums(jnp.sum(halves * losses), jnp.sum(halves), jnp.sum(weights * correct))


def end_weights(labels: jax.Array, mask: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the weights of the first and the last token of each answer, [B, 2]; arguments as for `loss_sums`."""
    return 0.5 * weights[:, None] * _inside(labels, mask)


def _inside(labels: jax.Array, mask: jax.Array) -> jax.Array:
    return (labels >= 0) & (labels < jnp.sum(mask, axis=1)[:, None])


def tagging_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
    """Return sums over the batch; the mean over words is formed once, from the sums of all devices.

    Args:
      logits: [B, L, C].
      labels: [B, L] int32, -1 where nothing is predicted.
      weights: [B] float32, 0 for rows that only fill the batch.

    Returns:
      Losses in nats; the weight is the number of words.
    """
    return classification_sums(logits, jnp.maximum(labels, 0), word_weights(labels, weights))


def word_weights(labels: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the weight of each position, [B, L]; arguments as for `loss_sums`."""
    return weights[:, None] * (labels >= 0)


TERM = Term()


@dataclasses.dataclass(frozen=True)
class TaskObjective:
    """The loss of a head (see `Objective`) over the rows, words or windows that count.

    The batches are those that data/sequences makes.
    """

    model: BertForTask
    loss: TaskLoss = PLAIN
    """Of classification and of several labels per text."""

    @property
    def terms(self) -> tuple[Term, ...]:
        return (TERM,)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        labels, weights, kind = batch["labels"], batch["weights"], self.model.head.kind
        if kind == "span":
            weights = end_weights(labels, batch["attention_mask"], weights)
        elif kind == "tagging":
            weights = word_weights(labels, weights)
        elif kind == "classification":
            weights = self.loss.weights_of(labels, weights)
        return {TERM.name: jnp.sum(weights)}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        """Return the sums of the only term; regression and a CRF have no `correct`."""
        return {TERM.name: self.sums_of_scores(params, batch, self.model.apply(params, batch, dropout_key))}

    def sums_of_scores(self, params: Any, batch: Batch, scores: jax.Array) -> Sums:
        """Return the sums of scores that the model has given already."""
        labels, weights, head = batch["labels"], batch["weights"], self.model.head
        if head.kind == "regression":
            return regression_sums(scores, labels, weights)
        if head.kind == "span":
            return span_sums(scores, labels, batch["attention_mask"], weights)
        if head.crf:
            losses = self.model.crf(params).negative_log_likelihood(scores, *without_edges(labels))
            return Sums(jnp.sum(weights * losses), jnp.sum(word_weights(labels, weights)))
        if head.kind == "tagging":
            classes, *_ = without_edges(labels)
            return tagging_sums(scores, classes, weights)
        if head.kind == "multilabel":
            return multilabel_sums(scores, labels, weights, self.loss)
        return classification_sums(scores, labels, weights, self.loss if head.kind == "classification" else PLAIN)


def predictions(model: BertForTask, params: Any, batch: Batch) -> jax.Array:
    """Return the scores of `BertForTask.apply`, float32 [B, …].

    With a CRF, they are 1 for the labels of the best path and 0 for the others: the model's answer, word by word. A
    number is what the activation of the head makes of the score.
    """
    scores = model.apply(params, batch)
    if model.head.activation == "sigmoid":
        return jax.nn.sigmoid(scores)
    if not model.head.crf:
        return scores
    paths = model.crf(params).best_paths(scores, *without_edges(batch["labels"]), model.head.labels)
    return jax.nn.one_hot(paths, model.head.outputs, dtype=jnp.float32)

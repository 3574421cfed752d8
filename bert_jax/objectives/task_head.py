"""The objective of a task head, by its kind: one term, whose metrics are loss and accuracy; and its predictions."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.crf import without_edges
from bert_jax.models.task import BertForTask
from bert_jax.objectives import classification, regression, span, tagging
from bert_jax.objectives.objective import Batch, Sums, Term

TERM = Term()


@dataclasses.dataclass(frozen=True)
class TaskObjective:
    """The loss of a head (see `Objective`) over the rows, words or windows that count.

    The batches are those that data/sequences makes.
    """

    model: BertForTask

    @property
    def terms(self) -> tuple[Term, ...]:
        return (TERM,)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        labels, weights, kind = batch["labels"], batch["weights"], self.model.head.kind
        if kind == "span":
            weights = span.end_weights(labels, batch["attention_mask"], weights)
        elif kind == "tagging":
            weights = tagging.word_weights(labels, weights)
        return {TERM.name: jnp.sum(weights)}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        """Return the sums of the only term; regression and a CRF have no `correct`."""
        return {TERM.name: self.sums_of_scores(params, batch, self.model.apply(params, batch, dropout_key))}

    def sums_of_scores(self, params: Any, batch: Batch, scores: jax.Array) -> Sums:
        """Return the sums of scores that the model has given already."""
        labels, weights, head = batch["labels"], batch["weights"], self.model.head
        if head.kind == "regression":
            return regression.loss_sums(scores, labels, weights)
        if head.kind == "span":
            return span.loss_sums(scores, labels, batch["attention_mask"], weights)
        if head.crf:
            losses = self.model.crf(params).negative_log_likelihood(scores, *without_edges(labels))
            return Sums(jnp.sum(weights * losses), jnp.sum(tagging.word_weights(labels, weights)))
        if head.kind == "tagging":
            classes, *_ = without_edges(labels)
            return tagging.loss_sums(scores, classes, weights)
        return classification.loss_sums(scores, labels, weights)


def predictions(model: BertForTask, params: Any, batch: Batch) -> jax.Array:
    """Return the scores of `BertForTask.apply`, float32 [B, …].

    With a CRF, they are 1 for the labels of the best path and 0 for the others: the model's answer, word by word.
    """
    scores = model.apply(params, batch)
    if not model.head.crf:
        return scores
    paths = model.crf(params).best_paths(scores, *without_edges(batch["labels"]), model.head.labels)
    return jax.nn.one_hot(paths, model.head.outputs, dtype=jnp.float32)

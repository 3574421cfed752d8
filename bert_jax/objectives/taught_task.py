"""Distillation in fine-tuning: the labels of a task, and the scores of a fine-tuned teacher for the same examples."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config.teachers import TaskDistillationConfig
from bert_jax.models.crf import without_edges
from bert_jax.models.protocol import Params
from bert_jax.models.task import BertForTask
from bert_jax.objectives import regression, soft_targets, span, tagging
from bert_jax.objectives.objective import Batch, Sums, Term
from bert_jax.objectives.task_head import TaskObjective

LABELS = Term(name="labels")
TEACHER = Term(name="teacher", title="Teacher's scores", panels=("loss",))


@dataclasses.dataclass(frozen=True)
class TaughtTaskObjective:
    """The loss of the labels and that of the teacher's scores, by their shares (see `Objective`)."""

    model: BertForTask
    teacher: BertForTask
    options: TaskDistillationConfig
    teacher_params: Params | None = None
    """Parameters of the teacher, which are never trained; see `reading`."""

    def reading(self, teacher_params: Params) -> "TaughtTaskObjective":
        """Return the objective with the arrays of the teacher, inside the function that is compiled to take them."""
        return dataclasses.replace(self, teacher_params=teacher_params)

    @property
    def terms(self) -> tuple[Term, ...]:
        share = self.options.share
        return dataclasses.replace(LABELS, weight=1 - share), dataclasses.replace(TEACHER, weight=share)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        (of_labels,) = TaskObjective(self.model).denominators(batch).values()
        return {LABELS.name: of_labels, TEACHER.name: jnp.sum(self._weights(batch))}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        assert self.teacher_params is not None, "`reading` comes first"
        scores = self.model.apply(params, batch, dropout_key)
        theirs = self.teacher.apply(self.teacher_params, batch)
        labels = TaskObjective(self.model).sums_of_scores(params, batch, scores)
        return {LABELS.name: labels, TEACHER.name: self._teacher_sums(batch, scores, theirs)}

    def _teacher_sums(self, batch: Batch, scores: jax.Array, theirs: jax.Array) -> Sums:
        weights, kind = self._weights(batch), self.model.head.kind
        if kind == "regression":
            return regression.loss_sums(scores, theirs, weights)
        if kind == "span":  # a choice among the positions, once for the start and once for the end
            mask = batch["attention_mask"][:, :, None] > 0
            scores, theirs = (jnp.where(mask, each, span.OUTSIDE).swapaxes(1, 2) for each in (scores, theirs))
        return soft_targets.loss_sums(scores, theirs, weights, self.options.temperature)

    def _weights(self, batch: Batch) -> jax.Array:
        """Return the weight of each comparison: of a sequence, of both ends of an answer, or of a word."""
        weights, kind = batch["weights"], self.model.head.kind
        if kind == "span":
            return jnp.broadcast_to(0.5 * weights[:, None], (*weights.shape, 2))
        if kind == "tagging":
            classes, *_ = without_edges(batch["labels"])
            return tagging.word_weights(classes, weights)
        return weights

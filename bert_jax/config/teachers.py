"""Options of learning from a teacher, as frozen dataclasses; the standard library only, as in `config.options`."""

import dataclasses
import math
from typing import Literal

from bert_jax.errors import UserError, need_cloud_storage


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """A teacher whose predictions and states pre-training imitates (Sanh et al. 2019), and the weight of each loss."""

    teacher: str = ""
    """Model to learn from: any directory that init_from takes, with the vocabulary of the data and a head for masked
    words. A run resumes only with the same teacher, whose path may change. By default there is none."""
    temperature: float = 2.0
    """Divisor of the logits of both models before they are compared. The loss is multiplied by its square."""
    soft_weight: float = 5.0
    """Weight of the divergence of the student's predictions from the teacher's."""
    soft_positions: Literal["masked", "all"] = "masked"
    """Positions at which predictions are compared: the masked ones, or all tokens, as in the published code, which
    computes the logits of all of them."""
    cosine_weight: float = 1.0
    """Weight of 1 - cosine of the last states of student and teacher. Where their widths differ, these and all other
    states of the student are compared through one linear map, which is learned."""
    hidden_weight: float = 0.0
    """Weight of the squared difference of the embeddings and of the states after each layer (TinyBERT)."""
    attention_weight: float = 0.0
    """Weight of the squared difference of the attention probabilities of each layer, for equal numbers of heads
    (TinyBERT compares the scores before the softmax)."""
    layers: tuple[int, ...] = ()
    """Layers of the teacher, from 0, that the student's layers are compared with, in order. By default they are spread
    evenly: the last is compared with the last and, for half as many layers, every second one is used."""

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each loss, by the name of its option."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name.endswith("_weight")}

    def teacher_size(self, ours: int, theirs: int) -> int | None:
        """Return the width of the teacher's states if those of the student are mapped to it, else None.

        They are if states are compared, and their widths, `ours` and `theirs`, differ.
        """
        return theirs if (self.cosine_weight or self.hidden_weight) and ours != theirs else None


def check_distillation(options: DistillationConfig) -> None:
    """Raise a UserError if a value is out of range, or no weight is above 0."""
    check_temperature("objective.distillation", options.temperature)
    for name, weight in options.weights.items():
        if not 0 <= weight < math.inf:
            raise UserError(f"objective.distillation.{name}={weight} must be 0 or a positive number")
    if not any(options.weights.values()):
        raise UserError(
            f"objective.distillation.teacher={options.teacher}, but all weights below objective.distillation are 0, so "
            "nothing is learned from it; give one a positive weight, such as soft_weight=5"
        )
    if options.layers and not (options.hidden_weight or options.attention_weight):
        raise UserError(
            f"objective.distillation.layers={','.join(map(str, options.layers))} says which layers hidden_weight and "
            "attention_weight compare, and both are 0; give one of them a positive weight, or leave it out"
        )


def check_temperature(group: str, temperature: float) -> None:
    """Raise a UserError unless the temperature is positive."""
    if not 0 < temperature < math.inf:
        raise UserError(f"{group}.temperature={temperature} must be positive; DistilBERT has 2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskDistillationConfig:
    """A fine-tuned teacher whose scores are learned in addition to the labels of a task."""

    teacher: str = ""
    """Fine-tuned model to learn from, for the same labels and with the vocabulary of init_from. A command resumes only
    with the same teacher, whose path may change. By default there is none."""
    temperature: float = 2.0
    """Divisor of the logits of both models before they are compared. The loss is multiplied by its square. Regression
    compares the numbers directly."""
    share: float = 0.5
    """Share of the teacher in the loss; the rest is the loss of the labels. 1: the labels are ignored."""


def check_task_distillation(options: TaskDistillationConfig, crf: bool) -> None:
    """Raise a UserError if a value is out of range, or the head has no scores to compare."""
    if not options.teacher:
        return
    need_cloud_storage(options.teacher)
    check_temperature("distillation", options.temperature)
    if not 0 < options.share <= 1:
        raise UserError(
            f"distillation.share={options.share} must be above 0, where nothing is learned from the teacher, and at "
            "most 1"
        )
    if crf:
        raise UserError(
            f"distillation.teacher={options.teacher} teaches the scores of single words, and a CRF learns those of "
            "whole sentences; leave --crf out"
        )

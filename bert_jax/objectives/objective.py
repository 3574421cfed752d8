"""A training objective as a value: the terms of a loss, their weights, and the sums that a model's output gives."""

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax

from bert_jax.errors import UserError
from bert_jax.models.protocol import Model

Batch = dict[str, jax.Array]
"""input_ids [B, L] and whatever else an objective reads, all with B rows."""


class Sums(NamedTuple):
    """Sums of one term over the rows of a batch; those of its parts add up to those of the whole batch.

    They are float32 [] in a step, float after it.
    """

    loss: jax.Array | float
    """Sum of the losses of the predictions times their weights: nats, or squared errors."""
    weight: jax.Array | float
    """Sum of the weights of the predictions."""
    correct: jax.Array | float | None = None
    """Sum of the weights of the right predictions; None where there is no right and wrong."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Term:
    """One summand of a loss, and its names wherever its figures are shown."""

    name: str = ""
    """Its metrics are NAME_loss and NAME_accuracy; without a name, for an objective's only term, loss and accuracy."""
    weight: float = 1.0
    """Factor of its mean loss in the loss that is minimized."""
    label: str = ""
    """Its name in a line of the console. A term without a label is not shown there, apart from the loss itself."""
    title: str = ""
    """Its name in the picture of a run."""
    unit: str = ""
    """Unit of its loss in that picture."""
    panels: tuple[str, ...] = ("loss", "accuracy")
    """Which of its metrics have a panel in that picture."""
    perplexity: str = ""
    """Name under which an evaluation reports exp(loss); empty: not reported."""
    of_words: bool = False
    """Whether it predicts masked_ids, so that word frequencies alone are a baseline for it."""

    @property
    def loss(self) -> str:
        """Name of its mean loss among the metrics."""
        return f"{self.name}_loss" if self.name else "loss"

    @property
    def accuracy(self) -> str:
        """Name of its accuracy among the metrics."""
        return f"{self.name}_accuracy" if self.name else "accuracy"


class Objective(Protocol):
    """The interface that `make_train_step` and `Evaluation` use; objectives/bert_pretraining.py is one implementation.

    A term for which a batch has no labels, or the model no head, is absent from both dicts.
    """

    @property
    def model(self) -> Model:
        """The model: `model.init(key)` makes its parameters, and `model.parameters` is the table of their axes."""
        ...

    @property
    def terms(self) -> tuple[Term, ...]:
        """Terms in the order in which they are added and shown; the loss of `main_term` decides which step is best."""
        ...

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Return, by name of the term, the divisor of the sum of its losses over the whole batch: float32 [].

        It must follow from the batch alone, so that each micro-batch can divide by it before the others are computed.
        """
        ...

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        """Return the sums of each term, by name, over a batch or some of its rows; dropout_key=None: no dropout."""
        ...


class TaughtObjective(Objective, Protocol):
    """An objective that also reads arrays which are not trained, such as the parameters of a teacher."""

    def reading(self, *frozen: Any) -> Objective:
        """Return the objective with these arrays, inside the function that is compiled to take them."""
        ...


def main_term(terms: tuple[Term, ...]) -> Term:
    """Return the first term that is trained for, with a weight above 0, by whose held-out loss the best step is kept.

    Raises:
      UserError: no term has one.
    """
    if main := next((term for term in terms if term.weight > 0), None):
        return main
    raise UserError(
        f"no term of the objective has a weight above 0 ({_weights(terms)}), so there is nothing to learn; "
        "give one a positive weight"
    )


def _weights(terms: tuple[Term, ...]) -> str:
    return ", ".join(f"{term.name or term.loss}: {term.weight:g}" for term in terms) or "it has no terms"

"""What is trained for, as a value: the terms of a loss, what they weigh, and the sums that a model's output gives."""

import dataclasses
from typing import NamedTuple, Protocol

import jax

from bert_jax.errors import UserError
from bert_jax.models.model import Model

Batch = dict[str, jax.Array]
"""input_ids [B, L] and whatever else an objective reads, all with B rows."""


class Sums(NamedTuple):
    """Sums of one term over the rows of a batch, which add up to those of a larger one: float32 [] in a step, float after it."""

    loss: jax.Array | float
    """Of what each prediction costs, times its weight: nats, or squared errors."""
    weight: jax.Array | float
    """Of the weights of the predictions."""
    correct: jax.Array | float | None = None
    """Of the weights of the right predictions; None where there is no right and wrong."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Term:
    """One summand of a loss, and what it is called wherever its figures are shown."""

    name: str = ""
    """Its metrics are NAME_loss and NAME_accuracy; of an objective's only term with no name, loss and accuracy."""
    weight: float = 1.0
    """Factor of its mean loss in the loss that is minimised."""
    label: str = ""
    """Its name in a line of the console. A term without one is not shown there beside the loss itself."""
    title: str = ""
    """Its name in the picture of a run."""
    unit: str = ""
    """Unit of its loss in that picture."""
    panels: tuple[str, ...] = ("loss", "accuracy")
    """Which of its metrics have a panel there."""
    perplexity: str = ""
    """Name under which an evaluation reports exp(loss); empty: it does not."""
    of_words: bool = False
    """Whether masked_ids are what it predicts, so that the frequencies of words alone are a baseline for it."""

    @property
    def loss(self) -> str:
        return f"{self.name}_loss" if self.name else "loss"

    @property
    def accuracy(self) -> str:
        return f"{self.name}_accuracy" if self.name else "accuracy"


class Objective(Protocol):
    """What `make_train_step` and `Evaluation` need of an objective; objectives/pretraining.py is one, your own may be another.

    A term that a batch has no labels for, or that the model lacks the head for, is absent from both dicts.
    """

    @property
    def model(self) -> Model:
        """What is trained: `model.init(key)` makes its parameters, and `model.parameters` is the table of their axes."""
        ...

    @property
    def terms(self) -> tuple[Term, ...]:
        """In the order in which they are added and shown. `main_term` is the one by whose loss the best step is kept."""
        ...

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Return for each term, by name, what the sum of its losses over the whole batch is divided by: float32 [].

        It must follow from the batch alone, so that each micro-batch can divide by it before the others are computed.
        """
        ...

    def sums(self, params, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        """Return the sums of each term, by name, over a batch or any of its rows; None for no dropout."""
        ...


def main_term(terms: tuple[Term, ...]) -> Term:
    """Return the first term that is trained for, with a weight above 0, by whose held-out loss the best step is kept.

    Raises:
      UserError: no term has one.
    """
    if main := next((term for term in terms if term.weight > 0), None):
        return main
    raise UserError(
        f"no term of the objective has a weight above 0 ({_weights(terms)}), so there is nothing to learn; give one a weight"
    )


def _weights(terms: tuple[Term, ...]) -> str:
    return ", ".join(f"{term.name or term.loss}: {term.weight:g}" for term in terms) or "it has no terms"

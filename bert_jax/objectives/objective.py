"""A training objective as a value: the terms of a loss, their weights, and the sums that a model's output gives.

Figures that people read come from these sums. Each is divided once, by the weight of the whole global batch; there
are no means of means, so neither the number of devices nor that of micro-batches changes what is optimized. A run
writes its terms down as JSON where it starts, for those who read it later.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp

from bert_jax.config.pretraining import SentencePairs
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.protocol import Model

Batch = dict[str, jax.Array]
"""input_ids [B, L] and whatever else an objective reads, all with B rows; but see `VectorObjective`."""


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
    """Those of its metrics that have a panel in that picture."""
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
    """The interface that `make_train_step` and `Evaluation` use; objectives/masked_words.py is one implementation.

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


@dataclasses.dataclass(frozen=True)
class ReparametrizedObjective:
    """An objective whose parameters a function makes of those that learn (see `TaughtObjective`)."""

    objective: Objective
    model: Model
    """The model of the parameters that learn: `init` makes them, and `parameters` is their table."""
    whole: Callable[..., Any]
    """Returns the parameters of `objective`, from those that learn and the frozen trees that it takes."""
    taken: int = 0
    """Number of those trees; the ones after them are for `objective`."""
    frozen: tuple[Any, ...] = ()

    def reading(self, *frozen: Any) -> "ReparametrizedObjective":
        """Return the objective with these arrays, inside the function that is compiled to take them."""
        own, others = frozen[: self.taken], frozen[self.taken :]
        inner = cast(TaughtObjective, self.objective).reading(*others) if others else self.objective
        return dataclasses.replace(self, objective=inner, frozen=own)

    @property
    def terms(self) -> tuple[Term, ...]:
        return self.objective.terms

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return self.objective.denominators(batch)

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        return self.objective.sums(self.whole(params, *self.frozen), batch, dropout_key)


@dataclasses.dataclass(frozen=True)
class WeightedObjective:
    """An objective whose loss is multiplied by a factor, as one of several tasks (see `TaughtObjective`)."""

    objective: Objective
    factor: float

    def reading(self, *frozen: Any) -> "WeightedObjective":
        """Return the objective with these arrays, inside the function that is compiled to take them."""
        return dataclasses.replace(self, objective=cast(TaughtObjective, self.objective).reading(*frozen))

    @property
    def model(self) -> Model:
        return self.objective.model

    @property
    def terms(self) -> tuple[Term, ...]:
        return tuple(dataclasses.replace(term, weight=self.factor * term.weight) for term in self.objective.terms)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return self.objective.denominators(batch)

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        return self.objective.sums(params, batch, dropout_key)


class ObjectiveFamily(Protocol):
    """A module of objectives, which the type of their options names as its `losses`."""

    def objective(
        self, model: BertForPreTraining, options: Any, epsilon: float, sentence_pairs: SentencePairs
    ) -> Objective:
        """Return the objective with these options, which are of one of the types that name the module.

        Args:
          model: with the parts of BERT's pre-training, which may be replaced.
          options: its own.
          epsilon: added to the number of masked words, by which their loss is divided.
          sentence_pairs: meaning of the labels of pairs.
        """
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


def ratio(total: jax.Array | float, weight: jax.Array | float) -> jax.Array:
    """Return total / weight; 0, not NaN, if nothing was weighed: a batch without a single prediction."""
    return total / jnp.where(weight > 0, weight, 1.0)


def mean_loss(terms: tuple[Term, ...], sums: Mapping[str, Sums], denominators: Mapping[str, jax.Array]) -> jax.Array:
    """Return the weighted sum of the mean losses of the terms in `sums`, float32 []: the loss that is minimized.

    Raises:
      UserError: the objective contradicts itself, which shows while the step is traced: a name in `sums` or in
        `denominators` is not that of a term, two terms have one name, sums have no denominator, or there are none.
    """
    _check_names(terms, sums, denominators)
    if missing := [name for name in sums if name not in denominators]:
        raise UserError(
            f"the objective has sums of {missing[0]!r} but no denominator; it must return both, which its batches allow"
        )
    means = [(term.weight, ratio(sums[term.name].loss, denominators[term.name])) for term in terms if term.name in sums]
    first, *others = (mean if weight == 1 else weight * mean for weight, mean in means)
    return sum(others, first)


def training_metrics(
    terms: tuple[Term, ...], sums: Mapping[str, Sums], denominators: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """Return `mean_loss` as loss, and the loss and accuracy of each term, float32 []."""
    metrics = {}
    for term in terms:
        if (found := sums.get(term.name)) is not None:
            metrics[term.loss] = ratio(found.loss, denominators[term.name])
            if found.correct is not None:
                metrics[term.accuracy] = ratio(found.correct, found.weight)
    return metrics | {"loss": mean_loss(terms, sums, denominators)}


def evaluation_metrics(terms: tuple[Term, ...], sums: Mapping[str, Sums]) -> dict[str, float]:
    """Return loss (per prediction), perplexity and accuracy of each term, from sums in float64.

    A term of which nothing was predicted, and so nothing is known, is absent.

    Raises:
      UserError: a name in `sums` is not that of a term, or there are none.
    """
    _check_names(terms, sums, {})
    metrics = {}
    for term in terms:
        if (found := sums.get(term.name)) is not None and found.weight:
            metrics[term.loss] = mean = found.loss / found.weight
            if term.perplexity:
                metrics[term.perplexity] = math.exp(min(mean, 700.0))
            if found.correct is not None:
                metrics[term.accuracy] = found.correct / found.weight
    return metrics


def _check_names(terms: tuple[Term, ...], sums: Mapping[str, Sums], denominators: Mapping[str, jax.Array]) -> None:
    """Raise a UserError if a term would silently not be trained or measured."""
    names = [term.name for term in terms]
    known = ", ".join(map(repr, names)) or "none"
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two terms of the objective have the name {twice[0]!r}; their metrics need different names")
    for found, values in (("sums", sums), ("denominators", denominators)):
        if unknown := [name for name in values if name not in names]:
            raise UserError(
                f"the {found} of the objective have {unknown[0]!r}, which is not one of its terms ({known})"
            )
    if not sums:
        raise UserError(
            f"the objective returns no sums of any of its terms ({known}), so there is nothing to train or to measure; "
            "does the model have the heads, and the data the labels?"
        )


FIELDS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "weight": (int, float),
    "label": str,
    "perplexity": str,
    "of_words": bool,
}
"""The fields of a term that readers of a run need, and their types."""


def records(terms: Iterable[Term]) -> list[dict[str, Any]]:
    """Return what is written of each term."""
    return [{name: getattr(term, name) for name in FIELDS} for term in terms]


def recorded_terms(written: Any) -> tuple[Term, ...]:
    """Return the terms in what `records` has returned, or nothing if it has another form: it comes from a file."""
    rows = written if isinstance(written, list) else []
    if not all(isinstance(row, dict) and _is_term(row) for row in rows):
        return ()
    return tuple(Term(**{name: row[name] for name in FIELDS}) for row in rows)


def _is_term(row: dict[str, Any]) -> bool:
    return all(isinstance(row.get(name), kind) for name, kind in FIELDS.items())

"""The losses of the task ranking, one of which is chosen by name; standard library only.

Each is a type with its own options. They are of the scores that a model gives to the documents of a query.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from bert_jax.config.heads import Activation
from bert_jax.errors import UserError, need_positive

Learns = Literal["grades", "order", "scores"]
"""What a loss learns of the documents of a query: the grade of each, which of two has a higher one, or the scores of a
teacher."""
Weighting = Literal["none", "ndcg1", "ndcg2", "lambdarank", "ndcg2++"]
"""Weights of the pairs of documents in LambdaLoss; see `LambdaLoss.weighting`."""


class _Loss:
    """Common part of the losses."""

    chosen_by: ClassVar[Mapping[str, str]]
    """The option that chooses it, and its value."""
    learns: ClassVar[Learns] = "order"
    """What it learns of the documents of a query."""
    answers: ClassVar[Activation] = "identity"
    """What the trained model makes of its score to answer."""

    @property
    def name(self) -> str:
        """The value of options.loss.name that chooses it."""
        return self.chosen_by["name"]

    def check(self) -> None:
        """Raise a UserError if a value is out of range."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinaryLoss(_Loss):
    """Binary cross-entropy of each document on its own, a mean over all documents of the batch. The model answers with
    a probability."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "binary"}
    learns: ClassVar[Learns] = "grades"
    answers: ClassVar[Activation] = "sigmoid"

    highest: float = 1.0
    """Highest possible grade, by which all are divided."""
    positive_weight: float = 1.0
    """Factor of the loss of what is relevant. The number of other documents per relevant one makes both count alike."""

    def check(self) -> None:
        need_positive(self, "options.loss.", "highest", "positive_weight")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftmaxLoss(_Loss):
    """Cross-entropy of finding each relevant document among those that are not; a mean over the queries.

    Relevant documents are those with a grade above 0.
    """

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "softmax"}

    scale: float = 1.0
    """Factor of the scores, the inverse of a temperature."""
    activation: Activation = "identity"
    """Function of the scores before the factor. With sigmoid, a scale of 10 is usual."""

    def check(self) -> None:
        need_positive(self, "options.loss.", "scale")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListNet(_Loss):
    """Cross-entropy between the distributions that grades and scores make of the documents of a query (Cao et al.
    2007)."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "listnet"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LambdaLoss(_Loss):
    """Logistic loss of the pairs of a higher and a lower grade, weighted by what their order is worth in nDCG (Wang et
    al. 2018), a mean over all pairs of the batch."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "lambda"}

    weighting: Weighting = "ndcg2++"
    """Weights of the pairs. ndcg1, ndcg2: bounds of nDCG, the second a tighter one. lambdarank: what nDCG would lose if
    the two changed places. ndcg2++: the sum of both, the former times mu. none: all have 1 (RankNet)."""
    mu: float = 10.0
    """Factor of ndcg2 in ndcg2++."""
    sigma: float = 1.0
    """Factor of the difference of two scores."""
    top: int = 0
    """Number of first places in the order of the model, one of which a pair must have to count. 0: all pairs do."""

    def check(self) -> None:
        need_positive(self, "options.loss.", "mu", "sigma")
        if self.top < 0:
            raise UserError(f"options.loss.top={self.top} must be a number of places, or 0 for all")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarginLoss(_Loss):
    """Squared difference between the margins of model and teacher: the score of the first document of a query less that
    of each other (Hofstätter et al. 2020)."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "margin_mse"}
    learns: ClassVar[Learns] = "scores"


RankingLoss = BinaryLoss | SoftmaxLoss | ListNet | LambdaLoss | MarginLoss
"""The loss of the task ranking: one of these."""

"""The losses of the task vectors, one of which is chosen by name; standard library only.

Each is a type with its own options. What it takes says which columns the training examples must have.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from bert_jax.errors import UserError, need_no_negative, need_positive

Similarity = Literal["cosine", "dot"]
"""Similarity of two vectors: the cosine of the angle between them, or their product."""
Distance = Literal["cosine", "euclidean", "manhattan"]
"""Distance of two vectors: 1 minus the cosine, or the 2-norm or 1-norm of their difference."""
Takes = Literal["pairs", "scores", "triplets", "teacher"]
"""Columns of the examples: an anchor and its positive, perhaps with negatives; two texts and a score; an anchor, a
positive and one negative; or an anchor, a positive, negatives and the scores that a teacher gave them."""


class _Loss:
    """Common part of the losses."""

    chosen_by: ClassVar[Mapping[str, str]]
    """The option that chooses it, and its value."""
    takes: ClassVar[Takes] = "pairs"
    """What the examples must have."""
    compares_examples: ClassVar[bool] = False
    """Whether the loss of an example depends on the other examples of its batch."""
    in_batch: ClassVar[bool] = False
    """Whether the texts of the other examples of a batch are negatives."""

    @property
    def name(self) -> str:
        """The value of options.loss.name that chooses it."""
        return self.chosen_by["name"]

    def check(self) -> None:
        """Raise a UserError if a value is out of range."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InfoNce(_Loss):
    """Cross-entropy of finding the positive of an anchor among all positives and negatives of the batch (InfoNCE, also
    called multiple negatives ranking).

    With one column, both are the same text with different dropout (SimCSE).
    """

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "info_nce"}
    compares_examples: ClassVar[bool] = True
    in_batch: ClassVar[bool] = True

    scale: float = 20.0
    """Factor of the similarities, the inverse of a temperature."""
    similarity: Similarity = "cosine"
    """Similarity of two vectors. dot is usually taken with a scale of 1."""
    symmetric: bool = False
    """Whether the anchor of each positive is found among all anchors too, which counts as much."""

    def check(self) -> None:
        need_positive(self, "options.loss.", "scale")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cosent(_Loss):
    """Order of the cosines of all pairs of a batch, which is to be that of their scores (CoSENT)."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "cosent"}
    takes: ClassVar[Takes] = "scores"
    compares_examples: ClassVar[bool] = True

    scale: float = 20.0
    """Factor of the cosines."""

    def check(self) -> None:
        need_positive(self, "options.loss.", "scale")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Angle(Cosent):
    """The same with angles of complex vectors, whose halves are real and imaginary parts (Li & Li 2023, AnglE)."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "angle"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CosineRegression(_Loss):
    """Squared difference between the cosine of a pair and its score."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "cosine"}
    takes: ClassVar[Takes] = "scores"

    highest: float = 1.0
    """Highest possible score, by which all are divided: 5 for STS-B."""

    def check(self) -> None:
        need_positive(self, "options.loss.", "highest")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Triplet(_Loss):
    """max(0, distance to the positive - distance to the negative + margin)."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "triplet"}
    takes: ClassVar[Takes] = "triplets"

    margin: float = 5.0
    """By how much the negative is to be farther away than the positive."""
    distance: Distance = "euclidean"
    """Distance of two vectors."""

    def check(self) -> None:
        need_no_negative(self, "options.loss.", "margin")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarginMse(_Loss):
    """Squared difference between the margins of model and teacher: the similarity of the anchor to its positive less
    that to each negative (Hofstätter et al. 2020)."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "margin_mse"}
    takes: ClassVar[Takes] = "teacher"

    similarity: Similarity = "dot"
    """Similarity of two vectors."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KlDivergence(_Loss):
    """Divergence of the distribution over positive and negatives from that of a teacher, in nats."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "kl"}
    takes: ClassVar[Takes] = "teacher"

    temperature: float = 1.0
    """Divisor of the scores of both. The loss is multiplied by its square."""
    similarity: Similarity = "dot"
    """Similarity of two vectors."""

    def check(self) -> None:
        need_positive(self, "options.loss.", "temperature")


VectorLoss = InfoNce | Cosent | Angle | CosineRegression | Triplet | MarginMse | KlDivergence
"""The loss of the task vectors: one of these."""


def check_matryoshka(dims: tuple[int, ...], weights: tuple[float, ...]) -> None:
    """Raise a UserError if the lengths of nested vectors, or their weights, cannot be."""
    if bad := [dim for dim in dims if dim < 1]:
        raise UserError(f"options.dims={bad[0]} must be a number of features, at least 1")
    if len(set(dims)) < len(dims):
        raise UserError(f"options.dims={','.join(map(str, dims))} names a length twice; give each once")
    if weights and dims and len(weights) != len(dims):
        raise UserError(
            f"options.dim_weights has {len(weights)} weights for {len(dims)} options.dims; give one for each, or none"
        )
    if any(weight <= 0 for weight in weights):
        raise UserError(f"options.dim_weights={min(weights):g} must be positive; leave its length out of options.dims")

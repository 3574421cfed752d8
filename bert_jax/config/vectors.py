"""The losses of the task vectors, one of which is chosen by name; standard library only.

Each is a type with its own options. What it takes says which columns the training examples must have.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from bert_jax.config.heads import Similarity, SingleVector, TextVectors
from bert_jax.errors import UserError, need_no_negative, need_positive

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

    def of(self, form: TextVectors) -> Self:
        """Return the loss with what it takes for vectors of this form in place of None.

        Raises:
          UserError: it cannot compare such vectors.
        """
        if isinstance(form, SingleVector):
            return self
        raise UserError(
            f"options.loss.name={self.name} compares single vectors, and options.form.name={form.name} gives others; "
            "give --options.loss.name=info_nce, margin_mse or kl"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Similar(_Loss):
    """Common part of the losses that know similarities alone."""

    usual: ClassVar[Similarity] = "dot"
    """Similarity of single vectors, if none is given."""

    similarity: Similarity | None = None
    """Similarity of two texts. None: the usual one, or that of the form of the vectors."""

    def of(self, form: TextVectors) -> Self:
        usual = self.usual if self.usual in form.similarities else form.similarities[0]
        chosen = self.similarity or usual
        if chosen not in form.similarities:
            raise UserError(
                f"options.loss.similarity={chosen} is not that of options.form.name={form.name}, which has "
                f"{' and '.join(form.similarities)}; leave it out"
            )
        return dataclasses.replace(self, similarity=chosen)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InfoNce(_Similar):
    """Cross-entropy of finding the positive of an anchor among all positives and negatives of the batch (InfoNCE, also
    called multiple negatives ranking).

    With one column, both are the same text with different dropout (SimCSE).
    """

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "info_nce"}
    compares_examples: ClassVar[bool] = True
    in_batch: ClassVar[bool] = True
    usual: ClassVar[Similarity] = "cosine"

    scale: float | None = None
    """Factor of the similarities, the inverse of a temperature. None: 20 for cosines, 1 for others."""
    similarity: Similarity | None = None
    """Similarity of two texts. None: cosine, or that of a form of vectors which has no cosines."""
    symmetric: bool = False
    """Whether the anchor of each positive is found among all anchors too, which counts as much."""

    def of(self, form: TextVectors) -> Self:
        found = super().of(form)
        return dataclasses.replace(found, scale=found.scale or (20.0 if found.similarity == "cosine" else 1.0))

    def check(self) -> None:
        if self.scale is not None:
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
class MarginMse(_Similar):
    """Squared difference between the margins of model and teacher: the similarity of the anchor to its positive less
    that to each negative (Hofstätter et al. 2020)."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "margin_mse"}
    takes: ClassVar[Takes] = "teacher"

    similarity: Similarity | None = None
    """Similarity of two texts. None: dot, or that of a form of vectors which has no products."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KlDivergence(_Similar):
    """Divergence of the distribution over positive and negatives from that of a teacher, in nats."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "kl"}
    takes: ClassVar[Takes] = "teacher"

    temperature: float = 1.0
    """Divisor of the scores of both. The loss is multiplied by its square."""
    similarity: Similarity | None = None
    """Similarity of two texts. None: dot, or that of a form of vectors which has no products."""

    def check(self) -> None:
        need_positive(self, "options.loss.", "temperature")


VectorLoss = InfoNce | Cosent | Angle | CosineRegression | Triplet | MarginMse | KlDivergence
"""The loss of the task vectors: one of these."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InheritedForm:
    """The form that the vectors of init_from have, a single one where it says none."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "inherited"}
    """The option that chooses it, and its value."""
    name: ClassVar[str] = "inherited"
    """The value of options.form.name that chooses it."""

    def check(self) -> None:
        """Raise nothing: there are no options."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparsityConfig:
    """What keeps vectors of words sparse: the squares of the mean weights of a batch, summed over the words (FLOPS,
    Paria et al. 2020), which are added to the loss."""

    query_weight: float = 5e-5
    """Factor of FLOPS, the sum over the words of their squared mean weight, for the anchors."""
    document_weight: float = 3e-5
    """Factor of the same sum for all other texts."""
    ramp: float = 1 / 3
    """Share of the steps over which the factors rise from 0, with the square of the step."""

    def check(self) -> None:
        """Raise a UserError if a value is out of range."""
        need_no_negative(self, "options.sparsity.", "query_weight", "document_weight")
        if not 0 <= self.ramp <= 1:
            raise UserError(f"options.sparsity.ramp={self.ramp:g} must be a share of the steps, from 0 to 1")


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

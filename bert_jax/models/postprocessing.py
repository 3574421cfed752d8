"""Affine maps of the vectors of texts, such as whitening, fitted on some texts and applied to others."""

import dataclasses
import typing
from typing import Literal

import numpy as np

from bert_jax.config.encoder_heads import Combination, Pooling
from bert_jax.errors import UserError

PostprocessKind = Literal["whitening", "component_removal"]
KINDS: tuple[PostprocessKind, ...] = typing.get_args(PostprocessKind)


@dataclasses.dataclass(frozen=True, eq=False)
class Postprocess:
    """The map x ↦ (x - mean) · matrix of the vectors that `embed` returns with certain layers and pooling."""

    kind: PostprocessKind
    """whitening: the covariance becomes the identity (Su et al. 2021); component_removal: mean and strongest
    directions become zero (Mu and Viswanath 2018)."""
    layers: Combination
    """The `layers` of embed whose vectors it was fitted on."""
    pooling: Pooling
    """Their `pooling`."""
    mean: np.ndarray
    """float32 [H]: the mean of the vectors."""
    matrix: np.ndarray
    """float32 [H, K], for vectors of H values, which become K."""

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Return float32 [n, K] for the vectors [n, H]."""
        return ((vectors - self.mean).astype(np.float32) @ self.matrix).astype(np.float32)

    def check(self, layers: str, pooling: str) -> None:
        """Raise a UserError if `embed` makes other vectors than those that this was fitted on."""
        if (layers, pooling) != (self.layers, self.pooling):
            raise UserError(
                f"this {self.kind} was fitted on layers={self.layers!r}, pooling={self.pooling!r}, but embed has "
                f"layers={layers!r}, pooling={pooling!r}; give embed the same, or fit another"
            )

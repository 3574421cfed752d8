"""Disentangled attention (DeBERTa) as a frozen dataclass; the standard library only, as in `config.encoder`."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class DisentangledConfig:
    """Relative positions in the scores of attention (He et al. 2021, arXiv 2006.03654 and 2111.09543).

    In addition to content·content, a score has up to two terms: the content of the query with the relative position of
    the key (c2p), and the relative position of the query with the content of the key (p2c). The sum of n terms is
    divided by √(n·D) for heads of size D. All layers read one table of relative positions.
    """

    terms: Literal["none", "c2p", "p2c", "c2p+p2c"] = "none"
    """Terms of the scores besides content·content. none: ordinary attention; the other options here have no effect."""
    max_distance: int = 512
    """Distance from which all distances are treated alike (max_relative_positions in published files)."""
    buckets: int | None = None
    """Number of buckets for the distances to either side. Half of them are one distance each; the others grow
    logarithmically up to max_distance (version 2 and 3: 256). None: every distance below max_distance has its own
    (version 1)."""
    shared_projections: bool = False
    """Whether the content's query and key projections are also used for relative positions (version 3). Otherwise
    relative positions have projections of their own."""
    table_norm: bool = False
    """Whether a LayerNorm follows the table of relative positions (version 2 and 3)."""
    key_bias: bool = True
    """Whether the maps to keys add a bias. Version 1 has none, neither for content nor for relative positions."""

    @property
    def c2p(self) -> bool:
        """Whether the content of queries meets relative positions."""
        return self.terms in ("c2p", "c2p+p2c")

    @property
    def p2c(self) -> bool:
        """Whether the content of keys meets relative positions."""
        return self.terms in ("p2c", "c2p+p2c")

    @property
    def count(self) -> int:
        """Number of terms of a score, content·content included."""
        return 1 + self.c2p + self.p2c

    @property
    def reach(self) -> int:
        """Number R of relative positions to either side; the table has 2R rows."""
        return self.max_distance if self.buckets is None else self.buckets

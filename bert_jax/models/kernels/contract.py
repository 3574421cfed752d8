"""What an attention kernel gets and what it must return."""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp

# Google's adder. Finite, so that a row with nothing but padding attends as if unmasked instead of giving 0/0; and it is
# added to float32 scores, where exp(-10000) is exactly 0 and the score beside it still counts.
MASKED_SCORE = -10_000.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionMask:
    """Which positions attend to which, and what is added to their scores; every given restriction applies."""

    padding: jax.Array
    """[B, L]: 1 for positions that may be attended to, 0 for padding."""
    segments: jax.Array | None = None
    """Integers [B, L]: a position attends only to those with its own number (several texts packed into one row)."""
    window: jax.Array | int | None = None
    """Scalar: a position attends to those at most this far away on either side (local attention).

    A number of at least L - 1 restricts nothing, so layers with and without a window can share one program.
    """
    bias: jax.Array | None = None
    """[B or 1, A or 1, L (query), L (key)]: added to the scores after their scaling (relative positions)."""
    distance_bias: Callable[[jax.Array], jax.Array] | None = dataclasses.field(default=None, metadata={"static": True})
    """Maps the distances from queries to keys, int32 […], to what is added to their scores, float32 [A or 1, …].

    Known by distance alone, it can be computed for those pairs that a kernel meets (ALiBi, left to right).
    """
    global_positions: jax.Array | None = None
    """int32 [B or 1, G]: the positions that a window restricts neither as queries nor as keys; beyond the row: none."""
    queries: jax.Array | None = None
    """int32 [B, M]: the positions of M queries, for `kernels.xla.attention` alone. None: every position is a query."""

    def adder(self) -> jax.Array:
        """Return the sum of everything that is added to the scores, float32 [B, A or 1, L, M or 1, L (key)]."""
        adder = jnp.where(self.padding > 0, 0.0, MASKED_SCORE)[:, None, None, :]
        if self.segments is not None:
            same = self._of_queries(self.segments)[:, :, None] == self.segments[:, None, :]
            adder = jnp.where(same[:, None], adder, MASKED_SCORE)
        distance = self._distances()
        if self.window is not None:
            near = jnp.abs(distance) <= self.window
            if self.global_positions is not None:
                free = self.is_global()
                near = near | self._of_queries(free)[:, :, None] | free[:, None, :]
            adder = jnp.where(near[:, None], adder, MASKED_SCORE)
        if self.bias is not None:
            bias = self._of_queries(jnp.swapaxes(self.bias.astype(jnp.float32), 1, 2))
            adder = adder + jnp.swapaxes(bias, 1, 2)
        if self.distance_bias is not None:
            adder = adder + jnp.swapaxes(self.distance_bias(distance), 0, 1)
        return adder

    def whole_bias(self) -> jax.Array | None:
        """Return everything that `bias` has or could have, with that of distances: as `bias`, or None."""
        if self.distance_bias is None:
            return self.bias
        bias = jnp.swapaxes(self.distance_bias(self._distances()), 0, 1)
        return bias if self.bias is None else self.bias + bias

    def _distances(self) -> jax.Array:
        """Return the place of each key less that of each query: int32 [B or 1, L, M or 1, L (key)]."""
        key = jnp.arange(self.padding.shape[1], dtype=jnp.int32)[None, None, :]
        return key - self._of_queries(key[:, 0])[:, :, None]

    def is_global(self) -> jax.Array:
        """Return bool [B or 1, L]: whether a window does not restrict the position."""
        assert self.global_positions is not None, "asked for where there are some"
        every = jnp.arange(self.padding.shape[1])[None, None, :]
        return jnp.any(self.global_positions[:, :, None] == every, axis=1)

    def _of_queries(self, values: jax.Array) -> jax.Array:
        """Return values [B or 1, L, …] at the positions of the queries."""
        if self.queries is None:
            return values
        values = jnp.broadcast_to(values, (self.queries.shape[0], *values.shape[1:]))
        return jax.vmap(lambda row, positions: row[positions])(values, self.queries)


class AttentionKernel(Protocol):
    """Scaled dot-product attention with dropout on its probabilities, the seam for faster kernels.

    `kernels.xla.attention` defines the result. Without dropout, every other kernel equals it up to rounding, in values
    and in gradients (including those of `mask.bias`). With dropout, a kernel need not drop the same elements: its
    output has the same distribution for a random key and is the same for an equal key, and the gradient belongs to the
    elements that were dropped.

    Steps are traced with the mesh of the run as the mesh in use (`devices.sharding.under`): a kernel that XLA cannot
    split finds it in `jax.sharding.get_abstract_mesh()`.
    """

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: AttentionMask,
        dropout_key: jax.Array | None = None,
        rate: float = 0.0,
        collect: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Return the mean of the values for each position and, with `collect`, the probabilities that weigh them.

        Args:
          query: [B, L, A, D], in the dtype of the matrix products. Scores are scaled by 1/√D. XLNet's second stream
            and a last layer that is computed where it is read have M queries for L keys, and always
            `kernels.xla.attention`.
          key: as `query`.
          value: as `query`.
          mask: the restrictions; a kernel may read its fields instead of `mask.adder()`.
          dropout_key: None for no dropout.
          rate: fraction of the probabilities that is dropped.
          collect: whether to return the probabilities. A kernel that never holds them calls `kernels.xla.attention`.

        Returns:
          [B, L, A, D] in the dtype of `value`; probabilities before dropout, float32 [B, A, L (query), L (key)], or
          None.
        """
        ...

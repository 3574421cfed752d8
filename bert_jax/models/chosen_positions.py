"""States at some positions of every row."""

import jax
import jax.numpy as jnp


def gather_positions(hidden: jax.Array, positions: jax.Array) -> jax.Array:
    """Return hidden [B, L, H] at positions [B, M]: [B, M, H]. A position outside the sequence gives NaN."""
    return jnp.take_along_axis(hidden, positions[:, :, None], axis=1, mode="fill")


def last_positions(mask: jax.Array) -> jax.Array:
    """Return int32 [B]: the position of the last real token of rows whose mask [B, L] is 1 there, on any side; or 0."""
    positions = jnp.arange(mask.shape[1], dtype=jnp.int32)
    return jnp.max(jnp.where(mask > 0, positions, 0), axis=1)

"""The two uses of the word table: looking up rows, and the logits of all words.

Both take the table [V, H], or copies of it [N, V, H], one for each of N consecutive parts of the batch. A training step
that splits the batch over N devices gives it as copies: each device then adds up the gradients of both uses by itself,
so that they are summed over the devices once, together.
"""

import jax
import jax.numpy as jnp

from bert_jax.models.products import wide_einsum


def look_up(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Return the rows at ids [B, L]: [B, L, H]. An id beyond the table gives NaN, not a different word."""
    if table.ndim == 2:
        return jnp.take(table, ids, axis=0)
    parts = ids.reshape(len(table), -1, ids.shape[1])
    rows = jax.vmap(lambda own, ids: jnp.take(own, ids, axis=0))(table, parts)
    return rows.reshape(*ids.shape, table.shape[-1])


def word_logits(x: jax.Array, table: jax.Array) -> jax.Array:
    """Return the products of x [B, M, H] with all rows, computed in the dtype of x: [B, M, V] float32."""
    table = table.astype(x.dtype)
    if table.ndim == 2:
        return wide_einsum("bmh,vh->bmv", x, table)
    parts = x.reshape(len(table), -1, *x.shape[1:])
    logits: jax.Array = wide_einsum("nbmh,nvh->nbmv", parts, table)
    return logits.reshape(*x.shape[:2], table.shape[1])

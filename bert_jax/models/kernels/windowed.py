"""Attention within a window in plain JAX, whose time and memory grow linearly with the length.

Queries are taken in blocks as wide as the window. A block can see three blocks of keys: its own and its two
neighbours. The gradient is that of automatic differentiation, so it grows linearly too. Short rows are computed
faster with the full matrix (docs/modern_encoders.md).
"""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from bert_jax.models.costs import block_size, is_short
from bert_jax.models.kernels.plain import MASKED_SCORE, AttentionMask, Call, Kernel
from bert_jax.models.layers import dropout, wide_einsum

NEVER = -1e30  # score of keys that are not there, and of those that are counted elsewhere


def obstacle(call: Call) -> str | None:
    """Return why this kernel cannot compute a call, or would not be faster; None if it is the one."""
    if call.window is None:
        return "no window that is known when the program is compiled"
    if is_short(call.length, call.window, call.global_tokens):
        others = f" and {call.global_tokens} global tokens" if call.global_tokens else ""
        return f"a row of {call.length} is short for a window of {call.window} to either side{others}"
    return None


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    dropout_key: jax.Array | None = None,
    rate: float = 0.0,
    collect: bool = False,
) -> tuple[jax.Array, None]:
    """See `AttentionKernel`.

    The output equals that of `plain.attention` where a position sees at least itself. Padding that sees nothing but
    padding has an output of no meaning, here as there, but another one.
    """
    assert not collect, "a Kernel gives its function what it supports"
    length = query.shape[1]
    keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
    context = _of_blocks(query, key, value, mask, keys[0], rate)[:, :length]
    if mask.global_positions is not None:
        of_global = _of_global_tokens(query, key, value, mask, keys[1], rate)
        put = lambda row, places, found: row.at[places].set(found, mode="drop")
        context = jax.vmap(put)(context, _positions(mask, len(context)), of_global)
    return checkpoint_name(context, "attention_output"), None


KERNEL = Kernel(attention, ("segments", "window", "global_tokens", "distances", "dropout"), obstacle)


def _of_blocks(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: AttentionMask, dropout_key: jax.Array | None, rate: float
) -> jax.Array:
    """Return the output of every position within its window, and of the global tokens as keys; padded to blocks."""
    batch, length, heads, size = query.shape
    assert isinstance(mask.window, int), "obstacle() comes first"
    block, number = block_size(mask.window), 0
    queries, keys, values = _blocks(query, block), _neighbours(key, block), _neighbours(value, block)
    scores = wide_einsum("bnqad,bnkad->bnaqk", queries, keys) * size**-0.5
    scores = scores + _adder(mask, length, block)[:, :, None]
    if mask.distance_bias is not None:
        scores = scores + mask.distance_bias(_distances(block))[None, None]
    if mask.global_positions is not None:
        number, chosen = mask.global_positions.shape[1], _global(key, mask)
        to_global = wide_einsum("bnqad,bkad->bnaqk", queries, chosen) * size**-0.5
        to_global = to_global + _adder_to_global(mask, block)[:, :, None]
        if mask.distance_bias is not None:
            places = jnp.arange(scores.shape[1] * block, dtype=jnp.int32).reshape(1, -1, block, 1)
            bias = mask.distance_bias(mask.global_positions[:, None, None] - places)  # [A or 1, B or 1, n, block, G]
            to_global = to_global + jnp.moveaxis(bias, 0, 2)
        scores = jnp.concatenate([to_global, scores], axis=-1)
    weights = dropout(jax.nn.softmax(scores, axis=-1), rate, dropout_key).astype(value.dtype)
    context = jnp.einsum("bnaqk,bnkad->bnqad", weights[..., number:], values)
    if mask.global_positions is not None:
        context = context + jnp.einsum("bnaqk,bkad->bnqad", weights[..., :number], _global(value, mask))
    return context.reshape(batch, -1, heads, size)


def _of_global_tokens(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: AttentionMask, dropout_key: jax.Array | None, rate: float
) -> jax.Array:
    """Return the output of the global tokens, which see the whole row: [B, G, A, D]."""
    assert mask.global_positions is not None, "asked for where there are some"
    scores = wide_einsum("bqad,bkad->baqk", _global(query, mask), key)
    seen = (mask.padding > 0)[:, None, :]
    if mask.segments is not None:
        seen = seen & (_global(mask.segments, mask)[:, :, None] == mask.segments[:, None, :])
    adder = jnp.where(seen, 0.0, MASKED_SCORE)[:, None]
    if mask.distance_bias is not None:
        distance = jnp.arange(key.shape[1], dtype=jnp.int32)[None, None] - mask.global_positions[:, :, None]
        adder = adder + jnp.swapaxes(mask.distance_bias(distance), 0, 1)
    weights = dropout(jax.nn.softmax(scores * query.shape[-1] ** -0.5 + adder, axis=-1), rate, dropout_key)
    return jnp.einsum("baqk,bkad->bqad", weights.astype(value.dtype), value)


def _adder(mask: AttentionMask, length: int, block: int) -> jax.Array:
    """Return what is added to the scores of each block of queries and its three of keys: [B, n, block, 3·block]."""
    assert mask.window is not None, "obstacle() comes first"
    count = -(-length // block)
    seen = (jnp.abs(_distances(block)) <= mask.window)[None, None] & (_neighbours(mask.padding, block) > 0)[:, :, None]
    if mask.segments is not None:
        own, near = _blocks(mask.segments, block), _neighbours(mask.segments, block)
        seen = seen & (own[:, :, :, None] == near[:, :, None, :])
    position = block * (jnp.arange(count)[:, None] - 1) + jnp.arange(3 * block)[None, :]
    there = ((position >= 0) & (position < length))[None]
    if mask.global_positions is not None:
        there = there & ~_neighbours(mask.is_global(), block)
    return jnp.where(there[:, :, None], jnp.where(seen, 0.0, MASKED_SCORE), NEVER)


def _distances(block: int) -> jax.Array:
    """Return the places of the keys of three blocks less those of the middle one's queries: int32 [block, 3·block]."""
    return jnp.arange(3 * block, dtype=jnp.int32)[None, :] - jnp.arange(block, 2 * block, dtype=jnp.int32)[:, None]


def _adder_to_global(mask: AttentionMask, block: int) -> jax.Array:
    """Return what is added to the scores of the global tokens as keys: [B, n or 1, block or 1, G]."""
    assert mask.global_positions is not None, "asked for where there are some"
    there = (mask.global_positions < mask.padding.shape[1])[:, None, None]
    seen = (_global(mask.padding, mask) > 0)[:, None, None]
    if mask.segments is not None:
        seen = seen & (_blocks(mask.segments, block)[..., None] == _global(mask.segments, mask)[:, None, None])
    return jnp.where(there, jnp.where(seen, 0.0, MASKED_SCORE), NEVER)


def _global(x: jax.Array, mask: AttentionMask) -> jax.Array:
    """Return x [B, L, …] at the global tokens, [B, G, …]; in place of one that is not there, the last of the row."""
    positions = jnp.minimum(_positions(mask, len(x)), x.shape[1] - 1)
    return jax.vmap(lambda row, places: row[places])(jnp.asarray(x), positions)


def _positions(mask: AttentionMask, batch: int) -> jax.Array:
    """Return the positions of the global tokens, [B, G], of each row its own, so that a mesh can split them."""
    assert mask.global_positions is not None, "asked for where there are some"
    return jnp.broadcast_to(mask.global_positions, (batch, mask.global_positions.shape[1]))


def _blocks(x: jax.Array, block: int) -> jax.Array:
    """Return x [B, L, …] in blocks, the last one filled with zeros: [B, n, block, …]."""
    count = -(-x.shape[1] // block)
    filled = jnp.pad(x, [(0, 0), (0, count * block - x.shape[1]), *[(0, 0)] * (x.ndim - 2)])
    return filled.reshape(x.shape[0], count, block, *x.shape[2:])


def _neighbours(x: jax.Array, block: int) -> jax.Array:
    """Return each block of x [B, L, …] between the one before it and the one after it: [B, n, 3·block, …]."""
    own = _blocks(x, block)
    edge = [(0, 0), (1, 1), *[(0, 0)] * (own.ndim - 2)]
    around = jnp.pad(own, edge)
    return jnp.concatenate([around[:, :-2], own, around[:, 2:]], axis=2)

"""Random words that are functions of a key and of the place of an element, in plain 32-bit arithmetic.

A word depends on nothing but the key and the indices of its element in the whole array. So it is the same however the
array is split over devices or cut into blocks, it can be computed again instead of stored, and the same few lines give
it in XLA and inside a Pallas kernel. They are made for dropout: fast and without visible structure, but anybody who
sees the words can find the key. Threefry, which makes the keys, costs some twenty times as much for each word.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

WORDS = 2**32


class Stream(NamedTuple):
    """64 bits of state, from which up to 2³² words follow; uint32 arrays of one shape, or scalars."""

    first: jax.Array
    second: jax.Array


def stream(key: jax.Array) -> Stream:
    """Return the stream of a key of jax.random, typed or raw, of any implementation."""
    state = Stream(jnp.uint32(0x243F6A88), jnp.uint32(0x85A308D3))  # the first digits of π
    for word in jax.random.key_data(key).reshape(-1):
        state = substream(state, word)
    return state


def substream(state: Stream, index: jax.Array) -> Stream:
    """Return the stream number `index` (uint32, of a shape that broadcasts) of those that `state` has."""
    first = _mixed(state.first ^ index)
    return Stream(first, _mixed((state.second ^ jnp.uint32(0x9E3779B9)) + first))


def words(state: Stream, index: jax.Array) -> jax.Array:
    """Return the words number `index` (uint32, of a shape that broadcasts) of a stream; the high bits are the best.

    These are the rounds of lowbias32 (Wellons 2018) without the last shift, which would change only the low half. The
    second half of the state enters between them: if it came before, or not at all, two streams with the same high bits
    of `first` would be permuted copies of each other. It is added: one pair of streams in 2³² has the same `first`, and
    is then less alike than after an exclusive or.
    """
    x = state.first ^ index
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = x + state.second
    return (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)


def array_words(state: Stream, shape: tuple[int, ...], rows: jax.Array | None = None) -> jax.Array:
    """Return one word for each element of an array of `shape`: words [*shape], each from its own indices.

    The last axes, two at most, count through one stream as long as they have no more than 2³² elements; every axis
    before them chooses a substream. With `rows`, int32 [B, M], only the words of M entries of the second last axis are
    made, others for each of the B entries of the first: [B, …, M, N] for a shape [B, …, L, N].
    """
    state, counted = leading_streams(state, shape, rows)
    index = jnp.zeros((1,) * len(shape), jnp.uint32)
    for axis in range(len(shape) - counted, len(shape)):
        index = index * jnp.uint32(shape[axis]) + _indices(shape, axis, rows)
    made = shape if rows is None else (*shape[:-2], rows.shape[1], shape[-1])
    return jnp.broadcast_to(words(state, index), made)


def leading_streams(state: Stream, shape: tuple[int, ...], rows: jax.Array | None = None) -> tuple[Stream, int]:
    """Return the streams [*leading axes, 1 …] of `array_words`, and how many of the last axes count through them."""
    counted = min(len(shape), 2)
    if counted == 2 and shape[-2] * shape[-1] > WORDS:
        counted = 1
    for axis in range(len(shape) - counted):
        state = substream(state, _indices(shape, axis, rows))
    return state, counted


def keeps(word: jax.Array, threshold: int) -> jax.Array:
    """Return whether `word` is at least `threshold`, a number of 32 bits; what dropout keeps."""
    # Compared as signed numbers, which every processor can: both sides lose 2³¹.
    return (word ^ jnp.uint32(1 << 31)).astype(jnp.int32) >= jnp.int32(threshold - (1 << 31))


def drop_threshold(rate: float) -> int:
    """Return how many of the 2³² words mean that an element is dropped; never all of them."""
    return min(round(rate * WORDS), WORDS - 1)


def kept_scale(threshold: int) -> float:
    """Return what the kept elements are multiplied by, so that the mean stays."""
    return WORDS / (WORDS - threshold)


def _indices(shape: tuple[int, ...], axis: int, rows: jax.Array | None = None) -> jax.Array:
    """Return the index along `axis`, in the shape [1 …, size, 1 …]; of the second last the `rows`, [B, 1 …, M, 1]."""
    if rows is not None and axis == len(shape) - 2:
        return rows.astype(jnp.uint32).reshape(rows.shape[0], *(1,) * (len(shape) - 3), rows.shape[1], 1)
    return jax.lax.broadcasted_iota(jnp.uint32, [n if i == axis else 1 for i, n in enumerate(shape)], axis)


def _mixed(x: jax.Array) -> jax.Array:
    """Return the finalizer of MurmurHash3 (Appleby 2011), a permutation of the 32-bit numbers."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)

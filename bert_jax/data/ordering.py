"""A pseudo-random permutation of [0, size) that can be evaluated at any index, in either direction, without a table.

A balanced Feistel network (Luby and Rackoff 1988) permutes the next even power of two; an image outside [0, size) is
permuted again until it falls inside (cycle walking, Black and Rogaway 2002), which keeps the map exact for every size.
Networks of a few bits favour some orders, so a small range is simply sorted by random numbers.
"""

import numpy as np
from numpy.typing import ArrayLike

from bert_jax.data.randomness import Stream, bits

_ROUNDS = 6
_SMALL = 64


def permute(
    indices: ArrayLike, size: int, key: int | np.integer | np.ndarray, stream: Stream = Stream.ORDER
) -> np.ndarray:
    """Return the images (int64, same shape) of `indices` in [0, size) under the permutation of an integer `key`."""
    return _walk(indices, size, key, stream, range(_ROUNDS), inverse=False)


def invert(images: ArrayLike, size: int, key: int | np.integer | np.ndarray) -> np.ndarray:
    """Return the indices whose images under `permute`, with the stream that is its default, are `images`."""
    return _walk(images, size, key, Stream.ORDER, range(_ROUNDS)[::-1], inverse=True)


def _walk(
    indices: ArrayLike, size: int, key: int | np.integer | np.ndarray, stream: Stream, rounds: range, inverse: bool
) -> np.ndarray:
    indices = np.asarray(indices, np.int64)
    if indices.size and not (0 <= indices.min() and indices.max() < size):
        raise ValueError(f"indices from {indices.min()} to {indices.max()} are not all in [0, {size})")
    if size <= _SMALL:
        table = np.argsort(bits(key, stream, np.arange(size)))
        return (np.argsort(table) if inverse else table)[indices]
    half = np.uint64((int(size - 1).bit_length() + 1) // 2)
    mask = (np.uint64(1) << half) - np.uint64(1)
    values = indices.astype(np.uint64).ravel()
    outside = np.arange(values.size)
    while outside.size:
        left, right = values[outside] >> half, values[outside] & mask
        for number in rounds:
            if inverse:
                left, right = right ^ (bits(key, stream, number, left) & mask), left
            else:
                left, right = right, left ^ (bits(key, stream, number, right) & mask)
        values[outside] = left << half | right
        outside = outside[values[outside] >= size]
    return values.astype(np.int64).reshape(indices.shape)

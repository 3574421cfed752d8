"""A pseudo-random permutation of [0, size) that can be evaluated at any index, in either direction, without a table.

A balanced Feistel network (Luby and Rackoff 1988) permutes the next even power of two; an image outside [0, size) is
permuted again until it falls inside (cycle walking, Black and Rogaway 2002), which keeps the map exact for every size.
Networks of a few bits favour some orders, so a small range is simply sorted by random numbers.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bert_jax.data.randomness import Stream, bits, step

_ROUNDS = 6
_SMALL = 64
_FEW = 10  # values that are walked one by one, which is then faster


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
    half = (int(size - 1).bit_length() + 1) // 2
    keys = [int(bits(key, stream, number)) for number in rounds]
    values = indices.astype(np.uint64).ravel()
    outside = np.arange(values.size)
    while outside.size > _FEW:
        values[outside] = _image(values[outside], half, keys, inverse)
        outside = outside[values[outside] >= size]
    for place in outside.tolist():
        value = _image(int(values[place]), half, keys, inverse)
        while value >= size:
            value = _image(value, half, keys, inverse)
        values[place] = value
    return values.astype(np.int64).reshape(indices.shape)


def _image(value: Any, half: int, keys: list[int], inverse: bool) -> Any:
    """Return the image of a number below 4^half, or of an array of them, under the rounds with these keys."""
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for key in keys:
        if inverse:
            left, right = right ^ (step(key, left) & mask), left
        else:
            left, right = right, left ^ (step(key, right) & mask)
    return left << half | right

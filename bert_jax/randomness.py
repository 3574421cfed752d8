"""Counter-based randomness: draws, permutations and held-out documents as pure functions, without any state.

A draw depends on a key, a stream and counters. The numbers are the same with every NumPy version, host and thread and
in any order of drawing, so one integer can restore the data pipeline. Each step is one SplitMix64 step (Steele, Lea,
Flood 2014): the golden-ratio increment times the counter, then a bijective 64-bit finalizer, so counters that differ
in one bit give unrelated words.

A permutation of [0, size) is evaluated at any index, in either direction, without a table. A balanced Feistel network
(Luby and Rackoff 1988) permutes the next even power of two; an image outside [0, size) is permuted again until it
falls inside (cycle walking, Black and Rogaway 2002), which keeps the map exact for every size. Networks of a few bits
favour some orders, so a small range is simply sorted by random numbers.
"""

import enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ALL = 2**64 - 1
_BLOCK = 8192  # words, of which all operations are done while they are in the cache


class Stream(enum.IntEnum):
    """Purpose of a draw: two purposes never share numbers. The values are part of what a seed means, so only append."""

    HELD_OUT = 0
    ORDER = 1
    VISIT = 2
    SHORT = 3
    SHORT_LENGTH = 4
    SLACK = 5
    ROTATION = 6
    SWAP = 7
    SPLIT = 8
    RANDOM_NEXT = 9
    TRUNCATION = 10
    MASKS = 11
    CANDIDATES = 12
    REPLACEMENT = 13
    RANDOM_WORD = 14
    SPAN_LENGTH = 15
    ANALYSED_TOKEN = 16
    PACKING = 17
    SPAN_CONTEXT = 18
    FACTORIZATION = 19
    SUBSAMPLING = 20
    WINDOW = 21
    NEGATIVE = 22
    ANALYSED_MASKS = 23
    EDITED_TEXT = 24
    EDITED_WORD = 25
    EDIT = 26
    EDIT_PLACE = 27
    EDIT_KIND = 28
    EDIT_LETTER = 29
    EDIT_ORDER = 30
    HIDDEN_WORD = 31
    FRESH_MASKS = 32
    DUPLICATES = 33
    MASK_RATE = 34
    GENERATED_WORD = 35
    GENERATED_PLACE = 36


def bits(key: int | np.integer | np.ndarray, stream: Stream, *counters: ArrayLike) -> Any:
    """Return 64 random bits for each `key` (a seed, or earlier bits) and integer counters ≥ 0, which broadcast.

    uint64, an array or, where nothing is an array, a number.
    """
    state = np.asarray(key).astype(np.uint64) if np.ndim(key) else int(key) & _ALL
    for counter in (int(stream), *counters):
        state = step(state, counter if np.ndim(counter) else int(counter))  # pyright: ignore[reportArgumentType]
    return np.uint64(state) if isinstance(state, int) else state


def spread(words: np.ndarray, numbers: ArrayLike) -> np.ndarray:
    """Return uint64 words, each as random as its own of `words`, that are evenly spread over consecutive `numbers`.

    They are steps of the golden ratio from there (a Kronecker sequence): of n consecutive ones no interval has many
    more or fewer than its share, so their mean varies by about 1 / n and not by 1 / √n.
    """
    return words + np.asarray(numbers).astype(np.uint64) * _GOLDEN


def uniform(words: np.ndarray) -> np.ndarray:
    """Return float64 in [0, 1) from the 53 high bits."""
    return (words >> np.uint64(11)) * 2.0**-53


def integers(words: np.ndarray, bound: ArrayLike) -> np.ndarray:
    """Return int64 in [0, bound), bound ≥ 1 broadcasting; the bias of the remainder is below bound / 2^64."""
    return (words % np.asarray(bound).astype(np.uint64)).astype(np.int64)


def heads(key: np.ndarray, stream: Stream, tosses: np.ndarray) -> np.ndarray:
    """Return the heads among `tosses` [N] fair coins per key [N]: binomial(tosses, 1/2), by counting bits."""
    tosses = np.asarray(tosses)
    num_words = -(-int(tosses.max(initial=0)) // 64)
    columns = np.arange(num_words)
    used = np.clip(tosses[:, None] - 64 * columns, 0, 64)
    words = bits(key[:, None], stream, columns)
    # A shift by 64 is undefined, so unused words are zeroed instead.
    words = np.where(used > 0, words >> np.minimum(64 - used, 63).astype(np.uint64), np.uint64(0))
    return np.bitwise_count(words).sum(1, dtype=np.int64)


def step(state: Any, counter: Any) -> Any:
    """Return the bits of one more counter: step(bits(key, stream), counter) is bits(key, stream, counter).

    An integer if both are Python's integers, which is ten times as fast for one number, else uint64 of their common
    shape.
    """
    if isinstance(state, int) and isinstance(counter, int):
        x = (state + (counter + 1) * int(_GOLDEN)) & _ALL
        x = (x ^ x >> 30) * int(_FIRST) & _ALL
        x = (x ^ x >> 27) * int(_SECOND) & _ALL
        return x ^ x >> 31
    if isinstance(counter, int):  # in integers, because NumPy warns where a single number overflows
        multiple = np.uint64((counter + 1) * int(_GOLDEN) & _ALL)
    else:
        multiple = (np.asarray(counter).astype(np.uint64) + np.uint64(1)) * _GOLDEN
    x = np.add(multiple, np.uint64(state) if isinstance(state, int) else state, order="C")
    flat, shifted = x.reshape(-1), np.empty(min(x.size, _BLOCK), np.uint64)
    for begin in range(0, x.size, _BLOCK):
        _finalize(flat[begin : begin + _BLOCK], shifted[: x.size - begin])
    return x


def _finalize(x: np.ndarray, shifted: np.ndarray) -> None:
    """Apply the finalizer to `x` [N] in place; `shifted` [N] is for what comes in between."""
    x ^= np.right_shift(x, np.uint64(30), out=shifted)
    x *= _FIRST
    x ^= np.right_shift(x, np.uint64(27), out=shifted)
    x *= _SECOND
    x ^= np.right_shift(x, np.uint64(31), out=shifted)


_ROUNDS = 6
_SMALL = 64
_FEW = 10  # values that are walked one by one, which is then faster


def permute(
    indices: ArrayLike, size: int, key: int | np.integer | np.ndarray, stream: Stream = Stream.ORDER
) -> np.ndarray:
    """Return the images (int64, same shape) of `indices` in [0, size) under the permutation of an integer `key`."""
    return _walk(indices, size, key, stream, range(_ROUNDS), inverse=False)


def invert(
    images: ArrayLike, size: int, key: int | np.integer | np.ndarray, stream: Stream = Stream.ORDER
) -> np.ndarray:
    """Return the indices whose images under `permute` are `images`."""
    return _walk(images, size, key, stream, range(_ROUNDS)[::-1], inverse=True)


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


# The choice belongs to the store, not to a run: runs with different seeds evaluate on the same documents.
_HELD_OUT_KEY = 2018


def held_out_documents(num_documents: int, share: float) -> np.ndarray:
    """Return bool [num_documents]: which documents training never sees, `share` of them and at least one (none for 0).

    The documents of a smaller share are among those of a larger one. `train-vocab` uses the same rule, so the
    vocabulary is not learned from what a run is evaluated on.
    """
    number = min(max(1, round(share * num_documents)), num_documents) if share else 0
    chosen = np.zeros(num_documents, bool)
    chosen[permute(np.arange(number), num_documents, _HELD_OUT_KEY, Stream.HELD_OUT)] = True
    return chosen

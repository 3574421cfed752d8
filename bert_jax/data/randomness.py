"""Counter-based randomness: every draw is a pure function of a key, a stream and counters, without any state.

The numbers are the same with every NumPy version, host and thread and in any order of drawing, so one integer can
restore the data pipeline. Each step is one SplitMix64 step (Steele, Lea, Flood 2014): the golden-ratio increment times
the counter, then a bijective 64-bit finalizer, so counters that differ in one bit give unrelated words.
"""

import enum

import numpy as np
from numpy.typing import ArrayLike

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


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


def bits(key: int | np.integer | np.ndarray, stream: Stream, *counters: ArrayLike) -> np.ndarray:
    """Return 64 random bits for each `key` (a seed, or earlier bits) and integer counters ≥ 0, which broadcast."""
    state = np.asarray(int(key) & 0xFFFFFFFFFFFFFFFF if isinstance(key, int) else key).astype(np.uint64)
    for counter in (int(stream), *counters):
        state = _step(state, np.asarray(counter).astype(np.uint64))
    return state


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


def _step(state: np.ndarray, counter: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is intended; numpy warns about it for single numbers
        x = state + (counter + np.uint64(1)) * _GOLDEN
        x ^= x >> np.uint64(30)
        x *= _FIRST
        x ^= x >> np.uint64(27)
        x *= _SECOND
        x ^= x >> np.uint64(31)
    return x

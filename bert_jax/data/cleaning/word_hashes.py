"""Hashes of words and of words in a row, the same in every process."""

import functools
import hashlib
from collections.abc import Iterator

import numpy as np

from bert_jax.data.cleaning.word_boundaries import words_without_marks

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplication by it loses nothing


def word_hashes(text: str) -> np.ndarray:
    """Return [words] uint64: a hash of each word of the text, in lower case and without punctuation."""
    return np.fromiter(map(_hash, words_without_marks(text.lower())), np.uint64)


def overlapping(words: np.ndarray, length: int) -> np.ndarray:
    """Return [words - length + 1] uint64: a hash of each row of `length` words, which depends on their order."""
    return next(rows for size, rows in rows_of_words(words, length) if size == length)


def rows_of_words(words: np.ndarray, longest: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield, for each length from 1 to `longest`, (the length, the hashes of `overlapping`)."""
    rows = words
    yield 1, rows
    for length in range(2, longest + 1):
        rows = rows[:-1] * _BASE + words[length - 1 :]
        yield length, rows


@functools.lru_cache(maxsize=1 << 17)
def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little")

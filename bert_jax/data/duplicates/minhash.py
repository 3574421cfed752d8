"""MinHash signatures of documents and the bands by which similar ones meet (Broder 1997; Leskovec et al. 2020, ch. 3).

The similarity of two documents is the Jaccard similarity of their sets of SHINGLE_WORDS consecutive words.
"""

import dataclasses
import functools

import numpy as np

from bert_jax.data.cleaning.word_hashes import overlapping
from bert_jax.data.randomness import Stream, bits

SHINGLE_WORDS = 5
"""Number of words in a shingle, as in Lee et al. 2022 (Deduplicating Training Data Makes Language Models Better)."""

HASHES = 128
"""Numbers in a signature; an estimated similarity s has the standard deviation √(s(1-s)/128), 0.035 at 0.8."""

LEAST_RECALL = 0.95
"""Probability that two documents which are just similar enough have a band in common, so that they are compared."""

_SHINGLES_AT_ONCE = 1 << 11  # 1 MiB of permuted numbers
_PRIME = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True)
class Banding:
    """How a signature is divided: `bands` groups of `rows` numbers; documents with an equal group are compared."""

    bands: int
    rows: int

    def probability(self, similarity: float) -> float:
        """Return how probably two documents of that similarity are compared: 1 - (1 - s^rows)^bands."""
        return 1 - (1 - similarity**self.rows) ** self.bands


def banding_for(threshold: float) -> Banding:
    """Return the banding with the most rows, so the fewest comparisons, that keeps LEAST_RECALL at the threshold."""
    choices = (Banding(HASHES // rows, rows) for rows in range(HASHES, 0, -1))
    return next(choice for choice in choices if choice.probability(threshold) >= LEAST_RECALL or choice.rows == 1)


def signature(words: np.ndarray) -> np.ndarray | None:
    """Return [HASHES] uint32, the minimum of each permutation over the shingles of a document.

    Args:
      words: [words] uint64, the hash of each word. Fewer than SHINGLE_WORDS are one shingle.

    Returns:
      None for a document without words.
    """
    if not words.size:
        return None
    shingles = overlapping(words, min(SHINGLE_WORDS, len(words)))
    return minimums(np.unique(shingles >> np.uint64(32)).astype(np.uint32))


def minimums(numbers: np.ndarray) -> np.ndarray:
    """Return [HASHES] uint32, the minimum of each permutation over a set of random numbers, [numbers] uint32."""
    factors, summands = _permutations()
    least = np.full(HASHES, np.iinfo(np.uint32).max, np.uint32)
    for start in range(0, len(numbers), _SHINGLES_AT_ONCE):
        part = numbers[start : start + _SHINGLES_AT_ONCE]
        np.minimum(least, (factors * part + summands).min(axis=1), out=least)
    return least


def band_keys(signatures: np.ndarray, banding: Banding) -> np.ndarray:
    """Return [documents, bands] uint64, never 0: equal in two documents where all rows of a band are.

    `signatures`: [documents, HASHES] uint32.
    """
    used = signatures[:, : banding.bands * banding.rows].reshape(-1, banding.bands, banding.rows).astype(np.uint64)
    keys = np.broadcast_to(np.arange(1, banding.bands + 1, dtype=np.uint64), used.shape[:2])
    for row in range(banding.rows):
        keys = (keys ^ used[:, :, row]) * _PRIME
        keys = keys ^ (keys >> np.uint64(32))
    return np.maximum(keys, np.uint64(1))


def sketches(signatures: np.ndarray) -> np.ndarray:
    """Return [documents, HASHES] uint8: of each number a byte, enough to compare (Li and König 2010)."""
    return signatures.astype(np.uint8)


def similarity(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return [pairs] float64, the estimated similarity of documents by their [pairs, HASHES] sketches.

    Bytes of different numbers are equal once in 256 times; that share is taken out.
    """
    equal = (first == second).mean(axis=1)
    return (equal - 1 / 256) / (1 - 1 / 256)


@functools.cache
def _permutations() -> tuple[np.ndarray, np.ndarray]:
    """Return the factors, all odd, and the summands of HASHES permutations of the 32-bit numbers, each [HASHES, 1]."""
    drawn = bits(0, Stream.DUPLICATES, np.arange(2 * HASHES)).astype(np.uint32).reshape(2, HASHES, 1)
    return drawn[0] | np.uint32(1), drawn[1]

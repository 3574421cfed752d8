"""How often any two tokens of a store occur near each other: the files that `bert-jax count` writes.

A directory:

    counts.json  what was counted (`CountedPairs`); written last, so without it there are no counts
    pairs.bin    ascending little-endian uint64: lower id · size of the vocabulary + higher id, one per pair that occurs
    counts.bin   float32: its count, in the same order
"""

import dataclasses
import hashlib
import pathlib

import numpy as np

from bert_jax.config.json_form import from_dict
from bert_jax.errors import UserError
from bert_jax.files import is_remote, read_object, unsealed

MANIFEST, PAIRS, COUNTS = "counts.json", "pairs.bin", "counts.bin"
AGAIN = "count the pairs again with `bert-jax count`"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountedPairs:
    """What the counts are of."""

    window: int
    held_out: float
    store: str
    """Fingerprint of the store."""
    tokenizer: str
    """Fingerprint of its vocabulary."""
    vocab_size: int
    pairs: int
    """Number of pairs with a count."""
    pairs_sha256: str
    counts_sha256: str


class PairCounts:
    """Read access to counts, which stay on disk.

    Attributes:
      counted: what they are of.
    """

    def __init__(self, directory: pathlib.Path, counted: CountedPairs):
        self.counted: CountedPairs = counted
        self._pairs: np.ndarray = _array(directory / PAIRS, "<u8", counted.pairs, counted.pairs_sha256)
        self._counts: np.ndarray = _array(directory / COUNTS, "<f4", counted.pairs, counted.counts_sha256)

    def of(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return float32: the counts of the pairs of two arrays of ids of the same shape, 0 for those that never occur.

        The order of a pair does not matter.
        """
        first, second = np.asarray(first, np.uint64), np.asarray(second, np.uint64)
        keys = np.minimum(first, second) * np.uint64(self.counted.vocab_size) + np.maximum(first, second)
        unique, places = np.unique(keys, return_inverse=True)  # neighbours on disk are read one after the other
        found = np.minimum(np.searchsorted(self._pairs, unique), max(self.counted.pairs - 1, 0))
        there = self._pairs[found] == unique if self.counted.pairs else np.zeros(len(unique), bool)
        counts = np.where(there, self._counts[found] if self.counted.pairs else 0, 0)
        return counts.astype(np.float32)[places].reshape(keys.shape)


def open_pair_counts(directory: str) -> PairCounts:
    """Open the counts that `bert-jax count` wrote to a local directory.

    Raises:
      UserError: there are none, or they are damaged.
    """
    if is_remote(directory):
        raise UserError(f"{directory} is not a local directory; copy the counts to this machine")
    place = pathlib.Path(directory).expanduser()
    if not (place / MANIFEST).is_file():
        raise UserError(f"there are no counts of pairs in {directory} ({MANIFEST} is missing): {AGAIN}")
    try:
        counted = from_dict(CountedPairs, unsealed(read_object(place / MANIFEST, AGAIN)))
    except (UserError, TypeError, ValueError) as error:
        raise UserError(f"{place / MANIFEST} is damaged: {error}; {AGAIN}") from None
    return PairCounts(place, counted)


def _array(file: pathlib.Path, dtype: str, length: int, sha256: str) -> np.ndarray:
    expected = length * np.dtype(dtype).itemsize
    size = file.stat().st_size if file.is_file() else None
    if size != expected:
        found = "is missing" if size is None else f"has {size:,} bytes"
        raise UserError(f"{file} {found}, but {MANIFEST} says {expected:,}; {AGAIN}")
    with file.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            raise UserError(f"the contents of {file} have changed since they were written; {AGAIN}")
    return np.memmap(file, dtype, "r") if size else np.zeros(0, dtype)

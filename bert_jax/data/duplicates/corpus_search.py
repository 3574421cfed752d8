"""The search for duplicates in the records of a whole corpus. What comes first in the corpus is kept.

Documents are removed first: those that are the same as an earlier one, then those that are in a group of similar ones
with an earlier one. Then paragraphs are removed that a kept document has had before. Memory is bounded by the constants
of this package, whatever the corpus; what grows with it is on disk, and mapped into memory.
"""

import pathlib
import tempfile
from collections.abc import Iterator

import numpy as np

from bert_jax.data.duplicates.external_sort import sorted_rows
from bert_jax.data.duplicates.groups import Groups, repeated
from bert_jax.data.duplicates.minhash import similarity
from bert_jax.data.duplicates.record_files import RecordTable
from bert_jax.data.duplicates.removals import EXACT, NEAR, write_removals

CHUNK_ROWS = 1 << 18
"""Rows of records that are read at once."""

COMPARED_PAIRS = 1 << 15
"""Pairs of sketches that are compared at once, 8 MiB."""


def find_duplicates(table: RecordTable, threshold: float | None, directory: pathlib.Path) -> None:
    """Write to `directory` which documents and paragraphs are to be removed; see removals.py.

    `threshold`: the least similarity of near duplicates; None: only exact duplicates are looked for.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix="search-") as name:
        place = pathlib.Path(name)
        kinds = _marks(place / "kinds", len(table.documents))
        groups = Groups(place / "groups", len(table.documents))
        _unite_exact(table, groups, kinds, place)
        if threshold is not None:
            _unite_near(table, groups, kinds, threshold, place)
        gone = _marks(place / "gone", len(table.paragraphs))
        _mark_paragraphs(table, kinds, gone, place)
        write_removals(table, kinds, gone, directory)


def _unite_exact(table: RecordTable, groups: Groups, kinds: np.ndarray, place: pathlib.Path) -> None:
    rows = (_numbered(hashes, start, np.any(hashes, axis=1)) for start, hashes in _chunks(table.documents))
    for first, _, number in repeated(sorted_rows(rows, 3, place), keys=2):
        groups.unite(first, number)
        kinds[number] = EXACT


def _unite_near(table: RecordTable, groups: Groups, kinds: np.ndarray, threshold: float, place: pathlib.Path) -> None:
    """Compare each document with the first one that has a band in common, and with the one before it among those."""
    for first, before, number in repeated(sorted_rows(_band_rows(table, kinds), 2, place), keys=1):
        for other in (first, before):
            for start in range(0, len(number), COMPARED_PAIRS):
                pair = slice(start, start + COMPARED_PAIRS)
                one, two = other[pair], number[pair]
                apart = groups.first(one) != groups.first(two)
                one, two = one[apart], two[apart]
                near = similarity(table.sketches[one], table.sketches[two]) >= threshold
                groups.unite(one[near], two[near])
    for start, _ in _chunks(table.documents):
        numbers = np.arange(start, min(start + CHUNK_ROWS, len(table.documents)), dtype=np.uint64)
        later = groups.first(numbers) != numbers
        kinds[numbers[later & (kinds[numbers] != EXACT)]] = NEAR


def _band_rows(table: RecordTable, kinds: np.ndarray) -> Iterator[np.ndarray]:
    """Yield rows of (key of a band, number of the document), of documents that are not removed and have words."""
    for start, keys in _chunks(table.bands):
        kept = (kinds[start : start + len(keys)] == 0) & keys.any(axis=1)
        for band in range(keys.shape[1]):
            yield _numbered(keys[:, band : band + 1], start, kept)


def _mark_paragraphs(table: RecordTable, kinds: np.ndarray, gone: np.ndarray, place: pathlib.Path) -> None:
    for _, _, number in repeated(sorted_rows(_paragraph_rows(table, kinds), 3, place), keys=2):
        gone[number] = 1


def _paragraph_rows(table: RecordTable, kinds: np.ndarray) -> Iterator[np.ndarray]:
    """Yield rows of (hash, number of the paragraph), of documents that are not removed."""
    firsts, befores = table.blocks[:, 2], table.blocks[:, 3]
    for start, hashes in _chunks(table.paragraphs):
        numbers = np.arange(start, start + len(hashes), dtype=np.uint64)
        blocks = np.searchsorted(befores, numbers, "right") - 1
        documents = firsts[blocks] + table.places[start : start + len(hashes), 0]
        yield _numbered(hashes, start, kinds[documents] == 0)


def _chunks(rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for start in range(0, len(rows), CHUNK_ROWS):
        yield start, np.array(rows[start : start + CHUNK_ROWS])


def _numbered(keys: np.ndarray, start: int, wanted: np.ndarray) -> np.ndarray:
    """Return the wanted rows, each with its number; the first of them is number `start`."""
    numbers = np.arange(start, start + len(keys), dtype=np.uint64)
    return np.concatenate([keys, numbers[:, None]], axis=1)[wanted]


def _marks(path: pathlib.Path, count: int) -> np.ndarray:
    """Return [count] uint8, all 0, in a file."""
    return np.memmap(path, np.uint8, "w+", shape=(max(count, 1),))

"""Texts as batches of few shapes, so that a jitted model compiles a few times and not once per length."""

from collections.abc import Iterator

import numpy as np

from bert_jax.data.sequences.batching import Batch, evaluation_batches, ladder, padded, sequence_lengths
from bert_jax.data.sequences.features import Features
from bert_jax.data.sequences.shared_rows import filled, most_sequences, shared_rows

WIDTHS = (64, 96, 128)
"""Positions of rows for several texts: attention takes longer in wider ones, but less stays empty."""


def as_features(rows: list[tuple[np.ndarray, np.ndarray]], longest: int) -> Features:
    """Return pairs of ids and token types, not padded and without labels, as Features; one row per example."""
    return Features(
        [ids for ids, _ in rows], [types for _, types in rows], None, np.arange(len(rows), dtype=np.int32), longest
    )


def batches(features: Features, batch_size: int) -> Iterator[tuple[np.ndarray, Batch]]:
    """Yield the numbers of the sequences in each batch, and the batch, the longest first.

    So a batch that exceeds the memory fails at once. All batches have the same number of rows: batch_size or, for
    fewer sequences, the next power of two. Rows that only fill a batch come last.
    """
    rows = min(batch_size, 1 << (len(features) - 1).bit_length())
    for numbers in reversed(evaluation_batches(features, rows)):
        yield numbers, padded(features, numbers, rows)


class PackedBatches:
    """The numbers of the sequences in each batch, and the batch, in rows of several sequences, the longest rows first.

    A row has the length of a rung that the longest of its sequences needs, or that of the one of WIDTHS which needs the
    fewest positions. The numbers are in the order of `text_places`. A batch has `batch_size` rows or, of fewer rows of
    a length, the next power of two.
    """

    def __init__(self, features: Features, batch_size: int):
        self._features = features
        lengths, rungs = sequence_lengths(features), np.array(ladder(features.max_length))
        reached = [rungs[np.searchsorted(rungs, min(width, lengths.sum(), rungs[-1]))] for width in WIDTHS]
        _, row, start, self._widths = min(
            (_packed(lengths, rungs, width) for width in reached), key=lambda found: found[0]
        )
        self._order = np.argsort(row, kind="stable")
        self._row, self._start = row[self._order], start[self._order]
        self._parts = [part for width in np.unique(self._widths)[::-1] for part in self._cut(int(width), batch_size)]

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[tuple[np.ndarray, Batch]]:
        for first, last, shape in self._parts:
            here = slice(*np.searchsorted(self._row, (first, last)))
            numbers, row, start = self._order[here], self._row[here] - first, self._start[here]
            yield numbers, filled(self._features, numbers, row, start, shape, most_sequences(shape[1]))

    def _cut(self, width: int, batch_size: int) -> list[tuple[int, int, tuple[int, int]]]:
        """Return the first row of each batch of rows of this width, the row after its last, and the batch's shape."""
        rows = np.flatnonzero(self._widths == width)
        size = min(1 << (len(rows) - 1).bit_length(), batch_size)
        begins = range(int(rows[0]), int(rows[-1]) + 1, size)
        return [(begin, min(begin + size, int(rows[-1]) + 1), (size, width)) for begin in begins]


def text_places(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Return int64 [n], int [n]: the row of each text of a batch, in rows of one or of several, and where it begins."""
    used = batch["weights"] > 0
    row = np.nonzero(used)[0]
    return row, batch["text_starts"][used] if "text_starts" in batch else np.zeros_like(row)


def _packed(lengths: np.ndarray, rungs: np.ndarray, width: int) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Return the number of positions, row and start of each sequence, and the length of each row, descending."""
    begun = rungs[np.searchsorted(rungs, np.maximum(lengths, width))]
    row, start = shared_rows(lengths, begun, most_sequences(width))
    widths = np.zeros(row.max() + 1, np.int64)
    widths[row[start == 0]] = begun[start == 0]
    return int(widths.sum()), row, start, widths

"""Texts as batches of few shapes, so that a jitted model compiles a few times and not once per length."""

from collections.abc import Iterator

import numpy as np

from bert_jax.data.sequences.batching import Batch, evaluation_batches, padded
from bert_jax.data.sequences.features import Features


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

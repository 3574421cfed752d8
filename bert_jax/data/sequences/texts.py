"""Texts as batches of few shapes, so that a jitted model compiles a few times and not once a length."""

from collections.abc import Iterator

import numpy as np

from bert_jax.data.sequences.batching import Batch, evaluation_batches, padded
from bert_jax.data.sequences.features import Features


def as_features(rows: list[tuple], longest: int) -> Features:
    """Pairs of ids and token types, not padded and without labels, as Features; one row an example."""
    return Features(
        [ids for ids, _ in rows], [types for _, types in rows], None, np.arange(len(rows), dtype=np.int32), longest
    )


def batches(features: Features, batch_size: int) -> Iterator[tuple[np.ndarray, Batch]]:
    """Numbers of the sequences in each batch, and the batch; the longest first: what is too large for the memory fails at once.

    All have the same number of rows: batch_size or, for fewer sequences, the next power of two. Rows that only fill a batch
    come last.
    """
    rows = min(batch_size, 1 << (len(features) - 1).bit_length())
    for numbers in reversed(evaluation_batches(features, rows)):
        yield numbers, padded(features, numbers, rows)

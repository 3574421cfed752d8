"""What is computed of sequences of ids for the answers of a model, and the rows in which it is computed.

An `Output` says what is wanted of each sequence. `Compute` is the seam: `computed` makes the outputs of one call here
and now, and the engine of `bert-jax serve` makes those of many calls together. Answers are made from outputs alone, so
both say the same.

On a CPU they also say the same to the bit, whoever else is in the batch. There the sums of a matrix product and of a
softmax are added up in an order that follows from the shapes: it is that of the same text alone if rows are multiples
of BLOCK positions wide, if a text that shares its row lies within one block, and if heads, too, read at least BLOCK
rows (and are never narrow: `steady_product` of models/layers.py). The number of rows, the other texts and the place in
the block then change nothing, in batches of up to POSITIONS. So the width of a row follows from the length of the text
alone (`row_width`).
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from bert_jax.config.heads import Combination, Pooling
from bert_jax.data.sequences import (
    RUNGS,
    Batch,
    Features,
    PackedBatches,
    batches,
    filled,
    padded,
    sequence_lengths,
    shared_rows,
)
from bert_jax.errors import UserError
from bert_jax.models.layers import platform_in_use
from bert_jax.pretrained.runner import Runner, softmax
from bert_jax.progress import track

BLOCK = 64
"""Positions. Sums run over vectors of 16 numbers, four at a time, on a processor with AVX-512, and less on others."""
POSITIONS = 2048
"""Most positions of a batch of several rows on a CPU. From 4,096 on XLA divides products in another way, and a text no
longer has the bits that it has alone (scripts/measure_rows.py). What a feed-forward network keeps of 2,048 also stays
in the caches: 12 MiB for a width of 384."""


class Output(Protocol):
    """What is wanted of each sequence; equal ones of one model can be computed together."""

    def packed(self, runner: Runner) -> bool:
        """Return whether several sequences can share a row."""
        ...

    def rows(self, runner: Runner, batch: Batch) -> Any:
        """Return a list or array of what is wanted of the sequences of a batch, in their order; more may follow."""
        ...


Outputs = Iterator[tuple[np.ndarray, Any]]
"""The numbers of some sequences, int [n], and a list or array with the output of each."""


class Compute(Protocol):
    """Makes outputs."""

    def __call__(self, output: Output, features: Features, batch_size: int, progress: bool | None) -> Outputs:
        """Yield the outputs of some sequences at a time, until there are those of all."""
        ...


@dataclasses.dataclass(frozen=True)
class Vectors:
    """One vector of each text, float32 [H']."""

    layers: Combination
    pooling: Pooling
    weights: tuple[float, ...] | None
    normalize: bool

    def packed(self, runner: Runner) -> bool:
        return True

    def rows(self, runner: Runner, batch: Batch) -> np.ndarray:
        weights = None if self.weights is None else np.array(self.weights, np.float32)
        return runner.embed(batch, weights, self.layers, self.pooling, self.normalize)


@dataclasses.dataclass(frozen=True)
class VectorsOfTokens:
    """The vectors of all positions of a text's row, float32 [L, D]."""

    def packed(self, runner: Runner) -> bool:
        return False

    def rows(self, runner: Runner, batch: Batch) -> np.ndarray:
        return runner.token_vectors(batch)


@dataclasses.dataclass(frozen=True)
class WeightsOfWords:
    """The weights of the vocabulary's words in a text, a scipy.sparse.csr_matrix float32 [1, V]."""

    def packed(self, runner: Runner) -> bool:
        return False

    def rows(self, runner: Runner, batch: Batch) -> list[Any]:
        from scipy import sparse

        return [sparse.csr_matrix(row) for row in runner.word_strengths(batch)[:, None]]


@dataclasses.dataclass(frozen=True)
class TaskScores:
    """The scores of the task head, float32: [C], [], [K], [L, 2] or [L, C] with those of padding."""

    def packed(self, runner: Runner) -> bool:
        return runner.packs_scores

    def rows(self, runner: Runner, batch: Batch) -> Any:
        return runner.task_scores(batch)


@dataclasses.dataclass(frozen=True)
class NextSentence:
    """Logits of the second text following the first, float32 [2]."""

    def packed(self, runner: Runner) -> bool:
        return True

    def rows(self, runner: Runner, batch: Batch) -> np.ndarray:
        return runner.next_sentence_logits(batch)


@dataclasses.dataclass(frozen=True)
class MaskedWords:
    """The `top_k` most likely words at each mask: a list of ids int [k] and probabilities float64 [k]."""

    mask_id: int
    top_k: int | None
    """None: the logits of all words instead, float32 [V]."""
    before: int
    """Places before a mask at which it is predicted: 0, or 1 from left to right."""

    def packed(self, runner: Runner) -> bool:
        return False

    def rows(self, runner: Runner, batch: Batch) -> list[list[Any]]:
        found: list[list[Any]] = [[] for _ in batch["input_ids"]]
        row, position = np.nonzero((batch["input_ids"] == self.mask_id) & (batch["attention_mask"] > 0))
        words = (word for part in runner.masked_words(batch, row, position - self.before) for word in part)
        for number, logits in zip(row, words, strict=True):
            found[number].append(logits if self.top_k is None else most_likely(logits, self.top_k))
        return found


def most_likely(logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the words with the highest logits [V], int [n], of equal ones the first, and their probabilities."""
    shares = softmax(logits)
    least = np.partition(shares, -count)[-count]
    able = np.flatnonzero(shares >= least)
    best = able[np.argsort(-shares[able], kind="stable")[:count]]
    return best, shares[best]


def row_width(tokens: int, longest: int) -> int:
    """Return the positions of the row of a text of so many tokens, for a model that reads `longest`."""
    return next((rung for rung in RUNGS if rung % BLOCK == 0 and tokens <= rung <= longest), max(tokens, longest))


def shares_row(width: int) -> bool:
    """Return whether several texts are in a row of this width, where they can be."""
    return width <= BLOCK


def batch_of(
    features: Features, numbers: np.ndarray, row: np.ndarray, start: np.ndarray, shape: tuple[int, int], packed: bool
) -> Batch:
    """Return sequences in a batch of this shape, [R, L]; with `packed`, at these rows, in ascending order, and starts.

    Every position has a place for a text, so that heads read at least BLOCK rows.
    """
    if not packed:
        return padded(features, numbers, *shape)
    return filled(features, numbers, row, start, shape, shape[1])


def rows_of_batch(needed: int, most: int) -> int:
    """Return the rows of a batch: a power of two, so that few shapes are compiled, or the most."""
    return min(1 << (needed - 1).bit_length(), most)


def most_rows(width: int, positions: int) -> int:
    """Return the most rows of a batch of so many positions, at least one."""
    return max(1, positions // width)


class BlockBatches:
    """The numbers of the sequences in each batch, and the batch, in rows whose width follows from each text alone.

    Args:
      longest: tokens that the model reads.
      batch_size: most rows of a batch.
      positions: most positions of a batch of several rows.
      packed: whether short texts share rows.
    """

    def __init__(self, features: Features, longest: int, batch_size: int, positions: int, packed: bool):
        self._features, self._packed = features, packed
        lengths = sequence_lengths(features)
        widths = np.array([row_width(int(length), longest) for length in lengths])
        grouped = bool(len(features)) and isinstance(features.input_ids[0], list)
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]] = []
        for width in np.unique(widths)[::-1].tolist():
            numbers = np.flatnonzero(widths == width)
            row, start = np.arange(len(numbers)), np.zeros(len(numbers), np.int64)
            if packed and shares_row(width):
                row, start = shared_rows(lengths[numbers], width, width)
            order = np.argsort(row, kind="stable")
            numbers, row, start = numbers[order], row[order], start[order]
            # The candidates of a question are a batch: their number, which differs, is part of the shape.
            most = 1 if grouped else min(batch_size, most_rows(width, positions))
            size = rows_of_batch(int(row[-1]) + 1, most)
            for first in range(0, int(row[-1]) + 1, size):
                here = slice(*np.searchsorted(row, (first, first + size)))
                self._parts.append((numbers[here], row[here] - first, start[here], (size, width)))

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[tuple[np.ndarray, Batch]]:
        for numbers, row, start, shape in self._parts:
            yield numbers, batch_of(self._features, numbers, row, start, shape, self._packed)


LONG = 10  # number of batches from which on a progress bar is shown


def computed(runner: Runner, output: Output, features: Features, batch_size: int, progress: bool | None) -> Outputs:
    """Implement `Compute` with batches of one call, and a bar if `progress`; None: if there are many batches."""
    packed = output.packed(runner) and not features.in_windows
    for numbers, batch in in_batches(features, batch_size, progress, packed, runner.longest):
        yield numbers, output.rows(runner, batch)


def in_batches(
    features: Features, batch_size: int, progress: bool | None, packed: bool, longest: int
) -> Iterable[tuple[np.ndarray, Batch]]:
    """Yield batches with the numbers of their texts, with a bar if `progress`; None: if there are many.

    With `packed`, several texts share a row. On a CPU the batches are `BlockBatches`, for a model that reads `longest`
    tokens, and may have fewer rows than `batch_size`.
    """
    if batch_size < 1:
        raise UserError(f"batch_size={batch_size} must be positive")
    if platform_in_use() == "cpu":
        found = BlockBatches(features, longest, batch_size, POSITIONS, packed)
        count = len(found)
    elif packed and len(features) > 1:
        found = PackedBatches(features, batch_size)
        count = len(found)
    else:
        found, count = batches(features, batch_size), -(-len(features) // batch_size)
    show = count >= LONG if progress is None else progress
    return track(found, "batches of texts", count, visible=show)

"""Batches of a handful of shapes from sequences of any length, in an order that is a pure function of (seed, step).

A batch is padded to the next of a few lengths, so a step is compiled once per length and not per batch. Rows that only
fill a batch have weight 0 and count in no loss, metric or prediction.
"""

from typing import Any

import numpy as np

from bert_jax.data.ordering import permute
from bert_jax.data.randomness import Stream, bits
from bert_jax.data.sequences.features import Features

Batch = dict[str, np.ndarray]
"""input_ids, token_type_ids, attention_mask int32 [B, L] (choice: [B, K, L]) · weights float32 [B] · labels [B], [B, 2]
or [B, L]."""

RUNGS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


def ladder(max_length: int) -> tuple[int, ...]:
    """Return the lengths that batches are padded to: the rungs below `max_length`, and `max_length` itself."""
    return (*(rung for rung in RUNGS if rung < max_length), max_length)


def sequence_lengths(features: Features) -> np.ndarray:
    """Return int64 [E]: the number of tokens of each sequence; for choice, of the longest candidate."""
    return np.array([max(map(len, ids)) if isinstance(ids, list) else len(ids) for ids in features.input_ids], np.int64)


def steps_per_epoch(sequences: int, batch_size: int) -> int:
    """Return the number of batches that cover all sequences; the last may hold fewer."""
    return -(-sequences // batch_size)


class TrainingBatches:
    """The batches of all epochs; `batch(step)` can be called for any step, in any order.

    Each epoch covers all sequences once in a new order; its last batch has what is left. With `window` above 1, the
    sequences of that many consecutive batches are sorted by length before they are cut into batches, and these are
    shuffled: a batch then holds sequences of similar length, drawn from a window that is itself random. With window=1
    the batches are those of the plain shuffled order, whatever their lengths.

    Args:
      features: sequences with labels.
      batch_size: number of sequences per step.
      multiple: divisor of the number of rows of a batch, which is rounded up (the number of devices).
    """

    def __init__(self, features: Features, batch_size: int, *, window: int = 1, seed: int = 0, multiple: int = 1):
        self.features: Features = features
        self.batch_size: int = batch_size
        self.window: int = window
        self.seed: int = seed
        self.rows: int = round_up(batch_size, multiple)
        self.lengths: np.ndarray = sequence_lengths(features)
        self._epoch: tuple[int, list[np.ndarray]] = -1, []

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(len(self.features), self.batch_size)

    def indices(self, step: int) -> np.ndarray:
        """Return int64 [at most batch_size]: the sequences of the batch of the step from `step` to `step` + 1."""
        epoch, number = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = epoch, epoch_batches(self.lengths, self.batch_size, self.window, self.seed, epoch)
        return self._epoch[1][number]

    def batch(self, step: int) -> Batch:
        return padded(self.features, self.indices(step), self.rows)

    def text_lengths(self, step: int) -> np.ndarray:
        """Return int64 [T]: the tokens of each text in that batch; for choice, of every candidate."""
        chosen = [self.features.input_ids[index] for index in self.indices(step)]
        return np.array([len(ids) for entry in chosen for ids in _texts(entry)], np.int64)


def epoch_batches(lengths: np.ndarray, batch_size: int, window: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the index arrays of the batches of one epoch, see TrainingBatches."""
    order = permute(np.arange(len(lengths)), len(lengths), bits(seed, Stream.ORDER, epoch))
    if window == 1:
        return _cut(order, batch_size)
    batches = []
    for number, members in enumerate(_cut(order, batch_size * window)):
        parts = _cut(members[np.argsort(lengths[members], kind="stable")], batch_size)
        places = permute(np.arange(len(parts)), len(parts), bits(seed, Stream.VISIT, epoch, number))
        batches += [parts[place] for place in places]
    return batches


def evaluation_batches(features: Features, batch_size: int) -> list[np.ndarray]:
    """Return index arrays that cover all sequences once, from the shortest to the longest."""
    return _cut(np.argsort(sequence_lengths(features), kind="stable"), batch_size)


def padded(features: Features, indices: np.ndarray, rows: int) -> Batch:
    """Return the sequences at `indices` as arrays of `rows` rows, padded to the rung that the longest of them needs."""
    chosen = [features.input_ids[index] for index in indices]
    candidates = len(chosen[0]) if isinstance(chosen[0], list) else None
    longest = max(len(ids) for entry in chosen for ids in _texts(entry))
    length = next(rung for rung in ladder(features.max_length) if rung >= longest)
    shape = (rows, candidates, length) if candidates else (rows, length)
    batch: Batch = {name: np.zeros(shape, np.int32) for name in ("input_ids", "token_type_ids", "attention_mask")}
    for row, index in enumerate(indices):
        for where, ids, types in _sequences(features, index, row):
            batch["input_ids"][where][: len(ids)] = ids
            batch["token_type_ids"][where][: len(ids)] = types
            batch["attention_mask"][where][: len(ids)] = 1
    # Without a real token, a filling row would have no position to attend to.
    batch["attention_mask"][len(indices) :, ..., 0] = 1
    batch["weights"] = (np.arange(rows) < len(indices)).astype(np.float32)
    if features.labels is not None:
        batch["labels"] = _labels(features.labels, indices, rows, length)
    return batch


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _texts(entry: Any) -> list[np.ndarray]:
    """Return the candidates of a choice, or the one text that an entry of `Features.input_ids` is."""
    return entry if isinstance(entry, list) else [entry]


def _sequences(features: Features, index: int, row: int):
    ids, types = features.input_ids[index], features.token_type_ids[index]
    if not isinstance(ids, list):
        return [(row, ids, types)]
    return [((row, candidate), *pair) for candidate, pair in enumerate(zip(ids, types, strict=True))]


def _labels(labels: Any, indices: np.ndarray, rows: int, length: int) -> np.ndarray:
    """Return labels [rows, …] in their dtype: 0 in filling rows, -1 after the last token of a tagged sequence."""
    if isinstance(labels, list):
        out = np.full((rows, length), -1, np.int32)
        for row, index in enumerate(indices):
            out[row, : len(labels[index])] = labels[index]
        return out
    out = np.zeros((rows, *labels.shape[1:]), labels.dtype)
    out[: len(indices)] = labels[indices]
    return out


def _cut(order: np.ndarray, size: int) -> list[np.ndarray]:
    return [order[start : start + size] for start in range(0, len(order), size)]

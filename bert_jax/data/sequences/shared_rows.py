"""Batches whose rows hold several sequences each: the same sequences as `padded` ones, on fewer positions.

A sequence goes where it leaves the least room, the longest first (best fit decreasing). Which sequences are in a batch
and what each of them counts is as in `batching`; only dropout falls on other elements.
"""

import heapq

import numpy as np

from bert_jax.data.sequences.batching import Batch, TrainingBatches, ladder, round_up
from bert_jax.data.sequences.features import Features
from bert_jax.errors import UserError

SHORTEST = 4  # tokens; a row has a place for each sequence of so many, and shorter ones may leave room
TRIED = 64  # batches by which lengths of rows are compared


class SharedRowBatches(TrainingBatches):
    """Batches with the sequences of `TrainingBatches`, of one class or number each, in shared rows.

    Rows of one length serve all batches, so the step is compiled once per number of rows that occurs. `batch(step)`
    has input_ids, token_type_ids, attention_mask and text_ids int32 [R, L], text_starts int32 [R, T], weights float32
    [R, T] and labels [R, T]; the number of rows R is a multiple of `multiple`.

    Args:
      features: sequences with labels.
      batch_size: number of sequences per step.
      longest_row: most positions of a row, at least as many as the longest sequence is padded to.
      window: as in `TrainingBatches`.
      seed: of the order.
      multiple: divisor of the number of rows of a batch.
    """

    def __init__(
        self,
        features: Features,
        batch_size: int,
        longest_row: int,
        *,
        window: int = 1,
        seed: int = 0,
        multiple: int = 1,
    ):
        super().__init__(features, batch_size, window=window, seed=seed, multiple=multiple)
        self._multiple = multiple
        self.length: int = self._best_length(longest_row)

    def batch(self, step: int) -> Batch:
        indices = self.indices(step)
        slots = min(self.batch_size, most_sequences(self.length))
        row, start = shared_rows(self.lengths[indices], self.length, slots)
        rows = round_up(int(row.max()) + 1, self._multiple)
        return filled(self.features, indices, row, start, (rows, self.length), slots)

    def _best_length(self, longest_row: int) -> int:
        """Return a length of rows that needs few positions: the rung of the longest sequence, or half as much again."""
        longest = int(self.lengths.max())
        shortest = next(rung for rung in ladder(self.features.max_length) if rung >= longest)
        steps = range(min(TRIED, self.steps_per_epoch))

        def positions(length: int) -> int:
            slots = min(self.batch_size, most_sequences(length))
            rows = (shared_rows(self.lengths[self.indices(step)], length, slots)[0].max() + 1 for step in steps)
            return length * sum(round_up(int(count), self._multiple) for count in rows)

        return min((shortest, min(shortest * 3 // 2, max(shortest, longest_row))), key=positions)


def shared_rows(lengths: np.ndarray, row_lengths: int | np.ndarray, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Return int64 [n], [n]: the row of each sequence, counted from 0 without gaps, and where it begins there.

    Args:
      lengths: int64 [n], at most `row_lengths` each.
      row_lengths: positions of a row; or, int64 [n], of the row that a sequence begins if it fits into no other.
      slots: most sequences of a row.

    Raises:
      UserError: a sequence is longer than its row.
    """
    row, start = np.zeros_like(lengths), np.zeros_like(lengths)
    opened = np.broadcast_to(row_lengths, lengths.shape)
    if len(over := np.flatnonzero(lengths > opened)):
        raise UserError(
            f"a text of {lengths[over[0]]} tokens does not fit into a row of {opened[over[0]]}, and texts that share "
            "rows are whole; cut it to the length of the row, or make the rows longer"
        )
    used: list[int] = []
    counts: list[int] = []
    rows_with: list[list[int]] = [[] for _ in range(int(opened.max()) + 1)]  # by the room that is left
    for index in np.argsort(-lengths, kind="stable"):
        size = int(lengths[index])
        room = next((room for room in range(size, len(rows_with)) if rows_with[room]), None)
        if room is None:
            room, place = int(opened[index]), len(used)
            used.append(0)
            counts.append(0)
        else:
            place = heapq.heappop(rows_with[room])
        row[index], start[index] = place, used[place]
        used[place] += size
        counts[place] += 1
        if counts[place] < slots:
            heapq.heappush(rows_with[room - size], place)
    return row, start


def most_sequences(row_length: int) -> int:
    """Return for how many sequences a row has places."""
    return max(1, row_length // SHORTEST)


def filled(
    features: Features, indices: np.ndarray, row: np.ndarray, start: np.ndarray, shape: tuple[int, int], slots: int
) -> Batch:
    """Return the sequences at `indices` in their rows of a batch of this shape, [R, L], see SharedRowBatches.

    Features without labels give a batch without them.
    """
    names = ("input_ids", "token_type_ids", "attention_mask", "text_ids")
    batch: Batch = {name: np.zeros(shape, np.int32) for name in names}
    batch["text_starts"] = np.zeros((shape[0], slots), np.int32)
    batch["weights"] = np.zeros((shape[0], slots), np.float32)
    if features.labels is not None:
        assert isinstance(features.labels, np.ndarray)
        batch["labels"] = np.zeros((shape[0], slots), features.labels.dtype)
    taken = np.zeros(shape[0], np.int64)
    for index, r, begin in zip(indices, row, start, strict=True):
        ids, slot = features.input_ids[index], taken[r]
        where = r, slice(begin, begin + len(ids))
        batch["input_ids"][where] = ids
        batch["token_type_ids"][where] = features.token_type_ids[index]
        batch["attention_mask"][where] = 1
        batch["text_ids"][where] = slot + 1
        batch["text_starts"][r, slot], batch["weights"][r, slot] = begin, 1
        if features.labels is not None:
            batch["labels"][r, slot] = features.labels[index]
        taken[r] += 1
    # As in `padded`: a filling row needs a position to attend to.
    batch["attention_mask"][taken == 0, 0] = 1
    return batch

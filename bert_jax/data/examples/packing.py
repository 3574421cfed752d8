"""Several texts in one row, so that nearly every position is a token.

An epoch's texts, in their random order, are divided into groups of about GROUP_TEXTS consecutive ones, and every group
of an epoch is packed into the same number of rows: row r of an epoch is row r mod R of group r div R, whatever
the other groups hold. R is what a group of mean size needs, and SPARE_DEVIATIONS standard deviations more. A text goes
where it leaves the least room, the longest text first (best fit decreasing). One that fits nowhere gives up to
TOLERANCE tokens of its outer sentences for a place, as in `truncation`, before it begins a new row. Where the R rows do
not suffice, all texts but full ones give up a token first, or two, four, …, until they do.

Only where sentences cannot spare that much, such as those of one token, is a text left out of its epoch. Its tokens
count as truncated, in another row of the group.
"""

import collections
import dataclasses
import functools
import math
import threading
from collections.abc import Callable

import numpy as np

from bert_jax.data.examples.chunks import DocumentChunks
from bert_jax.data.examples.row_layout import Places, Texts, packed_rows, runs
from bert_jax.data.ordering import permute
from bert_jax.data.randomness import Stream, bits
from bert_jax.data.store.token_rows import Rows

GROUP_TEXTS = 8192
"""Texts per group. The sum of their lengths varies by 0.3 % (128 places) or 0.6 % (512) on Wikipedia."""
SAMPLE_TEXTS = 4096
"""Texts of an epoch that are packed to find out how many rows a group needs."""
SPARE_DEVIATIONS = 1.0
TOLERANCE = 4
"""Tokens that a text gives up, if its outer sentences have them, rather than begin a new row."""
CACHED_GROUPS = 3


@dataclasses.dataclass(frozen=True)
class Group:
    """The texts of a group in the order of its rows; offsets int64 [R + 1]: where the texts of each row begin."""

    texts: Texts
    indices: np.ndarray  # int64 [N]: numbers of the texts in the epoch's order
    starts: np.ndarray  # int64 [N]: place of [CLS] in the row
    offsets: np.ndarray


class Packing:
    """The rows of any epoch of texts; safe to call from several threads.

    Args:
      chunks: tells how many texts an epoch has and how many tokens all have together.
      texts: makes the texts int64 [N] of an epoch.
      sequence_length: places of a row.
      max_texts: most texts of a row.
      seed: seed of the order of rows within a group, and of cuts.
    """

    def __init__(
        self,
        chunks: DocumentChunks,
        texts: Callable[[int, np.ndarray], Texts],
        sequence_length: int,
        max_texts: int,
        seed: int,
    ):
        self.chunks: DocumentChunks = chunks
        self.texts: Callable[[int, np.ndarray], Texts] = texts
        self.seed: int = seed
        self.sequence_length: int = sequence_length
        self.max_texts: int = max_texts
        self._shape = functools.lru_cache(maxsize=chunks.period)(self._find_shape)
        self._groups: collections.OrderedDict[tuple[int, int], Group] = collections.OrderedDict()
        self._lock = threading.RLock()

    def shape(self, epoch: int) -> tuple[int, int]:
        """Return the number of groups of `epoch`, and of rows of each."""
        with self._lock:
            return self._shape(epoch % self.chunks.period)

    def count(self, epoch: int) -> int:
        """Return the number of rows of `epoch`."""
        groups, rows = self.shape(epoch)
        return groups * rows

    def rows(self, epoch: int, indices: np.ndarray) -> Rows:
        """Return the rows `indices` [B] of `epoch`; read sentence boundaries only, no tokens."""
        number, row = np.divmod(indices, self.shape(epoch)[1])
        texts, at, starts, numbers = [], [], [], []
        for each in np.unique(number):
            where, group = np.flatnonzero(number == each), self.group(epoch, int(each))
            begin, end = group.offsets[row[where]], group.offsets[row[where] + 1]
            members = runs(begin, end - begin)
            texts.append(group.texts[members])
            at.append(np.repeat(where, end - begin))
            starts.append(group.starts[members])
            numbers.append(members - np.repeat(begin, end - begin))
        places = Places(*(np.concatenate(column) for column in (at, starts, numbers)))
        return packed_rows(Texts.concatenate(texts), places, (len(indices), self.sequence_length), self.max_texts)

    def rows_of(self, epoch: int, texts: np.ndarray) -> np.ndarray:
        """Return the rows, ascending, that hold the texts with these numbers in the epoch's order."""
        groups, rows = self.shape(epoch)
        found = []
        for number in range(groups):
            first, end = self._members(epoch, number)
            if ((texts >= first) & (texts < end)).any():
                group = self.group(epoch, number)
                here = np.flatnonzero(np.isin(group.indices, texts))
                found.append(number * rows + np.searchsorted(group.offsets, here, side="right") - 1)
        return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)

    def visited(self, epoch: int, indices: np.ndarray, key: np.ndarray) -> np.ndarray:
        """Return `indices` of an epoch in another order, for an epoch that repeats it: the groups, and their rows."""
        groups, rows = self.shape(epoch)
        number, row = np.divmod(indices, rows)
        number = permute(number, groups, key, Stream.VISIT)
        result = np.empty_like(indices)
        for each in np.unique(number):
            here = number == each
            result[here] = each * rows + permute(row[here], rows, bits(key, Stream.PACKING, each), Stream.VISIT)
        return result

    def group(self, epoch: int, number: int) -> Group:
        """Return one group; the latest few are kept."""
        with self._lock:
            if (group := self._groups.pop((epoch, number), None)) is None:
                group = self._packed(epoch, number)
            self._groups[epoch, number] = group
            while len(self._groups) > CACHED_GROUPS:
                self._groups.popitem(last=False)
            return group

    def _find_shape(self, epoch: int) -> tuple[int, int]:
        count = self.chunks.count(epoch)
        groups = max(1, round(count / GROUP_TEXTS))
        sample = self.texts(epoch, np.arange(min(count, SAMPLE_TEXTS if groups > 1 else count)))
        lengths = sample.lengths
        row, cut = pack(lengths, spare(sample), self.sequence_length, self.max_texts, TOLERANCE, len(lengths))
        if groups == 1:
            return 1, int(row.max()) + 1
        # All tokens of the split are in the texts of an epoch, so only what is cut off and borrowed has to be sampled.
        own = self.chunks.documents.num_tokens.sum() / count
        mean = own + (lengths - sample.segments.length.sum(1) + sample.duplicated - sample.truncated).mean()
        largest = 2 * -(-count // 2 // groups) + 2
        places = largest * mean + SPARE_DEVIATIONS * lengths.std() * math.sqrt(largest * max(0.0, 1 - largest / count))
        return groups, math.ceil(places * (int(row.max()) + 1) / lengths.sum())

    def _members(self, epoch: int, number: int) -> tuple[int, int]:
        """Return the first text of a group and the one behind its last; partners (2i, 2i + 1) stay together."""
        count, groups = self.chunks.count(epoch), self.shape(epoch)[0]
        first, end = (min(2 * (-(-count // 2) * each // groups), count) for each in (number, number + 1))
        return first, end

    def _packed(self, epoch: int, number: int) -> Group:
        rows = self.shape(epoch)[1]
        indices = np.arange(*self._members(epoch, number))
        texts = self.texts(epoch, indices)
        row, removed = self._places(texts, rows)
        texts = texts.cut(removed, bits(self.seed, Stream.PACKING, epoch, indices))
        texts, indices, row = _without_left_out(texts, indices, row)
        row = permute(_without_empty(row, rows), rows, bits(self.seed, Stream.PACKING, epoch, number))
        order = np.argsort(row, kind="stable")
        texts, offsets = texts[order], np.searchsorted(row[order], np.arange(rows + 1))
        before = np.cumsum(texts.lengths) - texts.lengths
        starts = before - before[offsets[row[order]]]
        return Group(texts, indices[order], starts, offsets)

    def _places(self, texts: Texts, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the row of each text of a group, and how many of its tokens are cut off; see `pack`."""
        lengths, most, early = texts.lengths, spare(texts), 0
        while True:
            wanted = np.minimum(most, early) * ((lengths < self.sequence_length) | (early >= self.sequence_length))
            row, removed = pack(lengths - wanted, most - wanted, self.sequence_length, self.max_texts, TOLERANCE, rows)
            if early >= self.sequence_length or (row >= 0).all():
                return row, removed + wanted
            early = max(1, 2 * early)


def spare(texts: Texts) -> np.ndarray:
    """Return how many tokens each text can lose while every sentence keeps one, int64 [N]."""
    return texts.segments.spare.sum(1)


def pack(
    lengths: np.ndarray, spare: np.ndarray, capacity: int, max_texts: int, tolerance: int, max_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return a row for each text, int64 [N] (-1: no place), and the number of tokens to cut off, int64 [N].

    Best fit decreasing. The rooms that are left are the bits of one integer, so that the best one is found at once.
    """
    order, full = np.argsort(-lengths, kind="stable"), int((lengths >= capacity).sum())
    row_of, cut = np.full(len(lengths), -1), np.zeros(len(lengths), np.int64)
    num_texts = [1] * min(full, max_rows)
    row_of[order[: len(num_texts)]] = np.arange(len(num_texts))
    rooms, rows_with = 0, [[] for _ in range(capacity + 1)]
    sizes, most = lengths.tolist(), np.minimum(spare, tolerance).tolist()
    for text in order[full:].tolist():
        length = sizes[text]
        if large := rooms >> length:
            room = length + (large & -large).bit_length() - 1
        elif (room := (rooms & ((1 << length) - 1)).bit_length() - 1) >= length - most[text] and room > 0:
            cut[text] = length - room
        elif len(num_texts) < max_rows:
            room = capacity
            num_texts.append(0)
            rows_with[capacity].append(len(num_texts) - 1)
        else:
            continue
        row = rows_with[room].pop()
        if not rows_with[room]:
            rooms &= ~(1 << room)
        row_of[text] = row
        num_texts[row] += 1
        left = room - min(length, room)
        if left and num_texts[row] < max_texts:
            rows_with[left].append(row)
            rooms |= 1 << left
    return row_of, cut


def _without_left_out(texts: Texts, indices: np.ndarray, row: np.ndarray) -> tuple[Texts, np.ndarray, np.ndarray]:
    """Return the texts that have a row, the first of which counts the tokens of the others as truncated."""
    if (row >= 0).all():
        return texts, indices, row
    own = texts.segments.length.sum(1) - texts.duplicated + texts.truncated
    lost, kept = own[row < 0].sum(), row >= 0
    texts, indices, row = texts[kept], indices[kept], row[kept]
    texts.truncated[0] += lost
    return texts, indices, row


def _without_empty(row: np.ndarray, num_rows: int) -> np.ndarray:
    """Return a row for each text such that none of `num_rows` is empty, if there are enough texts."""
    row, used = row.copy(), int(row.max()) + 1
    movable = np.setdiff1d(np.arange(len(row)), np.unique(row, return_index=True)[1])[: num_rows - used]
    row[movable] = used + np.arange(len(movable))
    return row

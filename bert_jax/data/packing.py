"""Several texts in one row, so that nearly every position is a token; and the layout of texts in rows.

A text is read as [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

An epoch's texts, in their random order, are divided into groups of about GROUP_TEXTS consecutive ones, and every
group of an epoch is packed into the same number of rows: row r of an epoch is row r mod R of group r div R, whatever
the other groups hold. R is what a group of mean size needs, and SPARE_DEVIATIONS standard deviations more. A text
goes where it leaves the least room, the longest text first (best fit decreasing). One that fits nowhere gives up to
TOLERANCE tokens of its outer sentences for a place, as in the truncation of chunks.py, before it begins a new row.
Where the R rows do not suffice, all texts but full ones give up a token first, or two, four, …, until they do.

Only where sentences cannot spare that much, such as those of one token, is a text left out of its epoch. Its tokens
count as truncated, in another row of the group.
"""

import collections
import dataclasses
import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from bert_jax.data.chunks import Chunks, DocumentChunks, Segments, trim, truncate
from bert_jax.data.store import PADDING, SPECIAL, Rows
from bert_jax.randomness import Stream, bits, invert, permute
from bert_jax.tokenization.vocabulary import CLASS_SEGMENT


@dataclasses.dataclass(frozen=True)
class Texts:
    """N texts of S segments each, one or two, already cut to the size of a sequence."""

    segments: Segments  # int64 [N, S]
    labels: np.ndarray | None  # int32 [N], of the pair; None: single segments, or pairs without a label
    truncated: np.ndarray  # int64 [N]: tokens of the chunk that were cut off
    duplicated: np.ndarray  # int64 [N]: tokens that are also in another text of the epoch

    def __len__(self) -> int:
        return len(self.truncated)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N]: number of places, [CLS] and [SEP] included."""
        return 1 + (self.segments.length + self.separators).sum(1)

    @property
    def separators(self) -> np.ndarray:
        """int64 [N, S]: 1 [SEP] after each segment, but none for the empty second one of a pair without a label."""
        return ((self.segments.length > 0) | (self.labels is not None)).astype(np.int64)

    def __getitem__(self, where: Any) -> "Texts":
        labels = None if self.labels is None else self.labels[where]
        return Texts(self.segments[where], labels, self.truncated[where], self.duplicated[where])

    @staticmethod
    def concatenate(parts: list["Texts"]) -> "Texts":
        segments = [np.concatenate(column) for column in zip(*(part.segments.columns for part in parts), strict=True)]
        labels = [part.labels for part in parts if part.labels is not None]
        return Texts(
            Segments(*segments),
            np.concatenate(labels) if labels else None,
            np.concatenate([part.truncated for part in parts]),
            np.concatenate([part.duplicated for part in parts]),
        )

    def cut(self, removed: np.ndarray, keys: np.ndarray) -> "Texts":
        """Return the texts without `removed` [N] of the tokens that they can spare, taken from the longer segment."""
        where = np.flatnonzero(removed)
        some, columns = self.segments[where], [column.copy() for column in self.segments.columns]
        left = cut_segments(some, keys[where], some.length.sum(1) - removed[where])[0]
        for column, values in zip(columns, left.columns, strict=True):
            column[where] = values
        return dataclasses.replace(self, segments=Segments(*columns), truncated=self.truncated + removed)


def cut_segments(segments: Segments, keys: np.ndarray, max_tokens: Any) -> tuple[Segments, np.ndarray]:
    """Cut texts [N, S], which must be able to spare that much, to `max_tokens` (one number, or [N]) each.

    Returns what is left and the number of tokens removed, [N, S] each.
    """
    if segments.begin.shape[1] == 2:
        begin, end, removed = truncate(segments, keys, max_tokens)
    else:
        removed = np.maximum(segments.length - np.reshape(max_tokens, (-1, 1)), 0)
        begin, end = trim(segments, removed, keys[:, None])
    return Segments(begin, end, np.minimum(segments.first_end, end), np.maximum(segments.last_begin, begin)), removed


def single_texts(chunks: DocumentChunks, epoch: int, indices: np.ndarray, keys: np.ndarray) -> Texts:
    """Return each chunk as a text of one segment: the sentences of one document (DOC-SENTENCES of Liu et al. 2019)."""
    found = chunks.find(epoch, chunks.shuffled(epoch, indices))
    segments, removed = cut_segments(_whole(chunks, found)[:, None], keys, chunks.max_tokens)
    return Texts(segments, None, removed[:, 0], np.zeros(len(indices), np.int64))


def _whole(chunks: DocumentChunks, found: Chunks) -> Segments:
    """Return each chunk as one segment."""
    last = found.first_inner + found.num_sentences - 2
    edges = np.stack([found.first_inner, last])
    first_end, last_begin = chunks.documents.store.sentence_starts(np.where(found.num_sentences > 1, edges, 0))
    single = found.num_sentences == 1
    return Segments(
        found.begin, found.end, np.where(single, found.end, first_end), np.where(single, found.begin, last_begin)
    )


@dataclasses.dataclass(frozen=True)
class Places:
    """Places of N texts, int64 [N] each: the row, the place of [CLS] in it, and the number of the text in its row."""

    row: np.ndarray
    start: np.ndarray
    number: np.ndarray


def text_rows(texts: Texts, sequence_length: int) -> Rows:
    """Return one text per row."""
    index = np.arange(len(texts))
    token_index, token_type_ids = _filled(texts, index * sequence_length, len(texts), sequence_length)
    return Rows(token_index, token_type_ids, texts.labels, texts.truncated, texts.duplicated)


def packed_rows(texts: Texts, places: Places, shape: tuple[int, int], max_texts: int) -> Rows:
    """Return rows of several texts; `shape` [B, L] of the rows."""
    (num_rows, sequence_length), flat = shape, places.row * shape[1] + places.start
    token_index, token_type_ids = _filled(texts, flat, num_rows, sequence_length)
    text_ids = np.zeros(num_rows * sequence_length, np.int32)
    text_ids[runs(flat, texts.lengths)] = np.repeat(places.number + 1, texts.lengths)
    starts, used = np.zeros((num_rows, max_texts), np.int32), np.zeros((num_rows, max_texts), np.float32)
    starts[places.row, places.number] = places.start
    used[places.row, places.number] = 1
    labels = None
    if texts.labels is not None:
        labels = np.zeros((num_rows, max_texts), np.int32)
        labels[places.row, places.number] = texts.labels
    return Rows(
        token_index,
        token_type_ids,
        labels,
        np.bincount(places.row, texts.truncated, num_rows).astype(np.int64),
        np.bincount(places.row, texts.duplicated, num_rows).astype(np.int64),
        text_ids.reshape(shape),
        starts,
        used,
    )


def with_class_last(rows: Rows) -> tuple[Rows, np.ndarray]:
    """Return rows of texts A [SEP] [CLS] from those of [CLS] A [SEP], and bool [B, L]: the places of [CLS].

    It is in segment CLASS_SEGMENT, as where XLNet reads a task (tokenization/tokenizer.py).
    """
    place, token_index = np.arange(rows.token_index.shape[1]), rows.token_index
    used = token_index != PADDING
    number = used.astype(np.int64) if rows.text_ids is None else rows.text_ids.astype(np.int64)
    starts = np.zeros((len(used), 1), np.int64) if rows.text_starts is None else rows.text_starts
    last = used & (number != np.pad(number, ((0, 0), (0, 1)))[:, 1:])
    source = np.where(used & ~last, place + 1, place)
    source = np.where(last, np.take_along_axis(starts, np.maximum(number - 1, 0), 1), source)
    types = np.where(last, CLASS_SEGMENT, np.take_along_axis(rows.token_type_ids, source, 1))
    moved = np.take_along_axis(token_index, source, 1)
    return dataclasses.replace(rows, token_index=moved, token_type_ids=types.astype(np.int32)), last


def _filled(texts: Texts, flat: np.ndarray, num_rows: int, sequence_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return token_index and token_type_ids [B, L] of texts that begin at `flat` [N], counted over all rows."""
    token_index = np.full(num_rows * sequence_length, PADDING, np.int64)
    token_type_ids = np.zeros(num_rows * sequence_length, np.int32)
    token_index[flat] = SPECIAL
    place = flat + 1
    for segment in range(texts.segments.begin.shape[1]):
        length, separators = texts.segments.length[:, segment], texts.separators[:, segment]
        text = runs(place, length)
        token_index[text] = text + np.repeat(texts.segments.begin[:, segment] - place, length)
        token_index[runs(place + length, separators)] = SPECIAL
        if segment:
            token_type_ids[runs(place, length + separators)] = segment
        place = place + length + separators
    shape = num_rows, sequence_length
    return token_index.reshape(shape), token_type_ids.reshape(shape)


def runs(begin: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return the numbers begin[0], …, begin[0] + length[0] - 1, begin[1], … of all runs, one after the other."""
    before = np.cumsum(length) - length
    return np.repeat(begin - before, length) + np.arange(int(length.sum()))


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

    def visits(self, epoch: int, indices: np.ndarray, key: np.ndarray) -> np.ndarray:
        """Return what `visited` maps to `indices`."""
        groups, rows = self.shape(epoch)
        number, row = np.divmod(indices, rows)
        result = invert(number, groups, key, Stream.VISIT) * rows
        for each in np.unique(number):
            here = number == each
            result[here] += invert(row[here], rows, bits(key, Stream.PACKING, each), Stream.VISIT)
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

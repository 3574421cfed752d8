"""Texts as a model reads them, [CLS] A [SEP] or [CLS] A [SEP] B [SEP], and the rows that they are put into."""

import dataclasses
from typing import Any

import numpy as np

from bert_jax.data.examples.chunks import Chunks, DocumentChunks
from bert_jax.data.examples.truncation import Segments, trim, truncate
from bert_jax.data.store.token_rows import PADDING, SPECIAL, Rows
from bert_jax.tokenization.segments import CLASS_SEGMENT


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
    """Where N texts go, int64 [N] each: the row, the place of [CLS] in it, and the number of the text in its row."""

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

    It is in segment CLASS_SEGMENT, as where XLNet reads a task (tokenization/segments.py).
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

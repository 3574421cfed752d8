"""Sentence pairs: next sentence, sentence order, and consecutive segments without a label.

Next-sentence prediction is that of Devlin et al. 2018, section 3.1, sentence order that of Lan et al. 2020; segments
that follow each other without a label are from Clark et al. 2020.

The original draws a random second segment half of the time and puts the sentences that it displaces back into the
queue of the document, a sequential procedure. Here the examples 2i and 2i + 1 of an epoch's random order are
partners: a coin decides whether they exchange their second segments, if they are from different documents. Half of
the pairs are then random although every sentence belongs to exactly one example of an epoch. The second partner is
split at the boundary nearest to the split of the first; this adds at most half of the sentence at that boundary to
either sequence, which is at an end of a segment and can be cut, so the sentences of both still fit. A chunk of one
sentence has no second segment of its own; as in the original it always gets a random one, which is then seen twice.

Pairs without a label are made as in the code published with ELECTRA (build_pretraining_dataset.py): one text in ten
is a single segment; in the others, the first segment takes the sentences that leave it shorter than half of the
target, and with probability 1/2 the one that does not; the second takes the rest, if there is any. What does not fit
is cut off at the end (but packing.py takes tokens from both segments, as from any pair). Two things differ. The text
is a chunk of chunks.py, so that a shorter length is drawn for a document, not for each text. And once the second
segment has begun, it takes every sentence; in that code, one that still fitted was added to the first, out of order.
"""

import dataclasses

import numpy as np

from bert_jax.data.chunks import Chunks, DocumentChunks, Segments
from bert_jax.data.packing import Texts, cut_segments
from bert_jax.randomness import Stream, bits, integers, uniform

SINGLE_SEGMENTS = 0.1
"""Share of the texts without a label that are one segment, whatever their length."""
RANDOM_TRIES = 10
"""Draws of a chunk until one comes from a different document; the last one is taken regardless, as in the original."""


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Two segments per row, [B, 2]; labels int32 [B]; borrowed bool [B]: whether the second segment is a copy."""

    segments: Segments
    labels: np.ndarray
    borrowed: np.ndarray


def next_sentence_pairs(chunks: DocumentChunks, seed: int, epoch: int, indices: np.ndarray) -> Pairs:
    """Return pairs for the examples `indices` [B] of `epoch`; label 0: the second segment follows, 1: it is random."""
    count = chunks.count(epoch)
    couple, row = np.unique(indices >> 1, return_inverse=True)
    members = np.stack([2 * couple, np.minimum(2 * couple + 1, count - 1)], axis=1)
    found = chunks.find(epoch, chunks.shuffled(epoch, members))
    apart = (found.document[:, 0] != found.document[:, 1]) | (len(chunks.documents) == 1)
    exchange = uniform(bits(seed, Stream.SWAP, epoch, couple)) < _exchange_probability(chunks)
    exchange &= (found.num_sentences > 1).all(1) & apart & (2 * couple + 1 < count)

    boundary = _random_boundary(seed, epoch, members, found)
    split = chunks.documents.store.sentence_starts(boundary[:, 0])
    matching = _boundary_nearest(chunks, found[:, 1], found.begin[:, 1] + split - found.begin[:, 0])
    boundary[:, 1] = np.where(exchange, matching, boundary[:, 1])
    segments = _divide(chunks, found, boundary)

    mine = indices & 1
    owner = np.stack([mine, mine ^ exchange[row]], axis=1)
    segments, found = segments[row[:, None], owner, [0, 1]], found[row, mine]
    single = found.num_sentences == 1
    segments[single, 1] = _random_next(chunks, seed, epoch, indices[single], found[single])
    return Pairs(segments, (exchange[row] | single).astype(np.int32), single)


def _exchange_probability(chunks: DocumentChunks) -> float:
    """Return 1/2, or more if partners often share a document, so that half of all pairs are random if possible.

    The only document of a split exchanges with itself, as in the original.
    """
    same_document = 0.0 if len(chunks.documents) == 1 else chunks.documents.collision
    return 0.5 / max(0.5, 1 - same_document)


def sentence_order_pairs(chunks: DocumentChunks, seed: int, epoch: int, indices: np.ndarray) -> Pairs:
    """Return two consecutive segments per example; label 1 if they are swapped.

    A chunk of one sentence is split inside it; one of a single token has an empty second segment and label 0.
    """
    found = chunks.find(epoch, chunks.shuffled(epoch, indices))
    segments = _divide(chunks, found, _random_boundary(seed, epoch, indices, found))
    single = found.num_sentences == 1
    segments[single] = _halve(seed, epoch, indices[single], found[single])
    swapped = (integers(bits(seed, Stream.SWAP, epoch, indices), 2) == 1) & (segments.length[:, 1] > 0)
    order = np.where(swapped[:, None], [1, 0], [0, 1])
    return Pairs(
        segments[np.arange(len(indices))[:, None], order], swapped.astype(np.int32), np.zeros(len(indices), bool)
    )


def pair_texts(pairs: Pairs, keys: np.ndarray, sequence_length: int) -> Texts:
    """Return [CLS] A [SEP] B [SEP], cut to `sequence_length` places; `keys` [B]: 64 random bits per pair."""
    segments, removed = cut_segments(pairs.segments, keys, sequence_length - 3)
    truncated = removed[:, 0] + np.where(pairs.borrowed, 0, removed[:, 1])
    duplicated = np.where(pairs.borrowed, segments.length[:, 1], 0)
    return Texts(segments, pairs.labels, truncated, duplicated)


def adjacent_texts(chunks: DocumentChunks, seed: int, epoch: int, indices: np.ndarray, sequence_length: int) -> Texts:
    """Return [CLS] A [SEP] B [SEP] without labels, or [CLS] A [SEP], of at most `sequence_length` places."""
    found = chunks.find(epoch, chunks.shuffled(epoch, indices))
    whole = _divide(chunks, found, _boundary_near_half(chunks, seed, epoch, indices, found))
    room = sequence_length - 2 - (whole.length[:, 1] > 0)
    begin, end = (np.minimum(each, (found.begin + room)[:, None]) for each in (whole.begin, whole.end))
    segments = Segments(begin, end, np.minimum(whole.first_end, end), np.maximum(whole.last_begin, begin))
    return Texts(segments, None, found.end - end[:, 1], np.zeros(len(indices), np.int64))


def _divide(chunks: DocumentChunks, found: Chunks, boundary: np.ndarray) -> Segments:
    """Return two segments [..., 2] of each chunk, divided before sentence `boundary`; empty if it has one sentence."""
    last = found.first_inner + found.num_sentences - 2
    starts = _starts_within(chunks, found, found.first_inner, boundary - 1, boundary, boundary + 1, last)
    first_end, before, split, after, last_begin = starts
    return Segments(
        np.stack([found.begin, split], -1),
        np.stack([split, found.end], -1),
        np.stack([first_end, after], -1),
        np.stack([before, last_begin], -1),
    )


def _starts_within(chunks: DocumentChunks, found: Chunks, *sentences: np.ndarray) -> np.ndarray:
    """Return where these sentences start, or the edge of the chunk if that is outside it."""
    store = chunks.documents.store
    return np.clip(store.sentence_starts(np.minimum(np.stack(sentences), store.num_sentences)), found.begin, found.end)


def _halve(seed: int, epoch: int, indices: np.ndarray, found: Chunks) -> Segments:
    """Return two segments [N, 2] of each chunk of one sentence, which is cut at a random token."""
    split = (
        found.begin + 1 + integers(bits(seed, Stream.SPLIT, epoch, indices), np.maximum(found.end - found.begin - 1, 1))
    )
    begin, end = np.stack([found.begin, split], 1), np.stack([split, found.end], 1)
    return Segments(begin, end, end, begin)


def _random_boundary(seed: int, epoch: int, indices: np.ndarray, found: Chunks) -> np.ndarray:
    """Return the first sentence of the second segment: any inner one, or the one after a chunk of a single sentence."""
    return found.first_inner + integers(
        bits(seed, Stream.SPLIT, epoch, indices), np.maximum(found.num_sentences - 1, 1)
    )


def _boundary_nearest(chunks: DocumentChunks, found: Chunks, offsets: np.ndarray) -> np.ndarray:
    """Return the inner sentence that starts nearest to the token `offsets`; arbitrary for chunks of one sentence."""
    last = found.first_inner + np.maximum(found.num_sentences - 2, 0)
    above = chunks.documents.first_sentence_from(offsets, found.first_inner, last)
    below = np.maximum(above - 1, found.first_inner)
    start_above, start_below = chunks.documents.store.sentence_starts(np.stack([above, below]))
    return np.where(start_above - offsets < offsets - start_below, above, below)


def _boundary_near_half(
    chunks: DocumentChunks, seed: int, epoch: int, indices: np.ndarray, found: Chunks
) -> np.ndarray:
    """Return the first sentence of the second segment, or the one behind the chunk if all of them are in the first."""
    single, more = uniform(bits(seed, Stream.SPLIT, epoch, indices, np.arange(2)[:, None]))
    half, behind = found.target // 2, found.first_inner + found.num_sentences - 1
    # The sentence before `following` is the first that does not leave the first segment below half, if there is one.
    second = np.minimum(found.first_inner + 1, behind)
    following = chunks.documents.first_sentence_from(found.begin + half, second, behind)
    is_below = (following == behind) & (found.end - found.begin < half)
    is_single = (single < SINGLE_SEGMENTS) | (found.num_sentences == 1) | is_below
    length = chunks.documents.store.sentence_starts(following - 1) - found.begin
    takes_it = (length < half) & (more < 0.5)
    return np.where(is_single, behind, following - 1 + takes_it)


def _random_next(chunks: DocumentChunks, seed: int, epoch: int, indices: np.ndarray, found: Chunks) -> Segments:
    """Return text from other documents: the sentences of a random chunk until the target length is reached."""
    draws = bits(seed, Stream.RANDOM_NEXT, epoch, indices[:, None], np.arange(RANDOM_TRIES))
    draws = integers(draws, chunks.count(epoch))
    other = chunks.document_of(epoch, draws) != found.document[:, None]
    chosen = np.where(other.any(1), other.argmax(1), RANDOM_TRIES - 1)
    source = chunks.find(epoch, draws[np.arange(len(draws)), chosen])
    own = found.end - found.begin
    # In a packed row, other texts fill the places that are left.
    target = np.minimum(found.target, 2 * own) if chunks.divides_sentences else found.target
    room = np.maximum(target - own, 1)
    last = source.first_inner + source.num_sentences - 1
    enough = chunks.documents.first_sentence_from(source.begin + room, source.first_inner, last)
    first_end, last_begin, end = _starts_within(chunks, source, source.first_inner, enough - 1, enough)
    return Segments(source.begin, end, np.minimum(first_end, end), last_begin)

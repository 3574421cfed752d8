"""Sentence pairs: next-sentence prediction (Devlin et al. 2018, section 3.1) and sentence order (Lan et al. 2020).

The original draws a random second segment half of the time and puts the sentences it displaced back into the queue of
the document, a sequential procedure. Here the examples 2i and 2i + 1 of an epoch's random order are partners: a coin
decides whether they exchange their second segments, if they are of different documents. Half of the pairs are then
random although every sentence belongs to exactly one example of an epoch. A chunk of one sentence has no second segment
of its own; as in the original it always gets a random one, which is then seen twice.
"""

import dataclasses

import numpy as np

from bert_jax.data.chunks import Chunks, DocumentChunks
from bert_jax.data.randomness import Stream, bits, heads, integers, uniform
from bert_jax.data.rows import PADDING, SPECIAL, Rows

RANDOM_TRIES = 10
"""Draws of a chunk until one comes from another document; then the last is taken whatever it is, as in the original."""


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Two token intervals a row: begin, end int64 [B, 2]; labels int32 [B]; borrowed bool [B]: the second is a copy."""

    begin: np.ndarray
    end: np.ndarray
    labels: np.ndarray
    borrowed: np.ndarray


def next_sentence_pairs(chunks: DocumentChunks, seed: int, epoch: int, indices: np.ndarray) -> Pairs:
    """Pairs of the examples `indices` [B] of `epoch`; label 0: the second segment follows the first, 1: it is random."""
    count = chunks.count(epoch)
    couple, row = np.unique(indices >> 1, return_inverse=True)
    members = np.stack([2 * couple, np.minimum(2 * couple + 1, count - 1)], axis=1)
    found = chunks.find(epoch, chunks.shuffled(epoch, members))
    has_two = found.num_sentences > 1
    apart = (found.document[:, 0] != found.document[:, 1]) | (len(chunks.documents) == 1)
    exchange = uniform(bits(seed, Stream.SWAP, epoch, couple)) < _exchange_probability(chunks)
    exchange &= has_two.all(1) & apart & (2 * couple + 1 < count)

    split = _random_boundary(chunks, seed, epoch, members, found)
    matching = _boundary_nearest(chunks, found[:, 1], found.begin[:, 1] + split[:, 0] - found.begin[:, 0])
    split[:, 1] = np.where(exchange, matching, split[:, 1])

    second_begin = np.where(exchange[:, None], split[:, ::-1], split)
    second_end = np.where(exchange[:, None], found.end[:, ::-1], found.end)
    begin, end = np.stack([found.begin, second_begin], -1), np.stack([split, second_end], -1)
    mine = row, indices & 1
    begin, end, found = begin[mine], end[mine], found[mine]
    single = found.num_sentences == 1
    begin[single, 1], end[single, 1] = _random_next(chunks, seed, epoch, indices[single], found[single])
    return Pairs(begin, end, (exchange[row] | single).astype(np.int32), single)


def _exchange_probability(chunks: DocumentChunks) -> float:
    """1/2, or more where partners are often of one document, so that half of all pairs are random if that can be.

    The only document of a split exchanges with itself, as in the original.
    """
    same_document = 0.0 if len(chunks.documents) == 1 else chunks.documents.collision
    return 0.5 / max(0.5, 1 - same_document)


def sentence_order_pairs(chunks: DocumentChunks, seed: int, epoch: int, indices: np.ndarray) -> Pairs:
    """Two consecutive segments, label 1: swapped.

    A chunk of one sentence is split inside it; one of a single token has an empty second segment and label 0.
    """
    found = chunks.find(epoch, chunks.shuffled(epoch, indices))
    inside = 1 + integers(bits(seed, Stream.SPLIT, epoch, indices), np.maximum(found.end - found.begin - 1, 1))
    split = np.where(found.num_sentences > 1, _random_boundary(chunks, seed, epoch, indices, found), found.begin + inside)
    swapped = (integers(bits(seed, Stream.SWAP, epoch, indices), 2) == 1) & (split < found.end)
    begin, end = np.stack([found.begin, split], 1), np.stack([split, found.end], 1)
    begin, end = (np.where(swapped[:, None], side[:, ::-1], side) for side in (begin, end))
    return Pairs(begin, end, swapped.astype(np.int32), np.zeros(len(indices), bool))


def pair_rows(pairs: Pairs, keys: np.ndarray, sequence_length: int) -> Rows:
    """[CLS] A [SEP] B [SEP], cut to `sequence_length` places; `keys` [B]: 64 random bits a row."""
    begin, end, removed = _truncate(pairs.begin, pairs.end, keys, sequence_length - 3)
    first, second = (end - begin).T[:, :, None]
    place = np.arange(sequence_length)[None]
    in_first = (place > 0) & (place <= first)
    in_second = (place > first + 1) & (place < first + second + 2)
    token_index = np.where(place < first + second + 3, SPECIAL, PADDING)
    token_index = np.where(in_first, begin[:, :1] + place - 1, token_index)
    token_index = np.where(in_second, begin[:, 1:] + place - first - 2, token_index)
    token_type_ids = ((place > first + 1) & (place < first + second + 3)).astype(np.int32)
    truncated = removed[:, 0] + np.where(pairs.borrowed, 0, removed[:, 1])
    duplicated = np.where(pairs.borrowed, second[:, 0], 0)
    return Rows(token_index, token_type_ids, pairs.labels, truncated, duplicated)


def _truncate(begin: np.ndarray, end: np.ndarray, keys: np.ndarray, max_tokens: int) -> tuple[np.ndarray, ...]:
    """Takes tokens off the longer segment, one at a time, from its front or its back by a fair coin, until both fit.

    In closed form: first the difference of the lengths comes off the longer, then both lose in turn, the second first
    (the original trims it on a tie). Returns begin, end and the tokens removed, [B, 2] each.
    """
    lengths = end - begin
    excess = np.maximum(lengths.sum(1) - max_tokens, 0)
    difference = lengths[:, 0] - lengths[:, 1]
    uneven = np.minimum(excess, abs(difference))
    from_both = np.stack([(excess - uneven) // 2, (excess - uneven + 1) // 2], axis=1)
    removed = from_both + np.stack([np.where(difference > 0, uneven, 0), np.where(difference < 0, uneven, 0)], axis=1)
    side_keys = bits(keys[:, None], Stream.TRUNCATION, np.arange(2))
    front = heads(side_keys.ravel(), Stream.TRUNCATION, removed.ravel()).reshape(removed.shape)
    return begin + front, end - (removed - front), removed


def _random_boundary(chunks: DocumentChunks, seed: int, epoch: int, indices: np.ndarray, found: Chunks) -> np.ndarray:
    """Token offset after a uniform number of sentences that leaves one at least on each side; the end of a single one."""
    inner = integers(bits(seed, Stream.SPLIT, epoch, indices), np.maximum(found.num_sentences - 1, 1))
    starts = chunks.documents.store.sentence_starts(found.first_inner + np.where(found.num_sentences > 1, inner, 0))
    return np.where(found.num_sentences > 1, starts, found.end)


def _boundary_nearest(chunks: DocumentChunks, found: Chunks, offsets: np.ndarray) -> np.ndarray:
    """The inner sentence boundary nearest to the token `offsets` in chunks of two sentences or more; else arbitrary."""
    last = found.first_inner + np.maximum(found.num_sentences - 2, 0)
    above = chunks.documents.first_sentence_from(offsets, found.first_inner, last)
    below = np.maximum(above - 1, found.first_inner)
    above, below = chunks.documents.store.sentence_starts(np.stack([above, below]))
    return np.where(above - offsets < offsets - below, above, below)


def _random_next(chunks: DocumentChunks, seed: int, epoch: int, indices: np.ndarray, found: Chunks) -> tuple[np.ndarray, ...]:
    """Begin and end of text from other documents: the sentences of a random chunk until the target length is reached."""
    draws = bits(seed, Stream.RANDOM_NEXT, epoch, indices[:, None], np.arange(RANDOM_TRIES))
    draws = integers(draws, chunks.count(epoch))
    other = chunks.document_of(epoch, draws) != found.document[:, None]
    chosen = np.where(other.any(1), other.argmax(1), RANDOM_TRIES - 1)
    source = chunks.find(epoch, draws[np.arange(len(draws)), chosen])
    room = np.maximum(found.target - (found.end - found.begin), 1)
    last = source.first_inner + source.num_sentences - 1
    enough = chunks.documents.first_sentence_from(source.begin + room, source.first_inner, last)
    starts = chunks.documents.store.sentence_starts(enough)
    return source.begin, np.where(enough < last, starts, source.end)

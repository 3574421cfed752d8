"""Training examples as a pure function of (seed, position): the position alone determines text, pair and masks.

`batch_layout` gives the names, shapes and types of a batch's arrays, by phase and objective. `predicted_places` asks
the module that the objective names how predicted places are picked and hidden.

Pairs are of the next sentence (Devlin et al. 2018, section 3.1), of the order of two (Lan et al. 2020), or segments
that follow each other, without a label (Clark et al. 2020).

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
import importlib
import threading
from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np

from bert_jax.config import DataConfig, MaskingConfig, ObjectiveConfig, Phase
from bert_jax.config.pretraining import SentencePairs
from bert_jax.data.chunks import Chunks, DocumentChunks, Documents, FullSentences, Segments
from bert_jax.data.packing import Packing, Texts, cut_segments, single_texts, text_rows, with_class_last
from bert_jax.data.spelling_errors import SpellingErrors
from bert_jax.data.store import SPECIAL, Rows, Store, padded_rows
from bert_jax.randomness import Stream, bits, integers, invert, permute, spread, uniform
from bert_jax.tokenization.tokenizer import Tokenizer

Batch = dict[str, np.ndarray]
"""input_ids, token_type_ids, attention_mask int32 [B, L] · masked_positions, masked_ids int32 [B, M] · masked_weights
float32 [B, M] · next_sentence_labels int32 [B] (0 = IsNext or in order; absent if pairs have no labels).

Packed rows also have text_ids int32 [B, L] (the number of the text, from 1; 0 for padding) · text_starts int32 [B, T]
(place of its [CLS]; 0 if there is no such text); and next_sentence_labels are [B, T], with next_sentence_weights
float32 [B, T] (0 if there is no such text). Orders of tokens (objective.name=permutation) are order int32 [B, L]. Rows
whose texts are masked at rates (objective.name=masked_diffusion) have num_tokens float32 [B], the tokens of all texts.

Rows for static word vectors are words alone. They have windows int32 [B, L, 2] and negatives int32 [B, N] (see
`NeighbourWindows`), or pair_counts float32 [B, L, W] (see `NeighbourCounts`), which end with a text; no text_ids."""


Layout = dict[str, tuple[tuple[int, ...], type[np.generic]]]
"""Shape of a row, and type, of each array of a batch."""


def batch_layout(phase: Phase, objective: ObjectiveConfig, has_pair_labels: bool) -> Layout:
    """Return the arrays of a batch of `phase`; see Batch."""
    tokens, masked = (phase.sequence_length,), (phase.max_predictions,)
    texts = (phase.max_texts,) if phase.packed else ()
    layout: Layout = {
        **dict.fromkeys(("token_type_ids", "attention_mask", "input_ids"), (tokens, np.int32)),
        **dict.fromkeys(("masked_positions", "masked_ids"), (masked, np.int32)),
        "masked_weights": (masked, np.float32),
    }
    if phase.packed and objective.reads_texts:
        layout |= {"text_ids": (tokens, np.int32), "text_starts": (texts, np.int32)}
    for name, (shape, kind) in objective.arrays(phase.sequence_length).items():
        layout[name] = shape, {int: np.int32, float: np.float32}[kind]
    if has_pair_labels:
        layout |= {"next_sentence_labels": (texts, np.int32)}
        layout |= {"next_sentence_weights": (texts, np.float32)} if phase.packed else {}
    return layout


class PlaceFamily(Protocol):
    """A module of what chooses predicted places, which the types of the options of objectives name as `places`."""

    def places(
        self,
        objective: Any,
        masking: MaskingConfig,
        store: Store,
        tokenizer: Tokenizer,
        max_predictions: int,
        held_out: float | None,
    ) -> Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray], Batch]:
        """Return what chooses the places of rows that are predicted, and hides what must not be seen.

        It is called as `Masking` is, and returns the same arrays, and those that only the objective has.

        Args:
          objective: of one of the types that name the module.
          masking: how words are masked.
          store: whose rows they are.
          tokenizer: its own.
          max_predictions: width of the arrays of places.
          held_out: share of the documents that training does not see; None for an evaluation.
        """
        ...


def predicted_places(
    objective: ObjectiveConfig,
    masking: MaskingConfig,
    store: Store,
    tokenizer: Tokenizer,
    max_predictions: int,
    held_out: float | None,
) -> Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray], Batch]:
    """Return what the module that the objective names makes; see `PlaceFamily.places`."""
    family = cast(PlaceFamily, importlib.import_module(f"bert_jax.data.{objective.places}"))
    return family.places(objective, masking, store, tokenizer, max_predictions, held_out)


class StoreExamples:
    """The examples of one split of a token store at the sequence length of one phase.

    Position p is the p-th example of an endless run over epochs, each newly ordered, cut, paired and masked. In each
    epoch, every sentence of the split belongs to exactly one example, which has at least one of its tokens (a sentence
    longer than a sequence is cut into several examples); no token is in two examples, except for the second segments
    that chunks of a single sentence borrow (nsp). Tokens that do not fit are cut off at the ends of a segment;
    `epoch_report` counts both. In a packed phase an example is a row of several texts, and sentences may be divided
    between two of these (`chunks`); masks are drawn over the row. With data.copies = N only the order is new after N
    epochs; with masking.static_masks = N every epoch has the text of epoch 0, and epoch e uses mask number e mod N.
    Spelling errors (data.noise) are in training rows only, and are drawn as often as masks are. Safe to call from
    several threads.
    """

    def __init__(
        self,
        store: Store,
        tokenizer: Tokenizer,
        phase: Phase,
        data: DataConfig,
        masking: MaskingConfig,
        objective: ObjectiveConfig,
        split: str,
        seed: int,
    ):
        """Choose the documents of `store` (from `open_store`) and the length.

        Args:
          tokenizer: that of the store, which model and objective can use.
          phase: phase of the run.
          data: how texts are cut and paired.
          masking: how words are masked.
          objective: what is trained for.
          split: "train", "held_out" or "all" documents of the store.
          seed: seed of order, pairs and masks.

        Raises:
          UserError: the split has no documents or no text.
        """
        self.store = store
        self.split = split
        self.vocab_size: int = store.vocab_size
        self.sequence_length: int = phase.sequence_length
        noise = data.noise if data.noise.rate and split == "train" else None
        self.text_length: int = phase.sequence_length - (
            0 if noise is None else int(noise.reserve * phase.sequence_length)
        )
        self.layout: Layout = batch_layout(phase, objective, data.has_pair_labels)
        self.sentence_pairs: SentencePairs = data.sentence_pairs
        self.static_masks: int = masking.static_masks
        self.text_epochs: int = 1 if self.static_masks else data.copies  # epochs with different text; 0: all of them
        self.seed: int = seed
        held_out = 0 if data.eval_path and split == "train" else data.held_out
        self.documents: Documents = Documents(store, split, held_out)
        self.source: FullSentences | DocumentChunks = self._source(data.short_sequence_probability, phase.packed)
        self.packing: Packing | None = None
        if phase.packed:
            assert isinstance(self.source, DocumentChunks)
            self.packing = Packing(self.source, self._texts, self.text_length, phase.max_texts, self.seed)
        self.class_last = tokenizer.class_last
        self._special_ids = tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id
        of_training = held_out if split == "train" else None
        self._masking = predicted_places(objective, masking, store, tokenizer, phase.max_predictions, of_training)
        self._errors = None if noise is None else SpellingErrors(noise, tokenizer)
        self._epoch_ends = [0]
        self._lock = threading.Lock()

    def num_examples(self, epoch: int) -> int:
        """Return the number of examples of `epoch`, which varies a little as documents are cut to different lengths."""
        return (self.packing or self.source).count(self._text_epoch(epoch))

    def batch(self, positions: np.ndarray) -> Batch:
        """Return the examples at `positions` (int64 [B], any order, repeats allowed)."""
        return self.examples_at(*self.locate(positions))

    def examples_at(self, epochs: np.ndarray, indices: np.ndarray, fresh: int | None = None) -> Batch:
        """Return the examples `indices` (int64 [B]) of `epochs` (int64 [B]).

        With a number `fresh`, 0 or more, they have masks that no epoch has, other ones for every number.
        """
        rows, classes = padded_rows(self.rows(epochs, indices), self.sequence_length), None
        if self.class_last:
            rows, classes = with_class_last(rows)
        is_text = rows.token_index >= 0
        cls_id, sep_id, pad_id = self._special_ids
        input_ids = np.where(rows.token_index == SPECIAL, sep_id, pad_id).astype(np.int32)
        if classes is None:
            starts = np.zeros((len(input_ids), 1), np.int64) if rows.text_starts is None else rows.text_starts
            np.put_along_axis(input_ids, starts, cls_id, 1)
        else:
            input_ids[classes] = cls_id
        input_ids[is_text] = self.store.tokens(rows.token_index[is_text])
        lengths = rows.lengths
        rounds = epochs % self.static_masks if self.static_masks else 0
        keys = bits(self.seed, Stream.MASKS, self._text_epoch(epochs), rounds, indices)
        keys = keys if fresh is None else bits(keys, Stream.FRESH_MASKS, fresh)
        rates = bits(self.seed, Stream.MASK_RATE, self._text_epoch(epochs), rounds)
        batch = {
            "token_type_ids": rows.token_type_ids,
            "attention_mask": (np.arange(self.sequence_length) < lengths[:, None]).astype(np.int32),
            **self._masking(input_ids, is_text, lengths, keys, spread(rates, indices)),
        }
        optional = {"text_ids": rows.text_ids, "text_starts": rows.text_starts, "next_sentence_labels": rows.labels}
        if rows.labels is not None:
            optional["next_sentence_weights"] = rows.text_weights
        batch |= {name: values for name, values in optional.items() if values is not None and name in self.layout}
        return batch if self._errors is None else self._errors(batch, input_ids, is_text, keys)

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return epoch and index within it (int64 [B] each) of the examples at `positions`."""
        positions = np.asarray(positions, np.int64)
        ends = np.array(self._ends_up_to(int(positions.max(initial=0))))
        cycles, rest = divmod(positions, ends[-1]) if len(ends) == self._period + 1 else (0, positions)
        epochs = np.searchsorted(ends, rest, side="right") - 1
        indices, epochs = rest - ends[epochs], epochs + cycles * self._period
        if self.text_epochs:  # the text belongs to the index, so the indices need a new order each time
            for epoch in np.unique(epochs):
                here = epochs == epoch
                indices[here] = self._visited(int(epoch), indices[here])
        return epochs, indices

    def positions_of(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """Return the positions (int64 [B]) of the examples `indices` (int64 [B]) of one epoch: undo `locate`."""
        if self.text_epochs:
            key = bits(self.seed, Stream.VISIT, epoch)
            if self.packing is not None:
                indices = self.packing.visits(self._text_epoch(epoch), indices, key)
            else:
                indices = invert(indices, self.num_examples(epoch), key)
        cycles, within = divmod(epoch, self._period)
        ends = self._ends_up_to(number=self._period if cycles else within)
        return indices + ends[within] + (cycles * ends[self._period] if cycles else 0)

    def with_document(self, epoch: int, number: int) -> np.ndarray:
        """Return the indices (int64, ascending) of the examples of `epoch` with text of a document of the store.

        There are none if the split does not have the document. No position is searched: chunks are found by their
        document and indices by their chunks. Only where random second segments are borrowed, all numbers drawn for an
        epoch are drawn once more; no text is read for that.
        """
        documents, epoch = self.documents, self._text_epoch(epoch)
        document = int(np.searchsorted(documents.numbers, number))
        if document == len(documents) or documents.numbers[document] != number:
            return np.zeros(0, np.int64)
        chunks = self.source.of_document(epoch, document)
        indices = np.sort(self.source.indices_of(epoch, chunks))
        if isinstance(self.source, FullSentences):
            return indices
        if self.sentence_pairs == "nsp":
            partners = np.minimum(indices ^ 1, self.source.count(epoch) - 1)
            borrowers = _drawing(self.source, self.seed, epoch, chunks)
            indices = np.unique(np.concatenate([indices, partners, borrowers]))
            segments = self._texts(epoch, indices).segments
            begin = int(documents.token_starts[document])
            held = (segments.begin < begin + documents.num_tokens[document]) & (segments.end > begin)
            indices = indices[(held & (segments.length > 0)).any(1)]
        return indices if self.packing is None else self.packing.rows_of(epoch, indices)

    def _visited(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        key = bits(self.seed, Stream.VISIT, epoch)
        if self.packing is not None:
            return self.packing.visited(self._text_epoch(epoch), indices, key)
        return permute(indices, self.num_examples(epoch), key)

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> Rows:
        """Return where the tokens of these examples are in the store; read sentence boundaries only, no tokens."""
        epochs = self._text_epoch(np.asarray(epochs, np.int64))
        present = np.unique(epochs)
        if len(present) == 1:
            return self._rows_of_epoch(int(present[0]), indices)
        groups = [np.flatnonzero(epochs == epoch) for epoch in present]
        parts = [self._rows_of_epoch(int(epoch), indices[group]) for epoch, group in zip(present, groups, strict=True)]
        return Rows.concatenate(parts)[np.argsort(np.concatenate(groups))]

    def _source(self, short_sequence_probability: float, packed: bool) -> FullSentences | DocumentChunks:
        if self.sentence_pairs != "none":
            max_tokens = self.text_length - 3
            return DocumentChunks(self.documents, max_tokens, short_sequence_probability, self.seed, packed)
        if packed:
            return DocumentChunks(self.documents, self.text_length - 2, 0.0, self.seed, divides_sentences=True)
        return FullSentences(self.documents, self.text_length, self.seed)

    def _rows_of_epoch(self, epoch: int, indices: np.ndarray) -> Rows:
        if self.packing is not None:
            return self.packing.rows(epoch, indices)
        if isinstance(self.source, FullSentences):
            return self.source.rows(epoch, indices, bits(self.seed, Stream.TRUNCATION, epoch, indices))
        return text_rows(self._texts(epoch, indices), self.text_length)

    def _texts(self, epoch: int, indices: np.ndarray) -> Texts:
        """Return the texts `indices` [N] of `epoch`, which are examples where rows are not packed."""
        assert isinstance(self.source, DocumentChunks)
        if self.sentence_pairs == "adjacent":
            return adjacent_texts(self.source, self.seed, epoch, indices, self.text_length)
        keys = bits(self.seed, Stream.TRUNCATION, epoch, indices)
        if self.sentence_pairs == "none":
            return single_texts(self.source, epoch, indices, keys)
        pairs = next_sentence_pairs if self.sentence_pairs == "nsp" else sentence_order_pairs
        return pair_texts(pairs(self.source, self.seed, epoch, indices), keys, self.text_length)

    def _text_epoch(self, epochs: Any) -> Any:
        return epochs % self.text_epochs if self.text_epochs else epochs

    @property
    def _period(self) -> int:
        return self.text_epochs or self.source.period

    def _ends_up_to(self, position: int = -1, number: int = 0) -> list[int]:
        """Return where epochs end, from 0 until past `position` or, if that comes first, over a whole period.

        The list goes on until it has the beginning of epoch `number`, which is at most the period.
        """
        with self._lock:
            while len(self._epoch_ends) <= self._period and (
                self._epoch_ends[-1] <= position or len(self._epoch_ends) <= number
            ):
                self._epoch_ends.append(self._epoch_ends[-1] + self.num_examples(len(self._epoch_ends) - 1))
            return list(self._epoch_ends)


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
    draws = _draws(chunks, seed, epoch, indices)
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


def _draws(chunks: DocumentChunks, seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
    """Return the chunks [N, RANDOM_TRIES] that the examples `indices` [N] draw, if they have to borrow from one."""
    draws = bits(seed, Stream.RANDOM_NEXT, epoch, indices[:, None], np.arange(RANDOM_TRIES))
    return integers(draws, chunks.count(epoch))


_DRAWN_AT_ONCE = 1 << 16  # examples


def _drawing(chunks: DocumentChunks, seed: int, epoch: int, wanted: np.ndarray) -> np.ndarray:
    """Return the indices of the examples that draw one of the consecutive chunks `wanted`, or would if they had to."""
    found, count = [], chunks.count(epoch)
    for begin in range(0, count, _DRAWN_AT_ONCE):
        indices = np.arange(begin, min(begin + _DRAWN_AT_ONCE, count))
        draws = _draws(chunks, seed, epoch, indices)
        found.append(indices[((draws >= wanted[0]) & (draws <= wanted[-1])).any(1)])
    return np.concatenate(found)

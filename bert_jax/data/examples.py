"""Training examples as a pure function of (seed, position): the position alone determines text, pair and masks.

`batch_layout` gives the names, shapes and types of a batch's arrays, by phase and objective. `predicted_places` asks
the module that the objective names how predicted places are picked and hidden.
"""

import importlib
import threading
from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np

from bert_jax.config import DataConfig, MaskingConfig, ObjectiveConfig, Phase
from bert_jax.config.pretraining import SentencePairs
from bert_jax.data.chunks import DocumentChunks, Documents, FullSentences
from bert_jax.data.packing import Packing, Texts, single_texts, text_rows, with_class_last
from bert_jax.data.pairs import adjacent_texts, next_sentence_pairs, pair_texts, sentence_order_pairs
from bert_jax.data.spelling_errors import SpellingErrors
from bert_jax.data.store import SPECIAL, Rows, Store, padded_rows
from bert_jax.randomness import Stream, bits, permute
from bert_jax.tokenization.tokenizer import Tokenizer

Batch = dict[str, np.ndarray]
"""input_ids, token_type_ids, attention_mask int32 [B, L] · masked_positions, masked_ids int32 [B, M] · masked_weights
float32 [B, M] · next_sentence_labels int32 [B] (0 = IsNext or in order; absent if pairs have no labels).

Packed rows also have text_ids int32 [B, L] (the number of the text, from 1; 0 for padding) · text_starts int32 [B, T]
(place of its [CLS]; 0 if there is no such text); and next_sentence_labels are [B, T], with next_sentence_weights
float32 [B, T] (0 if there is no such text). Orders of tokens (objective.name=permutation) are order int32 [B, L].

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
    ) -> Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Batch]:
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
) -> Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Batch]:
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
        self._class_last = tokenizer.class_last
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
        if self._class_last:
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
        batch = {
            "token_type_ids": rows.token_type_ids,
            "attention_mask": (np.arange(self.sequence_length) < lengths[:, None]).astype(np.int32),
            **self._masking(input_ids, is_text, lengths, keys),
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

    def _ends_up_to(self, position: int) -> list[int]:
        """Return where epochs end, from 0 until past `position` or, if that comes first, over a whole period."""
        with self._lock:
            while len(self._epoch_ends) <= self._period and self._epoch_ends[-1] <= position:
                self._epoch_ends.append(self._epoch_ends[-1] + self.num_examples(len(self._epoch_ends) - 1))
            return list(self._epoch_ends)

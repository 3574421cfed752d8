"""Training examples as a pure function of (seed, position): the position alone determines text, pair and masks."""

import threading
from typing import Literal

import numpy as np

from bert_jax.config import Config, Phase, resolve_phases
from bert_jax.data.examples.chunks import DocumentChunks
from bert_jax.data.examples.documents import Documents
from bert_jax.data.examples.masking import Masking
from bert_jax.data.examples.packing import PackedStream
from bert_jax.data.examples.pairs import next_sentence_pairs, pair_rows, sentence_order_pairs
from bert_jax.data.ordering import permute
from bert_jax.data.randomness import Stream, bits
from bert_jax.data.store.store import Store
from bert_jax.data.store.token_rows import SPECIAL, Rows
from bert_jax.errors import UserError

Batch = dict[str, np.ndarray]
"""input_ids, token_type_ids, attention_mask int32 [B, L] · masked_positions, masked_ids int32 [B, M] · masked_weights
float32 [B, M] · next_sentence_labels int32 [B] (0 = IsNext or in order; absent without sentence pairs)."""


def batch_layout(phase: Phase, sentence_pairs: str) -> dict[str, tuple[tuple[int, ...], type[np.generic]]]:
    """Return the shape of a row and the type of each array of a batch of `phase`; see Batch."""
    tokens, masked = (phase.sequence_length,), (phase.max_predictions,)
    layout: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
        **dict.fromkeys(("token_type_ids", "attention_mask", "input_ids"), (tokens, np.int32)),
        **dict.fromkeys(("masked_positions", "masked_ids"), (masked, np.int32)),
        "masked_weights": (masked, np.float32),
    }
    return layout if sentence_pairs == "none" else layout | {"next_sentence_labels": ((), np.int32)}


class Examples:
    """The examples of one split of a token store at the sequence length of one phase.

    Position p is the p-th example of an endless run over epochs, each newly ordered, cut, paired and masked. In each
    epoch, every sentence of the split belongs to exactly one example, which has at least one of its tokens (a sentence
    longer than a sequence is cut into several examples); no token is in two examples, except for the second segments
    that chunks of a single sentence borrow (nsp). Tokens that do not fit are cut off at the outer ends of a segment;
    `epoch_report` counts both. With data.copies = N only the order is new after N epochs; with masking.static_masks = N
    every epoch has the text of epoch 0, and epoch e has masks number e mod N. Safe to call from several threads.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        phase: Phase | int = 0,
        split: str = "train",
        seed: int | None = None,
    ):
        """Choose the documents of `store` (from `open_store`) and the length.

        Args:
          config: options of the run; data and masking are used, and the phases if `phase` is a number.
          phase: phase of the run, or its number in `config.phases`.
          split: "train", "held_out" or "all" documents of the store.
          seed: seed of order, pairs and masks. None: `config.seed`, for every phase.

        Raises:
          UserError: the split has no documents or no text.
        """
        phase = resolve_phases(config)[phase] if isinstance(phase, int) else phase
        data = config.data
        self.store = store
        self.split = split
        self.vocab_size: int = store.vocab_size
        self.sequence_length: int = phase.sequence_length
        self.layout = batch_layout(phase, config.data.sentence_pairs)
        self.sentence_pairs: Literal["nsp", "sop", "none"] = data.sentence_pairs
        self.static_masks: int = config.masking.static_masks
        self.text_epochs: int = 1 if self.static_masks else data.copies  # epochs with different text; 0: all of them
        self.seed: int = config.seed if seed is None else seed
        self.documents: Documents = Documents(store, split, 0 if data.eval_path and split == "train" else data.held_out)
        self.source: PackedStream | DocumentChunks
        if self.sentence_pairs == "none":
            self.source = PackedStream(self.documents, self.sequence_length, self.seed)
        else:
            self.source = DocumentChunks(
                self.documents, self.sequence_length - 3, data.short_sequence_probability, self.seed
            )
        tokenizer = store.tokenizer()
        self._special_ids = tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id
        self._masking = Masking(
            config.masking,
            phase.max_predictions,
            store.vocab_size,
            tokenizer.mask_id,
            np.asarray(tokenizer.continues_word(), bool),
        )
        self._epoch_ends = [0]
        self._lock = threading.Lock()

    def num_examples(self, epoch: int) -> int:
        """Return the number of examples of `epoch`, which varies a little as documents are cut to different lengths."""
        return self.source.count(self._text_epoch(epoch))

    def batch(self, positions: np.ndarray) -> Batch:
        """Return the examples at `positions` (int64 [B], any order, repeats allowed)."""
        return self.examples_at(*self.locate(positions))

    def examples_at(self, epochs: np.ndarray, indices: np.ndarray) -> Batch:
        """Return the examples `indices` (int64 [B]) of `epochs` (int64 [B])."""
        rows = self.rows(epochs, indices)
        is_text = rows.token_index >= 0
        cls_id, sep_id, pad_id = self._special_ids
        input_ids = np.where(rows.token_index == SPECIAL, sep_id, pad_id).astype(np.int32)
        input_ids[:, 0] = cls_id
        input_ids[is_text] = self.store.tokens(rows.token_index[is_text])
        lengths = rows.lengths
        attention_mask = (np.arange(self.sequence_length) < lengths[:, None]).astype(np.int32)
        rounds = epochs % self.static_masks if self.static_masks else 0
        keys = bits(self.seed, Stream.MASKS, self._text_epoch(epochs), rounds, indices)
        batch = {
            "token_type_ids": rows.token_type_ids,
            "attention_mask": attention_mask,
            **self._masking(input_ids, is_text, lengths, keys),
        }
        if rows.labels is not None:
            batch["next_sentence_labels"] = rows.labels
        return batch

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
                indices[here] = permute(indices[here], self.num_examples(epoch), bits(self.seed, Stream.VISIT, epoch))
        return epochs, indices

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> Rows:
        """Return where the tokens of these examples are in the store; read sentence boundaries only, no tokens."""
        epochs = self._text_epoch(np.asarray(epochs, np.int64))
        present = np.unique(epochs)
        if len(present) == 1:
            return self._rows_of_epoch(int(present[0]), indices)
        groups = [np.flatnonzero(epochs == epoch) for epoch in present]
        parts = [self._rows_of_epoch(int(epoch), indices[group]) for epoch, group in zip(present, groups, strict=True)]
        return Rows.concatenate(parts)[np.argsort(np.concatenate(groups))]

    def _rows_of_epoch(self, epoch: int, indices: np.ndarray) -> Rows:
        keys = bits(self.seed, Stream.TRUNCATION, epoch, indices)
        if isinstance(self.source, PackedStream):
            return self.source.rows(epoch, indices, keys)
        pairs = next_sentence_pairs if self.sentence_pairs == "nsp" else sentence_order_pairs
        return pair_rows(pairs(self.source, self.seed, epoch, indices), keys, self.sequence_length)

    def _text_epoch(self, epochs):
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


def check_epoch(examples: Examples, batch_size: int) -> None:
    """Raise a UserError if a training epoch has fewer examples than a batch; evaluation may repeat some."""
    count = examples.num_examples(0)
    if examples.split == "train" and count < batch_size:
        raise UserError(
            f"the training documents give {count} sequences of length {examples.sequence_length}, fewer than a "
            f"batch of {batch_size}; lower the batch size to at most {count}, shorten the sequences, "
            "or prepare more text"
        )

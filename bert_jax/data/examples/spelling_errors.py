"""Spelling errors in training rows: words are spelled out, edited and tokenized again, and the targets stay clean.

A token store holds ids, so a word is the text of its pieces. It stays as it is if one of its pieces is predicted, if it
cannot be spelled out (it has an unknown piece, or its beginning is in another row), or if the row has no room for the
pieces that it would become. So the predicted places and their targets are those of the row without errors.
"""

import dataclasses

import numpy as np

from bert_jax.config.noise import NoiseConfig
from bert_jax.data.character_edits import edited_words, may_change
from bert_jax.data.examples.masking import Words
from bert_jax.data.randomness import Stream, bits
from bert_jax.tokenization.tokenizer import Tokenizer

_BY_PLACE = ("token_type_ids", "text_ids")  # beside input_ids, what a batch says of each place


@dataclasses.dataclass(frozen=True)
class Respelled:
    """Words of some rows in their new spelling, in the order of the rows, as the pieces that replace theirs."""

    first: np.ndarray  # int64 [E]: place of the first piece, counted through all rows
    old: np.ndarray  # int64 [E]: number of pieces before
    pieces: list[list[int]]  # the new ones, at least one each

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, where: np.ndarray) -> "Respelled":
        return Respelled(self.first[where], self.old[where], [self.pieces[number] for number in np.flatnonzero(where)])


class SpellingErrors:
    """Puts errors into batches; a pure function of the batch and the keys of its rows."""

    def __init__(self, noise: NoiseConfig, tokenizer: Tokenizer):
        self._noise, self._tokenizer = noise, tokenizer
        self._continues = np.asarray(tokenizer.continues_word(), bool)
        self._special = np.isin(np.arange(tokenizer.vocab_size), tokenizer.special_ids)
        # No piece has more characters than it is written with; a byte-level one is written with a character per byte.
        self._characters = np.array([len(token.removeprefix("##")) for token in tokenizer.tokens], np.int64)

    def __call__(
        self, batch: dict[str, np.ndarray], clean_ids: np.ndarray, is_text: np.ndarray, keys: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return a batch with errors and otherwise the same predictions.

        Args:
          batch: a masked batch; see `Batch`.
          clean_ids: int32 [B, L], its ids before they were masked.
          is_text: bool [B, L], False on [CLS], [SEP] and padding.
          keys: uint64 [B], the randomness of each row.
        """
        respelled, order = self.respelled(batch, clean_ids, is_text, keys)
        room = is_text.shape[1] - batch["attention_mask"].sum(axis=1)
        return spliced(batch, respelled[fitting(respelled, order, room, is_text.shape[1])], self._tokenizer.pad_id)

    def respelled(
        self, batch: dict[str, np.ndarray], clean_ids: np.ndarray, is_text: np.ndarray, keys: np.ndarray
    ) -> tuple[Respelled, np.ndarray]:
        """Return the words that get errors, whether there is room or not, and uint64 [E]: their priority."""
        first, counts, word_keys = self._words(batch, clean_ids, is_text, keys)
        ids = clean_ids.reshape(-1)
        texts = [
            self._tokenizer.decode(ids[begin : begin + count])
            for begin, count in zip(first.tolist(), counts.tolist(), strict=True)
        ]
        edited = edited_words(texts, word_keys, self._noise)
        # A word that is cut inside a character of several bytes has no text of its own.
        changed = np.array(
            [old != new and "\N{REPLACEMENT CHARACTER}" not in old for old, new in zip(texts, edited, strict=True)],
            bool,
        )
        pieces = self._tokenizer.encode_words([edited[number] for number in np.flatnonzero(changed)])
        order = bits(word_keys[changed], Stream.EDIT_ORDER)
        kept = np.array([len(each) > 0 for each in pieces], bool)
        return Respelled(first[changed], counts[changed], pieces)[kept], order[kept]

    def _words(
        self, batch: dict[str, np.ndarray], clean_ids: np.ndarray, is_text: np.ndarray, keys: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the first place, the number of pieces and the key of each word that may get an error."""
        fixed = self._special[clean_ids]
        rows, slots = np.nonzero(batch["masked_weights"])
        fixed[rows, batch["masked_positions"][rows, slots]] = True
        words = Words.find(clean_ids, is_text, self._continues)
        width = words.num_pieces.shape[1]
        flat = (np.arange(len(keys))[:, None] * width + words.index)[is_text]
        first = np.full(words.num_pieces.size, is_text.size)
        np.minimum.at(first, flat, np.flatnonzero(is_text))
        characters = np.bincount(flat, self._characters[clean_ids[is_text]], words.num_pieces.size).astype(np.int64)
        counts, stays = words.num_pieces.reshape(-1), np.bincount(flat, fixed[is_text], words.num_pieces.size) > 0
        free = np.flatnonzero((counts > 0) & ~stays)
        free = free[~self._continues[clean_ids.reshape(-1)[first[free]]]]
        word_keys = bits(keys[free // width], Stream.EDITED_WORD, free % width)
        chosen = may_change(characters[free], word_keys, self._noise)
        return first[free][chosen], counts[free][chosen], word_keys[chosen]


def fitting(respelled: Respelled, order: np.ndarray, room: np.ndarray, length: int) -> np.ndarray:
    """Return bool [E]: the words whose new pieces fit into the room [B] of rows of `length`, low order first."""
    left, fits = room.tolist(), np.zeros(len(respelled), bool)
    growth = np.array([len(pieces) for pieces in respelled.pieces], np.int64) - respelled.old
    for number in np.argsort(order, kind="stable").tolist():
        row = int(respelled.first[number]) // length
        if growth[number] <= left[row]:
            left[row] -= int(growth[number])
            fits[number] = True
    return fits


def spliced(batch: dict[str, np.ndarray], words: Respelled, pad_id: int) -> dict[str, np.ndarray]:
    """Return a batch with the new pieces of words in place of the old; what lies behind them in a row moves."""
    shape = batch["input_ids"].shape
    counts = batch["attention_mask"].astype(np.int64).reshape(-1)  # of places that each place becomes
    inside = np.repeat(words.first, words.old) + _steps(words.old)
    counts[inside] = 0
    new = np.array([len(pieces) for pieces in words.pieces], np.int64)
    counts[words.first] = new
    per_row = counts.reshape(shape)
    moved = np.cumsum(per_row, axis=1) - per_row  # where each place goes to
    source = np.repeat(np.arange(counts.size), counts)
    target = source // shape[1] * shape[1] + moved.reshape(-1)[source] + _steps(counts)
    result = dict(batch)
    for name, padding in (("input_ids", pad_id), *((name, 0) for name in _BY_PLACE if name in batch)):
        values = np.full(counts.size, padding, np.int32)
        values[target] = batch[name].reshape(-1)[source]
        result[name] = values.reshape(shape)
    starts = words.first // shape[1] * shape[1] + moved.reshape(-1)[words.first]
    result["input_ids"].reshape(-1)[np.repeat(starts, new) + _steps(new)] = [i for each in words.pieces for i in each]
    result["attention_mask"] = (np.arange(shape[1]) < per_row.sum(axis=1)[:, None]).astype(np.int32)
    used = batch["masked_weights"] > 0
    result["masked_positions"] = np.where(used, _at(moved, batch["masked_positions"]), 0).astype(np.int32)
    if "text_starts" in batch:
        result["text_starts"] = _at(moved, batch["text_starts"]).astype(np.int32)
    return result


def _at(values: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, columns.astype(np.int64), 1)


def _steps(counts: np.ndarray) -> np.ndarray:
    """Return 0 … counts[0] - 1, 0 … counts[1] - 1, …"""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)

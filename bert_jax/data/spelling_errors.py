"""Spelling errors in training rows, drawn per word from keys; the targets stay clean.

Words are spelled out, edited and tokenized again. A token store holds ids, so a word is the text of its pieces. It
stays as it is if one of its pieces is predicted, if it cannot be spelled out (it has an unknown piece, or its
beginning is in another row), or if the row has no room for the new pieces. So the predicted places and their targets
are those of the row without errors.

Edits are a pure function of keys: letters and digits are inserted, deleted, substituted, swapped, mistyped. Each word
has a key of its own, so that neither its neighbours nor the order of words change what is drawn for it. Words keep
their number and are never left empty. Random letters are a–z, in the case of the character that they replace or
follow, and digits for digits, whatever the script of the text.
"""

import dataclasses
import re
import string

import numpy as np

from bert_jax.config.pretraining import NoiseConfig
from bert_jax.data.masking import Words
from bert_jax.randomness import Stream, bits, integers, uniform
from bert_jax.tokenization.tokenizer import Tokenizer

_ROWS = ("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm")  # each starts about half a key to the right of the last


def _neighbours() -> dict[str, str]:
    keys = {key: (row, column) for row, line in enumerate(_ROWS) for column, key in enumerate(line)}
    around = ((0, -1), (0, 1), (-1, 0), (-1, 1), (1, -1), (1, 0))
    by_place = {place: key for key, place in keys.items()}
    return {
        key: "".join(
            by_place[row + down, column + right] for down, right in around if (row + down, column + right) in by_place
        )
        for key, (row, column) in keys.items()
    }


NEIGHBOURS = _neighbours()
"""The keys around each letter and digit of a QWERTY keyboard."""


def edited_text(text: str, key: np.ndarray, noise: NoiseConfig) -> str:
    """Return a text with errors in its words, which are what white space separates; the white space stays.

    `key` has 64 bits of randomness for this text.
    """
    parts = re.split(r"(\s+)", text)
    words = parts[::2]
    parts[::2] = edited_words(words, bits(key, Stream.EDITED_WORD, np.arange(len(words))), noise)
    return "".join(parts)


def edited_words(words: list[str], keys: np.ndarray, noise: NoiseConfig) -> list[str]:
    """Return the words [N] with errors; `keys`, uint64 [N], are their randomness."""
    owners, places, sites = edit_sites(words, keys, noise)
    owners, places = owners[sites], places[sites]
    kinds = integers(bits(keys[owners], Stream.EDIT_KIND, places), len(noise.kinds))
    choices = bits(keys[owners], Stream.EDIT_LETTER, places)
    cells: dict[int, list[str]] = {}
    for owner, place, kind, choice in zip(
        owners.tolist(), places.tolist(), kinds.tolist(), choices.tolist(), strict=True
    ):
        word = cells.setdefault(owner, list(words[owner]))
        _edit(word, place, noise.kinds[kind], choice)
    edited = list(words)
    for owner, word in cells.items():
        edited[owner] = "".join(word)
    return edited


def edit_sites(words: list[str], keys: np.ndarray, noise: NoiseConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for every character of all words in order, its word, its place in it, and bool: whether it is edited."""
    owners, places = _characters(np.array([len(word) for word in words], np.int64))
    editable = np.fromiter((character.isalnum() for word in words for character in word), bool, len(owners))
    if noise.per == "character":
        return owners, places, editable & _drawn(keys, owners, places, noise.rate)
    counts = np.bincount(owners[editable], minlength=len(words))
    chosen = integers(bits(keys, Stream.EDIT_PLACE), np.maximum(counts, 1))
    first = np.cumsum(counts) - counts
    number = np.cumsum(editable) - 1 - first[owners]  # of each editable character among those of its word
    hit = uniform(bits(keys, Stream.EDIT, 0)) < noise.rate
    return owners, places, editable & hit[owners] & (number == chosen[owners])


def may_change(lengths: np.ndarray, keys: np.ndarray, noise: NoiseConfig) -> np.ndarray:
    """Return bool [N]: whether words of at most these lengths [N] can get an error from their keys [N].

    It spares spelling out the others, whose characters are not known here.
    """
    if noise.per == "word":
        return uniform(bits(keys, Stream.EDIT, 0)) < noise.rate
    owners, places = _characters(lengths)
    return np.bincount(owners[_drawn(keys, owners, places, noise.rate)], minlength=len(keys)) > 0


def _drawn(keys: np.ndarray, owners: np.ndarray, places: np.ndarray, rate: float) -> np.ndarray:
    return uniform(bits(keys[owners], Stream.EDIT, places)) < rate


def _characters(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the word and the place in it of every character of words of these lengths."""
    owners = np.repeat(np.arange(len(lengths)), lengths)
    return owners, np.arange(len(owners)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _edit(word: list[str], place: int, kind: str, choice: int) -> None:
    """Carry out one edit in a word whose cells, one for each of its characters, hold the edited characters.

    What is impossible, such as to swap in a word of one character, becomes a substitution.
    """
    there = word[place] or "a"  # an earlier swap may have brought an empty cell here
    alphabet = string.digits if there[0].isdigit() else string.ascii_lowercase
    if kind == "insert":
        word[place] += _cased(alphabet[choice % len(alphabet)], there)
        return
    if kind == "delete" and sum(map(bool, word)) > 1 and word[place]:
        word[place] = ""
        return
    other = place + 1 if place + 1 < len(word) else place - 1
    if kind == "swap" and other >= 0 and word[other] != word[place]:
        word[place], word[other] = word[other], word[place]
        return
    near = NEIGHBOURS.get(there[0].lower(), "") if kind == "neighbour" else ""
    others = near or alphabet.replace(there[0].lower(), "")
    word[place] = _cased(others[choice % len(others)], there) + there[1:]


def _cased(letter: str, like: str) -> str:
    return letter.upper() if like[0].isupper() else letter


_BY_PLACE = ("token_type_ids", "text_ids")  # what a batch says of each place, in addition to input_ids


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

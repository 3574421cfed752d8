"""Spelling errors as a pure function of keys: letters and digits are inserted, deleted, substituted, swapped, mistyped.

Each word has a key of its own, so that neither its neighbours nor the order of words change what is drawn for it. Words
keep their number and are never left empty. Random letters are a–z, in the case of the character that they replace or
follow, and digits for digits, whatever the script of the text.
"""

import re
import string

import numpy as np

from bert_jax.config.noise import NoiseConfig
from bert_jax.data.randomness import Stream, bits, integers, uniform

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

"""Where heads look, as sums over the tokens of a corpus: neighbours, special tokens, punctuation, distance, entropy."""

import unicodedata

import numpy as np
from scipy.special import entr

from bert_jax.tokenization.tokenizer import Tokenizer

MEASURES = ("previous", "next", "itself", "cls", "sep", "punctuation", "distance", "entropy", "broadness")
"""The first six are shares of a token's attention; see `HeadBehaviour` for all."""
_MARKS = ("##", "▁", "Ġ")  # of a piece inside a word, or at its start


class HeadSums:
    """Sums of what N layers of A heads attend to, over texts; their memory does not grow."""

    def __init__(self, layers: int, heads: int, tokenizer: Tokenizer):
        self._cls_id, self._sep_id = tokenizer.cls_id, tokenizer.sep_id
        self._punctuation = punctuation_pieces(tokenizer)
        self._sums = np.zeros((len(MEASURES), layers, heads))
        self._uniform, self._counts = np.zeros(len(MEASURES)), np.zeros(len(MEASURES))
        self.tokens: int = 0

    def add(self, weights: np.ndarray, ids: np.ndarray) -> None:
        """Add one text of L tokens, without padding: probabilities [N, A, L (query), L (key)] and ids [L]."""
        length = len(ids)
        distances = np.abs(np.arange(length)[:, None] - np.arange(length)[None])
        for measure, offset in (("previous", -1), ("next", 1), ("itself", 0)):
            shares = np.diagonal(weights, offset, axis1=2, axis2=3).sum(axis=-1, dtype=np.float64)
            count = max(length - abs(offset), 0)
            self._add(measure, shares, count / length, count)
        whole = (("cls", ids == self._cls_id), ("sep", ids == self._sep_id), ("punctuation", self._punctuation[ids]))
        for measure, keys in whole:
            if keys.any():
                self._add(measure, weights[..., keys].sum(axis=(2, 3), dtype=np.float64), keys.sum(), length)
        far = np.einsum("naqk,qk->na", weights, distances, dtype=np.float64)
        self._add("distance", far, distances.sum() / length, length)
        entropy = entr(weights).sum(axis=-1, dtype=np.float64)
        self._add("entropy", entropy.sum(axis=-1), length * np.log(length), length)
        self._add("broadness", np.exp(entropy).sum(axis=-1) / length, length, length)
        self.tokens += length

    def means(self) -> np.ndarray:
        """Return float64 [MEASURES, N, A]: means over tokens; NaN where no token had what is measured."""
        return _quotients(self._sums, self._counts[:, None, None])

    def uniform(self) -> np.ndarray:
        """Return float64 [MEASURES]: the same of heads that look at every token of a text alike."""
        return _quotients(self._uniform, self._counts)

    def _add(self, measure: str, values: np.ndarray, uniform: float, count: int) -> None:
        row = MEASURES.index(measure)
        self._sums[row] += values
        self._uniform[row] += uniform
        self._counts[row] += count


def punctuation_pieces(tokenizer: Tokenizer) -> np.ndarray:
    """Return bool [vocab_size]: whether a piece has punctuation only, by BERT's definition, and is no special token.

    It is every character of the Unicode categories P, and every one of ASCII that is no letter, digit or space.
    """
    found = np.array([_is_punctuation(token) for token in tokenizer.tokens])
    found[list(tokenizer.special_ids)] = False
    return found


def _is_punctuation(piece: str) -> bool:
    for mark in _MARKS:
        piece = piece.removeprefix(mark) if len(piece) > len(mark) else piece
    marks = (unicodedata.category(each)[0] == "P" or ("!" <= each <= "~" and not each.isalnum()) for each in piece)
    return piece not in _MARKS and bool(piece) and all(marks)


def _quotients(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

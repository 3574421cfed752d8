"""Paragraphs that share words in a row with an evaluation set (n-gram overlap, as in Brown et al. 2020, appendix C)."""

import hashlib
from collections.abc import Iterable

import numpy as np

from bert_jax.config.corpus_cleaning import SHORTEST_OVERLAP
from bert_jax.data.cleaning.word_hashes import overlapping, rows_of_words, word_hashes


class Contamination:
    """The rows of words of evaluation texts.

    A text of `overlap` words or more is there with all its rows of that many; a shorter one, of at least
    SHORTEST_OVERLAP, as a whole.
    """

    def __init__(self, texts: Iterable[str], overlap: int):
        rows: dict[int, list[np.ndarray]] = {length: [] for length in range(SHORTEST_OVERLAP, overlap + 1)}
        for text in texts:
            words = word_hashes(text)
            if len(words) >= SHORTEST_OVERLAP:
                length = min(len(words), overlap)
                rows[length].append(overlapping(words, length))
        self.rows = {length: np.unique(np.concatenate(found)) for length, found in rows.items() if found}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the rows."""
        digest = hashlib.sha256()
        for length, rows in self.rows.items():
            digest.update(length.to_bytes(4, "little") + rows.astype("<u8").tobytes())
        return digest.hexdigest()

    def shared(self, lines: list[str]) -> np.ndarray:
        """Return [lines] bool: which paragraphs have a word in a row that an evaluation text has too."""
        words = [word_hashes(line) for line in lines]
        owners = np.repeat(np.arange(len(lines)), [len(each) for each in words])
        joined = np.concatenate([np.zeros(0, np.uint64), *words])
        found = np.zeros(len(lines), bool)
        for length, candidates in rows_of_words(joined, max(self.rows, default=0)):
            if length not in self.rows:
                continue
            rows = self.rows[length]
            places = np.searchsorted(rows, candidates)
            hits = np.flatnonzero(rows[np.minimum(places, len(rows) - 1)] == candidates)
            for place in hits:
                found[owners[place] : owners[place + length - 1] + 1] = True
        return found

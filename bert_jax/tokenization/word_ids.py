"""The ids of words that have been seen: text repeats most of its words, and looking up is faster than encoding."""

import itertools
from collections.abc import Callable

import numpy as np

MAX_SIZE = 1 << 22
"""Characters of the words that are remembered, each with 8 more: then all are forgotten. It takes about 40 MiB."""
SEPARATOR = "|"


class WordIds:
    """Encodes texts word by word and each distinct word once, where words are what spaces separate.

    That is exact if nothing in `encode` looks beyond a space, as in BERT's basic tokenization and WordPiece: the ids of
    a text are then those of its words in a row.

    Args:
      encode: returns the ids of each of many texts.
      separator: the id of SEPARATOR, which `encode` gives wherever it is between spaces; None if it has no id.
    """

    def __init__(self, encode: Callable[[list[str]], list[list[int]]], separator: int | None):
        self._encode, self._separator = encode, separator
        self._forget()

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all texts in a row, int32, and the number of ids of each text, int64."""
        if not texts:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        words = " ".join(texts).split(" ")
        if self._size > MAX_SIZE:
            self._forget()
        self._learn(list(set(words).difference(self._numbers)))
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        counts = self._counts[numbers]
        ends = np.cumsum(counts)
        ids = self._ids[np.repeat(self._begins[numbers] - (ends - counts), counts) + np.arange(ends[-1])]
        last_words = np.cumsum([text.count(" ") + 1 for text in texts]) - 1
        return ids, np.diff(ends[last_words], prepend=0)

    def _forget(self) -> None:
        self._size, self._numbers = 0, {}  # the number of each word
        self._ids = np.zeros(0, np.int32)  # of all words in a row
        self._begins = self._counts = np.zeros(0, np.int64)  # where those of each word begin, and how many they are

    def _learn(self, words: list[str]) -> None:
        for group in ([word for word in words if SEPARATOR not in word], [word for word in words if SEPARATOR in word]):
            if group:
                ids, counts = self._of_each(group)
                self._numbers.update(zip(group, itertools.count(len(self._numbers))))
                self._begins = np.append(self._begins, len(self._ids) + np.cumsum(counts) - counts)
                self._counts = np.append(self._counts, counts)
                self._ids = np.append(self._ids, ids)
                self._size += sum(map(len, group)) + 8 * len(group)

    def _of_each(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of the words in a row, and the number of ids of each.

        One text of all words takes a third of the time that as many texts take. Its separators are found again if there
        are as many as were put in, since none of them is ever lost.
        """
        if self._separator is not None:
            ids = np.array(self._encode([f" {SEPARATOR} ".join(words)])[0], np.int32)
            (between,) = np.nonzero(ids == self._separator)
            if len(between) == len(words) - 1:
                counts = np.diff(between, prepend=-1, append=len(ids)) - 1
                return np.delete(ids, between), counts
        rows = self._encode(words)
        counts = np.array([len(row) for row in rows], np.int64)
        return np.fromiter(itertools.chain.from_iterable(rows), np.int32, counts.sum()), counts

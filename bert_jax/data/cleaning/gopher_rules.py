"""The rules of Gopher about the quality and the repetition of a document (Rae et al. 2021, appendix A.1, table A1)."""

import collections
import re

import numpy as np

from bert_jax.data.cleaning.word_boundaries import between_spaces, words_with_marks, words_without_marks
from bert_jax.data.cleaning.word_hashes import rows_of_words, word_hashes

FEWEST_WORDS, MOST_WORDS = 50, 100_000
SHORTEST_MEAN, LONGEST_MEAN = 3, 10
"""Characters of a word, on average; applied where at least half of the words are between spaces."""
MOST_SYMBOLS = 0.1
"""Number of # and of …, each per word."""
MOST_BULLETS, MOST_ELLIPSES = 0.9, 0.3
"""Share of the lines that begin, or end, with them."""
FEWEST_ALPHABETIC = 0.8
"""Share of the words that have a letter."""
STOP_WORDS, FEWEST_STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"}), 2
REPEATED_LINES, REPEATED_LINE_CHARACTERS = 0.3, 0.2
TOP_NGRAMS = {2: 0.20, 3: 0.18, 4: 0.16}
"""Share of the characters that are in the most frequent n words in a row."""
REPEATED_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
"""Share of the characters that are in any n words in a row which occur more than once, each counted once."""

_BULLETS = ("•", "‣", "▪", "●", "*", "-", "–")
_ELLIPSES = ("...", "…")
_LETTER = re.compile(r"[^\W\d_]")


def broken_rule(lines: list[str], english: bool) -> str | None:
    """Return the name of the first rule that a document breaks, or None; stop words are asked of English only."""
    words = [word for line in lines for word in words_with_marks(line)]
    if not FEWEST_WORDS <= len(words) <= MOST_WORDS:
        return "few_words" if len(words) < FEWEST_WORDS else "many_words"
    spaced = between_spaces(words)
    if 2 * len(spaced) >= len(words) and not SHORTEST_MEAN <= sum(map(len, spaced)) / len(spaced) <= LONGEST_MEAN:
        return "length_of_words"
    if max(_symbols(lines)) > MOST_SYMBOLS * len(words):
        return "symbols"
    if sum(line.lstrip().startswith(_BULLETS) for line in lines) > MOST_BULLETS * len(lines):
        return "bullets"
    if sum(line.rstrip().endswith(_ELLIPSES) for line in lines) > MOST_ELLIPSES * len(lines):
        return "ellipses"
    if sum(bool(_LETTER.search(word)) for word in words) < FEWEST_ALPHABETIC * len(words):
        return "words_without_letters"
    if english and len(STOP_WORDS.intersection(map(str.lower, words))) < FEWEST_STOP_WORDS:
        return "stop_words"
    return _repetition(lines)


def _symbols(lines: list[str]) -> tuple[int, int]:
    """Return how many # there are, and how many ellipses."""
    return (
        sum(line.count("#") for line in lines),
        sum(line.count(ellipsis) for line in lines for ellipsis in _ELLIPSES),
    )


def _repetition(lines: list[str]) -> str | None:
    counts = collections.Counter(lines)
    again = {line: count - 1 for line, count in counts.items() if count > 1}
    if sum(again.values()) > REPEATED_LINES * len(lines):
        return "repeated_lines"
    if sum(len(line) * count for line, count in again.items()) > REPEATED_LINE_CHARACTERS * sum(map(len, lines)):
        return "repeated_lines"
    text = "\n".join(lines).lower()
    hashes, lengths = word_hashes(text), np.fromiter(map(len, words_without_marks(text)), np.int64)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    for size, rows in rows_of_words(hashes, max(REPEATED_NGRAMS)):
        if size in TOP_NGRAMS and _share_of_the_top(rows, ends, size) > TOP_NGRAMS[size]:
            return f"top_{size}_words"
        if size in REPEATED_NGRAMS and _share_repeated(rows, lengths, size) > REPEATED_NGRAMS[size]:
            return f"repeated_{size}_words"
    return None


def _share_of_the_top(rows: np.ndarray, ends: np.ndarray, size: int) -> float:
    """Return the share of characters in the most frequent n-gram; among equally frequent ones, in the longest."""
    if not rows.size:
        return 0.0
    _, first, counts = np.unique(rows, return_index=True, return_counts=True)
    top = counts.max()
    if top == 1:
        return 0.0
    starts = first[counts == top]
    return float(top * (ends[starts + size] - ends[starts]).max() / ends[-1])


def _share_repeated(rows: np.ndarray, lengths: np.ndarray, size: int) -> float:
    if not rows.size:
        return 0.0
    ordered = np.sort(rows)
    several = ordered[1:][ordered[1:] == ordered[:-1]]
    if not several.size:  # as in nearly all documents
        return 0.0
    repeated = np.flatnonzero(np.isin(rows, several))
    starts = np.zeros(len(lengths) + 1, np.int64)
    starts[repeated] += 1
    starts[repeated + size] -= 1  # a start is at most len - size
    covered = np.cumsum(starts[:-1]) > 0
    return float(lengths[covered].sum() / lengths.sum())

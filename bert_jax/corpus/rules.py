"""Cleaning rules: quality by C4 and Gopher, e-mail addresses and telephone numbers, and language.

C4: lines and pages (Raffel et al. 2020, section 2.2), with the numbers of its published code. Gopher: quality and
repetition of a document (Rae et al. 2021, appendix A.1, table A1). The language of a document is found by py3langid
(Lui and Baldwin 2012), whose package includes its model.
"""

import collections
import functools
import re
from typing import Any

import numpy as np

from bert_jax.corpus.contamination import (
    between_spaces,
    rows_of_words,
    word_hashes,
    words_with_marks,
    words_without_marks,
)
from bert_jax.errors import UserError

LONGEST_WORD = 1_000
FEWEST_WORDS_OF_A_LINE = 5
"""Least number of words in a line."""
FEWEST_SENTENCES = 3
"""Least number of sentences in a page."""
END_MARKS = (".", "?", "!", '"', "。", "？", "！")
"""Ends of a line: those of the published code, and those of Chinese and Japanese."""
POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_SENTENCE_END = re.compile(r"[.?!]+[\"”’')\]]*(?=\s|$)|[。？！]+")


def clean_page(lines: list[str]) -> tuple[list[str], dict[str, list[str]], str | None]:
    """Apply the rules.

    C4's list of obscene words is not applied, and neither is its rule about sentences that occur on several pages;
    for those see deduplicate.

    Returns:
      (the lines that stay, the lines that go by rule, the rule by which the whole page goes or None)
    """
    kept: list[str] = []
    gone: dict[str, list[str]] = {}
    for line in lines:
        cut = _CITATION.sub("", line.strip())
        rule, whole_page = _broken_rule(line, cut)
        if whole_page:
            return [], {}, rule
        if rule:
            gone.setdefault(rule, []).append(line)
        else:
            kept.append(cut)
    if sum(count_sentences(line) for line in kept) < FEWEST_SENTENCES:
        return [], {}, "few_sentences"
    return kept, gone, None


def count_sentences(line: str) -> int:
    """Return how many sentences end in a line, by their punctuation."""
    return len(_SENTENCE_END.findall(line))


def _broken_rule(line: str, cut: str) -> tuple[str | None, bool]:
    """Return (the first rule that a line breaks, whether its page goes too), in the order of the published code.

    `cut`: the line without the marks of citations.
    """
    lower = cut.lower()
    if any(len(word) > LONGEST_WORD for word in words_with_marks(line)):
        return "long_word", False
    if not cut.endswith(END_MARKS) or cut.endswith("..."):
        return "no_end_mark", False
    if len(words_with_marks(cut)) < FEWEST_WORDS_OF_A_LINE:
        return "short_line", False
    if "lorem ipsum" in lower:
        return "lorem_ipsum", True
    if "javascript" in lower:
        return "javascript", False
    if "{" in cut:
        return "curly_bracket", True
    if any(policy in lower for policy in POLICIES):
        return "policy", False
    return None, False


_ADDRESS = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")  # from the start of a run only: linear time
_DIGITS = re.compile(r"\d\D{0,3}\d\D{0,3}\d\D{0,3}\d\D{0,3}\d\D{0,3}\d\D{0,3}\d")  # the least that a number has: 7
_SPACES = re.compile(r"\s{2,}")


def check_region(region: str) -> None:
    """Raise a UserError unless numbers of that country can be recognized."""
    import phonenumbers  # of the extra corpora, without which stores are read and models trained

    if region not in phonenumbers.SUPPORTED_REGIONS:
        raise UserError(f"clean.phone_region={region} must be the code of a country in capitals, such as US or DE")


def without_contacts(line: str, region: str) -> str:
    """Return the line without addresses and valid numbers, and without the double spaces that they leave."""
    cut = _ADDRESS.sub("", line) if "@" in line else line
    if _DIGITS.search(cut):
        import phonenumbers

        for match in reversed(list(phonenumbers.PhoneNumberMatcher(cut, region))):
            cut = cut[: match.start] + cut[match.end :]
    return line if cut == line else _SPACES.sub(" ", cut).strip()


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


READ_CHARACTERS = 2_000
"""Characters by which the language of a document is recognized; more take longer and hardly change the answer."""


def check_languages(languages: tuple[str, ...]) -> None:
    """Raise a UserError that names the languages that cannot be identified."""
    known = sorted(_identifier().labels)
    if unknown := [language for language in languages if language not in known]:
        raise UserError(
            f"clean.languages={','.join(unknown)} cannot be identified; give codes among {', '.join(known)}"
        )


def language_of(lines: list[str]) -> str:
    """Return the code of the most probable language of the beginning of a document, or "und" if it has no letter."""
    text = "\n".join(lines)[:READ_CHARACTERS].rstrip("\n")
    return _identifier().classify(text)[0] if any(map(str.isalpha, text)) else "und"


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)

"""Splits the lines of a document into sentences.

A splitter is a callable from a list of lines to a list of sentences; no sentence spans two lines, and none is empty.
The rules and abbreviations of some 300 languages come from `sentencex` (Wikimedia), which needs no model and no
download.
"""

import re
from collections.abc import Callable
from typing import Any

from bert_jax.errors import UserError

SentenceSplitter = Callable[[list[str]], list[str]]

WINDOW = 10_000
"""Characters passed to sentencex at once: more slow it down, and an unclosed quotation mark joins everything after
it."""

# sentencex 1.0 panics if an initial is followed by a space of more than one byte ("J\u00a0."); all spaces are alike to
# BERT.
_WIDE_SPACES = "\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_SPACES = str.maketrans(dict.fromkeys(_WIDE_SPACES, " "))
_PLAIN_SENTENCE = re.compile(r"(?s).+?(?:[.!?]\s+|$)")
_PAIRED = str.maketrans(dict.fromkeys('"“”„«»‘’()[]{}「」『』《》', " "))


def make_splitter(method: str, language: str = "en") -> SentenceSplitter:
    """Return the splitter for `method` "split" (find the sentences) or "lines" (each line is one)."""
    if method == "lines":
        return _stripped
    if not re.fullmatch(r"[a-z]{2,3}(-[a-z]+)*", language):
        raise UserError(f"language={language!r} is not a language code such as en, de or zh")
    return lambda lines: _stripped(sentence for line in lines for sentence in _split_line(line, language))


def _stripped(texts: Any) -> list[str]:
    return [stripped for text in texts if (stripped := text.strip())]


def _split_line(line: str, language: str) -> list[str]:
    line = line.translate(_SPACES)
    if len(line) <= WINDOW:
        return _segment(line, language)
    sentences, start, unfinished = [], 0, False
    while start < len(line):
        window = line[start : start + WINDOW]
        found = _segment(window, language)
        last = start + WINDOW >= len(line)
        if not last and len(found) == 1:
            found = _split_ignoring_pairs(window, language)
        goes_on = not last and len(found) == 1
        if not last and not goes_on:
            found.pop()  # the window may have cut it short
        start += sum(map(len, found))
        if unfinished:
            sentences[-1] += found.pop(0)
        sentences += found
        unfinished = goes_on
    return sentences


def _split_ignoring_pairs(text: str, language: str) -> list[str]:
    """Split as if there were no quotation marks or brackets: sentencex never splits between one and its partner."""
    sentences, start = [], 0
    for blanked in _segment(text.translate(_PAIRED), language):
        sentences.append(text[start : start + len(blanked)])
        start += len(blanked)
    return sentences


def _segment(text: str, language: str) -> list[str]:
    """Return the sentences of `text`, which joined give `text` again."""
    from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue] (compiled, without types)

    try:
        return segment(language, text)
    except BaseException as error:  # a panic in Rust: one odd line must not end a run of several hours
        if type(error).__name__ != "PanicException":
            raise
        return _PLAIN_SENTENCE.findall(text)

"""Hard-wrapped text, whose lines end where the next word would not have fitted, as in most books in plain text.

A wrapped line may end within a sentence, so lines have to be joined before sentences can be found. The end of a
paragraph shows even without blank lines: there was room for another word on its last line.
"""

import itertools
import re
from collections.abc import Iterable

SAMPLE_CHARACTERS = 1 << 18
"""Length of the beginning of a source by which all of it is judged."""

MIN_LINES, MIN_COLUMN = 10, 40
"""Fewer lines are too few to judge; shorter ones are verse, tables and lists of words."""

MIN_BROKEN = 0.3
"""Share of the lines that break a sentence at the column. Three wrapped novels have 0.61 to 0.68; Wikipedia and three
novels with one paragraph per line have 0.000."""

_SENTENCE_END = re.compile(r"[.!?:;…][\"'”’»)\]*_]*$")


def find_column(lines: Iterable[str]) -> tuple[int, bool]:
    """Return the column at which `lines` are wrapped if they are, and whether they are.

    An empty line separates documents. Only the first SAMPLE_CHARACTERS are read. The column is the length that nine of
    ten lines do not exceed: the maximum would be misled by one long line, and a column that is slightly too small only
    joins the last line of a few paragraphs to the next one, which divides no sentence.
    """
    sample = _sample(lines)
    lengths = sorted(len(line) for line in sample if line)
    column = lengths[int(0.9 * (len(lengths) - 1))] if lengths else 0
    return column, _is_wrapped(sample, column)


def _is_wrapped(lines: list[str], column: int) -> bool:
    """Return whether so many sentences break at `column` that it must be why; the text must not be all lowercase."""
    pairs = [(line, following) for line, following in itertools.pairwise(lines) if line and following]
    broken = sum(
        following.lstrip()[0].islower() and not _SENTENCE_END.search(line) and _overflows(line, following, column)
        for line, following in pairs
    )
    return len(pairs) >= MIN_LINES and column >= MIN_COLUMN and broken >= MIN_BROKEN * len(pairs)


def _sample(lines: Iterable[str]) -> list[str]:
    taken, size = [], 0
    for line in lines:
        taken.append(line.rstrip())
        size += len(line) + 1
        if size >= SAMPLE_CHARACTERS:
            break
    return taken


def continues(line: str, following: str, column: int) -> bool:
    """Return whether `following` continues the paragraph of `line`: it is lowercase, or its first word had no room."""
    line, following = line.rstrip(), following.lstrip()
    return following[:1].islower() or _overflows(line, following, column)


def _overflows(line: str, following: str, column: int) -> bool:
    first_word = (following.split(maxsplit=1) or [""])[0]
    return len(line) + 1 + len(first_word) > column


def join_lines(lines: list[str], column: int) -> list[str]:
    """Return the paragraphs of a document, each as one line; none of `lines` is blank."""
    paragraphs: list[list[str]] = []
    for index, line in enumerate(lines):
        if index and continues(lines[index - 1], line, column):
            paragraphs[-1].append(line.strip())
        else:
            paragraphs.append([line.strip()])
    return [" ".join(paragraph) for paragraph in paragraphs]


def last_paragraph(text: bytes, column: int) -> int:
    """Return where in `text` the last complete line that begins a paragraph begins, or 0 if there is none.

    `text` has no blank line and may end anywhere.
    """
    lines = text.splitlines(keepends=True)
    end = len(text)
    for index in range(len(lines) - 1, 0, -1):
        end -= len(lines[index])
        line, following = (lines[i].decode(errors="replace") for i in (index - 1, index))
        if following.endswith(("\n", "\r")) and not continues(line, following, column):
            return end
    return 0

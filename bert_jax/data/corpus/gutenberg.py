"""Books of Project Gutenberg without what is not the book: its header, its licence, and the names of who typed it.

Paragraphs are separated by blank lines and their lines are wrapped. Before a chapter there are at least three blank
lines (the rules of Distributed Proofreaders say four), so a chapter is a document.
"""

import collections
import re

from bert_jax.errors import UserError

_START = re.compile(
    r"(?im)^[ \t]*(\*\*\* ?START OF (THE|THIS) PROJECT GUTENBERG[^\n]*"
    r"|\*END[ *]*THE SMALL PRINT![^\n]*(\n[^\n]*\*END\*)?[^\n]*)$"
)
_END = re.compile(
    r"(?im)^[ \t]*(\*\*\* ?END OF (THE|THIS) PROJECT GUTENBERG|(This is )?(the )?End of (the |this )?Project Gutenberg)"
)
_CREDIT = re.compile(
    r"(?is)\s*((e-?text |this e-?book was |this etext was )?(produced|prepared|transcribed|scanned|proofed|typed) by\b"
    r"|\[?transcriber[’']?s? notes?\b|\[illustration).*"
)
_CHAPTER = re.compile(r"\n(?:[ \t]*\n){3,}")
_PARAGRAPH = re.compile(r"\n(?:[ \t]*\n)+")


def chapters(text: str, name: str, removed: collections.Counter[str]) -> list[str]:
    """Return the chapters of a book, with a paragraph per line.

    Args:
      text: the whole file, with line feeds.
      name: of the file.
      removed: gets the numbers of lines of the header and of the licence, and of paragraphs of credits.

    Raises:
      UserError: the line at which the book begins is missing.
    """
    start = _START.search(text)
    if not start:
        raise UserError(
            f"{name} has no line like *** START OF THE PROJECT GUTENBERG EBOOK, so header and book cannot be told "
            "apart; take it out of the input, or read it with --format=text"
        )
    end = _END.search(text, start.end())
    body = text[start.end() : end.start() if end else None]
    removed["header_lines"] += _lines(text[: start.end()])
    removed["licence_lines"] += _lines(text[end.start() :]) if end else 0
    found = [_paragraphs(chapter) for chapter in _CHAPTER.split(body)]
    while found and (not found[0] or _CREDIT.fullmatch(found[0][0])):
        removed["credits"] += bool(found[0])
        found[0] = found[0][1:]
        if not found[0]:
            found.pop(0)
    return ["\n".join(paragraphs) for paragraphs in found if paragraphs]


def _paragraphs(chapter: str) -> list[str]:
    return [joined for part in _PARAGRAPH.split(chapter) if (joined := " ".join(part.split()))]


def _lines(text: str) -> int:
    return sum(1 for line in text.split("\n") if line.strip())

"""Where a block of a file may end: after a document or record if possible, otherwise short of its end."""

import re

from bert_jax.data.corpus import warc, wikipedia
from bert_jax.data.corpus.wrapping import last_paragraph

_LINE_END = rb"(?:\r\n?|\n)"
_DOCUMENT_END = {
    "text": re.compile(rb"(?s).*(?:\n|\r(?!\n))[ \t]*" + _LINE_END),  # `.*` is greedy: the last end in the buffer
    "wikiextractor": re.compile(rb"(?s).*\n</doc>[ \t]*" + _LINE_END),
    "jsonl": re.compile(rb"(?s).*\n"),
    "wikipedia": re.compile(rb"(?s).*</page>"),
}
_WHOLE_RECORDS = ("jsonl", "wikipedia", "gutenberg")
_SHORT_OF_A_DOCUMENT = tuple(
    map(
        re.compile,
        (
            rb"(?s).*" + _LINE_END,
            rb"""(?s).*[.!?]["')\]]*[ \t]+(?=[A-Z"'(\[])""",  # within a long line: after a sentence, if one ends here
            rb"(?s).*\s",
            rb"(?s).*(?=[\x00-\x7f\xc0-\xff])",  # never inside a UTF-8 character
        ),
    )
)


def find_end(buffer: bytes, format: str, name: str, wrap_column: int = 0) -> tuple[int, bool]:
    """Return where in `buffer` to end the block, and whether a document ends there; 0 asks for a longer buffer."""
    if format == "warc":
        return warc.end_of_records(buffer, name), True
    if format in _DOCUMENT_END and (match := _DOCUMENT_END[format].match(buffer)):
        return match.end(), True
    if format in _WHOLE_RECORDS:
        return 0, True
    if wrap_column and (start := last_paragraph(buffer, wrap_column)):
        return start, False
    for pattern in _SHORT_OF_A_DOCUMENT:
        if (match := pattern.match(buffer)) and match.end():
            return match.end(), False
    return len(buffer), False


def check_last(buffer: bytes, format: str, name: str) -> None:
    """Check that a file may end with `buffer`, what is left of it after the last block.

    Raises:
      UserError: it ends within a record, or before the end that its format has.
    """
    if format == "wikipedia":
        wikipedia.check_end(buffer, name)
    elif format == "warc":
        warc.check_end(buffer, name)

"""Records of WARC files that hold text: what a crawl was converted to (WET), files of plain text, and web pages.

The form is ISO 28500: a header, a line feed after a blank line, as many bytes as the header says, two line ends.
"""

import collections
import re
from collections.abc import Iterator
from typing import IO

from bert_jax.errors import UserError

BEGINNING = b"WARC/"

_HEADER = re.compile(rb"(?s)(?:\r?\n)*WARC/\d\.\d+\r?\n(.*?)\r?\n\r?\n")
_MAX_HEADER_BYTES = 1 << 16
_LENGTH = re.compile(rb"(?im)^content-length:[ \t]*(\d{1,18})[ \t]*\r?$")
_TYPE = re.compile(rb"(?im)^warc-type:[ \t]*([\w-]+)")
_CONTENT_TYPE = re.compile(rb"(?im)^content-type:[ \t]*([\w./+-]+)")


def end_of_records(buffer: bytes, name: str) -> int:
    """Return where the last whole record in `buffer` ends, which begins with a record; 0 if it holds none.

    Raises:
      UserError: there is something else than a record.
    """
    return max((end for _, _, end in _records(buffer, name)), default=0)


def check_end(rest: bytes, name: str) -> None:
    """Check that a file that ends with `rest` ends with a whole record.

    Raises:
      UserError: it does not.
    """
    if rest[end_of_records(rest, name) :].strip():
        raise _cut_short(name)


def skip_record(buffer: bytes, stream: IO[bytes], name: str) -> tuple[bytes, int]:
    """Read past a record of which `buffer` is the beginning; return its header alone and the length of the whole.

    Raises:
      UserError: the file ends within it.
    """
    found = _HEADER.match(buffer)
    assert found, "end_of_records refuses what does not begin with a header"
    length = found.end() + _length(found[1], name)
    left = length - len(buffer)
    while left:
        if not (data := stream.read(min(left, 1 << 20))):
            raise _cut_short(name)
        left -= len(data)
    return found[0], length


def texts(payload: bytes, name: str, removed: collections.Counter[str]) -> Iterator[tuple[int, bytes, bool]]:
    """Yield (offset, bytes, whether they are the response of a server) of each record of a block that may hold text.

    `removed` gets the number of the others, among them the records of which there is only the header (`skip_record`).
    """
    end = 0
    for header, begin, end in _records(payload, name):
        kind, content = (found[1].lower() if (found := p.search(header)) else b"" for p in (_TYPE, _CONTENT_TYPE))
        is_response = kind == b"response" and content == b"application/http"
        if is_response or kind == b"conversion" or (kind == b"resource" and content == b"text/plain"):
            yield begin, payload[begin:end], is_response
        else:
            removed["records_without_text"] += 1
    if _HEADER.match(payload, end):
        removed["records_too_long"] += 1


def _records(buffer: bytes, name: str) -> Iterator[tuple[bytes, int, int]]:
    """Yield (header, beginning and end of the body) of every whole record."""
    at = 0
    while found := _HEADER.match(buffer, at):
        end = found.end() + _length(found[1], name)
        if end > len(buffer):
            return
        yield found[1], found.end(), end
        at = end
    rest = buffer[at:].lstrip()
    if not rest.startswith(BEGINNING[: len(rest)]) or len(rest) > _MAX_HEADER_BYTES:
        raise UserError(f"{name}: there is no WARC record where one should begin ({rest[:20]!r}); fetch the file again")


def _cut_short(name: str) -> UserError:
    return UserError(f"{name} ends within a record; fetch it again")


def _length(header: bytes, name: str) -> int:
    found = _LENGTH.search(header)
    if not found:
        raise UserError(f"{name}: a WARC record does not say its Content-Length; fetch the file again")
    return int(found[1])

"""Crawls in WARC files: records that hold text (WET, plain text, web pages), and the main text of a page.

The form is ISO 28500: a header, a line feed after a blank line, as many bytes as the header says, two line ends. A
web page is a `response` record: a status line, headers, and a body that may be chunked and compressed. Resiliparse
takes the page apart and leaves out navigation, footers, forms, scripts and styles.
"""

import collections
import http.client
import io
import re
import zlib
from collections.abc import Iterator
from typing import IO, Any

from bert_jax.errors import UserError, need_extra

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
    """Raise a UserError if a file that ends with `rest` does not end with a whole record."""
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


MAX_PAGE_BYTES = 1 << 22
"""Longer pages are passed over: crawls cut them off anyway, and a parser needs many times their length."""
MAX_DEPTH = 512
"""Pages with more elements inside each other are passed over, as browsers do: the time would grow with the square."""

_PAGES = ("text/html", "application/xhtml+xml")
_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_LATER_VERSION = re.compile(rb"\AHTTP/[23](\.0)? ")  # crawlers write later versions down in the form of the first
_LOST = "\ufffd"


class _Received:
    """What `http.client` takes for a connection that has received these bytes."""

    def __init__(self, data: bytes):
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


class _NoTextError(Exception):
    """A response has no text; the message is what `removed` counts."""


def main_text(response: bytes, name: str, removed: collections.Counter[str]) -> tuple[str, int]:
    """Return (main text of the page in a response, number of its bytes that were not of its charset).

    The text is empty if there is none, and then `removed` counts why.

    Raises:
      UserError: the extra `corpora` is not installed.
    """
    need_extra("resiliparse", "corpora", f"{name}: text of web pages")
    try:
        page, charset = _page(response)
        return _extracted(page, charset)
    except _NoTextError as reason:
        removed[str(reason)] += 1
        return "", 0


def _page(response: bytes) -> tuple[bytes, str | None]:
    """Return (page, declared charset).

    The record says how long the body is: Content-Length may be that of a compressed form, or of a page before it was
    cut. A body that begins like HTML has already been taken out of chunks and compression, though the headers stayed.
    """
    received: Any = _Received(_LATER_VERSION.sub(b"HTTP/1.1 ", response, count=1))
    try:
        reply = http.client.HTTPResponse(received, method="GET")
        reply.begin()
        if reply.status != 200:
            raise _NoTextError("responses_with_another_status")
        if reply.headers.get_content_type() not in _PAGES:
            raise _NoTextError("responses_of_other_types")
        place = reply.fp.tell()
        page = reply.fp.read()
        if reply.chunked and not _is_plain(page):
            reply.fp.seek(place)
            page = reply.read()
        for encoding in reversed(reply.headers.get("content-encoding", "").split(",")):
            page = page if _is_plain(page) else _decompressed(page, encoding.strip().lower())
        charset = reply.headers.get_content_charset()
    except (http.client.HTTPException, ValueError, LookupError, zlib.error) as error:
        raise _NoTextError("damaged_responses") from error
    if len(page) > MAX_PAGE_BYTES:
        raise _NoTextError("pages_too_long")
    return page, charset


def _is_plain(data: bytes) -> bool:
    return not data or data.removeprefix(b"\xef\xbb\xbf")[:64].lstrip().startswith(b"<")


def _decompressed(data: bytes, encoding: str) -> bytes:
    """Return the contents, or the beginning of those that are longer than `MAX_PAGE_BYTES`.

    Raises:
      ValueError, zlib.error: it is damaged, cut short, or of an encoding that is not known.
    """
    if encoding in ("", "identity"):
        return data
    if encoding == "br":
        import brotli

        decompressor = brotli.Decompressor()
        try:
            page = decompressor.process(data, output_buffer_limit=MAX_PAGE_BYTES + 1)
        except brotli.error as error:
            raise ValueError(error) from error
        whole = decompressor.is_finished()
    elif encoding in ("gzip", "x-gzip", "deflate"):
        bits = 31 if encoding != "deflate" else 15 if data[0] & 15 == 8 else -15  # deflate with its header, or raw
        decompressor = zlib.decompressobj(bits)
        page = decompressor.decompress(data, MAX_PAGE_BYTES + 1)
        whole = decompressor.eof
    else:
        raise ValueError(f"unknown encoding {encoding}")
    if len(page) <= MAX_PAGE_BYTES and not whole:
        raise ValueError("cut short")
    return page


def _extracted(page: bytes, declared: str | None) -> tuple[str, int]:
    """Return (main text of a page, number of bytes that were not of its charset)."""
    from resiliparse.extract.html2text import extract_plain_text  # pyright: ignore[reportMissingModuleSource]
    from resiliparse.parse.html import HTMLParserException, HTMLTree, traverse_dom

    decoded = page.decode(_charset(page, declared), errors="replace")
    try:
        tree = HTMLTree.parse(decoded.removeprefix("\ufeff"))
    except HTMLParserException as error:
        raise _NoTextError("damaged_responses") from error

    def check_depth(context: Any) -> None:
        if context.depth > MAX_DEPTH:
            raise _NoTextError("pages_nested_too_deeply")

    if tree.body is not None:
        traverse_dom(tree.body, check_depth, elements_only=True)
    text = extract_plain_text(tree, main_content=True, alt_texts=False, list_bullets=False) if tree.body else ""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    if not any(lines):
        raise _NoTextError("pages_without_text")
    return "\n".join(filter(None, lines)), decoded.count(_LOST) - page.count(_LOST.encode())


def _charset(page: bytes, declared: str | None) -> str:
    """Return the charset of a page as browsers find it: its mark, the server's word, its own word, its bytes."""
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5  # pyright: ignore[reportMissingModuleSource]

    for mark, charset in _BYTE_ORDER_MARKS.items():
        if page.startswith(mark):
            return charset
    known = declared and map_encoding_to_html5(declared, fallback_utf8=False)
    return known or detect_encoding(page, from_html_meta=True) or "utf-8"

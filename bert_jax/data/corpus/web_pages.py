"""The main text of web pages as a server sent them: the `response` records of a crawl.

A response is a status line, headers, and a body that may be in chunks and compressed. A page is taken apart by
Resiliparse, which leaves out navigation, footers, forms, scripts and styles.
"""

import collections
import http.client
import io
import re
import zlib
from typing import Any

from bert_jax.errors import need_extra

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

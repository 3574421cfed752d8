"""Cuts a source into blocks of about a mebibyte, the unit of parallel work, of memory and of resumption.

The cuts depend on the source alone, and cutting can restart from any block's position with the same result. Therefore a
token store is the same for every number of workers and after every interruption. A document that is longer than a block
is split over several (`Block.continues`), so a gigabyte on one line needs no more memory than a page.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import IO

from bert_jax.data.corpus import arrow_documents, block_ends, documentation, tfds_documents, warc, wikipedia
from bert_jax.data.corpus.compression import opened, skip
from bert_jax.errors import UserError

BLOCK_BYTES = 1 << 20
MAX_RECORD_BYTES = 1 << 26

_TOO_LONG = {
    "jsonl": "a line of more than {limit} is too long for JSON lines; store such a document as plain text, which is "
    "read in pieces",
    "wikipedia": "a page of more than {limit}; give the dump of the articles (pages-articles), not of their histories",
    "gutenberg": "a book of more than {limit}; store it as plain text, which is read in pieces",
}


@dataclasses.dataclass(frozen=True)
class Source:
    """A file, TFDS split or the documentation; `bytes` as stored, `revision` changes whenever the content does.

    `wrap_column`: column at which its lines are wrapped if the lines of a paragraph are to be joined; 0: they stay as
    they are. `license`: licence of its text, "" if not known.
    """

    name: str
    format: str
    bytes: int
    revision: str
    wrap_column: int = 0
    license: str = ""


@dataclasses.dataclass(frozen=True)
class Position:
    """Start of a block: bytes of the (decompressed) file or documents of a data set, and lines, before it."""

    offset: int = 0
    line: int = 0
    continues: bool = False


@dataclasses.dataclass(frozen=True)
class Block:
    """A part of one source.

    `consumed`: bytes of the source, as stored, read by its end (for progress). `head`: the beginning of a file by which
    all of its blocks are read.
    """

    source: Source
    start: Position
    end: Position
    payload: bytes
    consumed: int
    head: bytes = b""

    @property
    def continues(self) -> bool:
        """Whether the text continues the document that the previous block left open."""
        return self.start.continues


def read_blocks(source: Source, text_field: str = "text", start: Position = Position()) -> Iterator[Block]:
    """Yield the blocks of `source` from `start`, which is the `end` of some block or the beginning.

    Raises:
      UserError: the file is unreadable, damaged or ends too early, a record is longer than MAX_RECORD_BYTES (of a
        crawl it is skipped), or there is no such data set or feature.
    """
    if source.format == "tfds":
        return _pack(source, tfds_documents.documents(source.name, text_field), start)
    if source.format == "docs":
        return _pack(source, documentation.documents(), start)
    if source.format in ("parquet", "arrow"):
        rows = arrow_documents.documents(source.name, source.format, text_field, start.offset)
        return _pack(source, rows, start, start.offset)
    return _cut_file(source, start)


def _cut_file(source: Source, start: Position) -> Iterator[Block]:
    head = _head(source)
    least = MAX_RECORD_BYTES if source.format == "gutenberg" else BLOCK_BYTES  # a book is one block
    with opened(source.name) as (stream, raw):
        skip(stream, source.name, start.offset)
        buffer, target, position = b"", least, start
        while True:
            buffer = _fill(stream, buffer, target)
            at_end = len(buffer) < target
            if at_end and (buffer or position != start):
                block_ends.check_last(buffer, source.format, source.name)
            if not buffer:
                return
            if at_end:
                cut, closed = len(buffer), True
            else:
                cut, closed = block_ends.find_end(buffer, source.format, source.name, source.wrap_column)
            if not cut and target < MAX_RECORD_BYTES:
                target += BLOCK_BYTES
                continue
            if cut:
                payload, buffer = buffer[:cut], buffer[cut:]
            elif source.format == "warc":  # a film, perhaps
                (payload, cut), buffer = warc.skip_record(buffer, stream, source.name), b""
            else:
                message = _TOO_LONG[source.format].format(limit=f"{MAX_RECORD_BYTES >> 20} MiB")
                raise UserError(f"{source.name}:{position.line + 1}: {message}")
            target = least
            end = Position(position.offset + cut, position.line + payload.count(b"\n"), not closed)
            yield Block(source, position, end, payload, source.bytes if at_end else min(raw.tell(), source.bytes), head)
            if at_end:
                return
            position = end


def _head(source: Source) -> bytes:
    if source.format != "wikipedia":
        return b""
    with opened(source.name) as (stream, _):
        return wikipedia.site_information(_fill(stream, b"", wikipedia.MAX_HEAD_BYTES), source.name)


def _fill(stream: IO[bytes], buffer: bytes, target: int) -> bytes:
    """Fill `buffer` up to `target` bytes (less only at the end of the file, one more to keep a CRLF together)."""
    parts, length = [buffer], len(buffer)
    while length < target and (data := stream.read(target - length)):
        parts.append(data)
        length += len(data)
    if length >= target and parts[-1].endswith(b"\r"):
        parts.append(stream.read(1))
    return b"".join(parts)


def _pack(
    source: Source, documents: Iterable[tuple[str, float]], position: Position, first: int = 0
) -> Iterator[Block]:
    """Yield blocks of whole documents, separated by NUL, from pairs (document, share of the source consumed).

    `first`: number of the first of the pairs in the source.
    """
    payload, length = [], 0
    number, share = position.offset, 0.0

    def block():
        return Block(source, position, Position(number), b"\0".join(payload), int(share * source.bytes))

    for index, (document, share) in enumerate(documents, start=first):  # noqa: B007 (block() reads `share`)
        if index < position.offset:
            continue
        payload.append(document.replace("\0", "").encode("utf-8", "replace"))
        length += len(payload[-1])
        number = index + 1
        if length >= BLOCK_BYTES:
            yield block()
            position, payload, length = Position(number), [], 0
    if payload:
        yield block()

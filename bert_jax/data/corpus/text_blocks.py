"""Cuts a source into blocks of about a mebibyte, the unit of parallel work, of memory and of resumption.

The cuts depend on the source alone, and cutting can restart from any block's position with the same result. Therefore a
token store is the same for every number of workers and after every interruption. A document that is longer than a block
is split over several (`Block.continues`), so a gigabyte on one line needs no more memory than a page.
"""

import contextlib
import dataclasses
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any

from etils import epath

from bert_jax.data.corpus import documentation, tfds_documents
from bert_jax.data.corpus.wrapping import last_paragraph
from bert_jax.errors import UserError

BLOCK_BYTES = 1 << 20
MAX_JSON_LINE_BYTES = 1 << 26

_LINE_END = rb"(?:\r\n?|\n)"
_DOCUMENT_END = {
    "text": re.compile(rb"(?s).*(?:\n|\r(?!\n))[ \t]*" + _LINE_END),  # `.*` is greedy: the last end in the buffer
    "wikiextractor": re.compile(rb"(?s).*\n</doc>[ \t]*" + _LINE_END),
    "jsonl": re.compile(rb"(?s).*\n"),
}
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


@dataclasses.dataclass(frozen=True)
class Source:
    """A file, TFDS split or the documentation; `bytes` as stored, `revision` changes whenever the content does.

    `wrap_column`: column at which its lines are wrapped if the lines of a paragraph are to be joined; 0: they stay as
    they are.
    """

    name: str
    format: str
    bytes: int
    revision: str
    wrap_column: int = 0


@dataclasses.dataclass(frozen=True)
class Position:
    """Start of a block: bytes of the (decompressed) file or documents of a data set, and lines, before it."""

    offset: int = 0
    line: int = 0
    continues: bool = False


@dataclasses.dataclass(frozen=True)
class Block:
    """A part of one source. `consumed`: bytes of the source, as stored, read by its end (for progress)."""

    source: Source
    start: Position
    end: Position
    payload: bytes
    consumed: int

    @property
    def continues(self) -> bool:
        """Whether the text continues the document that the previous block left open."""
        return self.start.continues


def read_blocks(source: Source, text_field: str = "text", start: Position = Position()) -> Iterator[Block]:
    """Yield the blocks of `source` from `start`, which is the `end` of some block or the beginning.

    Raises:
      UserError: the file is unreadable, its gzip is broken, a JSON line is longer than MAX_JSON_LINE_BYTES, or there is
        no such data set or feature.
    """
    if source.format == "tfds":
        return _pack(source, tfds_documents.documents(source.name, text_field), start)
    if source.format == "docs":
        return _pack(source, documentation.documents(), start)
    return _cut_file(source, start)


def _cut_file(source: Source, position: Position) -> Iterator[Block]:
    with _opened(source) as (stream, raw):
        _skip(stream, source, position.offset)
        buffer, target = b"", BLOCK_BYTES
        while True:
            buffer = _fill(stream, buffer, target)
            if not buffer:
                return
            if at_end := len(buffer) < target:
                cut, closed = len(buffer), True
            else:
                cut, closed = _cut(buffer, source)
            if not cut:
                if target >= MAX_JSON_LINE_BYTES:
                    raise UserError(
                        f"{source.name}:{position.line + 1}: a line of more than {MAX_JSON_LINE_BYTES >> 20} MiB "
                        "is too long for JSON lines; store such a document as plain text, which is read in pieces"
                    )
                target += BLOCK_BYTES
                continue
            payload, buffer, target = buffer[:cut], buffer[cut:], BLOCK_BYTES
            end = Position(position.offset + cut, position.line + payload.count(b"\n"), not closed)
            yield Block(source, position, end, payload, source.bytes if at_end else min(raw.tell(), source.bytes))
            position = end


def _cut(buffer: bytes, source: Source) -> tuple[int, bool]:
    """Return where in `buffer` to end the block, and whether a document ends there; 0 asks for a longer buffer."""
    if match := _DOCUMENT_END[source.format].match(buffer):
        return match.end(), True
    if source.format == "jsonl":
        return 0, True
    if source.wrap_column and (start := last_paragraph(buffer, source.wrap_column)):
        return start, False
    for pattern in _SHORT_OF_A_DOCUMENT:
        if (match := pattern.match(buffer)) and match.end():
            return match.end(), False
    return len(buffer), False


def _fill(stream: IO[bytes] | gzip.GzipFile, buffer: bytes, target: int) -> bytes:
    """Fill `buffer` up to `target` bytes (less only at the end of the file, one more to keep a CRLF together)."""
    parts, length = [buffer], len(buffer)
    while length < target and (data := stream.read(target - length)):
        parts.append(data)
        length += len(data)
    if length >= target and parts[-1].endswith(b"\r"):
        parts.append(stream.read(1))
    return b"".join(parts)


@contextlib.contextmanager
def _opened(source: Source):
    """Yield (decompressed stream, raw stream). An OSError while reading is left to `prepare`, which can resume."""
    try:
        raw = epath.Path(source.name).open("rb")
    except OSError as error:
        raise UserError(f"cannot read {source.name}: {error.strerror or error}") from error
    with raw:
        if not source.name.endswith(".gz"):
            yield raw, raw
            return
        try:
            with gzip.GzipFile(fileobj=raw) as stream:
                yield stream, raw
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{source.name} is not a whole gzip file ({error}); fetch or compress it again") from error


def _skip(stream: Any, source: Source, offset: int) -> None:
    if not source.name.endswith(".gz"):
        stream.seek(offset)
        return
    while offset and (data := stream.read(min(offset, BLOCK_BYTES))):
        offset -= len(data)


def _pack(source: Source, documents: Iterable[tuple[str, float]], position: Position) -> Iterator[Block]:
    """Yield blocks of whole documents, separated by NUL, from pairs (document, share of the source consumed)."""
    payload, length = [], 0
    number, share = position.offset, 0.0

    def block():
        return Block(source, position, Position(number), b"\0".join(payload), int(share * source.bytes))

    for index, (document, share) in enumerate(documents):  # noqa: B007 (block() reads `share`)
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

"""Blocks of about a mebibyte: the unit of parallel work, of memory and of resumption over a corpus.

The cuts depend on the source alone, and cutting can restart from any block's position with the same result. Therefore
a token store is the same for every number of workers and after every interruption. A block ends after a document or
record if possible. A document longer than a block is split over several (`Block.continues`), so a gigabyte on one
line needs no more memory than a page.

Files are decompressed if their name says so: .gz, .bz2, .xz or .zst. A file of several streams (the multistream dumps
of Wikipedia, a crawl with one stream per record) is read as one text. The bytes of a block are parsed into documents
and lines, with BOM, NUL and CRLF normalized.
"""

import bz2
import collections
import contextlib
import dataclasses
import gzip
import lzma
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

from etils import epath

from bert_jax.config.corpora import LONGEST_LINE, MOST_EXPANSION
from bert_jax.corpus import crawls, datasets, documentation, wikipedia
from bert_jax.corpus.text import chapters, last_paragraph
from bert_jax.errors import UserError, at_least
from bert_jax.files import LONE_RETURNS, parsed, wide_encoding

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
        return crawls.end_of_records(buffer, name), True
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
        crawls.check_end(buffer, name)


_NAMES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "Zstandard"}
_BEGINNINGS = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\0": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
_ARCHIVES = {b"PK\x03\x04": "a zip archive", b"7z\xbc\xaf\x27\x1c": "a 7z archive"}
_SKIP_BYTES = 1 << 20


def suffix(name: str) -> str:
    """Return the ending of `name` that says how the file is compressed, or the empty string."""
    ending = os.path.splitext(name)[1]
    return ending if ending in _NAMES else ""


def refuse_unnamed_compression(name: str, beginning: bytes) -> None:
    """Check by its beginning that a file, decompressed as its name says, is not an archive or compressed otherwise.

    Raises:
      UserError: it is; the message says what to do about it.
    """
    for magic, ending in _BEGINNINGS.items():
        if beginning.startswith(magic):
            raise UserError(
                f"{name} is compressed ({_NAMES[ending]}), but its name does not say so; rename it to …{ending}"
            )
    for magic, what in _ARCHIVES.items():
        if beginning.startswith(magic):
            raise UserError(f"{name} is {what}; unpack it, and give the files")


@contextlib.contextmanager
def opened(name: str) -> Iterator[tuple[Any, IO[bytes]]]:
    """Yield (stream of the decompressed bytes, stream of the stored bytes) of a local or remote file.

    Raises:
      UserError: the file cannot be opened, or is not a whole file of its compression. Any other OSError while reading
        is left to the caller, which may resume.
    """
    try:
        raw: Any = epath.Path(name).open("rb")
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror or error}") from error
    with raw:
        if not suffix(name):
            yield raw, raw
            return
        stream, errors = _decompressed(raw, suffix(name))
        try:
            with stream:
                yield stream, raw
        except (EOFError, OSError, *errors) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the disk or network, not of the contents
                raise
            kind = _NAMES[suffix(name)]
            raise UserError(f"{name} is not a whole {kind} file ({error}); fetch or compress it again") from error


def _decompressed(raw: IO[bytes], ending: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return (stream, exceptions that damaged contents raise besides EOFError and an OSError without a number)."""
    if ending == ".gz":
        return gzip.GzipFile(fileobj=raw), (zlib.error,)
    if ending == ".bz2":
        return bz2.BZ2File(raw), ()
    if ending == ".xz":
        return lzma.LZMAFile(raw), (lzma.LZMAError,)
    from backports import zstd

    return zstd.ZstdFile(raw), (zstd.ZstdError,)


def skip(stream: Any, name: str, offset: int) -> None:
    """Advance a stream of `opened`, still at its beginning, by `offset` decompressed bytes."""
    if not suffix(name):
        stream.seek(offset)
        return
    while offset and (data := stream.read(min(offset, _SKIP_BYTES))):
        offset -= len(data)


BLOCK_BYTES = 1 << 20
MAX_RECORD_BYTES = 1 << 26

_TOO_LONG = {
    "jsonl": "a line of more than {limit} is too long for JSON lines; store such a document as plain text, which is "
    "read in pieces",
    "wikipedia": "a page of more than {limit}; give the dump of the articles (pages-articles), not of their histories",
    "gutenberg": "a book of more than {limit}; store it as plain text, which is read in pieces",
}


class Limits(NamedTuple):
    """What no text that people wrote exceeds: a file with more is refused, however it is read."""

    line_bytes: int = LONGEST_LINE
    """Bytes of a line of plain text."""
    expansion: int = MOST_EXPANSION
    """Bytes of the text of a compressed file, for each of its own."""

    @classmethod
    def given(cls, max_line_bytes: int, max_expansion: int) -> "Limits":
        """Return the limits of these options; raise a UserError if one of them allows nothing."""
        at_least(1, max_line_bytes=max_line_bytes, max_expansion=max_expansion)
        return cls(max_line_bytes, max_expansion)

    def check(self, source: "Source", text: int, line: int, number: int) -> None:
        """Raise a UserError if so many bytes of text, or of the line of this number, are too many for a source."""
        if suffix(source.name) and text > max(UNCOUNTED, self.expansion * source.bytes):
            raise UserError(
                f"{source.name} has {source.bytes:,} bytes and holds more than {self.expansion} times as much text, as "
                "a file that is made to exhaust its readers; raise max_expansion if it is right, or decompress it"
            )
        if line > self.line_bytes:
            raise UserError(
                f"{source.name}:{number}: a line of more than {self.line_bytes:,} bytes; raise max_line_bytes if it is "
                "right, or divide it"
            )


DOCUMENTS = ("tfds", "hub", "docs", "parquet", "arrow")
"""Formats whose blocks are whole documents, put together here, and not a piece of a file."""

UNCOUNTED = 1 << 24
"""Bytes of text that a compressed file may hold, however small it is."""
USUAL = Limits()


@dataclasses.dataclass(frozen=True)
class Source:
    """A file, a split of TFDS or the hub, or the documentation; `bytes` as stored.

    `revision` changes whenever the content does.
    `wrap_column`: column at which its lines are wrapped if the lines of a paragraph are to be joined; 0: they stay as
    they are. `license`: licence of its text, "" if not known. `limits`: beyond which it is refused; they do not change
    what is read.
    """

    name: str
    format: str
    bytes: int
    revision: str
    wrap_column: int = 0
    license: str = ""
    limits: Limits = dataclasses.field(default=USUAL, compare=False)

    @property
    def identity(self) -> tuple[str | int, ...]:
        """What text is read from it, as results record it."""
        return self.name, self.format, self.bytes, self.revision, self.wrap_column, self.license


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
        crawl it is skipped), the file is beyond `source.limits`, or there is no such data set or feature.
    """
    if source.format == "tfds":
        return _pack(source, datasets.tfds_documents(source.name, text_field), start)
    if source.format == "hub":
        return _pack(source, datasets.hub_documents(source.name, text_field, start.offset), start, start.offset)
    if source.format == "docs":
        return _pack(source, documentation.documents(), start)
    if source.format in ("parquet", "arrow"):
        rows = datasets.arrow_documents(source.name, source.format, text_field, start.offset)
        return _pack(source, rows, start, start.offset)
    return _cut_file(source, start)


def _cut_file(source: Source, start: Position) -> Iterator[Block]:
    head = _head(source)
    least = MAX_RECORD_BYTES if source.format == "gutenberg" else BLOCK_BYTES  # a book is one block
    with opened(source.name) as (stream, raw):
        skip(stream, source.name, start.offset)
        buffer, target, position, line = b"", least, start, 0  # line: bytes of the last line so far
        while True:
            buffer = _fill(stream, buffer, target)
            at_end = len(buffer) < target
            if at_end and (buffer or position != start):
                check_last(buffer, source.format, source.name)
            if not buffer:
                return
            if at_end:
                cut, closed = len(buffer), True
            else:
                cut, closed = find_end(buffer, source.format, source.name, source.wrap_column)
            if not cut and target < MAX_RECORD_BYTES:
                target += BLOCK_BYTES
                continue
            if cut:
                payload, buffer = buffer[:cut], buffer[cut:]
            elif source.format == "warc":  # a film, perhaps
                (payload, cut), buffer = crawls.skip_record(buffer, stream, source.name), b""
            else:
                message = _TOO_LONG[source.format].format(limit=f"{MAX_RECORD_BYTES >> 20} MiB")
                raise UserError(f"{source.name}:{position.line + 1}: {message}")
            target = least
            ended = max(payload.rfind(b"\n"), payload.rfind(b"\r")) + 1
            line = len(payload) - ended if ended else line + len(payload)
            of_text = line if source.format in ("text", "wikiextractor") else 0
            source.limits.check(source, position.offset + cut, of_text, position.line + payload.count(b"\n") + 1)
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


_UNWANTED = dict.fromkeys(map(ord, "\0\ufeff"))
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclasses.dataclass(frozen=True)
class BlockText:
    """Contents of a block. `pieces`: the lines of each document; the first piece may continue the previous document.

    `replaced`: number of bytes that were not UTF-8, and of unpaired surrogates that JSON can spell (\\ud800); both
    become U+FFFD. `removed`: number of each kind of thing that its format has and that is no text.
    """

    pieces: list[list[str]]
    replaced: int
    removed: dict[str, int] = dataclasses.field(default_factory=dict)


def parse_block(block: Block, text_field: str = "text", bad_utf8: str = "error") -> BlockText:
    """Split a block into documents and those into lines, with BOM, NUL and CRLF normalized and blank lines dropped.

    The first piece is always present, and empty if the block does not continue a document; later ones have lines.

    Raises:
      UserError: there are bytes that are not UTF-8 (file and byte offset) and `bad_utf8` is not "replace"; or broken
        JSON or a record without the text field (file and line), or a page that is not XML.
    """
    removed: collections.Counter[str] = collections.Counter()
    if block.source.format == "warc":
        texts, replaced = _warc_texts(block, bad_utf8, removed)
        return BlockText([[], *_lines_of(texts)], replaced, dict(removed))
    text, replaced = _decode(block, bad_utf8)
    if block.source.format in DOCUMENTS:
        texts = text.split("\0")
    elif block.source.format == "jsonl":
        texts = list(_json_texts(block, text, text_field))
        replaced += sum(len(_SURROGATE.findall(text)) for text in texts)
        texts = [_SURROGATE.sub("\ufffd", text) for text in texts]
    elif block.source.format == "wikipedia":
        texts = list(wikipedia.articles(text, block.head, block.source.name, removed))
    elif block.source.format == "gutenberg":
        texts = chapters(_normalise(text), block.source.name, removed)
    else:
        text = _normalise(text)
        return BlockText(_pieces(text.split("\n"), block.source.format), replaced)
    return BlockText([[], *_lines_of(texts)], replaced, dict(removed))


def _lines_of(texts: list[str]) -> Iterator[list[str]]:
    """Yield the lines of each document that has any."""
    return filter(None, ([line for line in _normalise(text).split("\n") if line.strip()] for text in texts))


def _warc_texts(block: Block, bad_utf8: str, removed: collections.Counter[str]) -> tuple[list[str], int]:
    decoded = [
        crawls.main_text(body, block.source.name, removed)
        if is_response
        else _decode(dataclasses.replace(block, start=Position(block.start.offset + offset), payload=body), bad_utf8)
        for offset, body, is_response in crawls.texts(block.payload, block.source.name, removed)
    ]
    return [text for text, _ in decoded], sum(replaced for _, replaced in decoded)


def _decode(block: Block, bad_utf8: str) -> tuple[str, int]:
    if block.source.format not in DOCUMENTS and block.start == Position() and (wide := wide_encoding(block.payload)):
        raise UserError(
            f"{block.source.name} is {wide}, not UTF-8; convert it: iconv -f {wide} -t UTF-8 FILE > NEW, where it is "
            "decompressed first"
        )
    try:
        return block.payload.decode(), 0
    except UnicodeDecodeError as error:
        if bad_utf8 == "replace":
            text = block.payload.decode(errors="replace")
            return text, text.count("\ufffd") - block.payload.count("\ufffd".encode())
        at, value = block.start.offset + error.start, block.payload[error.start]
    where = "of the decompressed text " if suffix(block.source.name) else ""
    raise UserError(
        f"{block.source.name}: byte {at} {where}(0x{value:02x}) is not UTF-8; convert the file, or pass "
        "--bad_utf8=replace to count and replace such bytes"
    )


def _normalise(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_UNWANTED)


def _json_texts(block: Block, text: str, text_field: str) -> Iterator[str]:
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=block.start.line + 1):
        if not line.strip():
            continue
        where = f"{block.source.name}:{number}"
        try:
            record = parsed(line)
        except (ValueError, RecursionError) as error:
            reason = LONE_RETURNS if "\r" in line.strip() else f"not a JSON object on a line of its own ({error})"
            raise UserError(f"{where}: {reason}") from None
        if not isinstance(record, dict) or text_field not in record:
            fields = (
                f"has the fields {', '.join(map(repr, record))}" if isinstance(record, dict) else "is not an object"
            )
            raise UserError(
                f"{where}: no field {text_field!r}, the record {fields:.200}; name the one with the text with "
                "--text_field"
            )
        if not isinstance(record[text_field], str):
            raise UserError(
                f"{where}: the field {text_field!r} holds {record[text_field]!r:.40}, not a string; remove the record, "
                "or name another field with --text_field"
            )
        yield record[text_field]


def _pieces(lines: list[str], format: str) -> list[list[str]]:
    """Return the lines of each document, separated by blank lines or, in WikiExtractor files, by `<doc …>`."""
    first: list[str] = []
    pieces, piece = [first], first
    for line in lines:
        blank = not line.strip()
        if format == "text":
            ends = blank
        else:
            ends = line.startswith(("<doc ", "</doc>"))
        if ends:
            piece = []
        elif not blank:
            if not piece and piece is not first:
                pieces.append(piece)
            piece.append(line)
    return pieces

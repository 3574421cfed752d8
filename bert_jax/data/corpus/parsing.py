"""Parsing of the bytes of a block into documents and lines, with BOM, NUL and CRLF normalized."""

import collections
import dataclasses
import json
import re
from collections.abc import Iterator

from bert_jax.data.corpus import gutenberg, warc, web_pages, wikipedia
from bert_jax.data.corpus.compression import suffix
from bert_jax.data.corpus.text_blocks import Block, Position
from bert_jax.errors import UserError

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
    if block.source.format in ("tfds", "docs", "parquet", "arrow"):
        texts = text.split("\0")
    elif block.source.format == "jsonl":
        texts = list(_json_texts(block, text, text_field))
        replaced += sum(len(_SURROGATE.findall(text)) for text in texts)
        texts = [_SURROGATE.sub("\ufffd", text) for text in texts]
    elif block.source.format == "wikipedia":
        texts = list(wikipedia.articles(text, block.head, block.source.name, removed))
    elif block.source.format == "gutenberg":
        texts = gutenberg.chapters(_normalise(text), block.source.name, removed)
    else:
        text = _normalise(text)
        return BlockText(_pieces(text.split("\n"), block.source.format), replaced)
    return BlockText([[], *_lines_of(texts)], replaced, dict(removed))


def _lines_of(texts: list[str]) -> Iterator[list[str]]:
    """Yield the lines of each document that has any."""
    return filter(None, ([line for line in _normalise(text).split("\n") if line.strip()] for text in texts))


def _warc_texts(block: Block, bad_utf8: str, removed: collections.Counter[str]) -> tuple[list[str], int]:
    decoded = [
        web_pages.main_text(body, block.source.name, removed)
        if is_response
        else _decode(dataclasses.replace(block, start=Position(block.start.offset + offset), payload=body), bad_utf8)
        for offset, body, is_response in warc.texts(block.payload, block.source.name, removed)
    ]
    return [text for text, _ in decoded], sum(replaced for _, replaced in decoded)


def _decode(block: Block, bad_utf8: str) -> tuple[str, int]:
    try:
        return block.payload.decode(), 0
    except UnicodeDecodeError as error:
        if bad_utf8 == "replace":
            text = block.payload.decode(errors="replace")
            return text, text.count("\ufffd") - block.payload.count("\ufffd".encode())
        at, value = block.start.offset + error.start, block.payload[error.start]
    hint = "; it looks like UTF-16: convert it" if at == 0 and block.payload[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
    where = "of the decompressed text " if suffix(block.source.name) else ""
    raise UserError(
        f"{block.source.name}: byte {at} {where}(0x{value:02x}) is not UTF-8{hint}; convert the file, or pass "
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
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{where}: not a JSON object on a line of its own ({getattr(error, 'msg', error)})"
            ) from None
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

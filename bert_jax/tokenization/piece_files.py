"""The pieces in the file of a SentencePiece model, read and put in another order.

The file is a protocol buffer of a few fields. They are parsed here because the generated classes would bind us to one
version of the library.
"""

import collections
import dataclasses
import struct
from collections.abc import Iterator, Sequence
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = (
    1,
    2,
    3,
    4,
    5,
)  # ModelProto.SentencePiece.Type of sentencepiece_model.proto
_PIECES = 1  # field of ModelProto


@dataclasses.dataclass(frozen=True)
class Piece:
    """One entry of a SentencePiece model."""

    text: str
    score: float = 0.0
    """Logarithm of its probability in a unigram model, minus its rank in a BPE model."""
    kind: int = CONTROL
    """NORMAL, UNKNOWN, CONTROL (never found in a text), USER_DEFINED (always found), UNUSED (never), or 6, a byte."""


def read_pieces(model: bytes) -> list[Piece]:
    """Return the pieces of a .model file in the order of their ids.

    Raises:
      ValueError: it is not such a file.
    """
    found = []
    for message in fields(model).get(_PIECES, ()):
        if not isinstance(message, bytes):
            raise ValueError("a piece is a number")
        text, score, kind = (fields(message).get(number, [None])[-1] for number in (1, 2, 3))
        found.append(
            Piece(
                text.decode() if isinstance(text, bytes) else "",
                struct.unpack("<f", score)[0] if isinstance(score, bytes) and len(score) == 4 else 0.0,
                kind if isinstance(kind, int) else NORMAL,
            )
        )
    return found


def with_pieces(model: bytes, pieces: Sequence[Piece]) -> bytes:
    """Return the .model file with these pieces in place of its own, and everything else as it was."""
    others = b"".join(raw for number, _, raw in _parts(model) if number != _PIECES)
    return b"".join(field(_PIECES, _written(piece)) for piece in pieces) + others


def fields(message: bytes) -> dict[int, list[Any]]:
    """Return field number → its values in a protocol buffer's message: integers, or bytes for everything else.

    Raises:
      ValueError: the message is cut off.
    """
    found = collections.defaultdict(list)
    for number, value, _ in _parts(message):
        found[number].append(value)
    return dict(found)


def field(number: int, content: bytes) -> bytes:
    """Return a field of bytes as it is encoded in a message."""
    return _number(number << 3 | 2) + _number(len(content)) + content


def _written(piece: Piece) -> bytes:
    score = b"\x15" + struct.pack("<f", piece.score)
    return field(1, piece.text.encode()) + score + b"\x18" + _number(piece.kind)


def _parts(message: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Yield number, value and all bytes of each field."""
    position = 0
    while position < len(message):
        start = position
        key, position = _varint(message, position)
        size = {1: 8, 5: 4}.get(key & 7)
        if size is None:
            size, position = _varint(message, position)
        if key & 7 == 0:
            yield key >> 3, size, message[start:position]
            continue
        if position + size > len(message):
            raise ValueError(f"a field of {size} bytes begins {len(message) - position} bytes before the end")
        yield key >> 3, message[position : position + size], message[start : position + size]
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return (value, position after it) of a number in groups of seven bits, the lowest first."""
    value = shift = 0
    while position < len(message):
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
    raise ValueError("a number is cut off")


def _number(value: int) -> bytes:
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])

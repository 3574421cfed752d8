"""Reads TensorFlow's checkpoint format (version 2, since 2016) without TensorFlow.

A checkpoint PREFIX is PREFIX.index, a table (LevelDB's format, not compressed) from names to dtype, shape, shard,
offset, size and checksum, and the shards PREFIX.data-0000i-of-0000N, raw little-endian values. TensorFlow's own reader
ends the whole process if an index is malformed (a negative dimension is enough) and takes longer to import than
BERT-base takes to read. Here every number is compared with the lengths of the files before anything is allocated.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np
from etils import epath

from bert_jax.errors import UserError

FLOAT32 = 1  # DT_FLOAT of TensorFlow's types.proto
_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48  # bytes: two block handles, padding, and the magic number
_LONGEST_INDEX, _LONGEST_NAME = 1 << 24, 1 << 12  # BERT-large with both Adam slots: 100 kB and 80 characters
_MOST_ENTRIES, _MOST_DIMENSIONS = 1 << 14, 8  # 1,200 and 2; names with shared beginnings can grow a thousandfold
_POLYNOMIAL = np.uint32(0x82F63B78)  # of CRC-32C, reflected
_LANES = 8192  # a power of two


@dataclasses.dataclass(frozen=True)
class Variable:
    """One tensor of a checkpoint, not yet read."""

    name: str
    dtype: int
    """Number in TensorFlow's types.proto."""
    shape: tuple[int, ...]
    file: epath.Path
    offset: int
    size: int
    """Number of bytes."""
    checksum: int
    """Masked CRC-32C of those bytes."""

    def read(self) -> np.ndarray:
        """Return the float32 values of `shape`; raise a UserError if they are not those that were written."""
        with self.file.open("rb") as stream:
            stream.seek(self.offset)
            data = np.frombuffer(stream.read(self.size), np.uint8)
        if data.size != self.size or masked_crc32c(data) != self.checksum:
            raise UserError(
                f"{self.file} is damaged: the values of {self.name} do not match their checksum; fetch it again"
            )
        return data.view("<f4").reshape(self.shape)


def read_index(prefix: epath.Path) -> dict[str, Variable]:
    """Return the variables of the checkpoint by name, without reading values.

    Raises:
      UserError: there is no such checkpoint, a shard is missing or shorter than the index says, or the index is
        damaged.
    """
    file = prefix.parent / f"{prefix.name}.index"
    if not file.exists():
        raise UserError(f"no TensorFlow checkpoint at {prefix}: there is no {file.name} next to it")
    if file.stat().length > _LONGEST_INDEX:
        raise UserError(
            f"{file} has {file.stat().length:,} bytes; the index of a BERT needs fewer than {_LONGEST_INDEX:,}"
        )
    try:
        entries = _table(file.read_bytes())
        header = dict(_fields(entries.pop(b"")))
        if header.get(2, 0):
            raise ValueError("big-endian values")
        variables = [_variable(name.decode(), entry, prefix, _number(header[1])) for name, entry in entries.items()]
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise UserError(
            f"{file} is damaged or not the index of a TensorFlow checkpoint ({error}); fetch it again"
        ) from None
    _check_shards(variables)
    return {variable.name: variable for variable in variables}


def _variable(name: str, entry: bytes, prefix: epath.Path, num_shards: int) -> Variable:
    """Parse a BundleEntryProto: dtype 1, shape 2, shard 3, offset 4, size 5, checksum 6, slices 7; zeros are absent."""
    fields = dict(_fields(entry))
    if 7 in fields:
        raise ValueError(f"{name} is stored in slices")
    dtype, shard, offset, size, checksum = (_number(fields.get(field, 0)) for field in (1, 3, 4, 5, 6))
    dimensions = [
        _number(dict(_fields(_message(value))).get(1, 0))
        for number, value in _fields(_message(fields.get(2, b"")))
        if number == 2
    ]
    if len(dimensions) > _MOST_DIMENSIONS:
        raise ValueError(f"{name} has {len(dimensions):,} dimensions")
    if shard >= num_shards:
        raise ValueError(f"{name} is in shard {shard} of {num_shards}")
    if dtype == FLOAT32 and 4 * math.prod(dimensions) != size:
        raise ValueError(f"{name} has shape {dimensions} but {size:,} bytes")
    file = prefix.parent / f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}"
    return Variable(name, dtype, tuple(dimensions), file, offset, size, checksum)


def _check_shards(variables: list[Variable]) -> None:
    ends = {}
    for variable in variables:
        ends[variable.file] = max(ends.get(variable.file, 0), variable.offset + variable.size)
    for file, end in ends.items():
        if not file.exists():
            raise UserError(f"{file} is missing; its index names it: fetch every file of the checkpoint")
        if file.stat().length < end:
            raise UserError(
                f"{file} is truncated: {file.stat().length:,} bytes, but its index needs {end:,}; fetch it again"
            )


def _table(data: bytes) -> dict[bytes, bytes]:
    """Return keys and values of a LevelDB table."""
    footer = data[-_FOOTER:]
    if len(footer) < _FOOTER or int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise ValueError("it does not end as an index does")
    _, at = _handle(footer, 0)
    entries, done = {}, 0
    for _, where in _block(data, _handle(footer, at)[0]):
        (offset, size), _ = _handle(where, 0)
        if offset < done:
            raise ValueError("blocks overlap")
        done = offset + size
        for name, entry in _block(data, (offset, size)):
            entries[name] = entry
            if len(entries) > _MOST_ENTRIES:
                raise ValueError(f"more than {_MOST_ENTRIES:,} entries")
    return entries


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Return ((offset, size), position after it)."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _block(data: bytes, handle: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a block: keys share their beginning with the previous key; restart points end the block."""
    offset, size = handle
    block, trailer = data[offset : offset + size], data[offset + size : offset + size + 5]
    if len(trailer) < 5 or size < 4:
        raise ValueError("a block is outside the file")
    if trailer[0]:
        raise ValueError("compressed blocks")
    if masked_crc32c(np.frombuffer(block + trailer[:1], np.uint8)) != int.from_bytes(trailer[1:], "little"):
        raise ValueError("a block does not match its checksum")
    key, at, end = b"", 0, size - 4 * (1 + int.from_bytes(block[-4:], "little"))
    while at < end:
        shared, at = _varint(block, at)
        rest, at = _varint(block, at)
        length, at = _varint(block, at)
        key, value = key[:shared] + block[at : at + rest], block[at + rest : at + rest + length]
        at += rest + length
        if at > end or len(key) > _LONGEST_NAME:
            raise ValueError("an entry does not fit")
        yield key, value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of every field of a protocol buffer: varints, 32-bit numbers, and bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 == 0:
            value, at = _varint(message, at)
        elif tag & 7 in (2, 5):
            length, at = _varint(message, at) if tag & 7 == 2 else (4, at)
            value, at = message[at : at + length], at + length
            if at > len(message):
                raise ValueError("a field does not fit")
            value = int.from_bytes(value, "little") if tag & 7 == 5 else value
        else:
            raise ValueError("an unknown kind of field")
        yield tag >> 3, value


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("bytes in place of a number")
    return value


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number in place of bytes")
    return value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (number, position after it): seven bits per byte, the lowest first; at most 64 bits."""
    value = 0
    for shift in range(0, 64, 7):
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise ValueError("a number does not end")


def masked_crc32c(data: np.ndarray) -> int:
    """Return the CRC-32C (Castagnoli) of uint8 `data`, rotated and shifted as TensorFlow stores it.

    The data is cut into lanes that advance together by four bytes, and adjacent lanes are then joined in pairs: the
    register after A and B is the register after A, moved over len(B) zeros, XOR the register after B alone. Moving is
    linear, so 32 more lanes that start from single bits and see only zeros find the operator along the way.
    """
    low, high = _advance_tables()
    width = -(-data.size // (4 * _LANES))
    padded = np.zeros(4 * _LANES * width, np.uint8)  # leading zeros leave an empty register as it is
    padded[padded.size - data.size :] = data
    padded[padded.size - data.size :][:4] ^= 255
    words = np.zeros((width, _LANES + 32), np.uint32)
    words[:, :_LANES] = padded.view("<u4").reshape(_LANES, width).T
    state = np.concatenate([np.zeros(_LANES, np.uint32), np.uint32(1) << np.arange(32, dtype=np.uint32)])
    for row in words:
        state ^= row
        # Every index is inside the table; `wrap` only avoids the check, which would take most of the time.
        state = low.take(state & 0xFFFF, mode="wrap") ^ high.take(state >> 16, mode="wrap")
    lanes, operator = state[:_LANES], state[_LANES:]
    while lanes.size > 1:
        lanes = _apply(operator, lanes[::2]) ^ lanes[1::2]
        operator = _apply(operator, operator)
    crc = int(lanes[0]) ^ 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def _advance_tables() -> tuple[np.ndarray, np.ndarray]:
    """Return what registers with only the lower, or upper, 16 bits become after four zero bytes: 2 × uint32 [65536]."""
    tables = np.arange(65_536, dtype=np.uint32) << np.array([[0], [16]], np.uint32)
    for _ in range(32):
        tables = (tables >> 1) ^ (tables & 1) * _POLYNOMIAL
    return tables[0], tables[1]


def _apply(operator: np.ndarray, registers: np.ndarray) -> np.ndarray:
    """Apply a linear map, given by its images of the 32 single bits, to registers."""
    bits = registers[:, None] >> np.arange(32, dtype=np.uint32) & 1
    return np.bitwise_xor.reduce(bits * operator, axis=1)

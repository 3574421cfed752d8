"""Indices of TF1 checkpoints that are made to mislead a reader."""

import numpy as np
import pytest
from etils import epath

from bert_jax.errors import UserError
from bert_jax.formats.tf1 import masked_crc32c, read_index


def number(value: int) -> bytes:
    """A varint of 64 bits (protobuf.dev/programming-guides/encoding)."""
    value, parts = value % 2**64, []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def field(key: int, value) -> bytes:
    """A number, or bytes, of a protocol buffer."""
    return (
        number(8 * key) + number(value) if isinstance(value, int) else number(8 * key + 2) + number(len(value)) + value
    )


def variable(shape=(12, 10), dtype=1, shard=0, offset=0, size=480) -> bytes:
    dimensions = b"".join(field(2, field(1, length)) for length in shape)
    return b"".join(map(field, (1, 2, 3, 4, 5), (dtype, dimensions, shard, offset, size)))


def table(entries: dict[bytes, bytes], kind: bytes = b"\0", handle: bytes | None = None) -> bytes:
    """An index with right checksums, whatever it says."""
    blocks = b""

    def add(entries):
        nonlocal blocks
        body = b"".join(
            number(0) + number(len(key)) + number(len(value)) + key + value for key, value in entries.items()
        )
        body += bytes(4) + (1).to_bytes(4, "little")
        where = number(len(blocks)) + number(len(body))
        blocks += body + kind + masked_crc32c(np.frombuffer(body + kind, np.uint8)).to_bytes(4, "little")
        return where

    data = add(entries)
    handles = add({}) + add({b"z": handle or data})
    return blocks + handles.ljust(40, b"\0") + 0xDB4775248B80FB57.to_bytes(8, "little")


HEADER = {b"": field(1, 1)}
HOSTILE = {  # most of these end the process of TensorFlow's own reader
    "ten terabytes": (table(HEADER | {b"w": variable((2**38, 10))}), r"shape \[274877906944, 10\] but 480 bytes"),
    "ten terabytes in both": (table(HEADER | {b"w": variable((2**38, 10), size=4 * 10 * 2**38)}), "is truncated"),
    "negative": (table(HEADER | {b"w": variable((-12, -10))}), "has shape"),
    "overflow": (table(HEADER | {b"w": variable((2**62, 2**62), size=0)}), "has shape"),
    "negative place": (table(HEADER | {b"w": variable(offset=-8)}), "is truncated"),
    "another shard": (table(HEADER | {b"w": variable(shard=99)}), "shard 99 of 1"),
    "slices": (table(HEADER | {b"w": variable() + field(7, b"")}), "in slices"),
    "no entry": (table(HEADER | {b"w": b"\xff\xff\xff"}), "is damaged"),
    "no number": (table(HEADER | {b"w": b"\x08" + b"\xff" * 20}), "does not end"),
    "no header": (table({b"w": variable()}), "is damaged"),
    "big-endian": (table({b"": field(1, 1) + field(2, 1)}), "big-endian"),
    "compressed": (table(HEADER, kind=b"\1"), "compressed"),
    "outside": (table(HEADER, handle=number(2**40) + number(100)), "outside the file"),
    "long name": (table(HEADER | {b"w" * 5000: variable()}), "does not fit"),
    "not text": (table(HEADER | {b"\xff": variable()}), "is damaged"),
    "too many": (table(HEADER | {number(i): b"" for i in range(1 << 14)}), "more than 16,384 entries"),
    "a product without end": (table(HEADER | {b"w": variable((2**62,) * 100_000)}), "100,000 dimensions"),
    "enormous": (bytes(2**24 + 1), "needs fewer than"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_index_is_refused(name, tmp_path):
    index, message = HOSTILE[name]
    (tmp_path / "m.index").write_bytes(index)
    (tmp_path / "m.data-00000-of-00001").write_bytes(bytes(480))
    with pytest.raises(UserError, match=message):
        read_index(epath.Path(tmp_path / "m"))


def test_the_table_of_the_hostile_cases_is_one(tmp_path):
    """TensorFlow reads it where it says nothing wrong, so the cases above fail for what they say."""
    import tensorflow as tf

    (tmp_path / "m.index").write_bytes(table(HEADER | {b"w": variable()}))
    (tmp_path / "m.data-00000-of-00001").write_bytes(bytes(480))
    assert tf.train.load_checkpoint(str(tmp_path / "m")).get_variable_to_shape_map() == {"w": [12, 10]}
    assert read_index(epath.Path(tmp_path / "m"))["w"].shape == (12, 10)

"""Protocol buffers by hand: numbers and fields as bytes (protobuf.dev/programming-guides/encoding)."""


def number(value: int) -> bytes:
    """A varint of 64 bits."""
    value, parts = value % 2**64, []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def field(key: int, value) -> bytes:
    return (
        number(8 * key) + number(value) if isinstance(value, int) else number(8 * key + 2) + number(len(value)) + value
    )

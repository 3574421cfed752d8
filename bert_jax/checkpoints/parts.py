"""Arrays as the parts that devices hold: what a host has of them, and arrays made from the parts of several hosts."""

import math
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.devices.placement import empty, placed

Box = list[list[int]]
"""A part of an array: [first index, last index + 1] of each axis."""
Parts = dict[int, np.ndarray]
"""Contents of some parts of an array, by their number in its `layout`."""

PIECE = 1 << 22
"""Number of 32-bit words that hosts exchange at once: 16 MiB."""


def layout(leaf: jax.Array) -> list[Box]:
    """Return the different parts that the devices of all hosts hold of an array, in the same order on every host."""
    found = {_spans(index, leaf.shape) for index in leaf.sharding.devices_indices_map(leaf.shape).values()}
    return [[list(span) for span in spans] for spans in sorted(found)]


def held(leaves: dict[str, jax.Array]) -> dict[str, Parts]:
    """Return copies of the parts of some arrays on this host, which stay when the arrays are donated."""
    on_devices: dict[str, dict[int, jax.Array]] = {}
    for path, leaf in leaves.items():
        boxes, on_devices[path] = layout(leaf), {}
        for shard in leaf.addressable_shards:
            number = boxes.index([list(span) for span in _spans(shard.index, leaf.shape)])
            if number not in on_devices[path]:
                on_devices[path][number] = shard.data
                shard.data.copy_to_host_async()
    return {path: {number: np.array(part) for number, part in parts.items()} for path, parts in on_devices.items()}


def needed(leaf: jax.ShapeDtypeStruct, boxes: list[Box]) -> list[int]:
    """Return the numbers of the parts that overlap what the devices of this host hold of `leaf`."""
    assert leaf.sharding is not None
    places = leaf.sharding.addressable_devices_indices_map(leaf.shape).values()
    wanted = {_spans(index or (), leaf.shape) for index in places}
    return [number for number, box in enumerate(boxes) if any(_overlap(box, spans) is not None for spans in wanted)]


def joined(leaf: jax.ShapeDtypeStruct, boxes: list[Box], parts: Parts) -> jax.Array:
    """Return the array on the devices of `leaf.sharding`; `parts` has those that are `needed`."""

    def read(index: Any) -> np.ndarray:
        spans = _spans(index, leaf.shape)
        whole = [number for number in parts if tuple(map(tuple, boxes[number])) == spans]
        if whole:
            return parts[whole[0]]
        values = empty(tuple(stop - start for start, stop in spans), leaf.dtype)
        for number, part in parts.items():
            if (common := _overlap(boxes[number], spans)) is not None:
                target = tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(common, spans, strict=True))
                source = tuple(slice(a - s, b - s) for (a, b), (s, _) in zip(common, boxes[number], strict=True))
                values[target] = part[source]
        return values

    return placed(leaf.shape, leaf.sharding, read, leaf.dtype)


def is_part(box: Box, shape: list[int]) -> bool:
    """Return whether a box that was read from a file lies within an array of this shape."""
    return len(box) == len(shape) and all(
        len(span) == 2 and all(type(end) is int for end in span) and 0 <= span[0] < span[1] <= size
        for span, size in zip(box, shape, strict=True)
    )


def shape_of(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def exchanged(shape: tuple[int, ...], dtype: np.dtype, mine: np.ndarray | None) -> np.ndarray:
    """Return the part that one host gives as `mine`, on every host; all hosts call this.

    Words are added to the zeros of the other hosts as integers, which keeps every bit.
    """
    size = math.prod(shape) * dtype.itemsize
    words = np.zeros(-(-size // 4), np.uint32)
    if mine is not None:
        words.view(np.uint8)[:size] = np.ascontiguousarray(mine).reshape(-1).view(np.uint8)
    for start in range(0, words.size, PIECE):
        piece = words[start : start + PIECE]
        padded = np.zeros(1 << (piece.size - 1).bit_length(), np.uint32)  # few sizes, as each is a program
        padded[: piece.size] = piece
        piece[...] = multihost_utils.broadcast_one_to_all(padded, is_source=mine is not None)[: piece.size]
    return words.view(np.uint8)[:size].view(dtype).reshape(shape)


def _spans(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(axis.indices(size)[:2] for axis, size in zip(index, shape, strict=True))


def _overlap(box: Any, spans: Any) -> list[tuple[int, int]] | None:
    """Return what two parts have in common; None if that is nothing. Arrays without axes have one part."""
    common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, spans, strict=True)]
    return common if all(start < stop for start, stop in common) else None

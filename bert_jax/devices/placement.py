"""From parts of a file to an array on devices: each device reads its own, and what several hold is read once."""

import dataclasses
import math
from collections.abc import Callable

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """One parameter, on disk. Nothing is read until `read` is called."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[tuple[slice, ...]], np.ndarray]
    """Values of the part that an index names (a slice for each axis), in our layout; (slice(None),) * ndim is everything.
    Nobody changes them afterwards: a device may take their memory over."""


def empty(shape: tuple[int, ...], dtype: np.typing.DTypeLike = np.float32) -> np.ndarray:
    """Memory for values that are read, at an address divisible by 64: a CPU device takes such an array over as it is.

    Of any other it makes a copy, and jax 0.10.2 keeps the original until the garbage collector comes by.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def placed(
    shape: tuple[int, ...],
    where: jax.sharding.Sharding,
    read: Callable[[tuple[slice, ...]], np.ndarray],
    dtype=np.float32,
) -> jax.Array:
    """Return an array on the devices of `where`, each with its own part of what `read` gives, called once for all copies."""
    parts: dict[tuple, np.ndarray] = {}

    def part(index) -> np.ndarray:
        spans = tuple(
            axis.indices(size) for axis, size in zip(index, shape, strict=True)
        )  # slices have no hash before Python 3.12
        if spans not in parts:
            values = read(index)
            if values.dtype != dtype or not values.flags.c_contiguous or values.ctypes.data % 64:
                aligned = empty(values.shape, dtype)
                aligned[...] = values
                values = aligned
            parts[spans] = values
        return parts[spans]

    return jax.make_array_from_callback(shape, where, part)

"""Arrays on devices from parts of a file: each device reads its own part, and shared parts are read once."""

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import jax


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """One parameter on disk. Nothing is read until `read` is called."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[tuple[slice, ...]], np.ndarray]
    """Returns the values of the part that an index names (a slice for each axis), in our layout; (slice(None),) * ndim
    is everything. Nobody changes them afterwards, because a device may take over their memory."""
    remark: str = ""
    """How it was made of the entries of another array, for people; empty if it is as it was stored."""


def empty(shape: tuple[int, ...], dtype: np.typing.DTypeLike = np.float32) -> np.ndarray:
    """Return memory at an address divisible by 64 for values to read, which a CPU device takes over without a copy.

    It copies any other array, and jax 0.10.2 keeps the original until the garbage collector runs.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def placed(
    shape: tuple[int, ...],
    where: "jax.sharding.Sharding",
    read: Callable[[tuple[slice, ...]], np.ndarray],
    dtype: Any = np.float32,
) -> "jax.Array":
    """Return an array on the devices of `where`; `read` gives each part, and is called once for all copies of it."""
    import jax  # here, because files are read and described without it

    parts: dict[tuple[Any, ...], np.ndarray] = {}

    def part(index: Any) -> np.ndarray:
        # Slices have no hash before Python 3.12.
        spans = tuple(axis.indices(size) for axis, size in zip(index, shape, strict=True))
        if spans not in parts:
            values = read(index)
            if values.dtype != dtype or not values.flags.c_contiguous or values.ctypes.data % 64:
                aligned = empty(values.shape, dtype)
                aligned[...] = values
                values = aligned
            parts[spans] = values
        return parts[spans]

    return jax.make_array_from_callback(shape, where, part)

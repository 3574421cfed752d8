"""Arrays on devices from parts of a file: each device reads its own part, and shared parts are read once."""

from collections.abc import Callable

import jax
import numpy as np

from bert_jax.formats.stored import empty


def placed(
    shape: tuple[int, ...],
    where: jax.sharding.Sharding,
    read: Callable[[tuple[slice, ...]], np.ndarray],
    dtype=np.float32,
) -> jax.Array:
    """Return an array on the devices of `where`; `read` gives each part, and is called once for all copies of it."""
    parts: dict[tuple, np.ndarray] = {}

    def part(index: tuple[slice, ...]) -> np.ndarray:
        spans = tuple(axis.indices(size) for axis, size in zip(index, shape))  # slices have no hash before Python 3.12
        if spans not in parts:
            values = read(index)
            if values.dtype != dtype or not values.flags.c_contiguous or values.ctypes.data % 64:
                aligned = empty(values.shape, dtype)
                aligned[...] = values
                values = aligned
            parts[spans] = values
        return parts[spans]

    return jax.make_array_from_callback(shape, where, part)

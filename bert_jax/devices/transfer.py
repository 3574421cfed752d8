"""Batches on their way to the devices: in as few bytes as hold their values, and widened again inside the step."""

import jax
import jax.numpy as jnp
import numpy as np

NARROW = (np.int16, np.uint16)
"""Types in which int32 values cross the bus, the first that holds them."""


def narrow_type(dtype: np.typing.DTypeLike, bound: int) -> np.dtype:
    """Return the type in which values of `dtype` that are below `bound` cross the bus; floats stay as they are."""
    if np.dtype(dtype) == np.int32:
        for narrow in NARROW:
            if bound <= np.iinfo(narrow).max + 1:
                return np.dtype(narrow)
    return np.dtype(dtype)


def narrowed(batch: dict[str, np.ndarray], bound: int) -> dict[str, np.ndarray]:
    """Return the batch in the types of `narrow_type`.

    Raises:
      ValueError: a value is not below `bound`, or is negative where the type has no sign.
    """
    result = {}
    for name, values in batch.items():
        result[name] = values.astype(narrow_type(values.dtype, bound), copy=False)
        if result[name] is not values and not np.array_equal(result[name], values):
            raise ValueError(f"{name} has values that {result[name].dtype} does not hold, though all are below {bound}")
    return result


def widened(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return the batch with int32 in place of narrower integers, as models and objectives take it."""
    return {name: x.astype(jnp.int32) if x.dtype in NARROW else x for name, x in batch.items()}

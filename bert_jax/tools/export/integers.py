"""Weights as integers of 8 bits: one scale for each output of a kernel and for each row of a table.

Only what is stored becomes smaller, by nearly three quarters: a program multiplies the numbers by their scale before
it uses them, and computes in float32. Biases, norms and whatever has fewer values than MINIMUM stay as they are.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.pretrained.precision import as_integers

SCALE = ".scale"
"""End of the name of the scales of an array of integers; TensorFlow takes no colon in a name."""
MINIMUM = 1024  # values of an array from which on integers save something


def written_weights(params: Mapping[str, np.ndarray], precision: str) -> dict[str, np.ndarray]:
    """Return the arrays by path as they are written: with int8, kernels and tables as integers with their scales."""
    if precision == "float32":
        return {path: np.asarray(values, np.float32) for path, values in params.items()}
    found: dict[str, np.ndarray] = {}
    for path, values in params.items():
        if values.size < MINIMUM or path.rpartition("/")[2] not in ("kernel", "table", "recurrent"):
            found[path] = np.asarray(values, np.float32)
        else:
            found[path], found[path + SCALE] = as_integers(values, scaled_axes(path, values.ndim))
    return found


def scaled_axes(path: str, axes: int) -> tuple[int, ...]:
    """Return the axes that share one scale: the inputs of a kernel, or the features of a table."""
    if path.endswith("/table"):
        return (axes - 1,)
    stacked = int(path.startswith("encoder/"))  # whose first axis is that of the layers
    two = path.endswith(("attention/output/kernel", "convolution/dense/kernel"))  # heads and their features; places
    inputs = 2 if two else 1
    return tuple(range(stacked, stacked + inputs))


def whole(weights: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Return float32 arrays by path of what `written_weights` returned."""
    return {
        path: values.astype(jnp.float32) * weights[path + SCALE] if path + SCALE in weights else values
        for path, values in weights.items()
        if not path.endswith(SCALE)
    }

"""Export as StableHLO: one serialized program of `jax.export` for CPUs, GPUs and TPUs, and its weights beside it.

The program takes any batch and length. Weights are an argument, not constants in it: so a model of any size fits, a
compiler need not fold what it never changes, and other weights of the same shapes can take their place.
"""

import contextlib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from flax.traverse_util import unflatten_dict
from jax import export

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.errors import UserError
from bert_jax.export.function import Arrays, ModelFunction
from bert_jax.export.integers import whole, written_weights

PROGRAM, WEIGHTS = "model.stablehlo", "weights.npz"
PLATFORMS = ("cpu", "cuda", "tpu")

READ_ME = """\
```python
import jax, numpy as np
from jax import export

with open("{program}", "rb") as file:
    program = export.deserialize(bytearray(file.read()))
weights = jax.device_put(dict(np.load("{weights}")))
run = jax.jit(program.call)
outputs = run(weights, {inputs})  # each int32 [batch, length]
```

It needs JAX and NumPy alone. The program is compiled once for each shape of batch and length, so pad texts to a few."""


def write_stablehlo(function: ModelFunction, directory: epath.Path, precision: str) -> str:
    """Write program and weights into an existing directory, and return how they are opened, in Markdown."""
    weights = written_weights(leaf_paths(function.params), precision)

    def run(weights: Mapping[str, jax.Array], *inputs: jax.Array) -> Arrays:
        params = unflatten_dict(whole(weights), sep="/")
        return function.of_params(params, dict(zip(function.inputs, inputs, strict=True)))

    shapes = {name: jax.ShapeDtypeStruct(values.shape, values.dtype) for name, values in weights.items()}
    program = export.export(jax.jit(run), platforms=PLATFORMS)(shapes, *function.arguments())
    (directory / PROGRAM).write_bytes(bytes(program.serialize()))
    with (directory / WEIGHTS).open("wb") as file:
        np.savez(file, allow_pickle=False, **weights)
    return READ_ME.format(program=PROGRAM, weights=WEIGHTS, inputs=", ".join(function.inputs))


def open_stablehlo(directory: epath.Path) -> Callable[..., Mapping[str, np.ndarray]]:
    """Return the function that `write_stablehlo` has written, of arrays of NumPy."""
    with _readable(directory):
        program = export.deserialize(bytearray((directory / PROGRAM).read_bytes()))
        with (directory / WEIGHTS).open("rb") as file:
            weights: Any = jax.device_put(dict(np.load(file, allow_pickle=False)))
    run = jax.jit(program.call)
    return lambda *inputs: jax.device_get(run(weights, *inputs))


@contextlib.contextmanager
def _readable(directory: epath.Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"cannot read {directory}: {error}; write it again with bert-jax convert") from None

"""Export as a TensorFlow SavedModel: the compiled program of `jax.export` inside, its weights as variables.

TensorFlow, TensorFlow Serving and whatever else opens a SavedModel runs it for any batch and length.
"""

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from flax.traverse_util import unflatten_dict

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.errors import UserError
from bert_jax.export.function import Arrays, ModelFunction
from bert_jax.export.integers import whole, written_weights

PLATFORMS = ("cpu", "cuda", "tpu")
READ_ME = """\
```python
import tensorflow as tf

model = tf.saved_model.load(".")
outputs = model.signatures["serving_default"]({inputs})  # each int32 [batch, length]
```

It needs TensorFlow alone."""


def need_tensorflow() -> None:
    """Raise a UserError if TensorFlow is not installed, or this JAX cannot write programs for it."""
    for library, remedy in (
        ("tensorflow", "pip install tensorflow"),
        ("jax.experimental.jax2tf", "a JAX that still has jax.experimental.jax2tf, or --to=stablehlo"),
    ):
        try:
            found = importlib.util.find_spec(library)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise UserError(f"to=saved_model needs {library}, which is not installed; use {remedy}")


@contextlib.contextmanager
def flags_of_jax_hidden() -> Iterator[None]:
    """Hide XLA_FLAGS, which JAX has read by now: TensorFlow has an XLA of its own, and ends at a flag it lacks."""
    flags = os.environ.pop("XLA_FLAGS", None)
    try:
        yield
    finally:
        if flags is not None:
            os.environ["XLA_FLAGS"] = flags


@flags_of_jax_hidden()
def write_saved_model(function: ModelFunction, directory: epath.Path, precision: str) -> str:
    """Write a SavedModel into an existing directory, and return how it is opened, in Markdown."""
    import tensorflow
    from jax.experimental import jax2tf

    tf: Any = tensorflow
    weights = written_weights(leaf_paths(function.params), precision)
    names = list(weights)

    def run(weights: Sequence[jax.Array], *inputs: jax.Array) -> Arrays:
        params = unflatten_dict(whole(dict(zip(names, weights, strict=True))), sep="/")
        return function.of_params(params, dict(zip(function.inputs, inputs, strict=True)))

    converted = jax2tf.convert(
        run,
        polymorphic_shapes=[None, *["batch, length"] * len(function.inputs)],
        polymorphic_constraints=() if function.longest is None else (f"length <= {function.longest}",),
        with_gradient=False,
        native_serialization_platforms=PLATFORMS,
    )
    module = tf.Module()
    module.weights = [tf.Variable(values, trainable=False, name=name) for name, values in weights.items()]
    rows = [tf.TensorSpec([None, None], tf.int32, name=name) for name in function.inputs]
    serve = tf.function(lambda *inputs: converted(list(module.weights), *inputs), autograph=False, input_signature=rows)
    tf.saved_model.save(module, str(directory), signatures={"serving_default": serve})
    return READ_ME.format(inputs=", ".join(f"{name}={name}" for name in function.inputs))


def open_saved_model(directory: epath.Path, inputs: Sequence[str]) -> Callable[..., Mapping[str, np.ndarray]]:
    """Return the function that `write_saved_model` has written, of arrays of NumPy."""
    import tensorflow

    tf: Any = tensorflow
    with flags_of_jax_hidden():
        loaded = tf.saved_model.load(str(directory))
    serve = loaded.signatures["serving_default"]

    @flags_of_jax_hidden()
    def run(*arrays: np.ndarray) -> Mapping[str, np.ndarray]:
        found = serve(**{name: tf.constant(values) for name, values in zip(inputs, arrays, strict=True)})
        return {name: values.numpy() for name, values in found.items()}

    run.model = loaded  # pyright: ignore[reportFunctionMemberAccess] (its variables live as long as the function)
    return run

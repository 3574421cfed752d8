"""The small parts of which the model is made: affine map, dropout, activations; norms are in norms.py.

Modules hold float32 parameters and static sizes only. The dtype of a computation is the dtype of the activations that
enter it: parameters are cast where they are used.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models import counter_bits
from bert_jax.models.products import Product, plain_product


def truncated_normal(key: jax.Array, shape: tuple[int, ...], stddev: float) -> jax.Array:
    """Return normal values cut at two standard deviations and, as in TF's initializer, not rescaled.

    Their standard deviation is 0.8796 × `stddev`.
    """
    return stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)


def like(parameter: jax.Array, x: jax.Array) -> jax.Array:
    """Return `parameter` in the dtype of x, with leading axes of size 1 to broadcast it without rank promotion."""
    return parameter.reshape((1,) * (x.ndim - parameter.ndim) + parameter.shape).astype(x.dtype)


AddBias = Callable[[jax.Array, jax.Array], jax.Array]
"""Maps y [..., *outputs] and bias [*outputs] to their sum in the dtype of y."""


def plain_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """Return y + bias; how its gradient is summed over rows is left to the compiler."""
    return y + like(bias, y)


@jax.custom_vjp
def product_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """Return y + bias, whose gradient is a product with ones: a TPU sums rows faster in its matrix units.

    Sums are float32.
    """
    return y + like(bias, y)


def _product_bias_backward(bias: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows = gradient.reshape(*gradient.shape[: gradient.ndim - bias.ndim], bias.size)
    if rows.ndim > 2:
        # Eight equal rows, which fill a tile: of one row the compiler makes an ordinary sum again. Only the last axis
        # is contracted, because batches are split over devices, which would exchange all eight.
        ones = jnp.ones((8, rows.shape[-2]), rows.dtype)
        rows = jax.lax.dot_general(
            ones,
            rows,
            (((1,), (rows.ndim - 2,)), ((), ())),
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )[0]
    total = jnp.sum(rows, axis=tuple(range(rows.ndim - 1)), dtype=jnp.float32)
    return gradient, total.reshape(bias.shape).astype(bias.dtype)


product_bias.defvjp(lambda y, bias: (product_bias(y, bias), bias), _product_bias_backward)


def affine(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array,
    product: Product = plain_product,
    add_bias: AddBias = plain_bias,
) -> jax.Array:
    """Return x · kernel + bias in the dtype of x: x [..., *inputs], kernel [*inputs, *outputs], bias [*outputs]."""
    return add_bias(product(x, kernel, kernel.ndim - bias.ndim), bias)


class Linear(nnx.Module):
    """Affine map of the last axes of its input: kernel [*inputs, *outputs], bias [*outputs], or none without `bias`.

    The model that it is part of sets `product` and `add_bias` to those of its architecture.
    """

    def __init__(
        self, inputs: tuple[int, ...], outputs: tuple[int, ...], stddev: float, key: jax.Array, bias: bool = True
    ):
        self.product: Product = plain_product
        self.add_bias: AddBias = plain_bias
        self.kernel: nnx.Param[jax.Array] = nnx.Param(truncated_normal(key, inputs + outputs, stddev))
        self.bias: nnx.Param[jax.Array] | None = nnx.Param(jnp.zeros(outputs, jnp.float32)) if bias else None
        self.input_axes: int = len(inputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [..., *inputs] to [..., *outputs], in the dtype of x."""
        if self.bias is None:
            return self.product(x, self.kernel[...], self.input_axes)
        return affine(x, self.kernel[...], self.bias[...], self.product, self.add_bias)


def dropout(
    x: jax.Array, rate: float, key: jax.Array | None, rows: jax.Array | None = None, length: int = 0
) -> jax.Array:
    """Zero each element with probability `rate` (to the nearest 2⁻³²) and scale the others so that the mean stays.

    Without a key, return x itself. What is dropped depends on the key and on the place of an element in the whole array
    (`counter_bits`), and is computed again in the backward pass. With `rows`, int32 [B, M], x [B, …, M, N] are those of
    `length` rows of the whole array, and what is dropped is the same as there.
    """
    threshold = counter_bits.drop_threshold(rate)
    if key is None or threshold == 0:
        return x
    shape = x.shape if rows is None else (*x.shape[:-2], length, x.shape[-1])
    return _dropped(x, (counter_bits.stream(key), rows), shape, threshold)


Place = tuple[counter_bits.Stream, jax.Array | None]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _dropped(x: jax.Array, place: Place, shape: tuple[int, ...], threshold: int) -> jax.Array:
    stream, rows = place
    keep = counter_bits.keeps(counter_bits.array_words(stream, shape, rows), threshold)
    return jnp.where(keep, x * counter_bits.kept_scale(threshold), jnp.zeros_like(x))


def _dropped_backward(
    shape: tuple[int, ...], threshold: int, place: Place, gradient: jax.Array
) -> tuple[jax.Array, None]:
    # The map is linear in x, so it is its own transpose. Without the barrier, XLA would see that the words are those of
    # the forward pass and keep what it decided there.
    return _dropped(gradient, jax.lax.optimization_barrier(place), shape, threshold), None


_dropped.defvjp(lambda x, place, *static: (_dropped(x, place, *static), place), _dropped_backward)


def gelu_tanh(x: jax.Array) -> jax.Array:
    """Return the tanh approximation of GELU, as in Google's code."""
    return jax.nn.gelu(x, approximate=True)


def relu(x: jax.Array) -> jax.Array:
    """Return x where it is positive, else 0."""
    return jnp.maximum(x, 0)


def in_float32(activation: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """Return the same function of x, computed in float32 and rounded once, whose backward pass keeps x alone.

    On a CPU, every operation on bfloat16 is one on float32 between two conversions.
    """

    @jax.custom_vjp
    def computed(x: jax.Array) -> jax.Array:
        return activation(x.astype(jnp.float32)).astype(x.dtype)

    def backward(x: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
        _, pull_back = jax.vjp(activation, x.astype(jnp.float32))
        return (pull_back(gradient.astype(jnp.float32))[0].astype(x.dtype),)

    computed.defvjp(lambda x: (computed(x), x), backward)
    return computed


def gelu_erf(x: jax.Array) -> jax.Array:
    """Return the exact GELU, which Hugging Face checkpoints use."""
    return jax.nn.gelu(x, approximate=False)

"""Products of matrices in the forms that XLA computes fastest on one CPU, and sums with least traffic over TPUs.

On a CPU, the fast routines for bfloat16 operands take the rows of the first one as they lie in memory and return
float32. What automatic differentiation of an ordinary product asks for is otherwise: weight gradients that contract the
first axis of both operands, results in bfloat16, cotangents in float32. That halves the rate or worse (docs/speed.md).
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

Product = Callable[[jax.Array, jax.Array, int], jax.Array]
"""Maps x [..., *inputs], kernel [*inputs, *outputs] and the number of inputs to [..., *outputs], in the dtype of x."""


def plain_product(x: jax.Array, kernel: jax.Array, axes: int) -> jax.Array:
    """Return the product as one operation, whose form the compiler chooses, also in the backward pass."""
    return jnp.tensordot(x, kernel.astype(x.dtype), axes=axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def wide_einsum(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the einsum of two arrays of one dtype in float32; both products of its gradient have that dtype.

    Differentiation alone would multiply by a gradient in float32. TPUs round it to bfloat16, but GPUs multiply it as it
    is, at half the rate at best, and XLA does not fill up its rows to a multiple of 16 bytes, as of 30,522 words.
    """
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def _wide_forward(equation: str, a: jax.Array, b: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return wide_einsum(equation, a, b), (a, b)


def _wide_backward(
    equation: str, kept: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return jax.vjp(functools.partial(jnp.einsum, equation), *kept)[1](gradient.astype(kept[0].dtype))


wide_einsum.defvjp(_wide_forward, _wide_backward)


def tpu_product(x: jax.Array, kernel: jax.Array, axes: int) -> jax.Array:
    """Return the product such that the sum of its kernel's gradient over chips that split the state can be scattered.

    The compiler does that with a matrix, but sums an array with narrow axes, such as heads of 64, whole.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.shape.get("fsdp", 1) == 1:
        return plain_product(x, kernel, axes)
    inputs, outputs = math.prod(kernel.shape[:axes]), kernel.shape[axes:]
    rows = x.reshape(*x.shape[: x.ndim - axes], inputs)
    y = plain_product(rows, kernel.reshape(inputs, -1), 1)
    return y.reshape(*y.shape[:-1], *outputs)


def cpu_product(x: jax.Array, kernel: jax.Array, axes: int) -> jax.Array:
    """Return the product such that it and both products of its gradient run at the full rate of a CPU."""
    inputs = math.prod(kernel.shape[:axes])
    y = _rows_times_kernel(x.reshape(-1, inputs), kernel.reshape(inputs, -1))
    return y.reshape(*x.shape[: x.ndim - axes], *kernel.shape[axes:])


def wide_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return a [M, K] · b [K, N] in float32, from operands of one dtype."""
    return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def wide_product_with_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return a [M, K] · b [N, K]ᵀ in float32, from operands of one dtype."""
    return jax.lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def transposed(x: jax.Array) -> jax.Array:
    """Return the transpose of a matrix, written out row by row instead of read column by column."""
    return written(x.T)


def written(x: jax.Array) -> jax.Array:
    """Return x, whose elements lie in memory in the order of its axes."""
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def summed_over_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return aᵀ · b of a [M, K] and b [M, N] in float32, as gradients of kernels are.

    Float32 is read down the columns of the narrower operand, the first one. Of other operands, whatever is less is
    transposed and written out: a, or both b and the result.
    """
    (rows, outputs), inputs = a.shape, b.shape[1]
    if a.dtype == jnp.float32:
        product, swaps = _product_down_columns, outputs > inputs and rows > inputs
    else:
        product, swaps = _product_of_transpose, rows * outputs > (rows + outputs) * inputs
    # Without the barrier, the compiler would turn the second form into the first; and transposed while it is stacked
    # with the gradients of other layers, it would be read column by column.
    return transposed(jax.lax.optimization_barrier(product(b, a))) if swaps else product(a, b)


def _product_down_columns(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.dot_general(a, b, (((0,), (0,)), ((), ())))


def _product_of_transpose(a: jax.Array, b: jax.Array) -> jax.Array:
    return wide_product(transposed(a), b)


@jax.custom_vjp
def _rows_times_kernel(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return x [M, K] · kernel [K, N] in the dtype of x; the gradient of the kernel has the kernel's dtype."""
    return wide_product(x, kernel.astype(x.dtype)).astype(x.dtype)


def _forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    narrow = kernel.astype(x.dtype)
    return wide_product(x, narrow).astype(x.dtype), (x, narrow, jnp.zeros((), kernel.dtype))


def _backward(kept: tuple[jax.Array, jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel, like = kept
    return wide_product_with_rows(gradient, kernel).astype(x.dtype), summed_over_rows(x, gradient).astype(like.dtype)


_rows_times_kernel.defvjp(_forward, _backward)

"""Both products of attention, head by head: as the mathematics is written, and as one CPU multiplies bfloat16 fastest.

XLA multiplies many small matrices of bfloat16 as such if those of an operand lie one after the other, are read by rows,
and give float32. Automatic differentiation asks for results in bfloat16, cotangents in float32 and operands that are
read by columns, which takes several times as long (docs/speed.md).
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.models.products import wide_einsum, written

Pair = Callable[[jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class HeadProducts:
    """The form of the products, whose operands have the dtype of key and value."""

    scores: Pair
    """Maps query [B, Q, A, D] and key [B, K, A, D] to query · keyᵀ of each head, float32 [B, A, Q, K]."""
    context: Pair
    """Maps weights float32 [B, A, Q, K] and value [B, K, A, D] to their product, [B, Q, A, D] in the dtype of value."""


def _plain_scores(query: jax.Array, key: jax.Array) -> jax.Array:
    return wide_einsum("bqad,bkad->baqk", query, key)


def _plain_context(weights: jax.Array, value: jax.Array) -> jax.Array:
    return jnp.einsum("baqk,bkad->bqad", weights.astype(value.dtype), value)


def _cpu_scores(query: jax.Array, key: jax.Array) -> jax.Array:
    scores = _rows_times_rows(_matrices(query), _matrices(key))
    return scores.reshape(query.shape[0], -1, *scores.shape[1:])


def _cpu_context(weights: jax.Array, value: jax.Array) -> jax.Array:
    context = _weighted(weights.reshape(-1, *weights.shape[2:]), _matrices(value))
    return jnp.swapaxes(context.reshape(*weights.shape[:3], -1), 1, 2)


PLAIN = HeadProducts(_plain_scores, _plain_context)
CPU = HeadProducts(_cpu_scores, _cpu_context)


def _matrices(x: jax.Array) -> jax.Array:
    """Return x [B, L, A, D] as matrices [B · A, L, D], one after the other."""
    by_head = written(jnp.swapaxes(x, 1, 2))
    return by_head.reshape(-1, *by_head.shape[2:])


def _transposed(x: jax.Array) -> jax.Array:
    """Return the transposes of matrices [N, L, D], written out; without the barrier, the compiler would undo them."""
    return jax.lax.optimization_barrier(written(jnp.swapaxes(x, 1, 2)))


def _dot(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """Return a [N, L, M] times b [N, …], summed over the last axis of a and this one of b, in float32."""
    return jax.lax.dot_general(a, b, (((2,), (axis,)), ((0,), (0,))), preferred_element_type=jnp.float32)


def _summed_over_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return aᵀ · b of a [N, L, M], the wider, and b [N, L, D], in float32; only b and the result are transposed."""
    return jnp.swapaxes(jax.lax.optimization_barrier(_dot(_transposed(b), a, 1)), 1, 2)


@jax.custom_vjp
def _rows_times_rows(query: jax.Array, key: jax.Array) -> jax.Array:
    """Return query [N, Q, D] · key [N, K, D]ᵀ in float32."""
    return _dot(query, key, 2)


def _scores_forward(query: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _dot(query, key, 2), (query, key)


def _scores_backward(kept: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    query, key = kept
    gradient = gradient.astype(key.dtype)
    return _dot(gradient, key, 1).astype(query.dtype), _summed_over_rows(gradient, query).astype(key.dtype)


_rows_times_rows.defvjp(_scores_forward, _scores_backward)


@jax.custom_vjp
def _weighted(weights: jax.Array, value: jax.Array) -> jax.Array:
    """Return weights float32 [N, Q, K], rounded to the dtype of value, times value [N, K, D], in that dtype."""
    return _context_forward(weights, value)[0]


def _context_forward(weights: jax.Array, value: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    weights = weights.astype(value.dtype)
    return _dot(weights, value, 1).astype(value.dtype), (weights, value)


def _context_backward(kept: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    weights, value = kept
    return _dot(gradient, value, 2), _summed_over_rows(weights, gradient).astype(value.dtype)


_weighted.defvjp(_context_forward, _context_backward)

"""Products of attention in the form for CPUs, against float64 NumPy and against the plain form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.kernels.plain import CPU, PLAIN

BATCH, QUERIES, KEYS, HEADS, SIZE = 2, 5, 7, 3, 4
ROUNDING = 2.0**-8  # of bfloat16: the largest relative change of a value that is rounded to the nearest


def arrays(*shapes: tuple[int, ...], dtype=np.float32) -> list[jax.Array]:
    random = np.random.default_rng(0)
    return [jnp.asarray(random.standard_normal(shape), dtype) for shape in shapes]


def close(found: jax.Array, expected: np.ndarray, rounding: float) -> bool:
    """Whether only the result was rounded, beside sums of float32."""
    error = np.abs(np.asarray(found, float) - expected)
    return bool((error <= rounding * np.abs(expected) + 1e-5 * np.abs(expected).max()).all())


@pytest.mark.parametrize(("dtype", "rounding"), [(jnp.float32, 0.0), (jnp.bfloat16, ROUNDING)])
def test_scores_and_their_gradients_equal_numpy(dtype, rounding):
    query, key = arrays((BATCH, QUERIES, HEADS, SIZE), (BATCH, KEYS, HEADS, SIZE), dtype=dtype)
    (gradient,) = arrays((BATCH, HEADS, QUERIES, KEYS))
    scores, transpose = jax.vjp(CPU.scores, query, key)
    of_query, of_key = jax.jit(transpose)(gradient)
    assert (scores.dtype, of_query.dtype, of_key.dtype) == (jnp.float32, dtype, dtype)
    q, k, g = (np.asarray(array, float) for array in (query, key, gradient.astype(dtype)))
    assert close(scores, np.einsum("bqad,bkad->baqk", q, k), 0.0)
    assert close(of_query, np.einsum("baqk,bkad->bqad", g, k), rounding)
    assert close(of_key, np.einsum("baqk,bqad->bkad", g, q), rounding)


@pytest.mark.parametrize(("dtype", "rounding"), [(jnp.float32, 0.0), (jnp.bfloat16, ROUNDING)])
def test_contexts_and_their_gradients_equal_numpy(dtype, rounding):
    (weights,) = arrays((BATCH, HEADS, QUERIES, KEYS))
    value, gradient = arrays((BATCH, KEYS, HEADS, SIZE), (BATCH, QUERIES, HEADS, SIZE), dtype=dtype)
    context, transpose = jax.vjp(CPU.context, weights, value)
    of_weights, of_value = jax.jit(transpose)(gradient)
    assert (context.dtype, of_weights.dtype, of_value.dtype) == (dtype, jnp.float32, dtype)
    w, v, g = (np.asarray(array, float) for array in (weights.astype(dtype), value, gradient))
    assert close(context, np.einsum("baqk,bkad->bqad", w, v), rounding)
    assert close(of_weights, np.einsum("bqad,bkad->baqk", g, v), 0.0)
    assert close(of_value, np.einsum("baqk,bqad->bkad", w, g), rounding)


@pytest.mark.parametrize("name", ["scores", "context"])
def test_both_forms_are_the_same_for_each_row_of_a_batch(name):
    first = (BATCH, QUERIES, HEADS, SIZE) if name == "scores" else (BATCH, HEADS, QUERIES, KEYS)
    one, other = arrays(first, (BATCH, KEYS, HEADS, SIZE))
    plain, cpu = (getattr(form, name) for form in (PLAIN, CPU))
    expected = jax.vmap(plain)(one[:, None], other[:, None])
    np.testing.assert_allclose(jax.jit(jax.vmap(cpu))(one[:, None], other[:, None]), expected, rtol=1e-5, atol=1e-5)

"""The layer norm of TPUs, whose sums do not wait for each other, against float64 and against the plain one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.layers import fused_layer_norm, plain_layer_norm

EPSILON = 1e-12


def arrays(dtype: str, offset: float = 0.0):
    """Return x [5, 7, 768], scale and bias [768], and the gradient of the result."""
    random = np.random.default_rng(0)
    x, gradient = random.normal(size=(2, 5, 7, 768)) * np.geomspace(0.01, 100, 7)[:, None]
    x = x + offset * np.std(x, axis=-1, keepdims=True)
    scale, bias = random.normal(size=(2, 768)).astype(np.float32)
    return jnp.asarray(x, dtype), scale, bias, jnp.asarray(gradient, dtype)


def exact(x, scale, bias, gradient):
    """Return the norm and its gradients in float64, by the derivative of each result by each input of its row."""
    x, gradient = np.asarray(x, np.float64), np.asarray(gradient, np.float64)
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
    normed, size = centred / deviation, x.shape[-1]
    derivative = np.eye(size) - 1 / size - normed[..., :, None] * normed[..., None, :] / size
    of_x = np.einsum("blh,blhi->bli", gradient * scale / deviation, derivative)
    return normed * scale + bias, of_x, (gradient * normed).sum((0, 1)), gradient.sum((0, 1))


def distance(found, expected) -> float:
    return np.linalg.norm(np.asarray(found, np.float64) - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("dtype", "offset", "bound"), [("float32", 0, 1e-6), ("bfloat16", 0, 3e-3), ("bfloat16", 50, 3e-3)]
)
def test_norm_and_gradients_are_those_of_float64(dtype, offset, bound):
    x, scale, bias, gradient = arrays(dtype, offset)
    found, transpose = jax.vjp(lambda *given: fused_layer_norm(*given, EPSILON), x, scale, bias)
    for each, expected in zip((found, *transpose(gradient)), exact(x, scale, bias, gradient), strict=True):
        assert distance(each, expected) < bound
    assert (found.dtype, transpose(gradient)[0].dtype, transpose(gradient)[1].dtype) == (x.dtype, x.dtype, jnp.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_bias_and_of_constant_rows_it_is_the_plain_norm(dtype):
    x, scale, _, _ = arrays(dtype)
    x = x.at[0].set(x[0, :, :1])
    fused, plain = (form(x, scale, None, 1e-5).astype(jnp.float32) for form in (fused_layer_norm, plain_layer_norm))
    np.testing.assert_allclose(fused, plain, atol=0.02 if dtype == "bfloat16" else 1e-5, rtol=0.01)

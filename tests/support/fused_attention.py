"""A fused kernel of attention beside attention in plain JAX, in values, gradients and dropped elements.

Both get the same dropout, element by element. What differs is the order of sums, and in bfloat16 that the kernels
divide by the sum of exponentials after the product with the values.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.kernels import plain
from bert_jax.models.kernels.plain import AttentionMask

KEY = jax.random.key(3)


def inputs(batch: int, length: int, heads: int, size: int, dtype=np.float32) -> tuple:
    """query, key, value and the gradient of the output [B, L, A, D]; the last row ends in padding."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((batch, length, heads, size)).astype(dtype) for _ in range(4)]
    padding = np.ones((batch, length), np.int32)
    padding[-1, length - 9 :] = 0
    return *arrays, padding


def restrictions(names: str, batch: int, length: int, heads: int) -> dict:
    random = np.random.default_rng(1)
    given = {
        "segments": np.sort(random.integers(1, 4, (batch, length)), 1).astype(np.int32),
        "window": np.int32(17),
        "bias": random.standard_normal((1, heads, length, length)).astype(np.float32),
    }
    return {name: given[name] for name in names.split("+") if name}


def results(
    attention, rate, query, key, value, gradient, padding, given, window: int | None = None
) -> dict[str, jax.Array]:
    """The output, and the gradients of queries, keys, values and the bias."""

    def output(query, key, value, bias):
        # A window is a number that is known here, or one of the arrays that are given.
        restricting = {"window": window} | given | ({} if bias is None else {"bias": bias})
        mask = AttentionMask(padding=padding, **restricting)
        return attention(query, key, value, mask, KEY if rate else None, rate)[0]

    found, backward = jax.vjp(output, query, key, value, given.get("bias"))
    gradients = dict(zip(("query", "key", "value", "bias"), backward(gradient), strict=True))
    return {"output": found} | {name: x for name, x in gradients.items() if x is not None}


@functools.cache
def _plain(rate: float, window: int | None):
    """Attention in plain JAX, compiled once for all kernels that are compared with it."""
    return jax.jit(functools.partial(results, plain.attention, rate, window=window))


def assert_equal(
    module, shape: tuple, rate: float, names: str = "", dtype=np.float32, window=None, interpret=True, **given
) -> None:
    """Compare the kernel of a module with plain attention, to some roundings of the largest number that is rounded."""
    *arrays, padding = inputs(*shape, dtype)
    given = given or restrictions(names, *shape[:3])
    assert module.obstacle(*shape) is None
    attention = functools.partial(module.attention, interpret=interpret)
    run = jax.jit(functools.partial(results, attention, rate, window=window))(*arrays, padding, given)
    for name, expected in _plain(rate, window)(*arrays, padding, given).items():
        found, expected = (np.asarray(each, np.float32) for each in (run[name], expected))
        rounding = 2**-8 if dtype == jnp.bfloat16 else 2**-23
        assert np.abs(found - expected).max() < 16 * rounding * max(1, np.abs(expected).max()), name
        assert np.abs(expected).max() > 0.1, name

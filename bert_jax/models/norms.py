"""The normalizations of a model: layer norms in two forms, and the root mean square.

As in layers.py, modules hold float32 parameters, and compute in the dtype of what enters them but for sums.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from bert_jax.config import ModelConfig
from bert_jax.models.layers import like

NormForm = Callable[[jax.Array, jax.Array, jax.Array | None, float], jax.Array]
"""Maps x [..., H], scale [H], bias [H] or None, and epsilon to the layer normalization of x, in its dtype."""


def plain_layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float) -> jax.Array:
    """Return the norm of x in float32 and in two passes.

    E[x²] - E[x]² would lose the small variances that epsilon = 1e-12 is meant for.
    """
    wide = x.astype(jnp.float32)
    centred = wide - checkpoint_name(jnp.mean(wide, axis=-1, keepdims=True), "mean")
    variance = checkpoint_name(jnp.mean(jnp.square(centred), axis=-1, keepdims=True), "variance")
    return _scaled(centred * jax.lax.rsqrt(variance + epsilon), scale, bias).astype(x.dtype)


def fused_layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float) -> jax.Array:
    """Return the norm of x such that a compiler can put all its sums at the end of the product before it.

    No sum waits for another: the gradient is the closed form, not the chain through variance and mean, and the variance
    of bfloat16 is E[x²] - E[x]² in float32. That errs by about 2⁻²³ E[x²], where rounding x to bfloat16 has added at
    least 2⁻²⁰ E[x²] to the variance. Of other types it takes two passes.
    """
    return jnp.asarray(_fused(x, scale, bias, epsilon))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _fused(x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float) -> jax.Array:
    return _fused_forward(x, scale, bias, epsilon)[0]


def _fused_forward(x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float):
    wide = x.astype(jnp.float32)
    mean = checkpoint_name(jnp.mean(wide, axis=-1, keepdims=True), "mean")
    if x.dtype == jnp.bfloat16:
        variance = jnp.maximum(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) - jnp.square(mean), 0.0)
    else:
        variance = jnp.mean(jnp.square(wide - mean), axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(checkpoint_name(variance, "variance") + epsilon)
    return _scaled((wide - mean) * inverse, scale, bias).astype(x.dtype), (x, mean, inverse, scale, bias)


def _fused_backward(epsilon: float, kept: tuple[Any, ...], gradient: jax.Array) -> tuple[jax.Array | None, ...]:
    x, mean, inverse, scale, bias = kept
    normed, gradient = (x.astype(jnp.float32) - mean) * inverse, gradient.astype(jnp.float32)
    of_normed = gradient * like(scale, gradient)
    common = jnp.mean(of_normed, axis=-1, keepdims=True)
    along = jnp.mean(of_normed * normed, axis=-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))
    return (
        (inverse * (of_normed - common - normed * along)).astype(x.dtype),
        jnp.sum(gradient * normed, axis=rows),
        None if bias is None else jnp.sum(gradient, axis=rows),
    )


_fused.defvjp(_fused_forward, _fused_backward)


def _scaled(normed: jax.Array, scale: jax.Array, bias: jax.Array | None) -> jax.Array:
    scaled = normed * like(scale, normed)
    return scaled if bias is None else scaled + like(bias, scaled)


class LayerNorm(nnx.Module):
    """Layer normalization over the last axis (Ba et al. 2016).

    The model that it is part of sets `form` to that of its architecture.
    """

    def __init__(self, size: int, epsilon: float, bias: bool = True):
        self.form: NormForm = plain_layer_norm
        self.epsilon = epsilon
        self.scale: nnx.Param[jax.Array] = nnx.Param(jnp.ones(size, jnp.float32))
        self.bias: nnx.Param[jax.Array] | None = nnx.Param(jnp.zeros(size, jnp.float32)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.form(x, self.scale[...], None if self.bias is None else self.bias[...], self.epsilon)


class RmsNorm(nnx.Module):
    """Division by the root mean square over the last axis (Zhang & Sennrich 2019), in float32."""

    def __init__(self, size: int, epsilon: float):
        self.epsilon = epsilon
        self.scale: nnx.Param[jax.Array] = nnx.Param(jnp.ones(size, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        variance = checkpoint_name(jnp.mean(jnp.square(wide), axis=-1, keepdims=True), "variance")
        normed = wide * jax.lax.rsqrt(variance + self.epsilon)
        return (normed * like(self.scale[...], normed)).astype(x.dtype)


Norm = LayerNorm | RmsNorm


def make_norm(config: ModelConfig, size: int) -> Norm:
    """Return a fresh norm of `size` features, of the kind that the model has everywhere."""
    if config.norm == "rms_norm":
        return RmsNorm(size, config.layer_norm_epsilon)
    return LayerNorm(size, config.layer_norm_epsilon, config.norm_bias)

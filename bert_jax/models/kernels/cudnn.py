"""Attention by cuDNN on NVIDIA GPUs: scores and probabilities never leave the chip.

JAX offers it without dropout. cuDNN could drop probabilities, but by generators of its own, whose draws depend on how
the batch is split over devices; so steps with attention dropout are computed by `kernels.xla`.
"""

import jax
import jax.numpy as jnp

from bert_jax.models.kernels import xla
from bert_jax.models.kernels.contract import AttentionMask

LARGEST_SIZE = 128  # of a head, in the forward and backward pass of every card since Ampere


def obstacle(length: int, size: int, rate: float, dtype: jnp.dtype) -> str | None:
    """Return why cuDNN cannot compute attention with heads of `size` and dropout of `rate`, or None if it can."""
    if dtype not in (jnp.bfloat16, jnp.float16):
        return f"it computes in bfloat16, not in {jnp.dtype(dtype).name}"
    if rate:
        return f"it has no dropout that is the same on any mesh, and the rate is {rate:g}"
    if size % 8 or size > LARGEST_SIZE:
        return f"heads of size {size} are no multiple of 8 up to {LARGEST_SIZE}"
    return f"length {length} is odd" if length % 2 else None


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    dropout_key: jax.Array | None = None,
    rate: float = 0.0,
    collect: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """See `AttentionKernel`; `collect` and what has an `obstacle` is computed by `kernels.xla.attention`."""
    rate = 0.0 if dropout_key is None else rate
    if collect or obstacle(query.shape[1], query.shape[3], rate, query.dtype):
        return xla.attention(query, key, value, mask, dropout_key, rate, collect)
    (batch, length), adder = query.shape[:2], mask.adder()
    bias = jnp.broadcast_to(adder, (batch, adder.shape[1], length, length)).astype(query.dtype)
    return jax.nn.dot_product_attention(query, key, value, bias=bias, implementation="cudnn"), None

"""Dropout as it was before its bits came from a hash, for runs of that time: the same masks from the same keys."""

import jax
import jax.numpy as jnp
import pytest

from bert_jax.models import blocks, embeddings, heads
from bert_jax.models.kernels import xla


def use_threefry(patch: pytest.MonkeyPatch) -> None:
    """Compute dropout in the old way wherever a model without BiLSTM computes it."""
    for module in (blocks, embeddings, heads, xla):
        patch.setattr(module, "dropout", _dropout)


def _dropout(
    x: jax.Array, rate: float, key: jax.Array | None, rows: jax.Array | None = None, length: int = 0
) -> jax.Array:
    """Decide on two elements by one 32-bit word of jax.random, and drop each to the nearest 1/65536 of `rate`.

    Of some rows of an array, x [B, …, M, N], those that would be dropped of the whole one; see `layers.dropout`.
    """
    threshold = round(rate * 65_536)
    if key is None or threshold == 0:
        return x
    size = x.shape[-1]
    leading = x.shape[:-1] if rows is None else (*x.shape[:-2], length)
    words = jax.random.bits(key, (*leading, (size + 1) // 2), jnp.uint32)
    keep = jnp.concatenate([(words & 0xFFFF) >= threshold, (words >> 16) >= threshold], axis=-1)[..., :size]
    if rows is not None:
        keep = jax.vmap(lambda whole, chosen: jnp.take(whole, chosen, axis=-2))(keep, rows)
    return jnp.where(keep, x * (65_536 / (65_536 - threshold)), jnp.zeros_like(x))

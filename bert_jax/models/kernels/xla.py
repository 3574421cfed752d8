"""Attention in plain JAX, on every device: the definition that other kernels are compared with."""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from bert_jax.models.kernels.contract import AttentionMask
from bert_jax.models.layers import dropout


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    dropout_key: jax.Array | None = None,
    rate: float = 0.0,
    collect: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Return dropout(softmax(query · keyᵀ / √D + adder)) · value; see `AttentionKernel` for arguments and results."""
    scores = jnp.einsum("bqad,bkad->baqk", query, key, preferred_element_type=jnp.float32) * query.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores + mask.adder(), axis=-1)
    dropped = dropout(weights, rate, dropout_key, mask.queries, key.shape[1])
    context = jnp.einsum("baqk,bkad->bqad", dropped.astype(value.dtype), value)
    return checkpoint_name(context, "attention_output"), weights if collect else None

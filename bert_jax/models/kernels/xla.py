"""Attention in plain JAX, on every device: the definition that other kernels are compared with."""

import jax
from jax.ad_checkpoint import checkpoint_name

from bert_jax.models.kernels.contract import AttentionMask
from bert_jax.models.kernels.head_products import PLAIN, HeadProducts
from bert_jax.models.layers import dropout


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    dropout_key: jax.Array | None = None,
    rate: float = 0.0,
    collect: bool = False,
    *,
    products: HeadProducts = PLAIN,
) -> tuple[jax.Array, jax.Array | None]:
    """Return dropout(softmax(query · keyᵀ / √D + adder)) · value; see `AttentionKernel` for arguments and results."""
    scores = products.scores(query, key) * query.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores + mask.adder(), axis=-1)
    dropped = dropout(weights, rate, dropout_key, mask.queries, key.shape[1])
    context = products.context(dropped, value)
    return checkpoint_name(context, "attention_output"), weights if collect else None

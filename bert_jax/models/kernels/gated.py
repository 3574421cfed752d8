"""Attention of which each head is multiplied by a factor, on top of any kernel."""

import jax

from bert_jax.models.kernels.contract import AttentionKernel, AttentionMask
from bert_jax.models.layers import like


def gated(attend: AttentionKernel, gates: jax.Array | None) -> AttentionKernel:
    """Return a kernel whose means of the values are those of `attend` times `gates` [A]; None: `attend` itself.

    The probabilities stay as they are. A gate of 0 is a head whose rows of the output projection are zero.
    """
    if gates is None:
        return attend

    def attention(
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: AttentionMask,
        dropout_key: jax.Array | None = None,
        rate: float = 0.0,
        collect: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        context, weights = attend(query, key, value, mask, dropout_key, rate, collect)
        return context * like(gates[:, None], context), weights

    return attention

"""Multi-head self-attention, with one seam, `attention`, behind which faster kernels can stand."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.models.layers import Linear, dropout

# Google's adder. Finite, so that a row with nothing but padding attends as if unmasked instead of giving 0/0; and it is
# added to float32 scores, where exp(-10000) is exactly 0 and the score beside it still counts.
MASKED_SCORE = -10_000.0


def attention_weights(query: jax.Array, key: jax.Array, mask: jax.Array) -> jax.Array:
    """softmax(query · keyᵀ / √D + mask adder) in float32.

    Args:
        query: [B, L, A, D].
        key: [B, L, A, D].
        mask: [B, L], 1 for positions that may be attended to, 0 for padding.

    Returns:
        [B, A, L (query), L (key)] float32, before dropout.
    """
    scores = jnp.einsum("bqad,bkad->baqk", query, key, preferred_element_type=jnp.float32) * query.shape[-1] ** -0.5
    adder = jnp.where(mask > 0, 0.0, MASKED_SCORE)[:, None, None, :]
    return jax.nn.softmax(scores + adder, axis=-1)


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    dropout_key: jax.Array | None = None,
    rate: float = 0.0,
) -> jax.Array:
    """Scaled dot-product attention, dropout on its probabilities: the seam for kernels.

    Whatever stands here must equal `dropout(attention_weights(query, key, mask)) · value`.

    Args:
        query, key, value: [B, L, A, D].
        mask: [B, L], 1 for positions that may be attended to, 0 for padding.
        dropout_key: None for no dropout.
        rate: share of the probabilities that is dropped.

    Returns:
        [B, L, A, D] in the dtype of `value`.
    """
    weights = dropout(attention_weights(query, key, mask), rate, dropout_key)
    return jnp.einsum("baqk,bkad->bqad", weights.astype(value.dtype), value)


class SelfAttention(nnx.Module):
    """Projections to queries, keys and values of A heads of size D = H / A, attention, and the projection back."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        hidden, heads = (config.hidden_size,), (config.num_heads, config.head_size)
        query_key, key_key, value_key, output_key = jax.random.split(key, 4)
        self.rate = config.attention_dropout
        self.query = Linear(hidden, heads, config.initializer_range, query_key)
        self.key = Linear(hidden, heads, config.initializer_range, key_key)
        self.value = Linear(hidden, heads, config.initializer_range, value_key)
        self.output = Linear(heads, hidden, config.initializer_range, output_key)

    def __call__(self, x: jax.Array, mask: jax.Array, dropout_key: jax.Array | None, collect: bool):
        """Returns (output [B, L, H], weights [B, A, L, L] if `collect` else None)."""
        query, key, value = self.query(x), self.key(x), self.value(x)
        context = attention(query, key, value, mask, dropout_key, self.rate)
        return self.output(context), attention_weights(query, key, mask) if collect else None

"""Multi-head self-attention: projections around an attention kernel."""

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from bert_jax.config import ModelConfig
from bert_jax.models.kernels.contract import AttentionKernel, AttentionMask
from bert_jax.models.layers import Linear
from bert_jax.models.relative_positions import Rotary


class SelfAttention(nnx.Module):
    """Projections to queries, keys and values of A heads of size D = H / A, attention, and the projection back."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        hidden, heads = (config.hidden_size,), (config.num_heads, config.head_size)
        query_key, key_key, value_key, output_key = jax.random.split(key, 4)
        self.rate: float = config.attention_dropout
        self.query: Linear = Linear(hidden, heads, config.initializer_range, query_key, config.use_bias)
        self.key: Linear = Linear(hidden, heads, config.initializer_range, key_key, config.use_bias)
        self.value: Linear = Linear(hidden, heads, config.initializer_range, value_key, config.use_bias)
        self.output: Linear = Linear(heads, hidden, config.output_range, output_key, config.use_bias)

    def __call__(
        self,
        x: jax.Array,
        mask: AttentionMask,
        dropout_key: jax.Array | None,
        attend: AttentionKernel,
        collect: bool,
        rotary: Rotary | None = None,
        queries: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Return the output [B, L, H] for x [B, L, H], and the probabilities [B, A, L, L] if `collect`, else None.

        `rotary` turns queries and keys by their positions before the kernel sees them. `queries` [B, M, H] are the
        states at mask.queries, for which alone the output is computed: [B, M, H].
        """
        query = checkpoint_name(self.query(x if queries is None else queries), "query")
        key, value = checkpoint_name(self.key(x), "key"), checkpoint_name(self.value(x), "value")
        if rotary is not None:
            query, key = rotary.turned(query, mask.queries), rotary.turned(key)
        context, weights = attend(query, key, value, mask, dropout_key, self.rate, collect)
        return self.output(context), weights

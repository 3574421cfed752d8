"""The parts of XLNet (Yang et al. 2019) around its attention: embeddings, and the block of both streams."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from bert_jax.config import ModelConfig
from bert_jax.models.embeddings import Embedding
from bert_jax.models.kernels.contract import AttentionKernel
from bert_jax.models.kernels.gated import gated
from bert_jax.models.layers import dropout, truncated_normal
from bert_jax.models.norms import Norm, make_norm
from bert_jax.models.word_table import look_up
from bert_jax.models.xlnet_attention import Relations, RelativeAttention


class WordEmbeddings(nnx.Module):
    """word → dropout; positions and segments enter in attention, and nothing is normalized.

    `target` [1, 1, H] is the state that everything which is predicted begins with: mask_emb of the published code.
    """

    def __init__(self, config: ModelConfig, key: jax.Array):
        word_key, target_key = jax.random.split(key)
        size, std = config.hidden_size, config.initializer_range
        self.rate: float = config.hidden_dropout
        self.word: Embedding = Embedding(truncated_normal(word_key, (config.padded_vocab_size, size), std))
        self.target: nnx.Param[jax.Array] = nnx.Param(truncated_normal(target_key, (1, 1, size), std))

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        dtype: jnp.dtype,
        dropout_key: jax.Array | None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """Map ids [B, L] to [B, L, H] of `dtype`, as `Embeddings`; token types and positions do not count here."""
        del token_type_ids, positions
        return dropout(look_up(self.word.table[...], input_ids).astype(dtype), self.rate, dropout_key)

    def with_targets(self, embedded: jax.Array, count: int, dropout_key: jax.Array | None) -> jax.Array:
        """Return embedded [B, L, H] with the states of `count` targets after them: [B, L + M, H]."""
        states = jnp.broadcast_to(self.target[...], (embedded.shape[0], count, embedded.shape[2]))
        states = dropout(states.astype(embedded.dtype), self.rate, dropout_key)
        return jnp.concatenate([embedded, states], axis=1)


class TwoStreamBlock(nnx.Module):
    """Attention and a feed-forward network, each inside a residual connection with dropout: x = norm(x + f(x))."""

    def __init__(
        self,
        config: ModelConfig,
        key: jax.Array,
        feed_forward: Callable[[jax.Array], Callable[[jax.Array], jax.Array]],
    ):
        attention_key, feed_forward_key = jax.random.split(key)
        self.rate: float = config.hidden_dropout
        self.attention: RelativeAttention = RelativeAttention(config, attention_key)
        self.attention_norm: Norm = make_norm(config, config.hidden_size)
        self.feed_forward: Callable[[jax.Array], jax.Array] = feed_forward(feed_forward_key)
        self.feed_forward_norm: Norm = make_norm(config, config.hidden_size)

    def __call__(
        self,
        x: jax.Array,
        mask: Relations,
        dropout_key: jax.Array | None,
        attend: AttentionKernel,
        collect: bool,
        *,
        head_gates: jax.Array | None = None,
        memory: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Map x [B, L + M, H] to (x [B, L + M, H], probabilities [B, A, L + M, K] if `collect`, else None).

        `head_gates` is as in `Block`, and `memory` as in `RelativeAttention`.
        """
        keys = (None,) * 3 if dropout_key is None else jax.random.split(dropout_key, 3)
        y, weights = self.attention(x, mask, keys[0], gated(attend, head_gates), collect, memory)
        x = self.attention_norm(checkpoint_name(x + dropout(y, self.rate, keys[1]), "attention_sum"))
        y = self.feed_forward(x)
        x = checkpoint_name(x + dropout(y, self.rate, keys[2]), "feed_forward_sum")
        return self.feed_forward_norm(x), weights

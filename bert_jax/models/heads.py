"""What stands on the encoder during pre-training: the masked-language-model head and the choice of its positions."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.models.layers import LayerNorm, Linear, activation, like

PADDED_LOGIT = -1e9  # of table rows that stand for no word: never predicted, and exp of it is 0


def gather_positions(hidden: jax.Array, positions: jax.Array) -> jax.Array:
    """hidden [B, L, H] at positions [B, M]: [B, M, H]. A position outside the sequence gives NaN."""
    return jnp.take_along_axis(hidden, positions[:, :, None], axis=1, mode="fill")


class MaskedLanguageModelHead(nnx.Module):
    """dense → GELU → LayerNorm → product with the word table (tied) → + bias."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        hidden = (config.hidden_size,)
        self.activation, self.vocab_size = config.activation, config.vocab_size
        self.dense = Linear(hidden, hidden, config.initializer_range, key)
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        self.bias = nnx.Param(jnp.zeros(config.padded_vocab_size, jnp.float32))

    def __call__(self, x: jax.Array, word_table: jax.Array) -> jax.Array:
        """x [B, M, H] and the word table [V, H] to logits [B, M, V], float32 whatever the dtype of x."""
        x = self.norm(activation(self.dense(x), self.activation))
        logits = jnp.einsum("bmh,vh->bmv", x, word_table.astype(x.dtype), preferred_element_type=jnp.float32)
        logits = logits + like(self.bias[...], logits)
        real = jax.lax.broadcasted_iota(jnp.int32, (1, 1, logits.shape[-1]), 2) < self.vocab_size
        return jnp.where(real, logits, PADDED_LOGIT)

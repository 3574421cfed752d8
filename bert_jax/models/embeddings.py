"""From token ids to the vectors that enter the first block."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.models.layers import LayerNorm, dropout, like, truncated_normal
from bert_jax.models.word_table import look_up


class Embedding(nnx.Module):
    """A table of vectors [rows, H]."""

    def __init__(self, table: jax.Array):
        self.table = nnx.Param(table)


class Embeddings(nnx.Module):
    """word + position + token type → LayerNorm → dropout.

    `positions` makes the table of absolute positions; None for an architecture whose blocks get positions otherwise.
    """

    def __init__(
        self,
        config: ModelConfig,
        key: jax.Array,
        positions: Callable[[ModelConfig, jax.Array], jax.Array] | None,
    ):
        word_key, position_key, token_type_key = jax.random.split(key, 3)
        std, hidden = config.initializer_range, config.hidden_size
        self.rate = config.hidden_dropout
        self.word = Embedding(truncated_normal(word_key, (config.padded_vocab_size, hidden), std))
        self.position = None if positions is None else Embedding(positions(config, position_key))
        self.token_type = Embedding(truncated_normal(token_type_key, (config.type_vocab_size, hidden), std))
        self.norm = LayerNorm(hidden, config.layer_norm_epsilon)

    def __call__(
        self, input_ids: jax.Array, token_type_ids: jax.Array, dtype: jnp.dtype, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Map ids [B, L] to [B, L, H] of `dtype`; sum and norm are in float32.

        An id beyond the table gives NaN, not a different word.
        """
        x = look_up(self.word.table[...], input_ids)
        # A product, because the gradient of a lookup would scatter every token of the batch into two rows.
        token_types = jnp.einsum(
            "blt,th->blh",
            jax.nn.one_hot(token_type_ids, self.token_type.table.shape[0]),
            self.token_type.table[...],
            precision=jax.lax.Precision.HIGHEST,
        )
        if self.position is not None:
            x = x + like(self.position.table[: input_ids.shape[1]], x)
        return dropout(self.norm(x + token_types).astype(dtype), self.rate, dropout_key)

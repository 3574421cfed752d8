"""The second table of static word vectors, what each word is as the neighbour of another one, and GloVe's biases."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.models.products import wide_einsum
from bert_jax.models.word_table import look_up


class ContextWords(nnx.Module):
    """A table [V, H] that starts at zero, as in the code that Mikolov et al. published; its path is contexts/table."""

    def __init__(self, config: ModelConfig):
        self.table: nnx.Param[jax.Array] = nnx.Param(
            jnp.zeros((config.padded_vocab_size, config.hidden_size), jnp.float32)
        )

    def __call__(self, x: jax.Array, ids: jax.Array) -> jax.Array:
        """Return the products of x [B, L, H] with the vectors of ids [B, M], in the dtype of x: [B, L, M] float32."""
        vectors = look_up(self.table[...], ids).astype(x.dtype)
        return wide_einsum("blh,bmh->blm", x, vectors)


class ContextBiases(nnx.Module):
    """A number for each word, and one for it as a neighbour, which GloVe adds to their product; they start at zero."""

    def __init__(self, config: ModelConfig):
        zeros = lambda: nnx.Param(jnp.zeros((config.padded_vocab_size,), jnp.float32))
        self.center: nnx.Param[jax.Array] = zeros()
        self.neighbour: nnx.Param[jax.Array] = zeros()

    def __call__(self, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return both numbers of each of `ids` [B, L], float32."""
        return self.center[...][ids], self.neighbour[...][ids]

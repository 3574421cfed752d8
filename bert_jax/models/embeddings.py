"""From token ids to the vectors that enter the first block."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.models.layers import Linear, dropout, truncated_normal
from bert_jax.models.norms import Norm, make_norm
from bert_jax.models.word_table import look_up


class Embedding(nnx.Module):
    """A table of vectors [rows, H]."""

    def __init__(self, table: jax.Array):
        self.table: nnx.Param[jax.Array] = nnx.Param(table)


class Embeddings(nnx.Module):
    """word + position + token type → norm → dropout (→ affine map to the width of the layers, if that is another).

    A model with type_vocab_size=0 has no token types, and one without layers no norm.

    `positions` makes the table of absolute positions; None for an architecture whose blocks get positions otherwise.
    Which row of it belongs to a token follows from `ModelConfig.padding_id`.
    """

    def __init__(
        self,
        config: ModelConfig,
        key: jax.Array,
        positions: Callable[[ModelConfig, jax.Array], jax.Array] | None,
    ):
        word_key, position_key, token_type_key = jax.random.split(key, 3)
        std, width = config.initializer_range, config.word_size
        self.rate: float = config.hidden_dropout
        self.padding_id: int | None = config.padding_id
        self.word: Embedding = Embedding(truncated_normal(word_key, (config.padded_vocab_size, width), std))
        self.position: Embedding | None = None if positions is None else Embedding(positions(config, position_key))
        types = truncated_normal(token_type_key, (config.type_vocab_size, width), std)
        self.token_type: Embedding | None = Embedding(types) if config.type_vocab_size else None
        self.norm: Norm | None = None if config.layer == "none" else make_norm(config, width)
        own_width = config.embedding_size is not None
        projection_key = jax.random.fold_in(key, 0)
        self.projection: Linear | None = (
            Linear((width,), (config.hidden_size,), std, projection_key) if own_width else None
        )

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        dtype: jnp.dtype,
        dropout_key: jax.Array | None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """Map ids [B, L] to [B, L, H] of `dtype`; sum and norm are in float32.

        An id beyond the table gives NaN, not a different word. `positions` [B, L] are below L, those of each token in
        its text; None: each row is one text.
        """
        x = look_up(self.word.table[...], input_ids)
        if self.position is not None:
            x = x + self._positions(self.position.table[...], input_ids, positions, dtype)
        if self.token_type is not None:
            x = x + _token_type_vectors(self.token_type.table[...], token_type_ids)
        x = x if self.norm is None else self.norm(x)
        x = dropout(x.astype(dtype), self.rate, dropout_key)
        return x if self.projection is None else self.projection(x)

    def _positions(
        self, table: jax.Array, input_ids: jax.Array, positions: jax.Array | None, dtype: jnp.dtype
    ) -> jax.Array:
        """Return the vectors of the positions, [B, L, H] or, where all rows have the same ones, [1, L, H]."""
        length = input_ids.shape[1]
        if self.padding_id is None:
            table = table[:length]
            return table[None] if positions is None else position_vectors(table, positions, dtype)
        table = table[self.padding_id : self.padding_id + 1 + length]  # the padding's row, then those of tokens
        if positions is None:
            real = input_ids != self.padding_id
            return position_vectors(table, jnp.cumsum(real, axis=1, dtype=jnp.int32) * real, dtype)
        return position_vectors(table, positions + 1, dtype)


def _token_type_vectors(table: jax.Array, token_type_ids: jax.Array) -> jax.Array:
    """Return the rows of table [types, H] for ids [B, L]: [B, L, H]."""
    # A product, because the gradient of a lookup would scatter every token of the batch into two rows.
    return jnp.einsum(
        "blt,th->blh",
        jax.nn.one_hot(token_type_ids, table.shape[0]),
        table,
        precision=jax.lax.Precision.HIGHEST,
    )


def position_vectors(table: jax.Array, positions: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Return table [R, H] at positions [B, L]: [B, L, H], exactly.

    Its gradient is a product in `dtype`, summed in float32, because that of a lookup would scatter every token of the
    batch into a few hundred rows. The product has as many operations as half of one layer's forward attention core.
    """
    return jnp.asarray(_position_vectors(table, positions, table.shape[0], dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _position_vectors(table: jax.Array, positions: jax.Array, num_rows: int, dtype: jnp.dtype) -> jax.Array:
    del num_rows, dtype
    return jnp.take(table, positions, axis=0)


def _kept_positions(
    table: jax.Array, positions: jax.Array, num_rows: int, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
    return _position_vectors(table, positions, num_rows, dtype), positions


def _position_gradients(
    num_rows: int, dtype: jnp.dtype, positions: jax.Array, gradients: jax.Array
) -> tuple[jax.Array, np.ndarray]:
    rows = jnp.einsum(
        "blp,blh->ph",
        jax.nn.one_hot(positions, num_rows, dtype=dtype),
        gradients.astype(dtype),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return rows, np.zeros(positions.shape, jax.dtypes.float0)


_position_vectors.defvjp(_kept_positions, _position_gradients)

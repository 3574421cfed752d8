"""Embeddings: from token ids to the vectors of the first block, and the other uses of the word table.

The table of absolute positions is learned. It starts from random numbers, or from the sinusoids of Vaswani et al.
2017, section 3.5, at the scale of the random tables.

Look-up and logits take the table [V, H], or copies of it [N, V, H], one for each of N consecutive parts of the batch.
A training step that splits the batch over N devices gives it as copies: each device then adds up the gradients of
both uses by itself, so that they are summed over the devices once, together. `word_losses` goes over the vocabulary
in blocks, so that the logits of one block fit the processor's cache.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.config import EncoderConfig, ModelConfig
from bert_jax.models.layers import (
    Linear,
    Norm,
    dropout,
    for_all_rows,
    make_norm,
    summed_over_rows,
    truncated_normal,
    wide_einsum,
    wide_product,
    wide_product_with_rows,
)

TRUNCATED_STD = 0.87962566  # standard deviation of a unit normal cut at ±2


def random_positions(config: EncoderConfig, key: jax.Array) -> jax.Array:
    """Return a position table [positions, H] drawn like every other table of the model."""
    return truncated_normal(key, (config.max_position_embeddings, config.word_size), config.initializer_range)


def sinusoidal_positions(config: EncoderConfig, key: jax.Array) -> jax.Array:
    """Return sinusoids [positions, H]; nothing is drawn from `key`.

    They are scaled to the root mean square of the random tables (that of sinusoids is √½), or words would drown in
    positions.
    """
    del key
    scale = config.initializer_range * TRUNCATED_STD * math.sqrt(2)
    return scale * sinusoids(config.max_position_embeddings, config.word_size)


def sinusoids(length: int, size: int) -> jax.Array:
    """Return the table [length, size] of Vaswani et al. 2017, section 3.5: sines at even features, cosines at odd."""
    feature = jnp.arange(size, dtype=jnp.float32)[None, :]
    angle = jnp.arange(length, dtype=jnp.float32)[:, None] * 10_000.0 ** (-2 * (feature // 2) / size)
    return jnp.where(feature % 2 == 0, jnp.sin(angle), jnp.cos(angle))


def look_up(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Return the rows at ids [B, L]: [B, L, H]. An id beyond the table gives NaN, not a different word."""
    if table.ndim == 2:
        return jnp.take(table, ids, axis=0)
    parts = ids.reshape(len(table), -1, ids.shape[1])
    rows = jax.vmap(lambda own, ids: jnp.take(own, ids, axis=0))(table, parts)
    return rows.reshape(*ids.shape, table.shape[-1])


def word_logits(x: jax.Array, table: jax.Array) -> jax.Array:
    """Return the products of x [B, M, H] with all rows, computed in the dtype of x: [B, M, V] float32."""
    table = table.astype(x.dtype)
    if table.ndim == 2:
        return wide_einsum("bmh,vh->bmv", x, table)
    parts = x.reshape(len(table), -1, *x.shape[1:])
    logits: jax.Array = wide_einsum("nbmh,nvh->nbmv", parts, table)
    return logits.reshape(*x.shape[:2], table.shape[1])


class Embedding(nnx.Module):
    """A table of vectors [rows, H]."""

    def __init__(self, table: jax.Array):
        self.table: nnx.Param[jax.Array] = nnx.Param(table)


class ValueEmbeddings(nnx.Module):
    """A second table of words [V, values of all heads], and the factors with which layers add its rows to values."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        shape = (config.padded_vocab_size, config.value_size)
        self.table: nnx.Param[jax.Array] = nnx.Param(truncated_normal(key, shape, config.initializer_range))
        self.scale: nnx.Param[jax.Array] = nnx.Param(jnp.ones(len(config.valued_layers), jnp.float32))
        self.layers: tuple[int, ...] = tuple(config.valued_layers)
        self.num_layers: int = config.num_layers
        self.heads: tuple[int, int] = (config.key_heads, config.head_size)

    def __call__(self, input_ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """Return the vectors of the words at ids [B, L]: [B, L, heads of values, D]."""
        return look_up(self.table[...], input_ids).astype(dtype).reshape(*input_ids.shape, *self.heads)

    def factors(self) -> jax.Array:
        """Return float32 [N], the factor of every layer; 0 for those that add nothing."""
        scale, missing = self.scale[...], self.num_layers - len(self.layers)
        return jnp.concatenate([scale[:1], jnp.zeros(missing, jnp.float32), scale[1:]]) if missing else scale


class Embeddings(nnx.Module):
    """word + position + token type → norm → dropout (→ affine map to the width of the layers, if that is another).

    A model with type_vocab_size=0 has no token types, and one without layers, or with embedding_norm=False, no norm.
    `value` are the vectors of words that layers add to their values, if any do.

    `positions` makes the table of absolute positions; None for an architecture whose blocks get positions otherwise.
    Which row of it belongs to a token follows from `Learned.padding_id`.
    """

    def __init__(
        self,
        config: EncoderConfig,
        key: jax.Array,
        positions: Callable[[EncoderConfig, jax.Array], jax.Array] | None,
    ):
        word_key, position_key, token_type_key = jax.random.split(key, 3)
        std, width = config.initializer_range, config.word_size
        self.rate: float = config.hidden_dropout
        self.padding_id: int | None = config.padding_id
        self.word: Embedding = Embedding(truncated_normal(word_key, (config.padded_vocab_size, width), std))
        self.position: Embedding | None = None if positions is None else Embedding(positions(config, position_key))
        types = truncated_normal(token_type_key, (config.type_vocab_size, width), std)
        self.token_type: Embedding | None = Embedding(types) if config.type_vocab_size else None
        self.norm: Norm | None = make_norm(config, width) if config.has_layers and config.embedding_norm else None
        self.value: ValueEmbeddings | None = (
            ValueEmbeddings(config, jax.random.fold_in(key, 1))
            if isinstance(config, ModelConfig) and config.valued_layers
            else None
        )
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
        """Return the vectors of the positions, [B, L, H], or [1, L, H] where all rows have the same ones."""
        length = input_ids.shape[1]
        if self.padding_id is None:
            table = table[:length]
            if positions is None:
                return for_all_rows(table, input_ids.shape[0])
            return position_vectors(table, positions, dtype)
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


BLOCK = 4080  # words; a stride of 4,096 would put the entries of a column into few sets of the processor's cache


def capped(logits: jax.Array, cap: float | None) -> jax.Array:
    """Return cap · tanh(logits / cap), whose size is below the cap; None: the logits as they are."""
    return logits if cap is None else cap * jnp.tanh(logits / cap)


class WordLosses(NamedTuple):
    """Loss and correctness of each prediction, without its logits; all of one shape."""

    losses: jax.Array
    """Float32, in nats: -log of the probability of the label."""
    correct: jax.Array
    """Whether the label is the most likely word; of several, whether it is the first."""
    log_sums: jax.Array | None = None
    """Float32: the logarithm of the sum of exp(logits) of each; None unless asked for."""


def word_losses(
    x: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    labels: jax.Array,
    words: int,
    block: int = BLOCK,
    cap: float | None = None,
    log_sums: bool = False,
) -> WordLosses:
    """Return the losses [N] of predicting `labels` from logits x · tableᵀ + bias, which are float32.

    Operands of the products, also of those of the gradient, have the dtype of x.

    Args:
      x: [N, H].
      table: [V, H].
      bias: [V].
      labels: int32 [N], below `words`.
      words: number of rows of the table that are words; the others are never predicted.
      block: number of words whose logits are one array.
      cap: bound of the logits, as in `capped`; None: they have none.
      log_sums: whether those are returned too, with their gradient.
    """
    blocks = tuple(slice(start, min(start + block, words)) for start in range(0, words, block))

    @jax.custom_vjp
    def losses(x: jax.Array, table: jax.Array, bias: jax.Array) -> WordLosses:
        return forward(x, table, bias)[0]

    def forward(x: jax.Array, table: jax.Array, bias: jax.Array):
        narrow = table.astype(x.dtype)
        logits = [capped(wide_product_with_rows(x, narrow[words]) + bias[None, words], cap) for words in blocks]
        found, log_sum = _against_labels(logits, _places(blocks, labels))
        return found._replace(log_sums=log_sum[:, 0] if log_sums else None), (x, narrow, logits, log_sum)

    def backward(kept: Any, gradients: WordLosses):
        x, narrow, logits, log_sum = kept
        of_x, of_table, of_bias = jnp.zeros(x.shape, jnp.float32), [], []
        for words, part, place in zip(blocks, logits, _places(blocks, labels), strict=True):
            likely = jnp.exp(part - log_sum)
            wrong = (likely - (place == 0)) * gradients.losses[:, None]
            if gradients.log_sums is not None:
                wrong += likely * gradients.log_sums[:, None]
            if cap is not None:
                wrong *= 1 - jnp.square(part / cap)  # the slope of tanh, from its value
            of_bias.append(jnp.sum(wrong, axis=0))
            wrong = wrong.astype(x.dtype)
            of_x += wide_product(wrong, narrow[words])
            of_table.append(summed_over_rows(wrong, x))
        unused = table.shape[0] - blocks[-1].stop
        return (
            of_x.astype(x.dtype),
            jnp.pad(jnp.concatenate(of_table), ((0, unused), (0, 0))),
            jnp.pad(jnp.concatenate(of_bias), (0, unused)),
        )

    losses.defvjp(forward, backward)
    return losses(x, table, bias)


def _places(blocks: Sequence[slice], labels: jax.Array) -> list[jax.Array]:
    """Return, for each block, by how many words each of its words comes after the label: [N, words of the block]."""
    return [
        jax.lax.broadcasted_iota(labels.dtype, (len(labels), words.stop - words.start), 1)
        + (words.start - labels)[:, None]
        for words in blocks
    ]


def _against_labels(logits: list[jax.Array], places: list[jax.Array]) -> tuple[WordLosses, jax.Array]:
    """Return the losses [N], and the logarithm of the sum of exp(logits), [N, 1]."""
    own = sum(_own(part, place) for part, place in zip(logits, places, strict=True))
    largest = jnp.max(jnp.stack([jnp.max(part, axis=1, keepdims=True) for part in logits]), axis=0)
    log_sum = largest + jnp.log(sum(jnp.sum(jnp.exp(part - largest), axis=1, keepdims=True) for part in logits))
    # argmax(logits) == label, written without argmax, which is slow on CPU, as are sums of truth values.
    before = [
        jnp.max(jnp.where(place < 0, part, -jnp.inf), axis=1, keepdims=True)
        for part, place in zip(logits, places, strict=True)
    ]
    correct = (own == largest) & (jnp.max(jnp.stack(before), axis=0) < own)
    return WordLosses((log_sum - own)[:, 0], correct[:, 0]), log_sum


def _own(part: jax.Array, place: jax.Array) -> jax.Array:
    """Return the label's logit [N, 1] from one block, 0 where the label is a word of another block."""
    at = -place[:, :1]  # of the label, counted from the first word of the block
    found = jnp.take_along_axis(part, jnp.clip(at, 0, part.shape[1] - 1), axis=1)
    return jnp.where((at >= 0) & (at < part.shape[1]), found, 0.0)

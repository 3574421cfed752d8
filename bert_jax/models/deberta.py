"""DeBERTa: disentangled attention, the enhanced mask decoder, and the convolution of DeBERTa-v2.

Disentangled attention (He et al. 2021) scores content with relative positions, in both directions. The decoder
(section 3.2) brings absolute positions to masked words. The convolution, on the first layer of the two larger
DeBERTa-v2 models, learns n-grams of pieces.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from bert_jax.config import EncoderConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.models.embeddings import Embedding, position_vectors
from bert_jax.models.kernels.plain import AttentionKernel, AttentionMask
from bert_jax.models.layers import (
    LayerNorm,
    Linear,
    Norm,
    PackedTexts,
    dropout,
    make_norm,
    truncated_normal,
    wide_einsum,
)
from bert_jax.models.stack import Layer, Stack, with_remat


def neighbours(x: jax.Array, mask: AttentionMask, width: int) -> jax.Array:
    """Return [B, L, W, H]: what is around each position of x [B, L, H], from the left to the right.

    Beyond the ends of a text there are zeros: padding, and tokens of another text of the row, are not seen.
    """
    length = x.shape[1]

    def around(values: jax.Array) -> jax.Array:
        edges = ((0, 0), (width // 2, width // 2), *((0, 0),) * (values.ndim - 2))
        padded = jnp.pad(values, edges)
        return jnp.stack([padded[:, place : place + length] for place in range(width)], axis=2)

    seen = around(mask.padding > 0)
    if mask.segments is not None:
        seen &= around(mask.segments) == mask.segments[:, :, None]
    return around(x) * seen[..., None].astype(x.dtype)


class Convolution(nnx.Module):
    """norm(states + activation(dropout(convolution of the embeddings))), with one output per feature."""

    def __init__(self, config: ModelConfig, key: jax.Array, activation: Callable[[jax.Array], jax.Array]):
        hidden = (config.hidden_size,)
        assert config.convolution is not None  # or the architecture would not make it
        self.width: int = config.convolution.convolution_width
        self.rate: float = config.hidden_dropout
        self.activation: Callable[[jax.Array], jax.Array] = activation
        inputs = (self.width, *hidden)
        self.dense: Linear = Linear(inputs, hidden, config.initializer_range, key, config.use_bias)
        self.norm: Norm = make_norm(config, config.hidden_size)

    def __call__(
        self, embedded: jax.Array, states: jax.Array, mask: AttentionMask, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Return [B, L, H] from what entered the first layer and what left it, both [B, L, H]."""
        y = checkpoint_name(self.dense(neighbours(embedded, mask, self.width)), "convolution")
        return self.norm(states + self.activation(dropout(y, self.rate, dropout_key)))


def relative_rows(distances: np.ndarray, max_distance: int, buckets: int | None) -> np.ndarray:
    """Return int […]: the row of the table for distances, query minus key.

    Row R is that of distance 0. With B buckets, distances up to B/2 have a row each; a longer one has bucket
    B/2 + ⌈(B/2 - 1) · log(distance / (B/2)) / log((max_distance - 1) / (B/2))⌉, cut at the ends of the table.
    """
    if buckets is None:
        return np.clip(distances + max_distance, 0, 2 * max_distance - 1)
    near = buckets // 2
    far = np.maximum(np.abs(distances), near)
    share = np.log(far / near) / np.log((max_distance - 1) / near)
    wide = np.sign(distances) * (near + np.ceil(share * (near - 1)).astype(int))
    return np.clip(np.where(far == near, distances, wide) + buckets, 0, 2 * buckets - 1)


def rows_of_distances(length: int, row: Callable[[np.ndarray], np.ndarray], reach: int) -> np.ndarray | jax.Array:
    """Return int [2L - 1]: the row of a table for each of the distances -(L - 1) … L - 1.

    Args:
      length: L, a number or, where a program is exported for rows of any length, a symbol.
      row: maps distances to rows.
      reach: distance from which on all have one row, on either side.
    """
    if isinstance(length, int):
        return row(np.arange(1 - length, length))
    distances = jnp.clip(jnp.arange(1 - length, length, dtype=jnp.int32), -reach, reach)
    return jnp.asarray(row(np.arange(-reach, reach + 1)), jnp.int32)[distances + reach]


def along_diagonals(scores: jax.Array) -> jax.Array:
    """Return [B, A, L, L] whose entry (i, j) is scores [B, A, L, 2L - 1] at (i, j - i + L - 1).

    It is a pad, a cut and two changes of shape, and so is its gradient: neither gathers nor scatters.
    """
    batch, heads, length, _ = scores.shape
    flat = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (0, 1))).reshape(batch, heads, 2 * length * length)
    flat = flat[:, :, length - 1 : length - 1 + length * (2 * length - 1)]
    return flat.reshape(batch, heads, length, 2 * length - 1)[..., :length]


class RelativePositions(nnx.Module):
    """The table of relative positions [2R, H], which all layers read, and its norm."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        options, hidden = config.disentangled, config.hidden_size
        assert options is not None  # or `Block` would not make it
        self.max_distance: int = options.max_distance
        self.buckets: int | None = options.buckets
        self.table: nnx.Param[jax.Array] = nnx.Param(
            truncated_normal(key, (2 * options.reach, hidden), config.initializer_range)
        )
        self.norm: LayerNorm | None = LayerNorm(hidden, config.layer_norm_epsilon) if options.table_norm else None

    def used(self, length: int) -> tuple[jax.Array, jax.Array]:
        """Return the rows that rows of `length` tokens use, float32 [P, H], and int32 [2L - 1]: which of them.

        The latter has the place of query minus key = -(L - 1) … L - 1.
        """
        row = functools.partial(relative_rows, max_distance=self.max_distance, buckets=self.buckets)
        rows, table = rows_of_distances(length, row, self.max_distance), self.table[...]
        if isinstance(rows, np.ndarray):
            table, rows = table[rows[0] : rows[-1] + 1], rows - rows[0]
        return table if self.norm is None else self.norm(table), jnp.asarray(rows, jnp.int32)


class DisentangledAttention(nnx.Module):
    """Multi-head self-attention whose scores depend on relative positions; attribute names as in `SelfAttention`.

    The terms of relative positions are added to the scores as a bias [B, A, L, L] that depends on queries and keys, so
    only a kernel that takes such a bias can follow. While a layer is computed they need 2·A·L·2L values per sequence
    and term; nothing quadratic is kept of them for the backward pass.
    """

    def __init__(self, config: ModelConfig, key: jax.Array):
        options = config.disentangled
        assert options is not None  # or `Block` would not make it
        hidden, heads, std = (config.hidden_size,), (config.num_heads, config.head_size), config.initializer_range
        keys = jax.random.split(key, 6)
        self.rate: float = config.attention_dropout
        self.table_rate: float = config.hidden_dropout
        self.count: int = options.count
        self.c2p: bool = options.c2p
        self.p2c: bool = options.p2c
        self.query: Linear = Linear(hidden, heads, std, keys[0])
        self.key: Linear = Linear(hidden, heads, std, keys[1], options.key_bias)
        self.value: Linear = Linear(hidden, heads, std, keys[2])
        self.output: Linear = Linear(heads, hidden, config.output_range, keys[3])
        own = not options.shared_projections
        self.position_key: Linear | None = (
            Linear(hidden, heads, std, keys[4], options.key_bias) if own and self.c2p else None
        )
        self.position_query: Linear | None = Linear(hidden, heads, std, keys[5]) if own and self.p2c else None

    def __call__(
        self,
        x: jax.Array,
        mask: AttentionMask,
        dropout_key: jax.Array | None,
        attend: AttentionKernel,
        collect: bool,
        relative: RelativePositions,
        queries: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Return the output [B, L, H] for x [B, L, H], and the probabilities [B, A, L, L] if `collect`, else None.

        Queries are made of `queries` [B, L, H], if given, instead of x.
        """
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        query = checkpoint_name(self.query(x if queries is None else queries), "query") * self.count**-0.5
        key, value = checkpoint_name(self.key(x), "key"), checkpoint_name(self.value(x), "value")
        bias = self._position_scores(query, key, relative, keys[1])
        mask = dataclasses.replace(mask, bias=bias if mask.bias is None else mask.bias + bias)
        context, weights = attend(query, key, value, mask, keys[0], self.rate, collect)
        return self.output(context), weights

    def _position_scores(
        self, query: jax.Array, key: jax.Array, relative: RelativePositions, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Return the sum of both terms, float32 [B, A, L, L], for scaled queries and keys [B, L, A, D]."""
        table, places = relative.used(query.shape[1])
        table = dropout(table.astype(query.dtype), self.table_rate, dropout_key)[None]
        total = jnp.zeros((), jnp.float32)
        if self.c2p:
            of_keys = _by_distance((self.position_key or self.key)(table), places[::-1])
            total = along_diagonals(_products(query, of_keys))
        if self.p2c:
            of_queries = _by_distance((self.position_query or self.query)(table), places) * self.count**-0.5
            total = total + jnp.swapaxes(along_diagonals(_products(key, of_queries)), 2, 3)
        return total * query.shape[-1] ** -0.5


def _by_distance(rows: jax.Array, places: jax.Array) -> jax.Array:
    """Return rows [1, P, A, D] at places [2L - 1]: [2L - 1, A, D]."""
    flat = rows.reshape(rows.shape[1], -1)
    return position_vectors(flat, places[None], rows.dtype)[0].reshape(-1, *rows.shape[2:])


def _products(content: jax.Array, positions: jax.Array) -> jax.Array:
    """Return the products of content [B, L, A, D] with positions [2L - 1, A, D]: float32 [B, A, L, 2L - 1]."""
    return wide_einsum("blad,pad->balp", content, positions)


PASSES = 2


class MaskDecoder(nnx.Module):
    """Two passes of the encoder's last layer with queries of their own, and a table of absolute positions.

    In both, keys and values are the states that enter the last layer. The queries of the first are those states plus
    the absolute positions, and the queries of the second are the output of the first, as in the published code.
    """

    def __init__(self, config: EncoderConfig, key: jax.Array):
        rows = (config.max_position_embeddings, config.hidden_size)
        self.position: Embedding = Embedding(truncated_normal(key, rows, config.initializer_range))

    def __call__(
        self,
        stack: Stack,
        block: Layer,
        x: jax.Array,
        mask: AttentionMask,
        dropout_key: jax.Array | None,
        texts: PackedTexts | None,
    ) -> jax.Array:
        """Return what the head for masked words reads, [B, L, H].

        Args:
          block: the last layer.
          x: the states that enter it, [B, L, H].
          dropout_key: None for no dropout.
          texts: where positions restart; None: each row is one text.
        """
        keys = (None,) * PASSES if dropout_key is None else jax.random.split(dropout_key, PASSES)
        arguments = stack.arguments(stack.num_layers - 1)

        def look(queries: jax.Array, key: jax.Array | None, block: Layer, x: jax.Array) -> jax.Array:
            return block(x, mask, key, stack.attend, False, queries=queries, **arguments)[0]

        look = with_remat(look, stack.remat, scanned=False)
        table = self.position.table[...]
        if texts is None and x.shape[1] > len(table):
            raise UserError(
                f"a sequence of {x.shape[1]} tokens is longer than the table of the enhanced mask decoder, which has "
                f"model.max_position_embeddings={len(table)} rows; cut it to so many tokens"
            )
        if texts is None:
            positions = table[None, : x.shape[1]]
        else:
            positions = position_vectors(table[: x.shape[1]], texts.positions(), x.dtype)
        queries = x + positions.astype(x.dtype)
        for key in keys:
            queries = look(queries, key, block, x)
        return queries

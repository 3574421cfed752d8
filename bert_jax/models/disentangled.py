"""Disentangled attention (He et al. 2021): scores of content with relative positions, in both directions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from bert_jax.config import ModelConfig
from bert_jax.models.embeddings import position_vectors
from bert_jax.models.kernels.contract import AttentionKernel, AttentionMask
from bert_jax.models.layers import Linear, dropout, truncated_normal
from bert_jax.models.norms import LayerNorm
from bert_jax.models.products import wide_einsum


def relative_rows(length: int, max_distance: int, buckets: int | None) -> np.ndarray:
    """Return int [2L - 1]: the row of the table for query minus key = -(L - 1) … L - 1.

    Row R is that of distance 0. With B buckets, distances up to B/2 have a row each; a longer one has bucket
    B/2 + ⌈(B/2 - 1) · log(distance / (B/2)) / log((max_distance - 1) / (B/2))⌉, cut at the ends of the table.
    """
    distances = np.arange(1 - length, length)
    if buckets is None:
        return np.clip(distances + max_distance, 0, 2 * max_distance - 1)
    near = buckets // 2
    far = np.maximum(np.abs(distances), near)
    share = np.log(far / near) / np.log((max_distance - 1) / near)
    wide = np.sign(distances) * (near + np.ceil(share * (near - 1)).astype(int))
    return np.clip(np.where(far == near, distances, wide) + buckets, 0, 2 * buckets - 1)


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
        rows = relative_rows(length, self.max_distance, self.buckets)
        table = self.table[...][rows[0] : rows[-1] + 1]
        return table if self.norm is None else self.norm(table), jnp.asarray(rows - rows[0], jnp.int32)


class DisentangledAttention(nnx.Module):
    """Multi-head self-attention whose scores depend on relative positions; attribute names as in `SelfAttention`.

    The terms of relative positions are added to the scores as a bias [B, A, L, L] that depends on queries and keys, so
    only a kernel that takes such a bias can follow. While a layer is computed they need 2·A·L·2L values per sequence
    and term; nothing quadratic is kept of them for the backward pass.
    """

    def __init__(self, config: ModelConfig, key: jax.Array):
        options = config.disentangled
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

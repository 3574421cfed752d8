"""The Transformer block: self-attention around a kernel, feed-forward networks, and relative positions.

The feed-forward network is plain or gated. Positions that enter inside attention turn queries and keys (RoPE), lower
scores with distance (ALiBi), add to them what is learned for a distance, or hide the tokens after a token from it. They
depend on distances alone, so a text in a packed row is computed as if it were alone, without restarting positions, and
no length needs a table.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from bert_jax.config import AttentionConfig, LearnedBias, ModelConfig, Rope
from bert_jax.models.deberta import (
    Convolution,
    DisentangledAttention,
    RelativePositions,
    along_diagonals,
    rows_of_distances,
)
from bert_jax.models.embeddings import position_vectors
from bert_jax.models.kernels.plain import MASKED_SCORE, AttentionKernel, AttentionMask, gated
from bert_jax.models.layers import Linear, Norm, RmsNorm, dropout, like, make_norm, truncated_normal


class FeedForward(nnx.Module):
    """Two affine maps with an activation between them: H → intermediate size → H."""

    def __init__(self, config: AttentionConfig, key: jax.Array, activation: Callable[[jax.Array], jax.Array]):
        hidden, wide = (config.hidden_size,), (config.feed_forward_size,)
        intermediate_key, output_key = jax.random.split(key)
        self.activation = activation
        self.intermediate: Linear = Linear(
            hidden, wide, config.initializer_range, intermediate_key, config.layers_have_bias
        )
        self.output: Linear = Linear(wide, hidden, config.output_range, output_key, config.layers_have_bias)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map x [..., H] to [..., H]."""
        return self.output(self.activation(checkpoint_name(self.intermediate(x), "intermediate")))


class GatedFeedForward(nnx.Module):
    """activation(gate(x)) ⊙ intermediate(x) → output: H → intermediate size → H (Shazeer 2020).

    Two matrices, not one of twice the width, so that both are split alike over devices.
    """

    def __init__(self, config: AttentionConfig, key: jax.Array, gated: Callable[[jax.Array, jax.Array], jax.Array]):
        """Make the network; `gated` maps the products of the gate and of the intermediate matrix to their product."""
        hidden, wide = (config.hidden_size,), (config.feed_forward_size,)
        gate_key, intermediate_key, output_key = jax.random.split(key, 3)
        self.gated = gated
        self.gate: Linear = Linear(hidden, wide, config.initializer_range, gate_key, config.layers_have_bias)
        self.intermediate: Linear = Linear(
            hidden, wide, config.initializer_range, intermediate_key, config.layers_have_bias
        )
        self.output: Linear = Linear(wide, hidden, config.output_range, output_key, config.layers_have_bias)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map x [..., H] to [..., H]."""
        gate, values = checkpoint_name(self.gate(x), "gate"), checkpoint_name(self.intermediate(x), "intermediate")
        return self.output(self.gated(gate, values))


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotary position embedding (Su et al. 2021) of one layer.

    Features i and i + D/2 of a head of even size D are turned by the angle position · `rotary_frequencies` i.
    """

    rope: Rope

    def turned(self, x: jax.Array, length: int, positions: jax.Array | None = None) -> jax.Array:
        """Return queries or keys [B, M, A, D], turned by their positions; computed in float32, in the dtype of x.

        `positions` are int32 [B, M], of rows of `length` tokens; None: 0, 1, 2, ….
        """
        sine, cosine = self._waves(jnp.arange(length)[None] if positions is None else positions, length, x.shape[3])
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
        return turned.astype(x.dtype)

    def _waves(self, positions: jax.Array, length: int, size: int) -> tuple[jax.Array, jax.Array]:
        """Return sines and cosines [B, M, 1, D/2] for positions [B, M], times the amplitude."""
        frequencies = jnp.asarray(rotary_frequencies(self.rope, length, size))
        angles = positions.astype(jnp.float32)[:, :, None, None] * frequencies[None, None, None, :]
        waves = jnp.sin(angles), jnp.cos(angles)
        amplitude = self.rope.amplitude
        return waves if amplitude == 1 else (amplitude * waves[0], amplitude * waves[1])


def rotary_frequencies(rope: Rope, length: int, size: int) -> np.ndarray | jax.Array:
    """Return float32 [D/2]: theta^(-2i/D), scaled for sequences longer than the model was trained on.

    Args:
      rope: the base, and how it is scaled.
      length: tokens of a row, on which the frequencies of rope_scaling=dynamic depend; a number, or a symbol, with
        which they are computed when the program runs.
      size: D, even.
    """
    theta, scale, trained = rope.rope_theta, rope.rope_scale, rope.rope_trained_length
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    if rope.rope_scaling == "dynamic" and trained is not None:
        known = isinstance(length, int)
        longer = max(length, trained) / trained if known else jnp.maximum(jnp.asarray(length), trained) / trained
        theta *= (scale * longer - (scale - 1)) ** (size / (size - 2))
        if not known:
            return jnp.float32(1) / (jnp.asarray(theta, jnp.float32) ** exponents)
    frequencies = np.float32(1) / (np.float32(theta) ** exponents)
    if rope.rope_scaling == "linear":
        return frequencies / np.float32(scale)
    if rope.rope_scaling == "yarn" and trained is not None:
        stretched = _stretched_share(rope, trained, size)
        return frequencies / np.float32(scale) * stretched + frequencies * (1 - stretched)
    return frequencies


def _stretched_share(rope: Rope, trained: int, size: int) -> np.ndarray:
    """Return float32 [D/2]: how far yarn stretches each wavelength, from 0 for short ones to 1 for long ones."""

    def feature(turns: float) -> float:
        """Number, in pairs, of the wavelength that makes so many turns within the trained length."""
        return size * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(rope.rope_theta))

    first = max(math.floor(feature(rope.rope_beta_fast)), 0)
    last = min(math.ceil(feature(rope.rope_beta_slow)), size - 1)
    width = last - first if last != first else 0.001
    return np.clip((np.arange(size // 2, dtype=np.float32) - first) / np.float32(width), 0, 1)


def alibi_bias(heads: int, distance: jax.Array) -> jax.Array:
    """Return what ALiBi adds to the scores, float32 [A, …] for distances […]: -slope of the head · distance."""
    slopes = alibi_slopes(heads).reshape(heads, *(1,) * distance.ndim)
    return -jnp.asarray(slopes) * jnp.abs(distance).astype(jnp.float32)[None]


def causal_bias(distance: jax.Array) -> jax.Array:
    """Return what hides the tokens after a token from it: float32 [1, …] for distances […], 0 or MASKED_SCORE."""
    return jnp.where(distance > 0, MASKED_SCORE, 0.0)[None]


def alibi_slopes(heads: int) -> np.ndarray:
    """Return float32 [A]: 2^(-8/n), 2^(-16/n), … for n heads (Press et al. 2022).

    If n is not a power of two, the slopes of the next lower power come first, then every other one of the next higher,
    as in the published code.
    """
    lower = 2 ** math.floor(math.log2(heads))
    slopes = _powers(lower) + _powers(2 * lower)[::2][: heads - lower]
    return np.asarray(slopes, np.float32)


def _powers(count: int) -> list[float]:
    return [2.0 ** (-8 * (number + 1) / count) for number in range(count)]


def bucket_of_distance(distance: np.ndarray, buckets: int, max_distance: int) -> np.ndarray:
    """Return int […]: the row of a table of learned biases for distances […], the place of the key less the query's.

    With B rows, keys up to the query have the first half. Of it, distances below n = ⌊B/4⌋ have a row each, and a
    longer one has row n + ⌊(B/2 − n) · log(distance / n) / log(max_distance / n)⌋, cut at the end of the half.
    """
    half, near = buckets // 2, buckets // 4
    far = np.maximum(np.abs(distance), near)
    share = np.log(far / near) / np.log(max_distance / near)
    wide = near + np.floor(share * (half - near) + 1e-9).astype(int)  # powers are exact, whoever rounds the logarithm
    return np.where(far == near, np.abs(distance), np.minimum(wide, half - 1)) + half * (distance > 0)


class BiasTable(nnx.Module):
    """What all layers add to their scores by distance, learned: [buckets, A]."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        assert config.relative_bias is not None  # or `Block` would not make it
        self.options: LearnedBias = config.relative_bias
        shape = (self.options.bias_buckets, config.num_heads)
        self.table: nnx.Param[jax.Array] = nnx.Param(truncated_normal(key, shape, config.initializer_range))

    def __call__(self, length: int) -> jax.Array:
        """Return the bias of the scores in rows of `length` tokens, float32 [1, A, L, L]."""
        table, options = self.table[...], self.options
        buckets, reach = options.bias_buckets, options.bias_max_distance
        row = functools.partial(bucket_of_distance, buckets=buckets, max_distance=reach)
        rows = jnp.asarray(rows_of_distances(length, row, reach)[None])
        by_distance = position_vectors(table, rows, table.dtype)  # [1, 2L - 1, A]
        of_queries = jnp.swapaxes(by_distance, 1, 2)[:, :, None]
        return along_diagonals(jnp.broadcast_to(of_queries, (1, table.shape[1], length, 2 * length - 1)))


class SelfAttention(nnx.Module):
    """Projections to queries, keys and values of A heads of size D = H / A, attention, and the projection back.

    With fewer heads of keys and values, each is that of A / fewer neighbouring heads of queries. With norms of queries
    and keys, all heads have one scale [D].
    """

    def __init__(self, config: ModelConfig, key: jax.Array):
        hidden, heads = (config.hidden_size,), (config.num_heads, config.head_size)
        shared = (config.key_heads, config.head_size)
        query_key, key_key, value_key, output_key = jax.random.split(key, 4)
        self.rate: float = config.attention_dropout
        self.group: int = config.num_heads // config.key_heads
        self.query: Linear = Linear(hidden, heads, config.initializer_range, query_key, config.layers_have_bias)
        self.key: Linear = Linear(hidden, shared, config.initializer_range, key_key, config.layers_have_bias)
        self.value: Linear = Linear(hidden, shared, config.initializer_range, value_key, config.layers_have_bias)
        self.output: Linear = Linear(heads, hidden, config.output_range, output_key, config.layers_have_bias)
        fresh = lambda: RmsNorm(config.head_size, config.layer_norm_epsilon) if config.query_key_norm else None
        self.query_norm: RmsNorm | None = fresh()
        self.key_norm: RmsNorm | None = fresh()

    def __call__(
        self,
        x: jax.Array,
        mask: AttentionMask,
        dropout_key: jax.Array | None,
        attend: AttentionKernel,
        collect: bool,
        rotary: Rotary | None = None,
        queries: jax.Array | None = None,
        added_values: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Return the output [B, L, H] for x [B, L, H], and the probabilities [B, A, L, L] if `collect`, else None.

        `rotary` turns queries and keys by their positions before the kernel sees them. `queries` [B, M, H] are the
        states at mask.queries, for which alone the output is computed: [B, M, H]. `added_values` are as values are
        before each group of queries has its own.
        """
        query = checkpoint_name(self.query(x if queries is None else queries), "query")
        key, value = checkpoint_name(self.key(x), "key"), checkpoint_name(self.value(x), "value")
        value = value if added_values is None else value + added_values
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if rotary is not None:
            length = x.shape[1]
            query, key = rotary.turned(query, length, mask.queries), rotary.turned(key, length)
        if self.group > 1:
            key, value = (jnp.repeat(each, self.group, axis=2) for each in (key, value))
        context, weights = attend(query, key, value, mask, dropout_key, self.rate, collect)
        return self.output(context), weights


class Block(nnx.Module):
    """Attention and a feed-forward network, each inside a residual connection with dropout.

    post (BERT): x = norm(x + f(x)).  pre: x = x + f(norm(x)).  `feed_forward` makes the network from a key, and so does
    `convolution` what follows the first layer, if anything does.
    """

    def __init__(
        self,
        config: ModelConfig,
        key: jax.Array,
        feed_forward: Callable[[jax.Array], Callable[[jax.Array], jax.Array]],
        convolution: Callable[[jax.Array], Convolution] | None = None,
    ):
        attention_key, feed_forward_key = jax.random.split(key)
        self.rate: float = config.hidden_dropout
        self.pre_norm: bool = config.norm_position == "pre"
        disentangled = config.disentangled is not None
        self.relative: RelativePositions | None = (
            RelativePositions(config, jax.random.fold_in(key, 0)) if disentangled else None
        )
        self.relative_bias: BiasTable | None = (
            None if config.relative_bias is None else BiasTable(config, jax.random.fold_in(key, 1))
        )
        attention = DisentangledAttention if disentangled else SelfAttention
        self.attention: Callable[..., tuple[jax.Array, jax.Array | None]] = attention(config, attention_key)
        self.attention_norm: Norm = make_norm(config, config.hidden_size)
        self.feed_forward: Callable[[jax.Array], jax.Array] = feed_forward(feed_forward_key)
        self.feed_forward_norm: Norm = make_norm(config, config.hidden_size)
        self.convolution: Convolution | None = None if convolution is None else convolution(jax.random.fold_in(key, 2))

    def __call__(
        self,
        x: jax.Array,
        mask: AttentionMask,
        dropout_key: jax.Array | None,
        attend: AttentionKernel,
        collect: bool,
        *,
        window: int | None = None,
        rotary: Rotary | None = None,
        attention_norm: bool = True,
        convolved: bool = False,
        queries: jax.Array | None = None,
        head_gates: jax.Array | None = None,
        word_values: jax.Array | None = None,
        value_factor: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Map x [B, L, H] to (x [B, L, H], attention probabilities [B, A, L, L] if `collect`, else None).

        Args:
          x: states of the layer below.
          mask: who sees whom.
          dropout_key: None for no dropout.
          window: tokens to either side that this layer sees; None: those of `mask`.
          rotary: how this layer turns queries and keys.
          attention_norm: with pre-norm, whether this layer has one before its attention.
          convolved: whether the convolution follows, for which x are the embeddings.
          queries: [B, M, H], the states that go through the layer in place of x, which gives keys and values only;
            mask.queries are their positions. With disentangled attention and post-norm, [B, L, H] of all positions.
          head_gates: [A], factors of what each head adds; None: nothing is multiplied.
          word_values: [B, L, heads of values, D], vectors of the words, which are added to the values of its attention.
          value_factor: [], the factor with which they are.
        """
        keys = (None,) * 3 if dropout_key is None else jax.random.split(dropout_key, 3)
        mask = mask if window is None else dataclasses.replace(mask, window=window)
        norm = self.attention_norm if self.pre_norm and attention_norm else lambda states: states
        y, more = norm(x), {} if queries is None else {"queries": norm(queries)}
        if word_values is not None and value_factor is not None:
            more["added_values"] = like(value_factor, word_values) * word_values
        positions = rotary if self.relative is None else self.relative
        if self.relative_bias is not None:
            bias = self.relative_bias(x.shape[1])
            mask = dataclasses.replace(mask, bias=bias if mask.bias is None else mask.bias + bias)
        attend = gated(attend, head_gates)
        y, weights = self.attention(y, mask, keys[0], attend, collect, positions, **more)
        entered = x
        rows = mask.queries, x.shape[1]
        x = x if queries is None else queries
        x = checkpoint_name(x + dropout(y, self.rate, keys[1], *rows), "attention_sum")
        x = x if self.pre_norm else self.attention_norm(x)
        y = self.feed_forward(self.feed_forward_norm(x) if self.pre_norm else x)
        x = checkpoint_name(x + dropout(y, self.rate, keys[2], *rows), "feed_forward_sum")
        x = x if self.pre_norm else self.feed_forward_norm(x)
        if convolved:
            assert self.convolution is not None, "asked for where there is one"
            key = None if dropout_key is None else jax.random.fold_in(dropout_key, 3)  # none of the three above
            x = self.convolution(entered, x, mask, key)
        return x, weights

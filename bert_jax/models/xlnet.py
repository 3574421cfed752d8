"""XLNet (Yang et al. 2019): orders of prediction, embeddings, and two-stream attention with its block.

Scores are those of content, distance and segments (Dai et al. 2019). The states of a row are those of its L tokens
and, in pre-training, those of M targets after them: the content stream h and the query stream g of the paper. Both
have the same parameters, and see the states of tokens only: those of the K keys, which are the row's own and, before
them, those of a memory (`with_memory` in models/bert.py). `Permutation` has the order in which tokens are predicted,
and who sees whom under it (section 2.2).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from bert_jax.config import XLNetConfig
from bert_jax.models.embeddings import Embedding, look_up
from bert_jax.models.kernels.plain import MASKED_SCORE, AttentionKernel, AttentionMask, gated
from bert_jax.models.layers import (
    Linear,
    Norm,
    dropout,
    gather_positions,
    like,
    make_norm,
    truncated_normal,
    wide_einsum,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Permutation:
    """The factorisation order of B rows, and which M of their positions are predicted."""

    order: jax.Array
    """int32 [B, L]: place of each token in the order. Tokens of one place see each other, as all those of place 0 do,
    which are given; each target has a place of its own, from 1."""
    targets: jax.Array
    """int32 [B, M]: the positions that are predicted. Unused slots hold any position; what they give counts nothing."""

    @classmethod
    def of(cls, batch: dict[str, jax.Array]) -> "Permutation":
        """Return that of a batch of `data.masking.Permutations`."""
        return cls(batch["order"], batch["masked_positions"])

    @classmethod
    def hiding(cls, positions: jax.Array, length: int) -> "Permutation":
        """Return the one in which all of positions [B, M] are predicted from the others of a row, none from another."""
        rows = jnp.arange(positions.shape[0], dtype=positions.dtype)[:, None]
        return cls(jnp.zeros((positions.shape[0], length), jnp.int32).at[rows, positions].set(1), positions)

    @property
    def states(self) -> jax.Array:
        """int32 [B, M]: where the states are that predict the targets, after those of the tokens."""
        places = self.order.shape[1] + jnp.arange(self.targets.shape[1], dtype=jnp.int32)
        return jnp.broadcast_to(places, self.targets.shape)

    def seen_by_tokens(self) -> jax.Array:
        """Return bool [B, L, L]: whether the state of a token, which knows the token itself, sees the other one."""
        return self.order[:, None, :] <= self.order[:, :, None]

    def seen_by_targets(self) -> jax.Array:
        """Return bool [B, M, L]: whether the state that predicts a target, and must not know it, sees the token."""
        return self.order[:, None, :] < self.at_targets(self.order)[:, :, None]

    def at_targets(self, values: jax.Array) -> jax.Array:
        """Return values [B, L] at the targets: [B, M]."""
        return gather_positions(values[:, :, None], self.targets)[:, :, 0]


def hidden_unless(seen: jax.Array) -> jax.Array:
    """Return what is added to the scores of every head for `seen` [B, Q, L]: float32 [B, 1, Q, L]."""
    return jnp.where(seen, 0.0, MASKED_SCORE)[:, None]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Relations:
    """Facts about the tokens that every layer knows in addition to their states."""

    mask: AttentionMask
    """Keys, of K, that any query may attend to."""
    distances: jax.Array
    """[L + K, H]: an encoding of every distance, from K down to 1 - L."""
    token_types: jax.Array
    """[B, L]: the segments; only whether two tokens have the same one counts."""
    permutation: Permutation | None = None
    """Order of sight in pre-training, and the targets that have a state; None: everybody everybody, and none."""

    @classmethod
    def of(
        cls,
        size: int,
        mask: AttentionMask,
        token_types: jax.Array,
        permutation: Permutation | None,
        remembered: int = 0,
    ) -> "Relations":
        """Return those of a batch for layers of `size` features, which also see `remembered` states."""
        encodings = distance_encodings(token_types.shape[1], remembered, size)
        found = cls(mask, encodings, token_types, permutation)
        if not remembered:
            return found
        bias = None if mask.bias is None else found.of_keys(mask.bias, 0.0)
        mask = dataclasses.replace(mask, padding=found.of_keys(mask.padding, 1), bias=bias)
        return dataclasses.replace(found, mask=mask)

    def of_keys(self, values: jax.Array, remembered: Any) -> jax.Array:
        """Return [..., K] from values [..., L] of the tokens and one value for all that is remembered."""
        before = self.distances.shape[0] - 2 * self.token_types.shape[1]
        sides = [(0, 0)] * (values.ndim - 1) + [(before, 0)]
        return jnp.pad(values, sides, constant_values=remembered) if before else values


def distance_encodings(length: int, remembered: int, size: int) -> jax.Array:
    """Return float32 [L + K, size]: sines, then cosines, of the distances K, K - 1, …, 1 - L of a query from a key.

    Those of L tokens from K keys, which are `remembered` states and the tokens, are from K - 1 to 1 - L; the first row
    is for `shifted`.
    """
    frequencies = 10_000.0 ** (-jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    distances = jnp.arange(remembered + length, -length, -1, dtype=jnp.float32)
    angles = distances[:, None] * frequencies[None, :]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)


def shifted(scores: jax.Array) -> jax.Array:
    """Return [..., L, K] with entry (i, j) = scores[..., i, L - i + j], from scores [..., L, L + K] by distance.

    Without its first L entries, a matrix with rows of L + K is, read in rows of L + K - 1, the one whose rows are
    shifted (Dai et al. 2019, appendix B): nothing is gathered, and odd lengths are as exact as even ones.
    """
    *batch, length, width = scores.shape
    moved = scores.reshape(*batch, width * length)[..., length:]
    return moved.reshape(*batch, length, width - 1)[..., : width - length]


class RelativeAttention(nnx.Module):
    """Attention with scores (q + u)·k + (q + v)·r + (q + s)·e, divided by √D.

    For q = x·W_q, k = y·W_k of a token y, r = R·W_r of its distance, and e one of two vectors for tokens of the same
    segment and of different ones; u, v and s are biases of each head. The affine maps have none.
    """

    def __init__(self, config: XLNetConfig, key: jax.Array):
        hidden, heads, std = (config.hidden_size,), (config.num_heads, config.head_size), config.initializer_range
        keys = jax.random.split(key, 9)
        self.rate: float = config.attention_dropout
        self.query: Linear = Linear(hidden, heads, std, keys[0], False)
        self.key: Linear = Linear(hidden, heads, std, keys[1], False)
        self.value: Linear = Linear(hidden, heads, std, keys[2], False)
        self.distance: Linear = Linear(hidden, heads, std, keys[3], False)
        self.output: Linear = Linear(heads, hidden, config.output_range, keys[4], False)
        self.content_bias: nnx.Param[jax.Array] = nnx.Param(truncated_normal(keys[5], heads, std))
        self.distance_bias: nnx.Param[jax.Array] = nnx.Param(truncated_normal(keys[6], heads, std))
        self.segment_bias: nnx.Param[jax.Array] = nnx.Param(truncated_normal(keys[7], heads, std))
        self.segments: nnx.Param[jax.Array] = nnx.Param(truncated_normal(keys[8], (2, *heads), std))

    def __call__(
        self,
        x: jax.Array,
        relations: Relations,
        dropout_key: jax.Array | None,
        attend: AttentionKernel,
        collect: bool,
        memory: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Return the output [B, L + M, H] for x [B, L + M, H], and probabilities [B, A, L + M, K] if `collect`.

        `memory` [B, K - L, H] are the states before those of the tokens, which are seen and do not look.
        """
        mask, permutation = relations.mask, relations.permutation
        length = relations.token_types.shape[1]
        seen = x[:, :length] if memory is None else jnp.concatenate([memory.astype(x.dtype), x[:, :length]], axis=1)
        query = checkpoint_name(self.query(x), "query")
        key, value = checkpoint_name(self.key(seen), "key"), checkpoint_name(self.value(seen), "value")
        distance = self.distance(relations.distances.astype(x.dtype))  # [L + K, A, D]
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        states = query[:, :length]
        bias = shifted(self._distance_scores(states, distance))
        types = relations.of_keys(relations.token_types, 0)
        bias = bias + self._segment_scores(states, relations.token_types, types)
        bias = bias if mask.bias is None else bias + mask.bias
        if permutation is not None:
            bias = bias + hidden_unless(relations.of_keys(permutation.seen_by_tokens(), True))
        by_token = dataclasses.replace(mask, bias=bias)
        context, weights = attend(self._with_bias(states), key, value, by_token, keys[0], self.rate, collect)
        if permutation is None:
            return self.output(context), weights
        states, by_target = query[:, length:], self._by_target(query[:, length:], distance, relations, permutation)
        found, more = attend(self._with_bias(states), key, value, by_target, keys[1], self.rate, collect)
        output = self.output(jnp.concatenate([context, found], axis=1))
        return output, None if weights is None or more is None else jnp.concatenate([weights, more], axis=2)

    def _by_target(
        self, query: jax.Array, distance: jax.Array, relations: Relations, permutation: Permutation
    ) -> AttentionMask:
        """Return what the targets see of the tokens, with all that is added to the scores of query [B, M, A, D]."""
        mask, types = relations.mask, relations.token_types
        keys = jnp.arange(mask.padding.shape[1])[None, None]
        places = types.shape[1] - permutation.targets[:, :, None] + keys  # see `shifted`
        bias = jnp.take_along_axis(self._distance_scores(query, distance), places[:, None], axis=3)
        bias = bias + self._segment_scores(query, permutation.at_targets(types), relations.of_keys(types, 0))
        seen = relations.of_keys(permutation.seen_by_targets(), True)
        if mask.segments is not None:
            seen = seen & (permutation.at_targets(mask.segments)[:, :, None] == mask.segments[:, None, :])
        return AttentionMask(padding=mask.padding, bias=bias + hidden_unless(seen))

    def _with_bias(self, query: jax.Array) -> jax.Array:
        return query + like(self.content_bias[...], query)

    def _distance_scores(self, query: jax.Array, distance: jax.Array) -> jax.Array:
        """Return (q + v)·r / √D for query [B, Q, A, D] and distance [L + K, A, D]: float32 [B, A, Q, L + K]."""
        query = query + like(self.distance_bias[...], query)
        scores = wide_einsum("bqad,pad->baqp", query, distance)
        return scores * query.shape[-1] ** -0.5

    def _segment_scores(self, query: jax.Array, own: jax.Array, others: jax.Array) -> jax.Array:
        """Return (q + s)·e / √D for query [B, Q, A, D] of segments [B, Q]: float32 [B, A, Q, K] for others [B, K]."""
        query = query + like(self.segment_bias[...], query)
        segments = self.segments[...].astype(query.dtype)
        scores = wide_einsum("bqad,sad->baqs", query, segments)
        scores = scores * query.shape[-1] ** -0.5
        same = (own[:, :, None] == others[:, None, :])[:, None]
        return jnp.where(same, scores[..., :1], scores[..., 1:])


class WordEmbeddings(nnx.Module):
    """word → dropout; positions and segments enter in attention, and nothing is normalized.

    `target` [1, 1, H] is the state that everything which is predicted begins with: mask_emb of the published code.
    """

    def __init__(self, config: XLNetConfig, key: jax.Array):
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
        config: XLNetConfig,
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

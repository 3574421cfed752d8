"""How far the states of a student are from those of its teacher: cosines, and squared differences layer by layer."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.models.packed_texts import PackedTexts
from bert_jax.objectives.objective import Batch, Sums

LEAST_SQUARE = 1e-12  # added to squared norms, as in torch's CosineEmbeddingLoss


def cosine_sums(states: jax.Array, teacher_states: jax.Array, weights: jax.Array) -> Sums:
    """Return sums over tokens of 1 - cosine of states [B, L, H]; weights [B, L] are 0 for padding."""
    ours, theirs = states.astype(jnp.float32), teacher_states.astype(jnp.float32)
    squares = (jnp.sum(jnp.square(each), axis=-1) + LEAST_SQUARE for each in (ours, theirs))
    cosines = jnp.sum(ours * theirs, axis=-1) * jax.lax.rsqrt(next(squares) * next(squares))
    return Sums(jnp.sum(weights * (1 - cosines)), jnp.sum(weights))


def hidden_sums(states: Sequence[jax.Array], teacher_states: Sequence[jax.Array], weights: jax.Array) -> Sums:
    """Return sums over tokens of the squared difference of states [B, L, H], a mean over features and layers."""
    total = jnp.zeros((), jnp.float32)
    for ours, theirs in zip(states, teacher_states, strict=True):
        squares = jnp.square(ours.astype(jnp.float32) - theirs.astype(jnp.float32))
        total += jnp.sum(weights * jnp.mean(squares, axis=-1))
    return Sums(total / len(states), jnp.sum(weights))


def attention_sums(maps: Sequence[jax.Array], teacher_maps: Sequence[jax.Array], pairs: jax.Array) -> Sums:
    """Return sums over pairs of tokens of the squared difference of probabilities [B, A, L, L].

    It is a mean over heads and layers; `pairs` float32 [B, L, L] has 1 for tokens of one text.
    """
    total = jnp.zeros((), jnp.float32)
    for ours, theirs in zip(maps, teacher_maps, strict=True):
        total += jnp.sum(pairs * jnp.mean(jnp.square(ours - theirs), axis=1))
    return Sums(total / len(maps), jnp.sum(pairs))


def token_pairs(batch: Batch) -> jax.Array:
    """Return float32 [B, L, L]: 1 where both positions are tokens of one text."""
    texts = PackedTexts.of(batch)
    ids = batch["attention_mask"] if texts is None else texts.ids
    return ((ids[:, :, None] == ids[:, None, :]) & (ids[:, :, None] > 0)).astype(jnp.float32)

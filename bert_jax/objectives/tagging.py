"""Tagging words: cross-entropy at the first piece of each word; the other positions do not count."""

import jax
import jax.numpy as jnp

from bert_jax.objectives import classification
from bert_jax.objectives.objective import Sums


def loss_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
    """Return sums over the batch; the mean over words is formed once, from the sums of all devices.

    Args:
      logits: [B, L, C].
      labels: [B, L] int32, -1 where nothing is predicted.
      weights: [B] float32, 0 for rows that only fill the batch.

    Returns:
      Losses in nats; the weight is the number of words.
    """
    return classification.loss_sums(logits, jnp.maximum(labels, 0), word_weights(labels, weights))


def word_weights(labels: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the weight of each position, [B, L]; arguments as for `loss_sums`."""
    return weights[:, None] * (labels >= 0)

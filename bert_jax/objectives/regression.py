"""Estimating a number: squared error, on the scale of the labels (STS-B: 0 to 5)."""

import jax
import jax.numpy as jnp

from bert_jax.objectives.objective import Sums


def loss_sums(predictions: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
    """Return sums over the batch of squared errors and weights; no prediction is right or wrong.

    Args:
      predictions: [B], or [B, T] like the others where T sequences share a row.
      labels: [B] float32.
      weights: [B] float32, 0 for rows that only fill the batch.
    """
    errors = jnp.square(predictions.astype(jnp.float32) - labels)
    return Sums(jnp.sum(weights * errors), jnp.sum(weights))

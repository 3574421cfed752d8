"""Estimating a number: squared error, on the scale of the labels (STS-B: 0 to 5)."""

import jax
import jax.numpy as jnp

from bert_jax.objectives.objective import Sums


def loss_sums(predictions: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
    """Sums over the batch of predictions, labels and weights, float32 [B] each; the weight is 0 for rows that only fill it."""
    errors = jnp.square(predictions.astype(jnp.float32) - labels)
    return Sums(jnp.sum(weights * errors), jnp.sum(weights))

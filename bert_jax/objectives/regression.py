"""Estimating a number: squared error, on the scale of the labels (STS-B: 0 to 5)."""

import jax
import jax.numpy as jnp


def loss_sums(predictions: jax.Array, labels: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
    """Sums over the batch of predictions, labels and weights [B] (0 for rows that only fill it): float32 loss and weight."""
    errors = jnp.square(predictions.astype(jnp.float32) - labels)
    return {"loss": jnp.sum(weights * errors), "weight": jnp.sum(weights)}

"""Tagging words: cross-entropy at the first piece of each word, the other positions say nothing."""

import jax
import jax.numpy as jnp


def loss_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
    """Sums over the batch; the mean over words is formed once, from the sums of all devices.

    Args:
        logits: [B, L, C].
        labels: [B, L] int32, -1 where nothing is predicted.
        weights: [B] float32, 0 for rows that only fill the batch.

    Returns:
        float32 scalars loss (nats), correct and weight (words).
    """
    counted = weights[:, None] * (labels >= 0)
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    losses = -jnp.take_along_axis(log_probabilities, jnp.maximum(labels, 0)[:, :, None], axis=-1)[:, :, 0]
    correct = jnp.argmax(logits, axis=-1) == labels
    return {"loss": jnp.sum(counted * losses), "correct": jnp.sum(counted * correct), "weight": jnp.sum(counted)}

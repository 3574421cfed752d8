"""Choosing one of several: the classes of a text (classification), or the candidates of a question (choice)."""

import jax
import jax.numpy as jnp

from bert_jax.objectives.objective import Sums


def loss_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
    """Return sums over the batch; the mean is formed once, from the sums of all devices.

    Args:
      logits: [B, C]; here and below B stands for [B, T] where T sequences share a row.
      labels: [B] int32.
      weights: [B] float32, 0 for what does not count, such as rows that only fill the batch.

    Returns:
      Losses (cross-entropy) in nats.
    """
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    losses = -jnp.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]
    correct = jnp.argmax(logits, axis=-1) == labels
    return Sums(jnp.sum(weights * losses), jnp.sum(weights), jnp.sum(weights * correct))

"""Next-sentence prediction (0 = IsNext) and sentence order (0 = in order): a choice between two classes."""

import jax
import jax.numpy as jnp

from bert_jax.objectives.objective import Sums


def loss_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array | None = None) -> Sums:
    """Return sums over the batch; a mean is formed once, from the sums of all devices and micro-batches.

    Args:
      logits: [B, 2], or [B, T, 2] of rows of packed texts.
      labels: [B] or [B, T] int32.
      weights: float32 as labels, 0 where a row has no such text; None: every row weighs 1.

    Returns:
      Losses in nats.
    """
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    losses = -jnp.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]
    correct = jnp.argmax(logits, axis=-1) == labels
    if weights is None:
        return Sums(jnp.sum(losses), jnp.asarray(labels.size, jnp.float32), jnp.sum(correct, dtype=jnp.float32))
    return Sums(jnp.sum(weights * losses), jnp.sum(weights), jnp.sum(weights * correct))

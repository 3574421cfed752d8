"""Finding an answer: the mean cross-entropy of its first and its last token, each a choice among the positions."""

import jax
import jax.numpy as jnp

from bert_jax.objectives.objective import Sums

OUTSIDE = -1e9  # logit of padding: never chosen, and exp of it is 0


def loss_sums(logits: jax.Array, labels: jax.Array, mask: jax.Array, weights: jax.Array) -> Sums:
    """Return sums over the batch; the mean is formed once, from the sums of all devices.

    Args:
      logits: [B, L, 2], start and end.
      labels: [B, 2] int32 positions, (0, 0) where the window holds no answer; one outside the sequence is ignored.
      mask: [B, L], 1 for real tokens. The original lets padding compete; here the loss does not depend on it.
      weights: [B] float32, 0 for rows that only fill the batch.

    Returns:
      Losses in nats; correct are windows with both ends right. A window counts as two halves.
    """
    logits = jnp.where(mask[:, :, None] > 0, logits.astype(jnp.float32), OUTSIDE)
    inside = _inside(labels, mask)
    halves = end_weights(labels, mask, weights)
    log_probabilities = jax.nn.log_softmax(logits, axis=1)
    positions = jnp.where(inside, labels, 0)
    losses = -jnp.take_along_axis(log_probabilities, positions[:, None, :], axis=1)[:, 0]
    correct = jnp.all((jnp.argmax(logits, axis=1) == labels) & inside, axis=1)
    return Sums(jnp.sum(halves * losses), jnp.sum(halves), jnp.sum(weights * correct))


def end_weights(labels: jax.Array, mask: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the weights of the first and the last token of each answer, [B, 2]; arguments as for `loss_sums`."""
    return 0.5 * weights[:, None] * _inside(labels, mask)


def _inside(labels: jax.Array, mask: jax.Array) -> jax.Array:
    return (labels >= 0) & (labels < jnp.sum(mask, axis=1)[:, None])

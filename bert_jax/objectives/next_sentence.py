"""Next-sentence prediction (0 = IsNext) and sentence order (0 = in order): a choice between two classes."""

import jax
import jax.numpy as jnp


def loss_sums(logits: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
    """Sums over the batch; a mean is formed once, from the sums of all devices and micro-batches.

    Args:
        logits: [B, 2].
        labels: [B] int32.

    Returns:
        float32 scalars next_sentence_loss (nats), next_sentence_correct and next_sentence_count.
    """
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    losses = -jnp.take_along_axis(log_probabilities, labels[:, None], axis=-1)
    return {
        "next_sentence_loss": jnp.sum(losses),
        "next_sentence_correct": jnp.sum(jnp.argmax(logits, axis=-1) == labels, dtype=jnp.float32),
        "next_sentence_count": jnp.asarray(labels.size, jnp.float32),
    }

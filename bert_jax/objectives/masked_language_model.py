"""Masked language modelling: cross-entropy at the masked positions."""

import jax
import jax.numpy as jnp


def loss_sums(logits: jax.Array, masked_ids: jax.Array, masked_weights: jax.Array) -> dict[str, jax.Array]:
    """Sums over the batch; a mean is formed once, from the sums of all devices and micro-batches.

    Args:
        logits: [B, M, V].
        masked_ids: [B, M] int32, the original ids.
        masked_weights: [B, M] float32, 0 in unused slots.

    Returns:
        float32 scalars mlm_loss (nats), mlm_correct and mlm_weight; all 0 if every weight is.
    """
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    # A comparison, not a lookup: a vocabulary axis that is split over devices then stays where it is.
    chosen = jax.lax.broadcasted_iota(masked_ids.dtype, logits.shape, 2) == masked_ids[:, :, None]
    losses = -jnp.sum(jnp.where(chosen, log_probabilities, 0.0), axis=-1)
    correct = jnp.argmax(logits, axis=-1) == masked_ids
    return {"mlm_loss": jnp.sum(masked_weights * losses),
            "mlm_correct": jnp.sum(masked_weights * correct),
            "mlm_weight": jnp.sum(masked_weights)}

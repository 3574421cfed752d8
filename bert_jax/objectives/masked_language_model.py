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
    logits, label = logits.astype(jnp.float32), masked_ids[:, :, None]
    # A comparison, not a lookup: a vocabulary axis that is split over devices then stays where it is.
    entry = jax.lax.broadcasted_iota(masked_ids.dtype, logits.shape, 2)
    own = jnp.sum(jnp.where(entry == label, logits, 0.0), axis=-1, keepdims=True)
    losses = jax.nn.logsumexp(logits, axis=-1) - own[:, :, 0]
    # argmax(logits) == label, written without argmax, which is the slowest part of the loss on CPU.
    correct = jnp.all(jnp.where(entry < label, logits < own, logits <= own), axis=-1)
    return {
        "mlm_loss": jnp.sum(masked_weights * losses),
        "mlm_correct": jnp.sum(masked_weights * correct),
        "mlm_weight": jnp.sum(masked_weights),
    }

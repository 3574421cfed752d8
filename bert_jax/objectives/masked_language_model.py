"""Masked language modeling: cross-entropy at the masked positions."""

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_module import WordPart
from bert_jax.models.protocol import Encoded, Params
from bert_jax.models.span_boundary import SpanBoundaries
from bert_jax.objectives.objective import Batch, Sums


def loss_sums(logits: jax.Array, masked_ids: jax.Array, masked_weights: jax.Array) -> Sums:
    """Return sums over the batch; a mean is formed once, from the sums of all devices and micro-batches.

    Args:
      logits: [B, M, V].
      masked_ids: [B, M] int32, the original ids.
      masked_weights: [B, M] float32, 0 in unused slots.

    Returns:
      Losses in nats; all sums are 0 if every weight is.
    """
    logits, label = logits.astype(jnp.float32), masked_ids[:, :, None]
    # A comparison, not a lookup: a vocabulary axis that is split over devices then stays where it is.
    entry = jax.lax.broadcasted_iota(masked_ids.dtype, logits.shape, 2)
    own = jnp.sum(jnp.where(entry == label, logits, 0.0), axis=-1, keepdims=True)
    losses = jax.nn.logsumexp(logits, axis=-1) - own[:, :, 0]
    # argmax(logits) == label, written without argmax, which is slow on CPU, and so that no maximum waits for `own`: a
    # TPU then needs no pass over the logits for them alone.
    before = jnp.max(jnp.where(entry < label, logits, -jnp.inf), axis=-1)
    correct = (own[:, :, 0] == jnp.max(logits, axis=-1)) & (before < own[:, :, 0])
    return weighted_sums(losses, correct, masked_weights)


def model_sums(
    model: BertForPreTraining, params: Params, batch: Batch, encoded: Encoded, part: WordPart = "mlm"
) -> Sums:
    """Return `loss_sums` of what a head of a model predicts for the masked_ids of a batch, the way it is fastest."""
    weights = batch["masked_weights"] if part == "mlm" else SpanBoundaries.of(batch).weights
    if model.has_word_losses:
        return weighted_sums(*model.word_losses(params, batch, encoded, part), weights)
    return loss_sums(model.word_logits(params, batch, part, encoded), batch["masked_ids"], weights)


def weighted_sums(losses: jax.Array, correct: jax.Array, masked_weights: jax.Array) -> Sums:
    """Return the sums of what is known of each prediction; all three arguments are [B, M]."""
    return Sums(jnp.sum(masked_weights * losses), jnp.sum(masked_weights), jnp.sum(masked_weights * correct))


def frequency_sums(counts: np.ndarray, targets: np.ndarray) -> Sums:
    """Return the sums in float64 of predicting from word frequencies alone.

    Args:
      counts: [V], how often each entry of the vocabulary occurs.
      targets: [N], the original ids of the masked positions.
    """
    losses = -np.log(counts[targets] / counts.sum())
    return Sums(float(losses.sum()), float(len(targets)), float((targets == counts.argmax()).sum()))

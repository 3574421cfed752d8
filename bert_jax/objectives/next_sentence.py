"""Next-sentence prediction (0 = IsNext) and sentence order (0 = in order): a choice between two classes."""

import jax
import jax.numpy as jnp

from bert_jax.objectives import classification
from bert_jax.objectives.objective import Sums


def loss_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array | None = None) -> Sums:
    """Return `classification.loss_sums` over the batch.

    Args:
      logits: [B, 2], or [B, T, 2] of rows of packed texts.
      labels: [B] or [B, T] int32.
      weights: float32 as labels, 0 where a row has no such text; None: every row weighs 1.
    """
    return classification.loss_sums(logits, labels, jnp.ones(labels.shape) if weights is None else weights)

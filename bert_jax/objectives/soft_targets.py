"""The predictions of a teacher as targets (Hinton et al. 2015): the divergence of softened distributions."""

import jax
import jax.numpy as jnp

from bert_jax.objectives.objective import Sums


def loss_sums(logits: jax.Array, teacher_logits: jax.Array, weights: jax.Array, temperature: float) -> Sums:
    """Return sums over the batch of T² · KL(teacher ‖ student), in nats, of distributions softmax(logits / T).

    The factor T² keeps the size of the gradient, which softening divides by about as much.

    Args:
      logits: [..., C], of the student.
      teacher_logits: as `logits`.
      weights: float32 [...], 0 where nothing is predicted.
      temperature: T.
    """
    ours, theirs = (jax.nn.log_softmax(each.astype(jnp.float32) / temperature) for each in (logits, teacher_logits))
    divergence = jnp.sum(jnp.exp(theirs) * (theirs - ours), axis=-1)
    return Sums(temperature**2 * jnp.sum(weights * divergence), jnp.sum(weights))

"""Cross-entropy over a large vocabulary, in blocks of it: the logits of one block fit the processor's cache."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.models.products import summed_over_rows, wide_product, wide_product_with_rows

BLOCK = 4080  # words; a stride of 4,096 would put the entries of a column into few sets of the processor's cache


class WordLosses(NamedTuple):
    """What is known of each prediction, without its logits; both of one shape."""

    losses: jax.Array
    """Float32, in nats: -log of the probability of the label."""
    correct: jax.Array
    """Whether the label is the most likely word; of several, whether it is the first."""


def word_losses(
    x: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array, words: int, block: int = BLOCK
) -> WordLosses:
    """Return the losses [N] of predicting `labels` from logits x · tableᵀ + bias, which are float32.

    Operands of the products, also of those of the gradient, have the dtype of x.

    Args:
      x: [N, H].
      table: [V, H].
      bias: [V].
      labels: int32 [N], below `words`.
      words: number of rows of the table that are words; the others are never predicted.
      block: number of words whose logits are one array.
    """
    blocks = tuple(slice(start, min(start + block, words)) for start in range(0, words, block))

    @jax.custom_vjp
    def losses(x: jax.Array, table: jax.Array, bias: jax.Array) -> WordLosses:
        return forward(x, table, bias)[0]

    def forward(x: jax.Array, table: jax.Array, bias: jax.Array):
        narrow = table.astype(x.dtype)
        logits = [wide_product_with_rows(x, narrow[words]) + bias[None, words] for words in blocks]
        found, log_sum = _against_labels(logits, _places(blocks, labels))
        return found, (x, narrow, logits, log_sum)

    def backward(kept: Any, gradients: WordLosses):
        x, narrow, logits, log_sum = kept
        of_x, of_table, of_bias = jnp.zeros(x.shape, jnp.float32), [], []
        for words, part, place in zip(blocks, logits, _places(blocks, labels), strict=True):
            wrong = (jnp.exp(part - log_sum) - (place == 0)) * gradients.losses[:, None]
            of_bias.append(jnp.sum(wrong, axis=0))
            wrong = wrong.astype(x.dtype)
            of_x += wide_product(wrong, narrow[words])
            of_table.append(summed_over_rows(wrong, x))
        unused = table.shape[0] - blocks[-1].stop
        return (
            of_x.astype(x.dtype),
            jnp.pad(jnp.concatenate(of_table), ((0, unused), (0, 0))),
            jnp.pad(jnp.concatenate(of_bias), (0, unused)),
        )

    losses.defvjp(forward, backward)
    return losses(x, table, bias)


def _places(blocks: Sequence[slice], labels: jax.Array) -> list[jax.Array]:
    """Return, for each block, by how many words each of its words comes after the label: [N, words of the block]."""
    return [
        jax.lax.broadcasted_iota(labels.dtype, (len(labels), words.stop - words.start), 1)
        + (words.start - labels)[:, None]
        for words in blocks
    ]


def _against_labels(logits: list[jax.Array], places: list[jax.Array]) -> tuple[WordLosses, jax.Array]:
    """Return the losses [N], and the logarithm of the sum of exp(logits), [N, 1]."""
    own = sum(_own(part, place) for part, place in zip(logits, places, strict=True))
    largest = jnp.max(jnp.stack([jnp.max(part, axis=1, keepdims=True) for part in logits]), axis=0)
    log_sum = largest + jnp.log(sum(jnp.sum(jnp.exp(part - largest), axis=1, keepdims=True) for part in logits))
    # argmax(logits) == label, written without argmax, which is slow on CPU, as are sums of truth values.
    before = [
        jnp.max(jnp.where(place < 0, part, -jnp.inf), axis=1, keepdims=True)
        for part, place in zip(logits, places, strict=True)
    ]
    correct = (own == largest) & (jnp.max(jnp.stack(before), axis=0) < own)
    return WordLosses((log_sum - own)[:, 0], correct[:, 0]), log_sum


def _own(part: jax.Array, place: jax.Array) -> jax.Array:
    """Return the label's logit [N, 1] from one block, 0 where the label is a word of another block."""
    at = -place[:, :1]  # of the label, counted from the first word of the block
    found = jnp.take_along_axis(part, jnp.clip(at, 0, part.shape[1] - 1), axis=1)
    return jnp.where((at >= 0) & (at < part.shape[1]), found, 0.0)

"""The words that a generator writes in place of masked ones: drawn from its probabilities, the same on any mesh."""

import jax
import jax.numpy as jnp

from bert_jax.models.counter_bits import Stream, stream, substream, words
from bert_jax.objectives.objective import Batch


def sampled_words(logits: jax.Array, batch: Batch) -> jax.Array:
    """Return a word for each masked position, int32 [B, M], drawn from softmax(logits); no gradient passes.

    The largest of logits + Gumbel noise is such a draw. The noise follows from what a row shows and from the place in
    it, and from nothing else. So a row has the same noise in whichever batch, on whichever device and however often it
    is computed: every evaluation draws alike, and a row whose masks are fixed (masking.static_masks) meets the same
    noise in every epoch.

    Args:
      logits: [B, M, V]; those of rows without a word are far below all others.
      batch: has input_ids and attention_mask [B, L], and masked_positions [B, M].
    """
    rows = _row_streams(batch["input_ids"], batch["attention_mask"])
    places = substream(Stream(*(half[:, None] for half in rows)), batch["masked_positions"].astype(jnp.uint32))
    number = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2)
    noise = gumbel(words(Stream(*(half[:, :, None] for half in places)), number.astype(jnp.uint32)))
    noisy = jax.lax.stop_gradient(logits) + noise
    # argmax, which takes twice as long on CPU.
    largest = noisy >= jnp.max(noisy, axis=-1, keepdims=True)
    return jnp.min(jnp.where(largest, number, logits.shape[-1] - 1), axis=-1)


def gumbel(word: jax.Array) -> jax.Array:
    """Return Gumbel values, float32, from random words of 32 bits, of which the 23 high ones are used."""
    uniform = ((word >> 9).astype(jnp.float32) + 0.5) * jnp.float32(2.0**-23)  # exact, and neither 0 nor 1
    return -jnp.log(-jnp.log(uniform))


def _row_streams(input_ids: jax.Array, attention_mask: jax.Array) -> Stream:
    """Return a stream for each row, [B]: a sum over its tokens of random words that belong to (place, id)."""
    places = jnp.arange(input_ids.shape[1], dtype=jnp.uint32)[None, :]
    real, ids = attention_mask > 0, input_ids.astype(jnp.uint32)

    def half(number: int) -> jax.Array:
        of_place = substream(stream(jax.random.key(number)), places)
        return jnp.sum(jnp.where(real, words(of_place, ids), jnp.uint32(0)), axis=1, dtype=jnp.uint32)

    return Stream(half(0), half(1))


def with_words(input_ids: jax.Array, positions: jax.Array, weights: jax.Array, words: jax.Array) -> jax.Array:
    """Return input_ids [B, L] with words [B, M] at positions [B, M], where weights [B, M] are not 0."""
    # Comparisons, not a scatter: every row stays on its device.
    places = jnp.arange(input_ids.shape[1], dtype=positions.dtype)[None, None, :]
    here = (positions[:, :, None] == places) & (weights[:, :, None] > 0)
    placed = jnp.max(jnp.where(here, words[:, :, None], -1), axis=1)
    return jnp.where(placed < 0, input_ids, placed)

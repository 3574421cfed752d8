"""Replaced-token detection (Clark et al. 2020): which words of a text come from a generator, at every token.

The generator's words are drawn from its probabilities and put in place of masked ones. They are the same on any mesh.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import ReplacedTokens
from bert_jax.config.objective import generator_model
from bert_jax.config.pretraining import SentencePairs
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import DISCRIMINATOR_PARTS, generator_parts
from bert_jax.models.electra import Electra
from bert_jax.models.layers import Stream, counter_stream, substream, words
from bert_jax.objectives import masked_words
from bert_jax.objectives.masked_words import MASKED_WORDS
from bert_jax.objectives.objective import Batch, Sums, Term


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
        of_place = substream(counter_stream(jax.random.key(number)), places)
        return jnp.sum(jnp.where(real, words(of_place, ids), jnp.uint32(0)), axis=1, dtype=jnp.uint32)

    return Stream(half(0), half(1))


def with_words(input_ids: jax.Array, positions: jax.Array, weights: jax.Array, words: jax.Array) -> jax.Array:
    """Return input_ids [B, L] with words [B, M] at positions [B, M], where weights [B, M] are not 0."""
    # Comparisons, not a scatter: every row stays on its device.
    places = jnp.arange(input_ids.shape[1], dtype=positions.dtype)[None, None, :]
    here = (positions[:, :, None] == places) & (weights[:, :, None] > 0)
    placed = jnp.max(jnp.where(here, words[:, :, None], -1), axis=1)
    return jnp.where(placed < 0, input_ids, placed)


GENERATED_WORDS = dataclasses.replace(MASKED_WORDS, label="generator", title="Generator: masked language model")
REPLACED_TOKENS = Term(
    name="replaced_tokens", label="discriminator", title="Discriminator: replaced tokens", unit="nats per token"
)


@dataclasses.dataclass(frozen=True)
class ReplacedTokensObjective:
    """The generator's masked words, and the discriminator's judgement of each token (see `Objective`).

    The loss is that of the generator plus, 50 times, that of the discriminator over all real tokens, [CLS] and [SEP]
    included. A sampled word that happens to be the original counts as original. The discriminator's loss does not train
    the generator but through tables that they share.
    """

    model: Electra
    weights: ReplacedTokens = ReplacedTokens()
    epsilon: float = 0.0
    """Added to the number of masked words, by which their loss is divided; see masking.loss_epsilon."""

    @property
    def terms(self) -> tuple[Term, ...]:
        return (
            dataclasses.replace(GENERATED_WORDS, weight=self.weights.mlm_weight),
            dataclasses.replace(REPLACED_TOKENS, weight=self.weights.replaced_tokens_weight),
        )

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {
            GENERATED_WORDS.name: jnp.sum(batch["masked_weights"]) + self.epsilon,
            REPLACED_TOKENS.name: jnp.sum(batch["attention_mask"]).astype(jnp.float32),
        }

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        logits = self.model.mlm_logits(params, batch, keys[0])
        written, labels = replaced(batch, sampled_words(logits, batch))
        judged = self.model.replaced_token_logits(params, written, keys[1])
        return {
            GENERATED_WORDS.name: masked_words.masked_word_sums(logits, batch["masked_ids"], batch["masked_weights"]),
            REPLACED_TOKENS.name: loss_sums(judged, labels, batch["attention_mask"]),
        }


def replaced(batch: Batch, words: jax.Array) -> tuple[Batch, jax.Array]:
    """Return the batch as the discriminator reads it, with `words` [B, M] where it was masked, and labels bool [B, L].

    A label is true where a word is not that of the text.
    """
    places = batch["input_ids"], batch["masked_positions"], batch["masked_weights"]
    written, original = with_words(*places, words), with_words(*places, batch["masked_ids"])
    return batch | {"input_ids": written}, written != original


def loss_sums(logits: jax.Array, labels: jax.Array, mask: jax.Array) -> Sums:
    """Return sums over the batch; a mean is formed once, from the sums of all devices and micro-batches.

    Args:
      logits: [B, L], positive where a token seems to be replaced.
      labels: bool [B, L], whether it is.
      mask: [B, L], 1 for real tokens.

    Returns:
      Losses (binary cross-entropy) in nats.
    """
    logits, weights = logits.astype(jnp.float32), mask.astype(jnp.float32)
    losses = jax.nn.softplus(jnp.where(labels, -logits, logits))
    correct = (logits > 0) == labels
    return Sums(jnp.sum(weights * losses), jnp.sum(weights), jnp.sum(weights * correct))


def objective(
    model: BertForPreTraining, options: ReplacedTokens, epsilon: float, sentence_pairs: SentencePairs
) -> ReplacedTokensObjective:
    """Return the objective of a run whose discriminator is the encoder of `model`, and which has its own generator."""
    del sentence_pairs
    generator = options.generator
    parts = Electra(
        dataclasses.replace(model, parts=DISCRIMINATOR_PARTS),
        dataclasses.replace(model, config=generator_model(model.config, generator), parts=generator_parts(options)),
        generator.embeddings,
    )
    return ReplacedTokensObjective(parts, options, epsilon)

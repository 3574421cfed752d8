"""Replaced-token detection (Clark et al. 2020): which words of a text are a generator's, decided at every token."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import Config, ObjectiveConfig
from bert_jax.config.generator import generator_model
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.electra import Electra
from bert_jax.models.generator_parameters import DISCRIMINATOR_PARTS, generator_parts
from bert_jax.objectives import masked_language_model
from bert_jax.objectives.bert_pretraining import MASKED_WORDS
from bert_jax.objectives.generated_words import sampled_words, with_words
from bert_jax.objectives.objective import Batch, Sums, Term

GENERATED_WORDS = dataclasses.replace(MASKED_WORDS, label="generator", title="Generator: masked language model")
REPLACED_TOKENS = Term(
    name="replaced_tokens", label="discriminator", title="Discriminator: replaced tokens", unit="nats per token"
)


@dataclasses.dataclass(frozen=True)
class ReplacedTokens:
    """The generator's masked words, and the discriminator's judgement of each token (see `Objective`).

    The loss is that of the generator plus, 50 times, that of the discriminator over all real tokens, [CLS] and [SEP]
    included. A sampled word that happens to be the original counts as original. The discriminator's loss does not train
    the generator but through tables that they share.
    """

    model: Electra
    weights: ObjectiveConfig = ObjectiveConfig()
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
            GENERATED_WORDS.name: masked_language_model.loss_sums(logits, batch["masked_ids"], batch["masked_weights"]),
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


def replaced_token_detection(model: BertForPreTraining, config: Config) -> ReplacedTokens:
    """Return the objective of a run whose discriminator is the encoder of `model`, and which has its own generator."""
    generator = config.objective.generator
    parts = Electra(
        dataclasses.replace(model, parts=DISCRIMINATOR_PARTS),
        dataclasses.replace(
            model, config=generator_model(model.config, generator), parts=generator_parts(config.objective)
        ),
        generator.embeddings,
    )
    return ReplacedTokens(parts, config.objective, config.masking.loss_epsilon)

"""The language models of ELMo (Peters et al. 2018, section 3.1): of the next word, and of the previous one.

Both share word table and head. Each reads its own half of the states, which knows nothing of the other direction.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import ObjectiveConfig
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.packed_texts import PackedTexts
from bert_jax.models.protocol import EncoderOutput, encoder_inputs
from bert_jax.objectives import masked_language_model
from bert_jax.objectives.left_to_right import NEXT_WORDS
from bert_jax.objectives.objective import Batch, Sums, Term

PREVIOUS_WORDS = dataclasses.replace(
    NEXT_WORDS,
    name="previous_word",
    label="previous words",
    title="Language model, right to left",
    perplexity="previous_word_perplexity",
    of_words=False,
)


@dataclasses.dataclass(frozen=True)
class TwoDirectionsObjective:
    """The neighbours of every place (see `Objective`); batches are those of `data.examples.next_words`."""

    model: BertForPreTraining
    weights: ObjectiveConfig

    @property
    def terms(self) -> tuple[Term, ...]:
        return (
            dataclasses.replace(NEXT_WORDS, weight=self.weights.next_word_weight),
            dataclasses.replace(PREVIOUS_WORDS, weight=self.weights.previous_word_weight),
        )

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        pairs = jnp.sum(batch["masked_weights"])
        return {term.name: pairs for term in self.terms}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        inputs = encoder_inputs(batch)
        encoded = self.model.encode(params, *inputs, dropout_key, texts=PackedTexts.of(batch))
        places = batch["masked_positions"]
        before = {"masked_positions": places + 1, "masked_ids": jnp.take_along_axis(inputs[0], places, axis=1)}
        left, right = _halves(encoded)
        return {
            NEXT_WORDS.name: masked_language_model.model_sums(self.model, params, batch, left),
            PREVIOUS_WORDS.name: masked_language_model.model_sums(self.model, params, {**batch, **before}, right),
        }


def _halves(encoded: EncoderOutput) -> tuple[EncoderOutput, EncoderOutput]:
    """Return the output with the states of one direction each, and zeros in place of the other's."""
    states = encoded.last_hidden_state
    of_left = jnp.arange(states.shape[-1]) < states.shape[-1] // 2
    halves = jnp.where(of_left, states, 0), jnp.where(of_left, 0, states)
    left, right = (encoded._replace(last_hidden_state=half) for half in halves)
    return left, right

"""Autoregressive language modelling: left to right, in two directions, and in an order drawn for each text.

Left to right is the model without bidirectionality that the paper compares BERT with (Devlin et al. 2018, section
5.1), and GPT. The two language models of ELMo (Peters et al. 2018, section 3.1), of the next word and of the previous
one, share word table and head; each reads its own half of the states, which knows nothing of the other direction.
Permutation language modelling (Yang et al. 2019) predicts tokens from those before them in the order drawn.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import LeftToRight, Permutation, TwoDirections
from bert_jax.config.pretraining import SentencePairs
from bert_jax.models import xlnet
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.layers import PackedTexts
from bert_jax.models.protocol import EncoderOutput, encoder_inputs
from bert_jax.objectives import masked_words
from bert_jax.objectives.objective import Batch, Sums, Term

NEXT_WORDS = dataclasses.replace(
    masked_words.MASKED_WORDS, name="next_word", label="next words", title="Language model, left to right"
)


@dataclasses.dataclass(frozen=True)
class LeftToRightObjective:
    """The next word of every place (see `Objective`); batches are those of `data.masking.NextWords`."""

    model: BertForPreTraining
    weights: LeftToRight = LeftToRight()

    @property
    def terms(self) -> tuple[Term, ...]:
        return (NEXT_WORDS, *masked_words.weighted_z_loss(self.weights.z_loss_weight))

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {term.name: jnp.sum(batch["masked_weights"]) for term in self.terms}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        encoded = self.model.encode(params, *encoder_inputs(batch), dropout_key, texts=PackedTexts.of(batch))
        z_loss = self.weights.z_loss_weight
        return masked_words.sums_with_z_loss(self.model, params, batch, encoded, NEXT_WORDS, z_loss)


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
    """The neighbours of every place (see `Objective`); batches are those of `data.masking.NextWords`."""

    model: BertForPreTraining
    weights: TwoDirections

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
            NEXT_WORDS.name: masked_words.model_sums(self.model, params, batch, left),
            PREVIOUS_WORDS.name: masked_words.model_sums(self.model, params, {**batch, **before}, right),
        }


def _halves(encoded: EncoderOutput) -> tuple[EncoderOutput, EncoderOutput]:
    """Return the output with the states of one direction each, and zeros in place of the other's."""
    states = encoded.last_hidden_state
    of_left = jnp.arange(states.shape[-1]) < states.shape[-1] // 2
    halves = jnp.where(of_left, states, 0), jnp.where(of_left, 0, states)
    left, right = (encoded._replace(last_hidden_state=half) for half in halves)
    return left, right


PERMUTED_WORDS = dataclasses.replace(
    masked_words.MASKED_WORDS, name="permutation", label="permuted words", title="Permutation language model"
)


@dataclasses.dataclass(frozen=True)
class PermutationObjective:
    """The targets of every order (see `Objective`); batches are those of `data.masking.Permutations`."""

    model: BertForPreTraining
    terms: tuple[Term, ...] = (PERMUTED_WORDS,)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {PERMUTED_WORDS.name: jnp.sum(batch["masked_weights"])}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        texts, permutation = PackedTexts.of(batch), xlnet.Permutation.of(batch)
        encoded = self.model.encode(params, *encoder_inputs(batch), dropout_key, texts=texts, permutation=permutation)
        at_targets = {**batch, "masked_positions": permutation.states}
        return {PERMUTED_WORDS.name: masked_words.model_sums(self.model, params, at_targets, encoded)}


def objective(
    model: BertForPreTraining,
    options: LeftToRight | TwoDirections | Permutation,
    epsilon: float,
    sentence_pairs: SentencePairs,
) -> LeftToRightObjective | TwoDirectionsObjective | PermutationObjective:
    """See `objectives.objective.ObjectiveFamily`."""
    del epsilon, sentence_pairs
    match options:
        case LeftToRight():
            return LeftToRightObjective(model, options)
        case TwoDirections():
            return TwoDirectionsObjective(model, options)
        case Permutation():
            return PermutationObjective(model)

"""Permutation language modelling (Yang et al. 2019): tokens from those before them in an order drawn for each text."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.packed_texts import PackedTexts
from bert_jax.models.permutation import Permutation
from bert_jax.models.protocol import encoder_inputs
from bert_jax.objectives import masked_language_model
from bert_jax.objectives.objective import Batch, Sums, Term

PERMUTED_WORDS = Term(
    name="permutation",
    label="permuted words",
    title="Permutation language model",
    unit="nats per token",
    perplexity="perplexity",
    of_words=True,
)


@dataclasses.dataclass(frozen=True)
class PermutationObjective:
    """The targets of every order (see `Objective`); batches are those of `data.examples.permutations`."""

    model: BertForPreTraining
    terms: tuple[Term, ...] = (PERMUTED_WORDS,)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {PERMUTED_WORDS.name: jnp.sum(batch["masked_weights"])}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        texts, permutation = PackedTexts.of(batch), Permutation.of(batch)
        encoded = self.model.encode(params, *encoder_inputs(batch), dropout_key, texts=texts, permutation=permutation)
        at_targets = {**batch, "masked_positions": permutation.states}
        return {PERMUTED_WORDS.name: masked_language_model.model_sums(self.model, params, at_targets, encoded)}

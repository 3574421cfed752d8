"""Left-to-right language modelling: each token of a text from those before it.

It is the model without bidirectionality that the paper compares BERT with (Devlin et al. 2018, section 5.1), and GPT.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.packed_texts import PackedTexts
from bert_jax.models.protocol import encoder_inputs
from bert_jax.objectives import masked_language_model
from bert_jax.objectives.objective import Batch, Sums, Term

NEXT_WORDS = Term(
    name="next_word",
    label="next words",
    title="Language model, left to right",
    unit="nats per token",
    perplexity="perplexity",
    of_words=True,
)


@dataclasses.dataclass(frozen=True)
class LeftToRightObjective:
    """The next word of every place (see `Objective`); batches are those of `data.examples.next_words`."""

    model: BertForPreTraining
    terms: tuple[Term, ...] = (NEXT_WORDS,)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {NEXT_WORDS.name: jnp.sum(batch["masked_weights"])}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        encoded = self.model.encode(params, *encoder_inputs(batch), dropout_key, texts=PackedTexts.of(batch))
        return {NEXT_WORDS.name: masked_language_model.model_sums(self.model, params, batch, encoded)}

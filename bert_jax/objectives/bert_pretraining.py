"""The objective of BERT's pre-training: masked words and, with pairs of segments, which of two classes a pair has.

With a weight, SpanBERT's too: the words of each span from the states beside it.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import ObjectiveConfig
from bert_jax.config.example_choices import SentencePairs
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.packed_texts import PackedTexts
from bert_jax.models.protocol import Encoded, encoder_inputs
from bert_jax.models.span_boundary import SpanBoundaries
from bert_jax.objectives import masked_language_model, next_sentence
from bert_jax.objectives.objective import Batch, Sums, Term

MASKED_WORDS = Term(
    name="mlm",
    label="MLM",
    title="Masked language model",
    unit="nats per token",
    perplexity="perplexity",
    of_words=True,
)
SPAN_BOUNDARY = Term(name="span_boundary", label="SBO", title="Span boundary objective", unit="nats per token")
NEXT_SENTENCE = Term(name="next_sentence", label="NSP", title="Next sentence", panels=("accuracy",))
SENTENCE_ORDER = Term(name="sentence_order", label="SOP", title="Sentence order", panels=("accuracy",))


@dataclasses.dataclass(frozen=True)
class PretrainingObjective:
    """Masked words and sentence pairs (see `Objective`); batches without next_sentence_labels have masked words only.

    A model from elsewhere may lack one of the two heads; there are no sums for it then.
    """

    model: BertForPreTraining
    weights: ObjectiveConfig = ObjectiveConfig()
    epsilon: float = 0.0
    """Added to the number of masked words, by which their loss is divided; see masking.loss_epsilon."""
    sentence_pairs: SentencePairs = "nsp"
    """What the labels of pairs mean; see data.sentence_pairs."""

    @property
    def of_pairs(self) -> Term:
        """The term of the pairs, which has a name of its own for each meaning of their labels."""
        term = SENTENCE_ORDER if self.sentence_pairs == "sop" else NEXT_SENTENCE
        return dataclasses.replace(term, weight=self.weights.sentence_pair_weight)

    @property
    def terms(self) -> tuple[Term, ...]:
        spans = dataclasses.replace(SPAN_BOUNDARY, weight=self.weights.span_boundary_weight)
        return (
            dataclasses.replace(MASKED_WORDS, weight=self.weights.mlm_weight),
            *((spans,) if spans.weight else ()),
            self.of_pairs,
        )

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        found = {MASKED_WORDS.name: jnp.sum(batch["masked_weights"]) + self.epsilon}
        if self.weights.span_boundary_weight:
            found[SPAN_BOUNDARY.name] = jnp.sum(SpanBoundaries.of(batch).weights)
        if "next_sentence_weights" in batch:  # of packed rows
            found[self.of_pairs.name] = jnp.sum(batch["next_sentence_weights"])
        elif "next_sentence_labels" in batch:
            found[self.of_pairs.name] = jnp.asarray(batch["next_sentence_labels"].size, jnp.float32)
        return found

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        model, inputs, texts = self.model, encoder_inputs(batch), PackedTexts.of(batch)
        if self._spans:
            encoded = model.encode(params, *inputs, dropout_key, texts=texts)
        else:
            encoded = model.read(params, *inputs, batch["masked_positions"], dropout_key, texts)
        sums = {}
        if "mlm" in model.parts:
            sums[MASKED_WORDS.name] = masked_language_model.model_sums(model, params, batch, encoded)
        return sums | self.sums_beside_words(params, batch, encoded)

    @property
    def _spans(self) -> bool:
        return "span_boundary" in self.model.parts and self.weights.span_boundary_weight > 0

    def sums_beside_words(self, params: Any, batch: Batch, encoded: Encoded) -> dict[str, Sums]:
        """Return the sums of the terms other than that of masked words, from the output of the encoder."""
        model, sums = self.model, {}
        if self._spans:
            sums[SPAN_BOUNDARY.name] = masked_language_model.model_sums(model, params, batch, encoded, "span_boundary")
        if "next_sentence_labels" in batch and {"pooler", "next_sentence"} <= set(model.parts):
            logits = model.next_sentence_logits(params, batch, encoded)
            sums[self.of_pairs.name] = next_sentence.loss_sums(
                logits, batch["next_sentence_labels"], batch.get("next_sentence_weights")
            )
        return sums

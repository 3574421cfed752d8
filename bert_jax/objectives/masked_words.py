"""BERT's pre-training objective: cross-entropy at masked positions and, with pairs, a choice of two classes.

The classes are those of next-sentence prediction (0 = IsNext) or of sentence order (0 = in order). With a weight,
SpanBERT's objective is added: the words of each span from the states next to it. With another, so is the z-loss: the
square of the logarithm of the sum by which the softmax of the words divides.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import MaskedDiffusion, MaskedWords
from bert_jax.config.pretraining import SentencePairs
from bert_jax.models.bert import BertForPreTraining, WordPart
from bert_jax.models.embeddings import WordLosses
from bert_jax.models.heads import SpanBoundaries
from bert_jax.models.layers import PackedTexts
from bert_jax.models.protocol import Encoded, Params, encoder_inputs
from bert_jax.objectives import tasks
from bert_jax.objectives.objective import Batch, Sums, Term


def masked_word_sums(logits: jax.Array, masked_ids: jax.Array, masked_weights: jax.Array) -> Sums:
    """Return sums over the batch; a mean is formed once, from the sums of all devices and micro-batches.

    Args:
      logits: [B, M, V].
      masked_ids: [B, M] int32, the original ids.
      masked_weights: [B, M] float32, 0 in unused slots.

    Returns:
      Losses in nats; all sums are 0 if every weight is.
    """
    return weighted_sums(masked_word_losses(logits, masked_ids), masked_weights)


def masked_word_losses(logits: jax.Array, masked_ids: jax.Array) -> WordLosses:
    """Return the losses [B, M] of predicting masked_ids [B, M] from logits [B, M, V], with `log_sums`."""
    logits, label = logits.astype(jnp.float32), masked_ids[:, :, None]
    # A comparison, not a lookup: a vocabulary axis that is split over devices then stays where it is.
    entry = jax.lax.broadcasted_iota(masked_ids.dtype, logits.shape, 2)
    own = jnp.sum(jnp.where(entry == label, logits, 0.0), axis=-1, keepdims=True)
    log_sums = jax.nn.logsumexp(logits, axis=-1)
    # argmax(logits) == label, written without argmax, which is slow on CPU, and so that no maximum waits for `own`: a
    # TPU then needs no pass over the logits for them alone.
    before = jnp.max(jnp.where(entry < label, logits, -jnp.inf), axis=-1)
    correct = (own[:, :, 0] == jnp.max(logits, axis=-1)) & (before < own[:, :, 0])
    return WordLosses(log_sums - own[:, :, 0], correct, log_sums)


def model_sums(
    model: BertForPreTraining, params: Params, batch: Batch, encoded: Encoded, part: WordPart = "mlm"
) -> Sums:
    """Return `masked_word_sums` of the predictions of a head for the masked_ids of a batch, the fastest way."""
    weights = batch["masked_weights"] if part == "mlm" else SpanBoundaries.of(batch).weights
    return weighted_sums(_model_losses(model, params, batch, encoded, part), weights)


def sums_with_z_loss(
    model: BertForPreTraining, params: Params, batch: Batch, encoded: Encoded, term: Term, weight: float
) -> dict[str, Sums]:
    """Return `model_sums` of the head for masked words under the name of their term and, with a weight, the z-loss."""
    if not weight:
        return {term.name: model_sums(model, params, batch, encoded)}
    found = _model_losses(model, params, batch, encoded, log_sums=True)
    return {term.name: weighted_sums(found, batch["masked_weights"]), **z_loss_sums(found, batch["masked_weights"])}


def _model_losses(
    model: BertForPreTraining,
    params: Params,
    batch: Batch,
    encoded: Encoded,
    part: WordPart = "mlm",
    log_sums: bool = False,
) -> WordLosses:
    if model.has_word_losses:
        return model.word_losses(params, batch, encoded, part, log_sums)
    return masked_word_losses(model.word_logits(params, batch, part, encoded), batch["masked_ids"])


def weighted_sums(found: WordLosses, masked_weights: jax.Array) -> Sums:
    """Return the sums of what is known of each prediction, with weights [B, M]."""
    losses, correct = found.losses, found.correct
    return Sums(jnp.sum(masked_weights * losses), jnp.sum(masked_weights), jnp.sum(masked_weights * correct))


def z_loss_sums(found: WordLosses, masked_weights: jax.Array) -> dict[str, Sums]:
    """Return the sums of the squares of `log_sums`, float32, by the name of their term."""
    assert found.log_sums is not None, "asked for"
    return {Z_LOSS.name: Sums(jnp.sum(masked_weights * jnp.square(found.log_sums)), jnp.sum(masked_weights))}


def frequency_sums(counts: np.ndarray, targets: np.ndarray) -> Sums:
    """Return the sums in float64 of predicting from word frequencies alone.

    Args:
      counts: [V], how often each entry of the vocabulary occurs.
      targets: [N], the original ids of the masked positions.
    """
    losses = -np.log(counts[targets] / counts.sum())
    return Sums(float(losses.sum()), float(len(targets)), float((targets == counts.argmax()).sum()))


def sentence_pair_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array | None = None) -> Sums:
    """Return `tasks.classification_sums` over the batch.

    Args:
      logits: [B, 2], or [B, T, 2] of rows of packed texts.
      labels: [B] or [B, T] int32.
      weights: float32 as labels, 0 where a row has no such text; None: every row weighs 1.
    """
    return tasks.classification_sums(logits, labels, jnp.ones(labels.shape) if weights is None else weights)


MASKED_WORDS = Term(
    name="mlm",
    label="MLM",
    title="Masked language model",
    unit="nats per token",
    perplexity="perplexity",
    of_words=True,
)
SPAN_BOUNDARY = Term(name="span_boundary", label="SBO", title="Span boundary objective", unit="nats per token")
Z_LOSS = Term(name="z", label="z", title="Normalizer of the words", unit="square of nats", panels=("loss",))
NEXT_SENTENCE = Term(name="next_sentence", label="NSP", title="Next sentence", panels=("accuracy",))
SENTENCE_ORDER = Term(name="sentence_order", label="SOP", title="Sentence order", panels=("accuracy",))


def weighted_z_loss(weight: float) -> tuple[Term, ...]:
    """Return the term of the z-loss, if it has a weight."""
    return (dataclasses.replace(Z_LOSS, weight=weight),) if weight else ()


@dataclasses.dataclass(frozen=True)
class PretrainingObjective:
    """Masked words and sentence pairs (see `Objective`); batches without next_sentence_labels have masked words only.

    A model from elsewhere may lack one of the two heads; there are no sums for it then.
    """

    model: BertForPreTraining
    weights: MaskedWords = MaskedWords()
    epsilon: float = 0.0
    """Added to the number of masked words, by which their loss is divided; see masking.loss_epsilon."""
    sentence_pairs: SentencePairs = "nsp"
    """Meaning of the labels of pairs; see data.sentence_pairs."""

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
            *weighted_z_loss(self.weights.z_loss_weight),
            *((spans,) if spans.weight else ()),
            self.of_pairs,
        )

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        found = {MASKED_WORDS.name: jnp.sum(batch["masked_weights"]) + self.epsilon}
        if self.weights.z_loss_weight:
            found[Z_LOSS.name] = found[MASKED_WORDS.name]
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
            z_loss = self.weights.z_loss_weight
            sums |= sums_with_z_loss(model, params, batch, encoded, MASKED_WORDS, z_loss)
        return sums | self.sums_beside_words(params, batch, encoded)

    @property
    def _spans(self) -> bool:
        return "span_boundary" in self.model.parts and self.weights.span_boundary_weight > 0

    def sums_beside_words(self, params: Any, batch: Batch, encoded: Encoded) -> dict[str, Sums]:
        """Return the sums of the terms other than that of masked words, from the output of the encoder."""
        model, sums = self.model, {}
        if self._spans:
            sums[SPAN_BOUNDARY.name] = model_sums(model, params, batch, encoded, "span_boundary")
        if "next_sentence_labels" in batch and {"pooler", "next_sentence"} <= set(model.parts):
            logits = model.next_sentence_logits(params, batch, encoded)
            sums[self.of_pairs.name] = sentence_pair_sums(
                logits, batch["next_sentence_labels"], batch.get("next_sentence_weights")
            )
        return sums


DIFFUSION = dataclasses.replace(
    MASKED_WORDS, name="diffusion", label="diffusion", title="Masked diffusion, a bound", panels=("loss",)
)


@dataclasses.dataclass(frozen=True)
class DiffusionObjective:
    """Masked words weighted by the rates of their texts (see `Objective`); batches are of `data.masking.Diffusion`.

    The loss, and not only its gradient, has a meaning: nats per token that code a text at most. No accuracy is
    measured, because a right answer weighs as much as its rate is rare.
    """

    model: BertForPreTraining
    terms: tuple[Term, ...] = (DIFFUSION,)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {DIFFUSION.name: jnp.sum(batch["num_tokens"])}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        encoded = self.model.encode(params, *encoder_inputs(batch), dropout_key, texts=PackedTexts.of(batch))
        found = model_sums(self.model, params, batch, encoded)
        return {DIFFUSION.name: Sums(found.loss, jnp.sum(batch["num_tokens"]))}


def objective(
    model: BertForPreTraining, options: MaskedWords | MaskedDiffusion, epsilon: float, sentence_pairs: SentencePairs
) -> PretrainingObjective | DiffusionObjective:
    """See `objectives.objective.ObjectiveFamily`."""
    if isinstance(options, MaskedDiffusion):
        return DiffusionObjective(model)
    return PretrainingObjective(model, options, epsilon, sentence_pairs)

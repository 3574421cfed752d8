"""Texts with some of their tokens hidden, and how well a model finds them again."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_jax.data.randomness import Stream, bits
from bert_jax.data.sequences.batching import Batch
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.tokenization.texts import as_arrays, tokenize

RATE = 0.15  # of the tokens that are hidden, as in Devlin et al. 2018, section 3.1


@dataclasses.dataclass(frozen=True)
class MaskedTexts:
    """n texts of up to L tokens, of which up to M each are to be predicted; all are padded to one shape."""

    arrays: dict[str, np.ndarray]
    """input_ids, token_type_ids and attention_mask, int32 [n, L]; masked_positions, int32 [n, M], with masked_ids, the
    original tokens there, and masked_weights, float32, 0 in slots that are not used."""

    def __len__(self) -> int:
        return len(self.arrays["input_ids"])

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield all texts in batches of one shape; rows that only fill the last one are copies without weight."""
        return in_batches(self.arrays, size)


def text_arrays(model: PretrainedModel, texts: list[str], max_length: int | None) -> dict[str, np.ndarray]:
    """Return input_ids, token_type_ids and attention_mask, int32 [n, L], of texts, cut to `max_length` tokens."""
    longest = model.config.longest_sequence
    length = None if max_length is None else min(max_length, longest)
    return as_arrays(tokenize(model.need_tokenizer(), texts, longest, length))


def in_batches(arrays: dict[str, np.ndarray], size: int) -> Iterator[Batch]:
    """Yield rows of arrays in batches of `size`, or of all if they are fewer; `weights` is 0 in copies that fill."""
    count = len(next(iter(arrays.values())))
    size = min(size, count)
    for start in range(0, count, size):
        rows = np.minimum(np.arange(start, start + size), count - 1)
        batch = {name: values[rows] for name, values in arrays.items()}
        weights = (np.arange(start, start + size) < count).astype(np.float32)
        if "masked_weights" in batch:
            batch["masked_weights"] = batch["masked_weights"] * weights[:, None]
        yield {**batch, "weights": weights}


def mask_words(
    model: PretrainedModel, texts: list[str], *, seed: int = 0, max_length: int | None = None
) -> MaskedTexts | None:
    """Return the texts with 15 % of the tokens of each, and at least one, replaced by the mask.

    Every chosen token is hidden, unlike in training, where some stay or are exchanged. A model that reads from left to
    right sees them all, and predicts each from those before it. The choice depends on the seed and the number of the
    text alone.

    Returns:
      None for a model that predicts no masked words: it has no head for them, or reads from both sides separately.
    """
    if "mlm" not in model.network.parts or model.config.two_directions:
        return None
    tokenizer, arrays = model.need_tokenizer(), text_arrays(model, texts, max_length)
    ids = arrays["input_ids"]
    words = (arrays["attention_mask"] > 0) & ~np.isin(ids, [tokenizer.cls_id, tokenizer.sep_id])
    if not words.any():
        raise UserError("the texts have no words to hide; give texts in which the tokenizer finds words")
    order = bits(seed, Stream.ANALYSED_MASKS, np.arange(len(ids))[:, None], np.arange(ids.shape[1])[None])
    counts = np.where(words.any(axis=1), np.maximum(1, np.round(RATE * words.sum(axis=1))), 0).astype(np.int64)
    first = np.argsort(np.where(words, order >> np.uint64(1), np.uint64(2**63)), axis=1, kind="stable")
    positions = first[:, : counts.max()].astype(np.int32)
    weights = (np.arange(counts.max())[None] < counts[:, None]).astype(np.float32)
    targets, before = np.take_along_axis(ids, positions, axis=1), model.config.direction == "left_to_right"
    if not before:
        hidden = np.where(weights > 0, tokenizer.mask_id, targets)
        ids = ids.copy()
        np.put_along_axis(ids, positions, hidden, axis=1)
    return MaskedTexts(
        {
            **arrays,
            "input_ids": ids,
            "masked_positions": np.maximum(positions - before, 0).astype(np.int32),
            "masked_ids": targets,
            "masked_weights": weights,
        }
    )


@dataclasses.dataclass(frozen=True)
class WordScores:
    """How well a model predicts hidden tokens."""

    loss: float
    """Mean cross-entropy in nats."""
    accuracy: float
    """Share of the tokens that are the most likely ones of the model."""
    predictions: int
    """Number of hidden tokens."""


def word_scores(model: Any, masked: MaskedTexts, batch_size: int = 32) -> WordScores:
    """Return how well a PretrainedModel predicts the hidden tokens of some texts."""
    loss, correct, count = np.sum([scores.sum(axis=1) for scores in _scores(model, masked, batch_size)], axis=0)
    return WordScores(float(loss / count), float(correct / count), int(count))


def sequence_losses(model: Any, masked: MaskedTexts, batch_size: int = 32) -> np.ndarray:
    """Return the mean cross-entropy, in nats, of the hidden tokens of each text, float64 [n]; NaN for one without."""
    loss, _, count = np.concatenate(list(_scores(model, masked, batch_size)), axis=1)[:, : len(masked)]
    return np.divide(loss, count, out=np.full(len(masked), np.nan), where=count > 0)


def _scores(model: Any, masked: MaskedTexts, batch_size: int) -> Iterator[np.ndarray]:
    """Yield, for each batch, float64 [3, B]: cross-entropy, correct predictions and predictions of each row."""
    for batch in masked.batches(batch_size):
        logits, targets = model.mlm_logits(batch), batch["masked_ids"]
        weights = batch["masked_weights"].astype(np.float64)
        largest = logits.max(axis=-1, keepdims=True)
        total = np.log(np.exp(logits - largest).sum(axis=-1, dtype=np.float64)) + largest[..., 0]
        own = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        correct = logits.argmax(axis=-1) == targets
        yield np.stack([(weights * (total - own)).sum(axis=1), (weights * correct).sum(axis=1), weights.sum(axis=1)])

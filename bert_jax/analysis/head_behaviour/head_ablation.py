"""What a head is worth: the loss of masked words with the head switched off, minus that of the whole model."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax.analysis.masked_words import mask_words
from bert_jax.console.progress_bar import track
from bert_jax.pretrained.model import PretrainedModel


@dataclasses.dataclass(frozen=True)
class HeadAblation:
    """The same masked words predicted with each of the N · A heads switched off; NaN if none were predicted."""

    loss: float
    """Cross-entropy of the whole model in nats per masked token."""
    increase: np.ndarray
    """float64 [N, A]: how much it is higher without the head. Negative: the model is better without it."""
    error: np.ndarray
    """float64 [N, A]: the standard error of the increase, from the differences of the texts."""
    texts: int
    """Number of texts."""
    predictions: int
    """Number of masked tokens."""


def head_ablation(
    model: PretrainedModel,
    texts: Sequence[str],
    *,
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = None,
    progress: bool = True,
) -> HeadAblation:
    """Return what each head is worth for masked words, of which 15 % are hidden, the same for every head.

    A head is switched off by a factor of 0 on its output, before the output projection. All heads run in one compiled
    program. Texts are held in memory; one pass over them is made for the whole model and for each head.

    Args:
      model: any with heads; one without a head for masked words gives NaN.
      texts: what it reads; none give NaN.
      seed: of the choice of words.
      batch_size: number of texts that the model reads at once.
      max_length: tokens per text; None: as many as the model has positions.
      progress: whether to show a bar.
    """
    shape = model.config.num_layers, model.config.num_heads
    masked = mask_words(model, list(texts), seed=seed, max_length=max_length) if texts else None
    if masked is None:
        return HeadAblation(np.nan, np.full(shape, np.nan), np.full(shape, np.nan), 0, 0)
    batches = list(masked.batches(batch_size))
    losses, increases, counts = [], [], []
    for batch in track(batches, "batches of texts, without each head", len(batches), visible=progress):
        real = batch["weights"] > 0
        weights = batch["masked_weights"][real].astype(np.float64)
        whole = (weights * model.mlm_losses(batch)[real]).sum(axis=1)
        without = np.empty((len(whole), *shape))
        for layer, head in np.ndindex(shape):
            gates = np.ones(shape)
            gates[layer, head] = 0.0
            without[:, layer, head] = (weights * model.mlm_losses(batch, gates)[real]).sum(axis=1)
        losses.append(whole)
        increases.append(without - whole[:, None, None])
        counts.append(weights.sum(axis=1))
    count = np.concatenate(counts)
    mean, error = ratio(np.concatenate(increases), count)
    return HeadAblation(
        float(np.concatenate(losses).sum() / count.sum()), mean, error, len(masked), round(float(count.sum()))
    )


def ratio(sums: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean per token, and its standard error, of sums [T, …] over counts [T] of tokens of T texts.

    Tokens of one text are not independent, texts are: the error is that of a ratio of means (Cochran 1977, section
    6.4), NaN for a single text.
    """
    mean, texts = sums.sum(axis=0) / counts.sum(), len(counts)
    rests = sums - mean * counts.reshape(-1, *(1,) * (sums.ndim - 1))
    spread = np.square(rests).sum(axis=0) * texts / (texts - 1) if texts > 1 else np.full(mean.shape, np.nan)
    return mean, np.sqrt(spread) / counts.sum()

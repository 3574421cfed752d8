"""Texts of an analysis: a sample of a corpus, tokens hidden and found again, and one vector per text and layer.

A sample is drawn at random from the lines of a corpus without holding the corpus in memory; all lines can be read,
too. The text vectors are the ones that the similarity of layers and their isotropy are measured on.
"""

import contextlib
import dataclasses
import itertools
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.config.analyses import VectorKind
from bert_jax.corpus.blocks import Source
from bert_jax.corpus.readers import read_lines
from bert_jax.data.sequences import Batch
from bert_jax.errors import UserError
from bert_jax.models.pooling import check_pooling, read_mask
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.progress import progress_bar
from bert_jax.randomness import Stream, bits, integers
from bert_jax.tokenization.tokenizer import as_arrays, tokenize

RATE = 0.15  # of the tokens that are hidden, as in Devlin et al. 2018, section 3.1


MaskedTexts = dict[str, np.ndarray]
"""n texts of up to L tokens, of which up to M each are to be predicted; all are padded to one shape.

input_ids, token_type_ids and attention_mask, int32 [n, L]; masked_positions, int32 [n, M], with masked_ids, the
original tokens there, and masked_weights, float32, 0 in slots that are not used."""


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
    targets = np.take_along_axis(ids, positions, axis=1)
    if not model.config.predicts_ahead:
        hidden = np.where(weights > 0, tokenizer.mask_id, targets)
        ids = ids.copy()
        np.put_along_axis(ids, positions, hidden, axis=1)
    return {
        **arrays,
        "input_ids": ids,
        "masked_positions": np.maximum(positions - model.config.predicts_ahead, 0).astype(np.int32),
        "masked_ids": targets,
        "masked_weights": weights,
    }


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
    number = len(masked["input_ids"])
    loss, _, count = np.concatenate(list(_scores(model, masked, batch_size)), axis=1)[:, :number]
    return np.divide(loss, count, out=np.full(number, np.nan), where=count > 0)


def _scores(model: Any, masked: MaskedTexts, batch_size: int) -> Iterator[np.ndarray]:
    """Yield, for each batch, float64 [3, B]: cross-entropy, correct predictions and predictions of each row."""
    for batch in in_batches(masked, batch_size):
        logits, targets = model.mlm_logits(batch), batch["masked_ids"]
        weights = batch["masked_weights"].astype(np.float64)
        largest = logits.max(axis=-1, keepdims=True)
        total = np.log(np.exp(logits - largest).sum(axis=-1, dtype=np.float64)) + largest[..., 0]
        own = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        correct = logits.argmax(axis=-1) == targets
        yield np.stack([(weights * (total - own)).sum(axis=1), (weights * correct).sum(axis=1), weights.sum(axis=1)])


@dataclasses.dataclass(frozen=True)
class Lines:
    """The lines of some sources that are not blank; each iteration reads them again."""

    sources: list[Source]
    text_field: str

    def __iter__(self) -> Iterator[str]:
        return (line for source in self.sources for line in read_lines(source, self.text_field) if line.strip())


def texts_of(sources: list[Source], count: int, seed: int, text_field: str = "text") -> Iterable[str]:
    """Return `count` lines of the sources, drawn at random and in random order, or for 0 all of them, one by one.

    Only the lines drawn are held in memory. Fewer lines than `count` are all returned.
    """
    lines = Lines(sources, text_field)
    return lines if count == 0 else drawn(lines, count, seed)


def drawn(items: Iterable[str], count: int, seed: int) -> list[str]:
    """Return `count` of the items in random order, every subset with the same probability.

    This is reservoir sampling (Vitter 1985, algorithm R): one pass, and memory for `count` items.
    """
    random, kept = np.random.default_rng(seed), []
    for number, item in enumerate(items):
        if number < count:
            kept.append(item)
        elif (place := int(random.integers(number + 1))) < count:
            kept[place] = item
    return [kept[place] for place in random.permutation(len(kept))]


def windows(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield the texts in lists of `size`; the last may be shorter.

    Raises:
      UserError: one text instead of several, or none.
    """
    if isinstance(texts, (str, tuple)):
        raise UserError(f"an analysis needs several texts, not only {texts!r:.60}; give a list of them")
    remaining, number = iter(texts), 0
    while window := list(itertools.islice(remaining, size)):
        yield window
        number += 1
    if not number:
        raise UserError("there are no texts to analyze; the input is empty or has blank lines only")


WINDOW = 2_048  # texts that are tokenized, sorted by length and held at once
CONSTANT = 1e-10  # a variance below this share of the mean square is rounding in float32: the vectors are all the same


def layer_vectors(
    model: PretrainedModel,
    texts: list[str],
    kind: VectorKind,
    *,
    first: int = 0,
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = None,
    done: Callable[[int], None] = lambda texts: None,
) -> np.ndarray:
    """Return float32 [n, N + 1, H]: the vector of each of n texts in the embeddings and each of N layers.

    Args:
      model: any model with a tokenizer.
      texts: a list, in whose order the rows are.
      first: number of the first of these texts among all, from which, with the seed, its token is drawn.
      done: called with the number of texts of every batch, for a progress bar.
    """
    found = np.zeros((len(texts), model.config.num_layers + 1, model.config.hidden_size), np.float32)
    batches = model.encode_batches(texts, "all", batch_size=batch_size, max_length=max_length, progress=False)
    for numbers, encoding in batches:
        mask = encoding.attention_mask
        mask = read_mask(encoding.input_ids, mask, model.unread) if kind == "mean" else mask
        weights = token_weights(mask, kind, bits(seed, Stream.ANALYSED_TOKEN, first + numbers))
        for layer, states in enumerate(encoding.hidden_states):
            found[numbers, layer] = np.einsum("nlh,nl->nh", states, weights)
        done(len(numbers))
    return found


def window_vectors(
    models: Sequence[PretrainedModel],
    texts: Iterable[str],
    kind: VectorKind,
    size: int,
    *,
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = None,
    progress: bool = True,
) -> Iterator[list[np.ndarray]]:
    """Yield, for every `size` texts, their `layer_vectors` in each of the models; a bar counts the texts."""
    read, options = 0, {"seed": seed, "batch_size": batch_size, "max_length": max_length}
    with counted_texts(texts, len(models), progress) as done:
        for window in windows(texts, size):
            yield [layer_vectors(each, window, kind, first=read, done=done, **options) for each in models]
            read += len(window)


def check_vectors(kind: str, *models: PretrainedModel) -> None:
    if kind not in typing.get_args(VectorKind):
        raise UserError(f"vectors={kind!r} must be one of {', '.join(typing.get_args(VectorKind))}")
    for model in models:
        if kind == "cls":
            check_pooling(kind, True, model.config.trains_specials, "vectors")


@contextlib.contextmanager
def counted_texts(texts: Iterable[str], models: int = 1, visible: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a bar of the texts read so far during the block; yield a function that adds a number of texts.

    `models` is how often every text is read.
    """
    total = len(texts) * models if isinstance(texts, list) else None
    with progress_bar("texts", total, visible=visible) as move_to:
        read = 0

        def add(texts: int) -> None:
            nonlocal read
            read += texts
            move_to(read)

        yield add


def span_means(states: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Return float64 [m, R, H]: means of states [L, R, H] over spans [m, 2] of tokens; NaN over an empty span."""
    sums = np.concatenate([np.zeros((1, *states.shape[1:])), np.cumsum(states, axis=0, dtype=np.float64)])
    first, behind = spans.T
    count = np.where(behind > first, behind - first, np.nan)
    return (sums[behind] - sums[first]) / count[:, None, None]


def token_weights(attention_mask: np.ndarray, kind: VectorKind, random: np.ndarray) -> np.ndarray:
    """Return float32 [n, L]: the share of each token in the vector of its text; `random` has 64 bits per text."""
    real = attention_mask > 0
    if kind == "mean":
        return (real / np.maximum(real.sum(axis=1, keepdims=True), 1)).astype(np.float32)
    places = np.zeros(len(real), np.int64)
    if kind == "token":
        words = real.sum(axis=1) - 2  # between [CLS] and the last [SEP]; a text without a word has its [CLS] instead
        places = np.where(words > 0, 1 + integers(random, np.maximum(words, 1)), 0)
    return (np.arange(real.shape[1])[None] == places[:, None]).astype(np.float32)

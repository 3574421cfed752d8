"""Removal of the layers that a model needs least, by CKA, against removal of the top layers and of random ones."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable

import numpy as np

from bert_jax.analysis.layer_states.layer_similarity import SMALLEST, HsicSums
from bert_jax.analysis.masked_words import in_batches, mask_words, text_arrays, word_scores
from bert_jax.analysis.pruning.kept_layers import KeptLayers, check_removable
from bert_jax.analysis.text_vectors import check_vectors, token_weights
from bert_jax.config.analyses.analysis_options import VectorKind
from bert_jax.console.progress_bar import progress_bar
from bert_jax.data.randomness import Stream, bits
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel

MINIBATCH = 256  # texts per estimate of CKA, as in `cka`

Score = Callable[[PretrainedModel], float]
"""Measures a model with some of the layers, such as its accuracy in a task; higher is better."""


@dataclasses.dataclass(frozen=True)
class RemovalCurve:
    """A model that loses one layer after the other: D + 1 models, the whole one first."""

    order: str
    """cka, top, or random."""
    layers: tuple[tuple[int, ...], ...]
    """The layers that each model keeps, from 0."""
    similarity: np.ndarray
    """float64 [D + 1]: linear CKA between the last states of each model and those of the whole one."""
    mlm_loss: np.ndarray
    """float64 [D + 1]: cross-entropy of masked tokens in nats; NaN for a model without a head for them."""
    mlm_accuracy: np.ndarray
    """float64 [D + 1]: share of the masked tokens that are predicted, or NaN."""
    score: np.ndarray
    """float64 [D + 1]: what `score` returned for each model, or NaN."""


@dataclasses.dataclass(frozen=True)
class Pruning:
    """A model of N layers reduced to fewer, in several ways."""

    curves: tuple[RemovalCurve, ...]
    """The removal that CKA guides, that of the top layers, and those in random orders."""
    candidates: np.ndarray
    """float64 [D, N]: at each step of the guided removal, CKA between the last states of the whole model and those of
    the present one without each of its layers; NaN for a layer that is gone. The largest in a row goes."""
    model: str
    """Path of the model."""
    texts: int
    """Number of texts that guided the removal."""
    predictions: int
    """Number of masked tokens, in other texts, that losses and accuracies are of."""
    vectors: str
    """What represented a text: mean, cls or token."""
    score_name: str
    """What `score` measures; "" if there was none."""

    @property
    def depths(self) -> list[int]:
        """Number of layers of each model of a curve."""
        return [len(layers) for layers in self.curves[0].layers]

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that the guided removal keeps at the target depth, for `keep_layers`."""
        return self.curves[0].layers[-1]


def prune(
    model: PretrainedModel,
    texts: Iterable[str],
    depth: int,
    *,
    vectors: VectorKind = "mean",
    draws: int = 3,
    score: Score | None = None,
    score_name: str = "score",
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = 128,
    progress: bool = True,
) -> Pruning:
    """Return how a model does as it loses layers, down to a depth; nothing is trained, and `model` stays as it is.

    At each step the layer goes without which the last states of the model stay most similar to those of the whole
    model, by linear CKA over texts (the criterion of Pons et al. 2024, "Effective Layer Pruning Through Similarity
    Metric Perspective"); of two equally good ones, the upper. Removal of the top layers and in random orders is
    measured beside it.

    Args:
      model: N layers of one kind with parameters of their own.
      texts: 8 or more, best in random order; they are held in memory. Every other one guides the removal, and on the
        rest masked words are predicted.
      depth: number of layers to end with, 1 to N - 1.
      vectors: what represents a text: see `cka`.
      draws: number of random orders.
      score: also measured for every model, such as `TaskScore`; None: nothing more is.
      score_name: what `score` measures.
      seed: of tokens to mask, tokens drawn and random orders.
      batch_size: number of texts that a model reads at once.
      max_length: tokens per text; None: as many as the model has positions.
      progress: whether to show a bar.

    Raises:
      UserError: the depth is not below that of the model, layers cannot be taken away, or there are too few texts.
    """
    check_vectors(vectors)
    check_removable(model)
    count = model.config.num_layers
    if not 1 <= depth < count:
        raise UserError(
            f"depth={depth} must be at least 1 and below the {count} layers that {model.path} has, so that at least "
            "one layer is removed"
        )
    if draws < 0:
        raise UserError(f"draws={draws} must be at least 0")
    held = _several(texts)
    steps = range(depth, count)
    shuffled = [np.random.default_rng((seed, draw)).permutation(count).tolist() for draw in range(draws)]
    fixed = {"top": [_without(count, range(kept, count)) for kept in range(count, depth - 1, -1)]}
    random = [[_without(count, order[:gone]) for gone in range(count - depth + 1)] for order in shuffled]
    expected = sum(kept + 1 for kept in steps) + len({*itertools.chain(*fixed.values(), *random)})
    with progress_bar("models measured", expected + len(steps), visible=progress) as move_to:
        measured = _Measurements(model, held, vectors, score, seed, batch_size, max_length, move_to)
        guided, candidates = _guided(measured, count, depth)
        orders = [("cka", guided), ("top", fixed["top"]), *(("random", kept) for kept in random)]
        curves = tuple(_curve(measured, order, kept) for order, kept in orders)
    predictions = measured.predictions
    name = score_name if score is not None else ""
    return Pruning(curves, candidates, model.path, measured.texts, predictions, vectors, name)


def _several(texts: Iterable[str]) -> list[str]:
    held = [texts] if isinstance(texts, str) else list(texts)
    if len(held) < 2 * SMALLEST:
        raise UserError(
            f"pruning needs at least {2 * SMALLEST} texts, half to guide it and half to measure, not {len(held)}; "
            "give more"
        )
    return held


def _without(count: int, gone: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({*range(count)} - {*gone}))


def _guided(measured: "_Measurements", count: int, depth: int) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """Return what is kept after each step, and CKA [D, N] of all candidates."""
    kept, candidates = [tuple(range(count))], np.full((count - depth, count), np.nan)
    for row in candidates:
        for layer in kept[-1]:
            row[layer] = measured.similarity(tuple(other for other in kept[-1] if other != layer))
        comparable = np.nan_to_num(row, nan=-np.inf)
        gone = max(kept[-1], key=lambda layer: (comparable[layer], layer))
        kept.append(tuple(other for other in kept[-1] if other != gone))
    return kept, candidates


def _curve(measured: "_Measurements", order: str, kept: list[tuple[int, ...]]) -> RemovalCurve:
    scores = np.array([measured.scores(layers) for layers in kept])
    similarity = np.array([measured.similarity(layers) for layers in kept])
    return RemovalCurve(order, tuple(kept), similarity, scores[:, 0], scores[:, 1], scores[:, 2])


class _Measurements:
    """What is known of models with some of the layers, each measured once."""

    def __init__(
        self,
        model: PretrainedModel,
        texts: list[str],
        vectors: VectorKind,
        score: Score | None,
        seed: int,
        batch_size: int,
        max_length: int | None,
        move_to: Callable[[int], None],
    ):
        self._kept, self._score, self._batch_size, self._move_to = KeptLayers(model), score, batch_size, move_to
        guiding, rest = texts[::2], texts[1::2]
        self.texts: int = len(guiding)
        self._arrays = text_arrays(model, guiding, max_length)
        random = bits(seed, Stream.ANALYSED_TOKEN, np.arange(len(guiding)))
        self._arrays["shares"] = token_weights(self._arrays["attention_mask"], vectors, random)
        self._masked = mask_words(model, rest, seed=seed, max_length=max_length)
        self.predictions: int = 0 if self._masked is None else int(self._masked.arrays["masked_weights"].sum())
        self._similarities: dict[tuple[int, ...], float] = {}
        self._scores: dict[tuple[int, ...], tuple[float, float, float]] = {}
        self._whole = self._vectors(model)

    def similarity(self, layers: tuple[int, ...]) -> float:
        """Return CKA between the last states with these layers and with all."""
        if layers not in self._similarities:
            found = self._vectors(self._kept(layers))
            sums = HsicSums()
            for start in range(0, len(found), MINIBATCH):
                part = slice(start, start + MINIBATCH)
                if len(found[part]) == MINIBATCH or not sums.count:
                    sums.add(self._whole[part, None], found[part, None])
            self._similarities[layers] = float(sums.similarity()[0, 0])
            self._moved()
        return self._similarities[layers]

    def scores(self, layers: tuple[int, ...]) -> tuple[float, float, float]:
        """Return loss and accuracy of masked words, and the score; NaN for what is not measured."""
        if layers not in self._scores:
            model, words = self._kept(layers), None
            if self._masked is not None:
                words = word_scores(model, self._masked, self._batch_size)
            loss, accuracy = (np.nan, np.nan) if words is None else (words.loss, words.accuracy)
            self._scores[layers] = loss, accuracy, np.nan if self._score is None else self._score(model)
            self._moved()
        return self._scores[layers]

    def _vectors(self, model: PretrainedModel) -> np.ndarray:
        """Return float32 [n, H]: the vector of each guiding text in the last states."""
        found = []
        for batch in in_batches(self._arrays, self._batch_size):
            inputs = (batch[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
            states = model.encode_ids(*inputs, layers="last").last_hidden_state
            found.append(np.einsum("nlh,nl->nh", states, batch["shares"]))
        return np.concatenate(found)[: self.texts]

    def _moved(self) -> None:
        self._move_to(len(self._similarities) + len(self._scores))

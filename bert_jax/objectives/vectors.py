"""Objectives of vectors of texts: what the vectors of the examples of a batch learn from each other.

The losses are those of sentence-transformers, of which each has a name in the literature: InfoNCE with negatives of the
batch (van den Oord et al. 2018), SimCSE where an anchor is its own positive (Gao et al. 2021), CoSENT, AnglE (Li & Li
2023), cosine regression (Reimers & Gurevych 2019), triplets, MarginMSE (Hofstätter et al. 2020) and divergence from a
teacher. Any of them can be taken of the first features of the vectors as well (Kusupati et al. 2022).

A loss that compares examples needs all vectors of a batch at once, and their texts may need more memory than there is.
So the vectors are computed in parts that keep nothing, and once their gradients are known, each part is computed again
and passes its own back (GradCache, Gao et al. 2021). The result is that of the whole batch, dropout included. A batch
is global: over several devices, each example meets the texts of all of them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from bert_jax.config.tasks import VectorOptions
from bert_jax.config.vectors import (
    Angle,
    Cosent,
    CosineRegression,
    Distance,
    InfoNce,
    KlDivergence,
    MarginMse,
    Similarity,
    Triplet,
    VectorLoss,
)
from bert_jax.models.kernels.plain import HEADS_AXIS, free_axes
from bert_jax.models.layers import numbered_rows
from bert_jax.models.pooling import unit_vectors
from bert_jax.models.task import BertForTask
from bert_jax.objectives.objective import Batch, Sums, Term

TERM = Term()
EXACT = jax.lax.Precision.HIGHEST  # products of vectors are few, and TPUs would round them to bfloat16
APART = 1e-6  # added to each difference of two vectors, as in torch, so that their distance has a gradient
ROWS = ("input_ids", "token_type_ids", "attention_mask", "text_ids", "text_starts")
"""Arrays of a batch that have its rows; all others have its examples."""


def similarities(first: jax.Array, second: jax.Array, kind: Similarity) -> jax.Array:
    """Return the similarity of each of N vectors [N, H] to each of M [M, H]: float32 [N, M]."""
    if kind == "cosine":
        first, second = unit_vectors(first), unit_vectors(second)
    return jnp.einsum("nh,mh->nm", first, second, precision=EXACT)


def pair_similarities(first: jax.Array, second: jax.Array, kind: Similarity) -> jax.Array:
    """Return the similarity of vectors [..., H] to others, which broadcast against them: [...]."""
    if kind == "cosine":
        first, second = unit_vectors(first), unit_vectors(second)
    return jnp.sum(first * second, axis=-1)


def distances(first: jax.Array, second: jax.Array, kind: Distance) -> jax.Array:
    """Return the distance of vectors [..., H] to others: [...]."""
    if kind == "cosine":
        return 1 - pair_similarities(first, second, "cosine")
    apart = first - second + APART
    return jnp.sum(jnp.abs(apart), axis=-1) if kind == "manhattan" else jnp.sqrt(jnp.sum(jnp.square(apart), axis=-1))


def angles(first: jax.Array, second: jax.Array) -> jax.Array:
    """Return |cosine + sine| of vectors [N, H] and others, whose halves are real and imaginary parts: [N].

    Vectors of odd length are followed by a zero.
    """
    odd = first.shape[-1] % 2
    first, second = (unit_vectors(jnp.pad(each, ((0, 0), (0, odd)))) for each in (first, second))
    (real, imaginary), (other_real, other_imaginary) = (jnp.split(each, 2, axis=-1) for each in (first, second))
    sines = jnp.sum(imaginary * other_real - real * other_imaginary, axis=-1)
    return jnp.abs(jnp.sum(first * second, axis=-1) + sines)


def info_nce_sums(vectors: jax.Array, weights: jax.Array, loss: InfoNce, numbers: jax.Array | None = None) -> Sums:
    """Return sums over the anchors of the cross-entropy of their positives.

    Args:
      vectors: [B, K, H] of anchors, positives and K - 2 negatives of each.
      weights: [B] float32, 0 for what only fills the batch, which is no negative either.
      loss: the options.
      numbers: int32 [B, K]: equal texts have equal numbers. A text is no negative of an anchor if it is the anchor or
        its positive, or the positive of an equal anchor. None: all texts differ.
    """
    anchors, rows, count = vectors[:, 0], vectors.shape[0], vectors.shape[1] - 1
    candidates = jnp.swapaxes(vectors[:, 1:], 0, 1).reshape(count * rows, -1)  # the positives come first
    own = jnp.arange(rows)[:, None] == jnp.arange(count * rows)[None]
    equal, unused = jnp.zeros_like(own) if numbers is None else _equal(numbers), (weights <= 0)[None]
    scores = loss.scale * similarities(anchors, candidates, loss.similarity)
    scores = jnp.where((equal | jnp.tile(unused, (1, count))) & ~own, -jnp.inf, scores)
    positive = jnp.sum(jnp.where(own, scores, 0.0), axis=1)
    normalizer = jax.nn.logsumexp(scores, axis=1)
    if loss.symmetric:
        back = loss.scale * similarities(candidates[:rows], anchors, loss.similarity)
        back = jnp.where((equal[:, :rows].T | unused) & ~own[:, :rows], -jnp.inf, back)
        normalizer = (normalizer + jax.nn.logsumexp(back, axis=1)) / 2
    best = jnp.max(jnp.where(own, -jnp.inf, scores), axis=1) < positive
    return Sums(jnp.sum(weights * (normalizer - positive)), jnp.sum(weights), jnp.sum(weights * best))


def _equal(numbers: jax.Array) -> jax.Array:
    """Return bool [B, (K - 1) · B]: whether a candidate is the anchor or its positive, or that of an equal anchor."""
    rows, count = numbers.shape[0], numbers.shape[1] - 1
    candidates = numbers[:, 1:].T.reshape(-1)[None]
    same = (candidates == numbers[:, :1]) | (candidates == numbers[:, 1:2])
    equal_anchors = numbers[:, :1] == numbers[:, 0][None]
    return same | jnp.pad(equal_anchors, ((0, 0), (0, (count - 1) * rows)))


def order_sums(scores: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
    """Return log(1 + Σ exp(score i - score j)) over the pairs i, j of the batch of which j has the higher label.

    It is one loss, of weight 1.

    Args:
      scores: [B], scaled cosines.
      labels: [B] float32.
      weights: [B] float32, 0 for what only fills the batch.
    """
    real = weights > 0
    below = (labels[:, None] < labels[None]) & real[:, None] & real[None]
    apart = jnp.where(below, scores[:, None] - scores[None], -jnp.inf)
    return Sums(jax.nn.logsumexp(jnp.append(apart.reshape(-1), 0.0)), jnp.float32(1))


def cosine_sums(vectors: jax.Array, labels: jax.Array, weights: jax.Array, highest: float) -> Sums:
    """Return sums of the squared difference between the cosine of pairs [B, 2, H] and labels [B] / highest."""
    errors = jnp.square(pair_similarities(vectors[:, 0], vectors[:, 1], "cosine") - labels / highest)
    return Sums(jnp.sum(weights * errors), jnp.sum(weights))


def triplet_sums(vectors: jax.Array, weights: jax.Array, loss: Triplet) -> Sums:
    """Return sums of max(0, distance to the positive - distance to the negative + margin) of vectors [B, 3, H]."""
    nearer, farther = (distances(vectors[:, 0], vectors[:, place], loss.distance) for place in (1, 2))
    losses = jnp.maximum(nearer - farther + loss.margin, 0.0)
    return Sums(jnp.sum(weights * losses), jnp.sum(weights), jnp.sum(weights * (nearer < farther)))


def margin_sums(vectors: jax.Array, labels: jax.Array, weights: jax.Array, loss: MarginMse) -> Sums:
    """Return sums of the squared difference between margins of model and teacher, a mean over the negatives.

    Args:
      vectors: [B, K, H].
      labels: [B, K - 1] float32, the teacher's scores of the positive and the negatives.
      weights: [B] float32.
      loss: the options.
    """
    scores = pair_similarities(vectors[:, :1], vectors[:, 1:], loss.similarity)
    margins = (each[:, :1] - each[:, 1:] for each in (scores, labels))
    errors = jnp.mean(jnp.square(next(margins) - next(margins)), axis=1)
    return Sums(jnp.sum(weights * errors), jnp.sum(weights))


def divergence_sums(vectors: jax.Array, labels: jax.Array, weights: jax.Array, loss: KlDivergence) -> Sums:
    """Return sums of T² · KL(teacher ‖ model) over positive and negatives; arguments as for `margin_sums`."""
    scores = pair_similarities(vectors[:, :1], vectors[:, 1:], loss.similarity)
    ours, theirs = (jax.nn.log_softmax(each / loss.temperature, axis=1) for each in (scores, labels))
    losses = loss.temperature**2 * jnp.sum(jnp.exp(theirs) * (theirs - ours), axis=1)
    return Sums(jnp.sum(weights * losses), jnp.sum(weights))


def loss_sums(vectors: jax.Array, batch: Batch, loss: VectorLoss) -> Sums:
    """Return the sums of a loss over the examples of a batch.

    Args:
      vectors: [B, K, H] float32.
      batch: weights [B]; labels [B] or [B, K - 1] of a loss that takes scores; numbers [B, K] of one with negatives of
        the batch, see `info_nce_sums`, which may lack.
    """
    weights = batch["weights"]
    match loss:
        case InfoNce():
            return info_nce_sums(vectors, weights, loss, batch.get("numbers"))
        case Angle():  # before CoSENT, of which it is one
            return order_sums(loss.scale * angles(vectors[:, 0], vectors[:, 1]), batch["labels"], weights)
        case Cosent():
            cosines = pair_similarities(vectors[:, 0], vectors[:, 1], "cosine")
            return order_sums(loss.scale * cosines, batch["labels"], weights)
        case CosineRegression():
            return cosine_sums(vectors, batch["labels"], weights, loss.highest)
        case Triplet():
            return triplet_sums(vectors, weights, loss)
        case MarginMse():
            return margin_sums(vectors, batch["labels"], weights, loss)
        case KlDivergence():
            return divergence_sums(vectors, batch["labels"], weights, loss)


def nested_sums(vectors: jax.Array, batch: Batch, options: VectorOptions) -> Sums:
    """Return `loss_sums`, or of nested vectors those of each length, times its weight, added; see `VectorOptions.dims`.

    The first features are a vector of norm 1. What is right is counted for the longest vectors.
    """
    if not options.dims:
        return loss_sums(vectors, batch, options.loss)
    weights = options.dim_weights or (1.0,) * len(options.dims)
    longest_first = sorted(zip(options.dims, weights, strict=True), reverse=True)
    found = [
        (weight, loss_sums(unit_vectors(vectors[..., :dim]), batch, options.loss)) for dim, weight in longest_first
    ]
    longest = found[0][1]
    return longest._replace(loss=sum((weight * sums.loss for weight, sums in found[1:]), found[0][0] * longest.loss))


@dataclasses.dataclass(frozen=True)
class VectorObjective:
    """The loss of the vectors of a batch (see `Objective`), which are computed in so many parts.

    A batch has texts in rows of their own or shared ones, and B examples: places int32 [B, K], the number of each text
    among the R or R · T vectors of all rows, and what `loss_sums` reads.
    """

    model: BertForTask
    options: VectorOptions
    micro_batches: int = 1

    @property
    def terms(self) -> tuple[Term, ...]:
        return (TERM,)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        of_batch = isinstance(self.options.loss, Cosent)
        return {TERM.name: jnp.float32(1) if of_batch else jnp.sum(batch["weights"])}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        vectors = of_rows(self.model, params, batch, dropout_key, self.micro_batches)
        vectors = compared(vectors.reshape(-1, vectors.shape[-1]))[batch["places"]]
        return {TERM.name: nested_sums(vectors, batch, self.options)}


def compared(found: jax.Array) -> jax.Array:
    """Return what the sequences of a batch have given, [N, …], on each device, which compares all of it.

    It is little next to what it was made from.
    """
    return jax.lax.with_sharding_constraint(found, P()) if free_axes() else found


def of_rows(model: BertForTask, params: Any, batch: Batch, dropout_key: jax.Array | None, parts: int) -> jax.Array:
    """Return what a model gives for all rows of a batch, [R, …] or [R, T, …], computed in so many parts.

    Each keeps nothing for the backward pass but is computed again there.
    """
    rows = {name: batch[name] for name in ROWS if name in batch}
    count = len(rows["input_ids"])
    if parts == 1:
        return model.apply(params, rows, dropout_key)

    def part(rows: Batch, numbers: jax.Array) -> jax.Array:
        with numbered_rows(numbers):
            return model.apply(params, rows, dropout_key)

    once_more: Callable[..., jax.Array] = jax.checkpoint(part, prevent_cse=False)  # a scan needs no protection
    split = {name: _split(values, parts) for name, values in rows.items()}
    found = jax.lax.map(lambda each: once_more(*each), (split, _split(jnp.arange(count), parts)))
    return jnp.swapaxes(found, 0, 1).reshape(count, *found.shape[2:])


def _split(x: jax.Array, parts: int) -> jax.Array:
    """Return x [R, …] as [parts, R / parts, …]: part i has the rows i, i + parts, …, which stay on their devices."""
    split = jnp.swapaxes(x.reshape(-1, parts, *x.shape[1:]), 0, 1)
    rows = tuple(axis for axis in free_axes() if axis != HEADS_AXIS)
    return jax.lax.with_sharding_constraint(split, P(None, rows)) if rows else split

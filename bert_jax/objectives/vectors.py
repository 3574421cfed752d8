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

from bert_jax.config.heads import Similarity, WordVector
from bert_jax.config.tasks import VectorOptions
from bert_jax.config.vectors import (
    Angle,
    Cosent,
    CosineRegression,
    Distance,
    InfoNce,
    KlDivergence,
    MarginMse,
    Triplet,
    VectorLoss,
)
from bert_jax.models.kernels.plain import HEADS_AXIS, free_axes
from bert_jax.models.layers import numbered_rows
from bert_jax.models.pooling import unit_vectors
from bert_jax.models.task import BertForTask
from bert_jax.objectives.distillation import LABELS
from bert_jax.objectives.objective import Batch, Sums, Term

TERM = Term()
QUERIES = Term(name="query_sparsity", title="FLOPS of queries", panels=("loss",))
DOCUMENTS = Term(name="document_sparsity", title="FLOPS of documents", panels=("loss",))
EXACT = jax.lax.Precision.HIGHEST  # products of vectors are few, and TPUs would round them to bfloat16
LOWEST = jnp.finfo(jnp.float32).min  # similarity of a token that does not count
ROWS = ("input_ids", "token_type_ids", "attention_mask", "text_ids", "text_starts")
"""Arrays of a batch that have its rows; all others have its examples."""


def similarities(first: jax.Array, second: jax.Array, kind: Similarity | None) -> jax.Array:
    """Return the similarity of each of N vectors [N, H] to each of M [M, H]: float32 [N, M]."""
    if kind == "cosine":
        first, second = unit_vectors(first), unit_vectors(second)
    return jnp.einsum("nh,mh->nm", first, second, precision=EXACT)


def pair_similarities(first: jax.Array, second: jax.Array, kind: Similarity | None) -> jax.Array:
    """Return the similarity of vectors [..., H] to others, which broadcast against them: [...]."""
    if kind == "cosine":
        first, second = unit_vectors(first), unit_vectors(second)
    return jnp.sum(first * second, axis=-1)


def distances(first: jax.Array, second: jax.Array, kind: Distance) -> jax.Array:
    """Return the distance of vectors [..., H] to others: [...]. That of equal vectors has no gradient."""
    if kind == "cosine":
        return 1 - pair_similarities(first, second, "cosine")
    if kind == "manhattan":
        return jnp.sum(jnp.abs(first - second), axis=-1)
    square = jnp.sum(jnp.square(first - second), axis=-1)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


def angles(first: jax.Array, second: jax.Array) -> jax.Array:
    """Return |cosine + sine| of vectors [N, H] and others, whose halves are real and imaginary parts: [N].

    Vectors of odd length are followed by a zero.
    """
    odd = first.shape[-1] % 2
    first, second = (unit_vectors(jnp.pad(each, ((0, 0), (0, odd)))) for each in (first, second))
    (real, imaginary), (other_real, other_imaginary) = (jnp.split(each, 2, axis=-1) for each in (first, second))
    sines = jnp.sum(imaginary * other_real - real * other_imaginary, axis=-1)
    return jnp.abs(jnp.sum(first * second, axis=-1) + sines)


def max_sims(query: jax.Array, documents: jax.Array, compared: jax.Array) -> jax.Array:
    """Return MaxSim of the vectors of the tokens of a query [L, D] and of documents [N, M, D]: float32 [L, N].

    It is not yet added over the tokens of the query. `compared` [N, M] is 1 for tokens that count.
    """
    scores = jnp.einsum("ld,nmd->lnm", query, documents, precision=EXACT)
    return jnp.max(jnp.where(compared[None] > 0, scores, LOWEST), axis=-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Texts:
    """The vectors of B examples of K texts, and how similar they are."""

    vectors: jax.Array
    """[B, K, H]; of tokens [B, K, L, D]."""
    compared: jax.Array | None = None
    """Of tokens: int32 [B, K, L], 1 for those that count. None: each text has one vector."""

    def to_all(self, kind: Similarity | None) -> jax.Array:
        """Return the similarities of the anchors to all other texts, float32 [B, (K - 1) · B], the positives first."""
        vectors = jnp.swapaxes(self.vectors[:, 1:], 0, 1)
        vectors = vectors.reshape(-1, *vectors.shape[2:])
        if self.compared is None:
            return similarities(self.vectors[:, 0], vectors, kind)
        documents = jnp.swapaxes(self.compared[:, 1:], 0, 1).reshape(len(vectors), -1)

        def of_one(query: tuple[jax.Array, jax.Array]) -> jax.Array:
            return jnp.sum(max_sims(query[0], vectors, documents) * query[1][:, None], axis=0)

        # Of one anchor at a time, since products of all tokens would be L² as many numbers as there are similarities.
        once_more = jax.checkpoint(of_one, prevent_cse=False)
        return jax.lax.map(once_more, (self.vectors[:, 0], self.compared[:, 0].astype(jnp.float32)))

    def to_own(self, kind: Similarity | None) -> jax.Array:
        """Return the similarities of the anchors to the other texts of their examples, float32 [B, K - 1]."""
        if self.compared is None:
            return pair_similarities(self.vectors[:, :1], self.vectors[:, 1:], kind)
        found = jax.vmap(max_sims)(self.vectors[:, 0], self.vectors[:, 1:], self.compared[:, 1:])
        return jnp.sum(found * self.compared[:, 0, :, None], axis=1)


def info_nce_sums(texts: Texts, weights: jax.Array, loss: InfoNce, numbers: jax.Array | None = None) -> Sums:
    """Return sums over the anchors of the cross-entropy of their positives.

    Args:
      texts: anchors, positives and K - 2 negatives of each.
      weights: [B] float32, 0 for what only fills the batch, which is no negative either.
      loss: the options.
      numbers: int32 [B, K]: equal texts have equal numbers. A text is no negative of an anchor if it is the anchor or
        its positive, or the positive of an equal anchor. None: all texts differ.
    """
    rows, count = texts.vectors.shape[0], texts.vectors.shape[1] - 1
    own = jnp.arange(rows)[:, None] == jnp.arange(count * rows)[None]
    equal, unused = jnp.zeros_like(own) if numbers is None else _equal(numbers), (weights <= 0)[None]
    every = (1.0 if loss.scale is None else loss.scale) * texts.to_all(loss.similarity)
    scores = jnp.where((equal | jnp.tile(unused, (1, count))) & ~own, -jnp.inf, every)
    positive = jnp.sum(jnp.where(own, scores, 0.0), axis=1)
    normalizer = jax.nn.logsumexp(scores, axis=1)
    if loss.symmetric:
        back = jnp.where((equal[:, :rows].T | unused) & ~own[:, :rows], -jnp.inf, every[:, :rows].T)
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


def margin_sums(texts: Texts, labels: jax.Array, weights: jax.Array, loss: MarginMse) -> Sums:
    """Return sums of the squared difference between margins of model and teacher, a mean over the negatives.

    Args:
      texts: anchors, positives and negatives.
      labels: [B, K - 1] float32, the teacher's scores of the positive and the negatives.
      weights: [B] float32.
      loss: the options.
    """
    scores = texts.to_own(loss.similarity)
    margins = (each[:, :1] - each[:, 1:] for each in (scores, labels))
    errors = jnp.mean(jnp.square(next(margins) - next(margins)), axis=1)
    return Sums(jnp.sum(weights * errors), jnp.sum(weights))


def divergence_sums(texts: Texts, labels: jax.Array, weights: jax.Array, loss: KlDivergence) -> Sums:
    """Return sums of T² · KL(teacher ‖ model) over positive and negatives; arguments as for `margin_sums`."""
    scores = texts.to_own(loss.similarity)
    ours, theirs = (jax.nn.log_softmax(each / loss.temperature, axis=1) for each in (scores, labels))
    losses = loss.temperature**2 * jnp.sum(jnp.exp(theirs) * (theirs - ours), axis=1)
    return Sums(jnp.sum(weights * losses), jnp.sum(weights))


def sparsity(vectors: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the sum over the words of the square of their mean weight in vectors [N, V], float32 [].

    Those whose `weights` [N] are 0 only fill the batch.
    """
    real = (weights > 0).astype(jnp.float32)
    mean = jnp.einsum("n,nv->v", real, vectors, precision=EXACT) / jnp.maximum(jnp.sum(real), 1)
    return jnp.sum(jnp.square(mean))


def loss_sums(texts: Texts, batch: Batch, loss: VectorLoss) -> Sums:
    """Return the sums of a loss, of which nothing is left open, over the examples of a batch.

    Args:
      texts: in float32.
      batch: weights [B]; labels [B] or [B, K - 1] of a loss that takes scores; numbers [B, K] of one with negatives of
        the batch, see `info_nce_sums`, which may lack.
    """
    weights, vectors = batch["weights"], texts.vectors
    match loss:
        case InfoNce():
            return info_nce_sums(texts, weights, loss, batch.get("numbers"))
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
            return margin_sums(texts, batch["labels"], weights, loss)
        case KlDivergence():
            return divergence_sums(texts, batch["labels"], weights, loss)


def nested_sums(texts: Texts, batch: Batch, options: VectorOptions) -> Sums:
    """Return `loss_sums`, or of nested vectors those of each length, times its weight, added; see `VectorOptions.dims`.

    The first features are a vector of norm 1. What is right is counted for the longest vectors.
    """
    loss = options.loss.of(options.embedding.form)
    if not options.dims:
        return loss_sums(texts, batch, loss)
    weights = options.dim_weights or (1.0,) * len(options.dims)
    longest_first = sorted(zip(options.dims, weights, strict=True), reverse=True)
    found = [
        (weight, loss_sums(Texts(unit_vectors(texts.vectors[..., :dim])), batch, loss)) for dim, weight in longest_first
    ]
    longest = found[0][1]
    return longest._replace(loss=sum((weight * sums.loss for weight, sums in found[1:]), found[0][0] * longest.loss))


@dataclasses.dataclass(frozen=True)
class VectorObjective:
    """The loss of the vectors of a batch (see `Objective`), which are computed in so many parts.

    A batch has texts in rows of their own or shared ones, and B examples: places int32 [B, K], the number of each text
    among the R or R · T vectors of all rows, and what `loss_sums` reads; of vectors of tokens also compared int32
    [R, L], and of vectors of words ramp float32 [B], by whose maximum what keeps them sparse is multiplied.
    """

    model: BertForTask
    options: VectorOptions
    micro_batches: int = 1

    @property
    def terms(self) -> tuple[Term, ...]:
        if not self._of_words:
            return (TERM,)
        own = self.options.sparsity
        weights = {QUERIES: own.query_weight, DOCUMENTS: own.document_weight}
        return LABELS, *(dataclasses.replace(term, weight=weight) for term, weight in weights.items())

    @property
    def _of_words(self) -> bool:
        return isinstance(self.options.embedding.form, WordVector)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        of_batch = isinstance(self.options.loss, Cosent)
        first, *others = self.terms
        own = jnp.float32(1) if of_batch else jnp.sum(batch["weights"])
        return {first.name: own, **{term.name: jnp.float32(1) for term in others}}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        vectors = of_rows(self.model, params, batch, dropout_key, self.micro_batches)
        of_tokens = "compared" in batch
        vectors = vectors if of_tokens else vectors.reshape(-1, vectors.shape[-1])
        found = on_every_device((vectors, batch["compared"] if of_tokens else None))
        texts = Texts(*jax.tree.map(lambda values: values[batch["places"]], found))
        first, *others = self.terms
        sums = {first.name: nested_sums(texts, batch, self.options)}
        columns = (texts.vectors[:, :1], texts.vectors[:, 1:]) if others else ()
        for term, values in zip(others, columns, strict=True):
            every = jnp.repeat(batch["weights"], values.shape[1])
            flops = sparsity(values.reshape(-1, values.shape[-1]), every)
            sums[term.name] = Sums(jnp.max(batch["ramp"]) * flops, jnp.float32(1))
        return sums


def on_every_device(found: Any) -> Any:
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

"""Objectives of rankings: what the scores of the documents of a query learn from each other, and from their grades.

The losses are those of sentence-transformers' cross-encoders: binary cross-entropy of each document, cross-entropy over
the documents of a query, ListNet (Cao et al. 2007), LambdaLoss (Wang et al. 2018) with the weights of LambdaRank and
nDCG-Loss, and MarginMSE (Hofstätter et al. 2020). Queries may have different numbers of documents: scores are [B, K] of
B queries with up to K documents, and `members` says which of them there are.

As for vectors, a batch is global, and its scores may be computed in parts.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config.ranking import BinaryLoss, LambdaLoss, ListNet, MarginLoss, RankingLoss, SoftmaxLoss
from bert_jax.models.task import BertForTask
from bert_jax.objectives.objective import Batch, Sums, Term
from bert_jax.objectives.vectors import of_rows, on_every_device

TERM = Term()


def binary_sums(scores: jax.Array, labels: jax.Array, members: jax.Array, loss: BinaryLoss) -> Sums:
    """Return sums over the documents of their binary cross-entropy in nats.

    Args:
      scores: [B, K] float32, here and below.
      labels: [B, K] float32, their grades, here and below.
      members: [B, K] float32, 1 for a document and 0 for what only fills a group or the batch, here and below.
      loss: the options.
    """
    shares = labels / loss.highest
    losses = loss.positive_weight * shares * jax.nn.softplus(-scores) + (1 - shares) * jax.nn.softplus(scores)
    return Sums(jnp.sum(members * losses), jnp.sum(members))


def softmax_sums(scores: jax.Array, labels: jax.Array, members: jax.Array, loss: SoftmaxLoss) -> Sums:
    """Return sums over the queries of the cross-entropy of each relevant document among it and all irrelevant ones.

    That of a query is a mean over its relevant documents; one without any, or with nothing else, does not count.
    """
    scores = loss.scale * (jax.nn.sigmoid(scores) if loss.activation == "sigmoid" else scores)
    right, wrong = (labels > 0) & (members > 0), (labels <= 0) & (members > 0)
    others = jnp.where(wrong, scores, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.max(others, axis=1, keepdims=True))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    rest = jnp.sum(jnp.where(wrong, jnp.exp(others - top), 0.0), axis=1, keepdims=True)
    # log(1 + Σ exp(other - score)), with a finite slope also where there are no others
    losses = jax.nn.softplus(jnp.log(jnp.where(rest > 0, rest, 1.0)) + top - scores)
    each = jnp.sum(jnp.where(right, losses, 0.0), axis=1) / jnp.maximum(jnp.sum(right, axis=1), 1)
    counts = _choosing(labels, members)
    return Sums(jnp.sum(counts * each), jnp.sum(counts))


def _choosing(labels: jax.Array, members: jax.Array) -> jax.Array:
    """Return float32 [B]: 1 for a query that has both relevant documents and others."""
    both = jnp.any((labels > 0) & (members > 0), axis=1) & jnp.any((labels <= 0) & (members > 0), axis=1)
    return both.astype(jnp.float32)


def listnet_sums(scores: jax.Array, labels: jax.Array, members: jax.Array) -> Sums:
    """Return sums over the queries of the cross-entropy between softmax(grades) and softmax(scores)."""
    there = members > 0
    counts = jnp.any(there, axis=1)
    shares = jax.nn.softmax(labels, axis=1, where=there)
    found = jax.nn.log_softmax(jnp.where(there, scores, 0.0), axis=1, where=there)
    losses = -jnp.sum(jnp.where(there, shares * found, 0.0), axis=1)
    return Sums(jnp.sum(jnp.where(counts, losses, 0.0)), jnp.sum(counts, dtype=jnp.float32))


def lambda_sums(scores: jax.Array, labels: jax.Array, members: jax.Array, loss: LambdaLoss) -> Sums:
    """Return the mean over all pairs of the batch of their weighted logistic losses in bits, as a loss of weight 1."""
    there, count = members > 0, scores.shape[1]
    ranks = jnp.argsort(jnp.argsort(jnp.where(there, -scores, jnp.inf), axis=1), axis=1)  # from 0
    gains = jnp.where(there, jnp.exp2(jnp.maximum(labels, 0.0)) - 1, 0.0)
    top = loss.top or count
    discounts = 1 / jnp.log2(2.0 + jnp.arange(count))[None]
    best = jnp.sum((-jnp.sort(-gains, axis=1) * discounts)[:, :top], axis=1, keepdims=True)
    gains /= jnp.maximum(best, 1e-10)
    pairs = there[:, :, None] & there[:, None, :]
    if loss.weighting != "ndcg1":
        pairs &= labels[:, :, None] > labels[:, None, :]
    pairs &= (ranks[:, :, None] < top) | (ranks[:, None, :] < top)
    losses = pair_weights(gains, ranks, loss) * jax.nn.softplus(-loss.sigma * (scores[:, :, None] - scores[:, None, :]))
    total = jnp.sum(jnp.where(pairs, losses, 0.0)) / math.log(2)
    return Sums(total / jnp.maximum(jnp.sum(pairs), 1), jnp.float32(1))


def pair_weights(gains: jax.Array, ranks: jax.Array, loss: LambdaLoss) -> jax.Array:
    """Return the weight of each ordered pair of documents, [B, K, K] or what broadcasts to it.

    Args:
      gains: [B, K], as shares of the best DCG.
      ranks: int [B, K], from 0, in the order of the model.
      loss: the options.
    """

    def discount(ranks: jax.Array) -> jax.Array:
        return 1 / jnp.log2(2.0 + ranks)

    if loss.weighting == "none":
        return jnp.ones((1, 1, 1))
    if loss.weighting == "ndcg1":
        return (gains * discount(ranks))[:, :, None]
    apart = jnp.abs(gains[:, :, None] - gains[:, None, :])
    between = jnp.abs(ranks[:, :, None] - ranks[:, None, :])
    exchanged = jnp.abs(discount(ranks)[:, :, None] - discount(ranks)[:, None, :])
    bound = jnp.where(between > 0, jnp.abs(discount(jnp.maximum(between - 1, 0)) - discount(between)), 0.0)
    if loss.weighting == "lambdarank":
        return exchanged * apart
    return (bound if loss.weighting == "ndcg2" else loss.mu * bound + exchanged) * apart


def margin_sums(scores: jax.Array, labels: jax.Array, members: jax.Array) -> Sums:
    """Return sums over all documents but the first of the squared difference between margins of model and teacher."""
    apart = (scores[:, :1] - scores[:, 1:]) - (labels[:, :1] - labels[:, 1:])
    return Sums(jnp.sum(members[:, 1:] * jnp.square(apart)), jnp.sum(members[:, 1:]))


def ranking_sums(scores: jax.Array, batch: Batch, loss: RankingLoss) -> Sums:
    """Return the sums of a loss of the scores [B, K] of the queries of a batch, see `binary_sums`."""
    labels, members = batch["labels"], batch["members"]
    scores = jnp.where(members > 0, scores, 0.0)  # of what fills a group they are those of another document
    match loss:
        case BinaryLoss():
            return binary_sums(scores, labels, members, loss)
        case SoftmaxLoss():
            return softmax_sums(scores, labels, members, loss)
        case ListNet():
            return listnet_sums(scores, labels, members)
        case LambdaLoss():
            return lambda_sums(scores, labels, members, loss)
        case MarginLoss():
            return margin_sums(scores, labels, members)


@dataclasses.dataclass(frozen=True)
class RankingObjective:
    """The loss of the scores of the queries of a batch (see `Objective`), which are computed in so many parts.

    A batch has sequences in rows of their own or shared ones, and B queries: places int32 [B, K], the number of each
    sequence among the R or R · T scores of all rows, and what `ranking_sums` reads.
    """

    model: BertForTask
    loss: RankingLoss
    micro_batches: int = 1

    @property
    def terms(self) -> tuple[Term, ...]:
        return (TERM,)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        # No loss is weighed by scores, so that any give the weight.
        weight = ranking_sums(jnp.zeros_like(batch["labels"]), batch, self.loss).weight
        return {TERM.name: jnp.asarray(weight)}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        scores = on_every_device(of_rows(self.model, params, batch, dropout_key, self.micro_batches).reshape(-1))
        return {TERM.name: ranking_sums(scores[batch["places"]], batch, self.loss)}

"""Static word vectors: GloVe and skip-gram with negative sampling, and the model that both train.

GloVe (Pennington et al. 2014, equation 8) learns from the counts of pairs of words, skip-gram (Mikolov et al. 2013,
arXiv 1310.4546, equation 4) from the neighbours of every word and random words.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import GloVe, GloVeConfig, SkipGram
from bert_jax.config.pretraining import SentencePairs
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import word_parameters
from bert_jax.models.costs import word_flops
from bert_jax.models.embeddings import look_up
from bert_jax.models.layers import wide_einsum
from bert_jax.models.protocol import EncoderOutput, Params, encoder_inputs
from bert_jax.objectives.objective import Batch, Sums, Term
from bert_jax.parameters import ParameterTable


@dataclasses.dataclass(frozen=True)
class WordVectors(BertForPreTraining):
    """An encoder that is a table of words, and the arrays of an objective for words as neighbours of others.

    Skip-gram has a second table, contexts/table, and GloVe also a bias for each word in either role. They start at
    zero, as in the code that Mikolov et al. published.
    """

    parts: tuple[str, ...] = ()
    options: SkipGram | GloVe = SkipGram()
    """What it is trained for."""

    @property
    def parameters(self) -> ParameterTable:
        """See `Model.parameters`."""
        return {**super().parameters, **self._own}

    def init(self, key: jax.Array) -> Params:
        """See `Model.init`."""
        params = super().init(key)
        for path, entry in self._own.items():
            part, name = path.split("/")
            params.setdefault(part, {})[name] = jnp.zeros(entry.shape, jnp.float32)
        return params

    def training_flops(self, sequence_length: int, predictions: int) -> int:
        """Implement `Model.training_flops`."""
        own = word_flops(self.config, self.options, sequence_length, predictions)
        return super().training_flops(sequence_length, predictions) + own.total

    def head_bytes(self, sequence_length: int, predictions: int, value_bytes: int) -> int:
        """Implement `HasHead`."""
        return self.options.head_bytes(self.config.word_size, sequence_length, predictions, value_bytes)

    def context_scores(self, params: Params, encoded: EncoderOutput, ids: jax.Array) -> jax.Array:
        """Return float32 [B, L, M]: how well the words `ids` [B, M] go with that of each place of `encoded`."""
        x = encoded.last_hidden_state
        return wide_einsum("blh,bmh->blm", x, look_up(params["contexts"]["table"], ids).astype(x.dtype))

    def context_biases(self, params: Params, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return float32 [B, L] twice: GloVe's bias of each of `ids` [B, L] as a word, and as a neighbour."""
        biases = params["context_biases"]
        return biases["center"][ids], biases["neighbour"][ids]

    @property
    def _own(self) -> ParameterTable:
        return word_parameters(self.config, self.options.word_arrays)


COUNTS = Term(name="glove", label="counts", title="GloVe", unit="squared error of log counts", panels=("loss",))


@dataclasses.dataclass(frozen=True)
class GloveObjective:
    """The logarithm of the count of every pair of words (see `Objective`), of batches of `NeighbourCounts`.

    The paper's sum over the cells of the matrix of counts X, of f(X_ij) (w_i·c_j + a_i + b_j - log X_ij)² with
    f(x) = min(1, (x / maximum_count)^count_power), is taken over the pairs of the text instead: a pair at distance d
    has the weight f(X_ij) / (d X_ij), and the pairs of a cell make up X_ij together. So over an epoch every cell weighs
    what it weighs in the paper, but for pairs that the ends of rows or of packed texts divide. The loss is the mean by
    these weights.
    """

    model: WordVectors
    options: GloVeConfig
    terms: tuple[Term, ...] = (COUNTS,)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {COUNTS.name: 2 * jnp.sum(self._weights(batch))}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        ids, weights = batch["input_ids"], self._weights(batch)
        encoded = self.model.encode(params, *encoder_inputs(batch), dropout_key)
        scores = self.model.context_scores(params, encoded, ids)
        of_words, of_neighbours = self.model.context_biases(params, ids)
        scores += of_words[:, :, None] + of_neighbours[:, None, :]
        wanted = jnp.log(jnp.maximum(batch["pair_counts"], jnp.finfo(jnp.float32).tiny))
        errors = [
            jnp.square(_following(each, wanted.shape[2]) - wanted) for each in (scores, jnp.swapaxes(scores, 1, 2))
        ]
        return {COUNTS.name: Sums(jnp.sum(weights * (errors[0] + errors[1])), 2 * jnp.sum(weights))}

    def _weights(self, batch: Batch) -> jax.Array:
        """Return float32 [B, L, W]: of each place with each of the W that follow it, 0 where there is no pair."""
        counts = batch["pair_counts"]
        there = counts > 0
        counts = jnp.where(there, counts, 1.0)
        kept = jnp.minimum((counts / self.options.maximum_count) ** self.options.count_power, 1.0)
        distances = jnp.arange(1, counts.shape[2] + 1, dtype=jnp.float32)[None, None]
        return jnp.where(there, kept / (counts * distances), 0.0)


def _following(scores: jax.Array, window: int) -> jax.Array:
    """Return [B, L, W] of [B, L, L]: those of each place with the W that follow it, and the last one past the end."""
    length = scores.shape[1]
    later = jnp.minimum(jnp.arange(length)[:, None] + jnp.arange(1, window + 1)[None], length - 1)
    return jnp.take_along_axis(scores, later[None], axis=2)


NEIGHBOURS = Term(name="skip_gram", label="neighbours", title="Skip-gram", unit="nats per pair", panels=("loss",))


@dataclasses.dataclass(frozen=True)
class SkipGramObjective:
    """Neighbours of every word against random words (see `Objective`), of batches of `data.neighbours`.

    A pair of a word w and its neighbour c has the loss -log σ(w·c) - k E log σ(-w·n) over words n ~ count^(3/4). The
    expectation is the mean over the words that were drawn for the row.
    """

    model: WordVectors
    negatives: int
    """The weight k of the random words."""
    terms: tuple[Term, ...] = (NEIGHBOURS,)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {NEIGHBOURS.name: jnp.sum(_pairs(batch))}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        ids, pairs = batch["input_ids"], _pairs(batch)
        encoded = self.model.encode(params, *encoder_inputs(batch), dropout_key)
        near = jax.nn.softplus(-self.model.context_scores(params, encoded, ids))
        drawn = jax.nn.softplus(self.model.context_scores(params, encoded, batch["negatives"]))
        of_a_pair = near + self.negatives * jnp.mean(drawn, axis=2, keepdims=True)
        return {NEIGHBOURS.name: Sums(jnp.sum(pairs * of_a_pair), jnp.sum(pairs))}


def _pairs(batch: Batch) -> jax.Array:
    """Return float32 [B, L, L]: 1 where the second place is a neighbour of the first."""
    place = jnp.arange(batch["input_ids"].shape[1])
    distance, windows = (place[None] - place[:, None])[None], batch["windows"]
    near = (distance != 0) & (distance >= -windows[:, :, :1]) & (distance <= windows[:, :, 1:])
    return near.astype(jnp.float32)


def objective(
    model: BertForPreTraining, options: SkipGram | GloVe, epsilon: float, sentence_pairs: SentencePairs
) -> SkipGramObjective | GloveObjective:
    """See `objectives.objective.ObjectiveFamily`."""
    del epsilon, sentence_pairs
    vectors = WordVectors(model.config, model.compute, architecture=model.architecture, options=options)
    match options:
        case SkipGram():
            return SkipGramObjective(vectors, options.static_vectors.negatives)
        case GloVe():
            return GloveObjective(vectors, options.static_vectors)

"""BERT with a task head in place of the pre-training ones, as pure functions of a dict of arrays; and its CRF.

The linear-chain conditional random field (Lafferty et al. 2001) has a loss and a best path. A path y of n words
scores start[y₁] + Σ emission[t, y_t] + Σ transitions[y_t, y_{t+1}] + end[y_n]; its probability is the softmax over
all paths. A row holds the chains of several sentences, one after another. Where it has only a part of a sentence,
start counts if that part is the beginning, end if it is the end. The words are the positions that carry a label
(first pieces): they are packed to the left of an array of the same static length, and the rest is masked.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.config import ComputeConfig, EmbeddingConfig, EncoderConfig, HeadConfig
from bert_jax.config.heads import SingleVector, TokenVectors, WordVector
from bert_jax.errors import UserError
from bert_jax.models.architecture import Architecture, bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import (
    POOLED,
    TOKEN_VECTORS,
    Layers,
    reads_pooler,
    task_parameters,
    token_parameters,
)
from bert_jax.models.costs import training_flops
from bert_jax.models.heads import TaskHead, TransformedTaskHead
from bert_jax.models.kernels.plain import AttentionMask
from bert_jax.models.layers import PackedTexts, truncated_normal
from bert_jax.models.lstm import BiLstmHead
from bert_jax.models.pooling import pool, read_mask, text_positions, token_vectors, unit_vectors
from bert_jax.models.protocol import EncoderOutput, Params, arrays, structure
from bert_jax.parameters import ParameterTable, with_initial_factors

Labels = TypeVar("Labels", jax.Array, np.ndarray)

FORBIDDEN = -1e4  # added to a score; finite, so that a chain whose paths are all forbidden still has a best one


class ConditionalRandomField(nnx.Module):
    """Scores of C labels next to each other: transitions [C, C] (from, to), start [C], end [C].

    They start as zeros: at first, a path scores only what its emissions say.
    """

    def __init__(self, num_labels: int):
        self.transitions: nnx.Param[jax.Array] = nnx.Param(jnp.zeros((num_labels, num_labels)))
        self.start: nnx.Param[jax.Array] = nnx.Param(jnp.zeros(num_labels))
        self.end: nnx.Param[jax.Array] = nnx.Param(jnp.zeros(num_labels))

    def negative_log_likelihood(
        self, logits: jax.Array, labels: jax.Array, first: jax.Array, last: jax.Array
    ) -> jax.Array:
        """Return -log p(labels) of each row, summed over its sentences, by the forward algorithm: [B] float32.

        A row without labels gives 0.

        Args:
          logits: [B, L, C], emissions.
          labels: int32 [B, L], -1 at positions that belong to no chain.
          first: bool [B, L], whether the word at a label is the first of its sentence; not read elsewhere.
          last: bool [B, L], whether the word at a label is the last of its sentence; not read elsewhere.
        """
        words = _words(logits, labels, first, last, self.start[...], self.end[...])
        return _log_normalizer(self.transitions[...], words) - _path_score(self.transitions[...], words)

    def best_paths(
        self,
        logits: jax.Array,
        labels: jax.Array,
        first: jax.Array,
        last: jax.Array,
        names: tuple[str, ...] | None = None,
    ) -> jax.Array:
        """Return the most probable labels by the Viterbi algorithm: int32 [B, L], -1 where `labels` is.

        Args:
          logits, first, last: as for `negative_log_likelihood`.
          labels: read only for where they are -1.
          names: names of the C labels. With them, the search leaves out transitions that IOB2 forbids.
        """
        transitions, start = self.transitions[...], self.start[...]
        if names is not None:
            forbidden = constraints(names)
            transitions, start = transitions + forbidden["transitions"], start + forbidden["start"]
        words = _words(logits, labels, first, last, start, self.end[...])
        best = _viterbi(transitions, words)
        rows = jnp.arange(labels.shape[0])[:, None]
        return jnp.full_like(labels, -1).at[rows, words.positions].set(jnp.where(words.real, best, -1))


def constraints(names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return what IOB2 adds to transitions [C, C] and start [C]: FORBIDDEN to I-X except from B-X and I-X, else 0."""
    inside = np.array([name.startswith("I-") for name in names])
    before = np.array([[a in (f"B-{b[2:]}", b) for b in names] for a in names])
    return {
        "transitions": np.where(inside & ~before, FORBIDDEN, 0.0).astype(np.float32),
        "start": np.where(inside, FORBIDDEN, 0.0).astype(np.float32),
    }


def with_edges(classes: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return int32 labels for tagging: the class of each word, and whether it is the first or the last of its sentence.

    All three are in one number, so that the array that marks the words also tells a CRF where sentences begin and end.
    """
    return (classes << 2 | last << 1 | first).astype(np.int32)


def without_edges(labels: Labels) -> tuple[Labels, Labels, Labels]:
    """Return (classes, first, last) of tagging labels, NumPy's or JAX's; the class is -1 where nothing is predicted."""
    return labels >> 2, (labels & 1) > 0, (labels & 2) > 0


class _Words(NamedTuple):
    """The words of each row, moved to the left in order; after them, real and linked are False."""

    scores: jax.Array
    """[B, L, C] float32: emissions, with start added for the first word of a sentence, end for the last."""
    labels: jax.Array
    """int32 [B, L]."""
    real: jax.Array
    """bool [B, L]."""
    linked: jax.Array
    """bool [B, L]: whether the word before is in the same sentence, so that there is a transition between them."""
    positions: jax.Array
    """[B, L]: the columns that the words came from."""


def _words(
    logits: jax.Array, labels: jax.Array, first: jax.Array, last: jax.Array, start: jax.Array, end: jax.Array
) -> _Words:
    positions = jnp.argsort(labels < 0, axis=1, stable=True)
    labels, first, last = (jnp.take_along_axis(array, positions, axis=1) for array in (labels, first, last))
    scores = jnp.take_along_axis(logits.astype(jnp.float32), positions[:, :, None], axis=1)
    scores += jnp.where(first[:, :, None], start[None, None], 0.0)
    scores += jnp.where(last[:, :, None], end[None, None], 0.0)
    return _Words(scores, labels, labels >= 0, (labels >= 0) & ~first, positions)


def _path_score(transitions: jax.Array, words: _Words) -> jax.Array:
    tags = jnp.maximum(words.labels, 0)
    scores = jnp.take_along_axis(words.scores, tags[:, :, None], axis=2)[:, :, 0]
    moved = transitions[tags[:, :-1], tags[:, 1:]]
    return jnp.where(words.real, scores, 0.0).sum(1) + jnp.where(words.linked[:, 1:], moved, 0.0).sum(1)


def _log_normalizer(transitions: jax.Array, words: _Words) -> jax.Array:
    def step(forward: Any, word: Any):
        scores, real, linked = word
        reached = jax.nn.logsumexp(_moves(forward, transitions, linked), axis=1) + scores
        return jnp.where(real[:, None], reached, forward), None

    forward, _ = jax.lax.scan(step, words.scores[:, 0], _later(words))
    return jnp.where(words.real[:, 0], jax.nn.logsumexp(forward, axis=1), 0.0)


def _viterbi(transitions: jax.Array, words: _Words) -> jax.Array:
    def step(best: Any, word: Any):
        scores, real, linked = word
        moves = _moves(best, transitions, linked)
        stay = jnp.broadcast_to(jnp.arange(best.shape[1])[None], best.shape)
        # After the last word each label points to itself, so that the way back arrives at that word unchanged.
        came_from = jnp.where(real[:, None], moves.argmax(axis=1), stay)
        return jnp.where(real[:, None], moves.max(axis=1) + scores, best), came_from

    def back(label: Any, came_from: Any):
        label_before = jnp.take_along_axis(came_from, label[:, None], axis=1)[:, 0]
        return label_before, label_before

    best, came_from = jax.lax.scan(step, words.scores[:, 0], _later(words))
    last = best.argmax(axis=1)
    _, earlier = jax.lax.scan(back, last, came_from, reverse=True)
    return jnp.concatenate([earlier, last[None]]).T


def _moves(reached: jax.Array, transitions: jax.Array, linked: jax.Array) -> jax.Array:
    """Return [B, from, to]: the scores reached, [B, from], plus the transitions, except where a sentence begins."""
    return reached[:, :, None] + jnp.where(linked[:, None, None], transitions[None], 0.0)


def _later(words: _Words) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (scores, real, linked) of all words but the first, to scan over."""
    return jnp.moveaxis(words.scores[:, 1:], 1, 0), words.real[:, 1:].T, words.linked[:, 1:].T


def pooled_windows(scores: jax.Array, mask: jax.Array, pooling: str) -> jax.Array:
    """Return the scores [B, C] of texts for those of their windows [B, K, C]: the highest, or else the mean.

    `mask`: [B, K, L], 1 for tokens; a window that a text does not need has only one.
    """
    real = (jnp.sum(mask, axis=-1) > 1)[..., None]
    if pooling == "max":
        return jnp.max(jnp.where(real, scores, FORBIDDEN), axis=1)
    return jnp.sum(jnp.where(real, scores, 0.0), axis=1) / jnp.maximum(jnp.sum(real, axis=1), 1)


Head = TaskHead | TransformedTaskHead | BiLstmHead


@dataclasses.dataclass(frozen=True)
class BertForTask:
    """The encoder and one head. Parameters: embeddings, encoder, (pooler,) head/kernel [H, C], head/bias [C], (crf/…).

    With head.features, head/ is that of models/lstm.py, and the encoder is not trained unless head.train_encoder says
    so.

    Raises UserError if the head has no output: a classifier or tagger without labels.
    """

    config: EncoderConfig
    head: HeadConfig
    compute: ComputeConfig = ComputeConfig()
    architecture: Callable[[EncoderConfig, ComputeConfig], Architecture] = bert_architecture
    """Chooses the pieces of the encoder."""
    unread: tuple[int, ...] = ()
    """Ids that the vector of a text leaves out; see `StoredModel.unread`."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    """Form of the vectors of texts, where the head is vectors."""

    def __post_init__(self) -> None:
        if self.head.outputs < 1 and self.head.kind != "vectors":
            raise UserError(f"a {self.head.kind} head needs the names of its labels, and head.labels is empty")
        if self.head.crf and self.head.kind != "tagging":
            raise UserError(f"head.crf=True belongs to tagging, not to {self.head.kind}")
        if self.head.pooling == "mean" and not self.config.task_transform:
            raise UserError("head.pooling=mean belongs to models with task_transform; BERT's head reads its pooler")

    @functools.cached_property
    def encoder(self) -> BertForPreTraining:
        """The model below the head, without pre-training heads."""
        parts = ("pooler",) if reads_pooler(self.config, self.head) else ()
        parts = ("mlm",) if self._of_words else parts
        return BertForPreTraining(self.config, self.compute, parts, self.architecture)

    @property
    def parameters(self) -> ParameterTable:
        """See `Model.parameters`."""
        size = self._token_size
        return {
            **self.encoder.parameters,
            **task_parameters(self.config, self.head),
            **token_parameters(self.config, size),
        }

    @property
    def _of_words(self) -> bool:
        return self.head.kind == "vectors" and isinstance(self.embedding.form, WordVector)

    @property
    def _token_size(self) -> int | None:
        form = self.embedding.form
        return form.size if self.head.kind == "vectors" and isinstance(form, TokenVectors) else None

    @property
    def encoder_layers(self) -> Layers:
        """Implement `HasLayers`."""
        return self.encoder.encoder_layers

    def training_flops(self, sequence_length: int, predictions: int) -> int:
        """Implement `Model.training_flops`; a BiLSTM counts without its recurrence, and the encoder as if it were
        trained."""
        read = 1 if self._reads_first and self.encoder.reads_alone else None
        return training_flops(self.config, self.parameters, sequence_length, predictions, read).total

    def init(self, key: jax.Array) -> Params:
        """Return fresh parameters, as `Model.init`. A CRF has no preference for any transition yet."""
        encoder_key, head_key = jax.random.split(key)
        params = self.encoder.init(encoder_key)
        if self._token_size is not None:
            shape = (self.config.hidden_size, self._token_size)
            kernel = truncated_normal(head_key, shape, self.config.initializer_range)
            params |= with_initial_factors(self.parameters, {TOKEN_VECTORS: {"kernel": kernel}})
        if self.head.kind == "vectors":
            return params
        params |= with_initial_factors(self.parameters, {"head": arrays(self._fresh_head(head_key))})
        return params | {"crf": arrays(self._fresh_crf())} if self.head.crf else params

    def encode(
        self,
        params: Params,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array | AttentionMask,
        dropout_key: jax.Array | None = None,
        collect: bool = False,
        texts: PackedTexts | None = None,
    ) -> EncoderOutput:
        """See `Model.encode` and, for `texts`, `BertForPreTraining.encode`; the head is not computed."""
        return self.encoder.encode(params, input_ids, token_type_ids, attention_mask, dropout_key, collect, texts)

    def apply(self, params: Params, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None) -> jax.Array:
        """Return the scores of the head, float32.

        Args:
          params: from `init`, or of the same structure; there may also be heads of pre-training.
          batch: input_ids, token_type_ids and attention_mask, int32 [B, L]; [B, K, L] for choice, for vectors of K
            texts, and for K windows of a text. Rows that several sequences share (OF_TEXTS) also have text_ids [B, L]
            and text_starts [B, T]; not for vectors of tokens or words.
          dropout_key: None for no dropout.

        Returns:
          classification and multilabel [B, C]; regression [B]; choice [B, K]; span [B, L, 2] (start, end); tagging
          [B, L, C], the scores that enter the CRF where there is one. Of shared rows, [B, T, C] and, for regression,
          [B, T]. Vectors are [B, H], [B, K, H] or, of shared rows, [B, T, H]; those of tokens, which do not share rows,
          [B, L, D] or [B, K, L, D], and those of words [B, V] or [B, K, V].
        """
        shape = batch["input_ids"].shape
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        ids, types, mask = (
            batch[name].reshape(-1, shape[-1]) for name in ("input_ids", "token_type_ids", "attention_mask")
        )
        texts = PackedTexts.of(batch)
        if self.head.kind == "vectors":
            output = self.encode(params, ids, types, mask, keys[0], texts=texts)
            vectors = self._vectors(params, output.last_hidden_state, read_mask(ids, mask, self.unread), texts)
            return vectors.reshape(*shape[:-1], *vectors.shape[1:])
        head = nnx.merge(self._head_structure, params["head"])
        if isinstance(head, BiLstmHead):
            key = keys[0] if self.head.train_encoder else None
            output = self.encode(params, ids, types, mask, key, collect=True, texts=texts)
            return self._of_sequences(head(output.hidden_states or (), mask, texts, keys[1]), batch)
        mask = read_mask(ids, mask, self.unread)
        if self._reads_first:
            first = text_positions(mask, self.config.text_state, texts)
            read = first[:, :0] if reads_pooler(self.config, self.head) else first
            output = self.encoder.read(params, ids, types, mask, read, keys[0], texts)
        else:
            output = self.encode(params, ids, types, mask, keys[0], texts=texts)
        return self._of_sequences(head(output, mask, texts, keys[1]), batch)

    def _vectors(self, params: Params, states: jax.Array, mask: jax.Array, texts: PackedTexts | None) -> jax.Array:
        """Return the vectors of texts, or of their tokens, of states [B, L, H] and the mask of what is read."""
        match self.embedding.form:
            case TokenVectors():
                return token_vectors(states, params[TOKEN_VECTORS]["kernel"])
            case WordVector():
                return self.encoder.word_strengths(params, states, mask)
            case SingleVector():
                vectors = pool(states.astype(jnp.float32), mask, self.embedding.pooling, texts)
                return unit_vectors(vectors) if self.embedding.normalize else vectors

    def _of_sequences(self, scores: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
        """Return the scores in the form of input_ids: of a text for its windows, without a column that is alone."""
        shape = batch["input_ids"].shape
        if self.head.kind == "choice":
            return scores.reshape(shape[:-1])
        if len(shape) > 2:
            scores = pooled_windows(scores.reshape(*shape[:-1], -1), batch["attention_mask"], self.head.windows)
        return scores[..., 0] if self.head.kind == "regression" else scores

    @property
    def _reads_first(self) -> bool:
        """Whether the head reads one state of each text, that of the pooler or the first."""
        return self.head.kind in POOLED and self.head.pooling == "cls" and not self.head.features

    def crf(self, params: Params) -> ConditionalRandomField:
        """Return the CRF with its parameters, of a model whose head has one."""
        return nnx.merge(self._crf_structure, params["crf"])

    def _fresh_head(self, key: jax.Array) -> Head:
        if self.config.task_transform and not self.head.features:
            activation = self.architecture(self.config, self.compute).activation
            return TransformedTaskHead(self.config, self.head, key, activation)
        return (BiLstmHead if self.head.features else TaskHead)(self.config, self.head, key)

    def _fresh_crf(self) -> ConditionalRandomField:
        return ConditionalRandomField(self.head.outputs)

    @functools.cached_property
    def _head_structure(self) -> nnx.GraphDef[Head]:
        return structure(lambda: self._fresh_head(jax.random.key(0)))

    @functools.cached_property
    def _crf_structure(self) -> nnx.GraphDef[ConditionalRandomField]:
        return structure(self._fresh_crf)

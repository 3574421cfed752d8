"""Linear-chain conditional random field over the words of a sentence (Lafferty et al. 2001): loss and best path.

A path y of n words scores start[y₁] + Σ emission[t, y_t] + Σ transitions[y_t, y_{t+1}] + end[y_n]; its probability is
the softmax over all paths. A row holds the chains of several sentences, one after another. Where it has only a part of
a sentence, start counts if that part is the beginning, end if it is the end. The words are the positions that carry a
label (first pieces): they are packed to the left of an array of the same static length, and the rest is masked.
"""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

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
          logits: as for `negative_log_likelihood`.
          labels: read only for where they are -1.
          first: as for `negative_log_likelihood`.
          last: as for `negative_log_likelihood`.
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

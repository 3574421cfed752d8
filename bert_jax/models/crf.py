"""Linear-chain conditional random field over the words of a sequence (Lafferty et al. 2001): loss and best path.

A path y of n words scores start[y₁] + Σ emission[t, y_t] + Σ transitions[y_t, y_{t+1}] + end[y_n]; its probability is the
softmax over all paths. The chain runs over the positions that carry a label (first pieces of words): they are packed to
the left of an array of the same static length, and the rest is masked.
"""

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, jax.Array]
"""transitions [C, C] (from, to), start [C], end [C]; float32."""

FORBIDDEN = -1e4  # added to a score; finite, so that a chain all of whose paths are forbidden has a best one still


def init(num_labels: int) -> Params:
    """Zeros: at first, every path weighs what its emissions say."""
    return {"transitions": jnp.zeros((num_labels, num_labels)), "start": jnp.zeros(num_labels), "end": jnp.zeros(num_labels)}


def pack(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Moves the positions with a label to the left, in order.

    Args:
        logits: [B, L, C].
        labels: int32 [B, L], -1 where there is none.

    Returns:
        (emissions float32 [B, L, C], labels [B, L], positions [B, L]): of row b, the first n_b entries are its labelled
        positions; behind them labels are -1. `positions` are the columns that they came from.
    """
    positions = jnp.argsort(labels < 0, axis=1, stable=True)
    emissions = jnp.take_along_axis(logits.astype(jnp.float32), positions[:, :, None], axis=1)
    return emissions, jnp.take_along_axis(labels, positions, axis=1), positions


def negative_log_likelihood(params: Params, logits: jax.Array, labels: jax.Array) -> jax.Array:
    """-log p(labels) of each sequence by the forward algorithm, [B] float32; 0 for one without labels.

    Args:
        params: transitions, start, end.
        logits: [B, L, C], emissions.
        labels: int32 [B, L], -1 at positions that the chain leaves out.
    """
    emissions, labels, _ = pack(logits, labels)
    return _log_normalizer(params, emissions, labels >= 0) - _path_score(params, emissions, labels)


def best_paths(params: Params, logits: jax.Array, labels: jax.Array, names: tuple[str, ...] | None = None) -> jax.Array:
    """The most probable labels by the Viterbi algorithm: int32 [B, L], -1 where `labels` is; of `labels` only that is read.

    Args:
        params, logits, labels: as for `negative_log_likelihood`.
        names: of the C labels; given, transitions that IOB2 forbids are left out of the search.
    """
    if names is not None:
        params = {name: params[name] + value for name, value in constraints(names).items()} | {"end": params["end"]}
    emissions, labels, positions = pack(logits, labels)
    best = _viterbi(params, emissions, labels >= 0)
    rows = jnp.arange(labels.shape[0])[:, None]
    return jnp.full_like(labels, -1).at[rows, positions].set(jnp.where(labels >= 0, best, -1))


def constraints(names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """What IOB2 adds to transitions [C, C] and start [C]: FORBIDDEN before each I-X but after B-X and I-X, 0 elsewhere."""
    inside = np.array([name.startswith("I-") for name in names])
    before = np.array([[a in (f"B-{b[2:]}", b) for b in names] for a in names])
    return {"transitions": np.where(inside & ~before, FORBIDDEN, 0.0).astype(np.float32),
            "start": np.where(inside, FORBIDDEN, 0.0).astype(np.float32)}


def _path_score(params: Params, emissions: jax.Array, labels: jax.Array) -> jax.Array:
    real = labels >= 0
    tags = jnp.maximum(labels, 0)
    emitted = jnp.take_along_axis(emissions, tags[:, :, None], axis=2)[:, :, 0]
    moved = params["transitions"][tags[:, :-1], tags[:, 1:]]
    last = jnp.take_along_axis(tags, jnp.maximum(real.sum(1) - 1, 0)[:, None], axis=1)[:, 0]
    ends = jnp.where(real[:, 0], params["start"][tags[:, 0]] + params["end"][last], 0.0)
    return ends + jnp.where(real, emitted, 0.0).sum(1) + jnp.where(real[:, 1:], moved, 0.0).sum(1)


def _log_normalizer(params: Params, emissions: jax.Array, real: jax.Array) -> jax.Array:
    def step(forward, word):
        emission, here = word
        reached = jax.nn.logsumexp(forward[:, :, None] + params["transitions"][None], axis=1) + emission
        return jnp.where(here[:, None], reached, forward), None

    first = params["start"][None] + emissions[:, 0]
    forward, _ = jax.lax.scan(step, first, (jnp.moveaxis(emissions[:, 1:], 1, 0), real[:, 1:].T))
    total = jax.nn.logsumexp(forward + params["end"][None], axis=1)
    return jnp.where(real[:, 0], total, 0.0)


def _viterbi(params: Params, emissions: jax.Array, real: jax.Array) -> jax.Array:
    def step(best, word):
        emission, here = word
        scores = best[:, :, None] + params["transitions"][None]
        reached = scores.max(axis=1) + emission
        stay = jnp.broadcast_to(jnp.arange(best.shape[1])[None], best.shape)
        # Behind the last word each label points to itself, so that the way back arrives at that word unchanged.
        came_from = jnp.where(here[:, None], scores.argmax(axis=1), stay)
        return jnp.where(here[:, None], reached, best), came_from

    def back(label, came_from):
        label_before = jnp.take_along_axis(came_from, label[:, None], axis=1)[:, 0]
        return label_before, label_before

    words = (jnp.moveaxis(emissions[:, 1:], 1, 0), real[:, 1:].T)
    best, came_from = jax.lax.scan(step, params["start"][None] + emissions[:, 0], words)
    last = (best + params["end"][None]).argmax(axis=1)
    _, earlier = jax.lax.scan(back, last, came_from, reverse=True)
    return jnp.concatenate([earlier, last[None]]).T

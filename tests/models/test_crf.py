"""The CRF against all its paths, written out: log-likelihood, best path, gradients, packing, sentences, constraints."""

import functools
import itertools

import jax
import numpy as np
import pytest
from flax import nnx

from bert_jax.models import task
from bert_jax.models.protocol import arrays, structure

NAMES = ("O", "B-X", "I-X", "I-Y")
BATCH, LENGTH, LABELS = 6, 7, len(NAMES)
SENTENCES = (
    [(2, True, True), (3, True, True)],
    [],
    [(1, True, True)],
    [(1, True, True), (1, True, False)],
    [(4, False, False)],
    [(3, False, True), (1, True, True), (3, True, False)],
)
"""Of each row: (words, whether the sentence begins there, whether it ends there)."""
STRUCTURE = structure(lambda: task.ConditionalRandomField(LABELS))


@jax.jit
def loss(params, *rows):
    return nnx.merge(STRUCTURE, params).negative_log_likelihood(*rows)


@functools.partial(jax.jit, static_argnames="names")
def best_paths(params, *rows, names=None):
    return nnx.merge(STRUCTURE, params).best_paths(*rows, names)


def example(seed=0):
    """Parameters; and logits, labels, first, last of rows of 5, 0, 1, 2, 4 and 7 words at any positions in the row.

    Rows have several sentences, and parts of sentences at either end.
    """
    random = np.random.default_rng(seed)
    params = {
        "transitions": random.standard_normal((LABELS, LABELS)),
        "start": random.standard_normal(LABELS),
        "end": random.standard_normal(LABELS),
    }
    logits = 2 * random.standard_normal((BATCH, LENGTH, LABELS))
    labels = np.full((BATCH, LENGTH), -1, np.int32)
    for row, words in enumerate((5, 0, 1, 2, 4, 7)):
        places = np.sort(random.permutation(LENGTH)[:words])
        labels[row, places] = random.integers(0, LABELS, words)
    first, last = random.random((2, BATCH, LENGTH)) < 0.5  # where there is no label, what they are must not matter
    for row, sentences in enumerate(SENTENCES):
        places, ends = np.flatnonzero(labels[row] >= 0), np.cumsum([size for size, _, _ in sentences], dtype=int)
        first[row, places], last[row, places] = False, False
        for (size, begins, finishes), end in zip(sentences, ends):
            first[row, places[end - size]], last[row, places[end - 1]] = begins, finishes
    return (
        {name: value.astype(np.float32) for name, value in params.items()},
        (logits.astype(np.float32), labels, first, last),
    )


def cut(path, sentences):
    """The parts of a path, each with whether it begins its sentence and whether it ends it."""
    words = iter(path)
    return [(tuple(itertools.islice(words, size)), begins, finishes) for size, begins, finishes in sentences]


def path_score(params, emissions, path, sentences):
    score = sum(emissions[t, label] for t, label in enumerate(path))
    for part, begins, finishes in cut(path, sentences):
        score += sum(params["transitions"][a, b] for a, b in itertools.pairwise(part))
        score += begins * params["start"][part[0]] + finishes * params["end"][part[-1]]
    return score


def all_paths(params, emissions, sentences):
    """{path: score}, float64, of every path through emissions [n, C]."""
    wide = {name: value.astype(np.float64) for name, value in params.items()}
    return {
        path: path_score(wide, emissions.astype(np.float64), path, sentences)
        for path in itertools.product(range(LABELS), repeat=len(emissions))
    }


def allowed(path, sentences):
    """Whether every I-X follows B-X or I-X; what precedes a part that begins inside its sentence is not known."""
    return all(
        not NAMES[label].startswith("I-") or (NAMES[part[t - 1]][1:] == NAMES[label][1:] if t else not begins)
        for part, begins, _ in cut(path, sentences)
        for t, label in enumerate(part)
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_loss_is_minus_the_log_of_the_share_of_the_path(seed):
    params, (logits, labels, first, last) = example(seed)
    losses = loss(params, logits, labels, first, last)
    for found, row, gold, sentences in zip(losses, logits, labels, SENTENCES, strict=True):
        real = gold >= 0
        scores = all_paths(params, row[real], sentences)
        expected = np.logaddexp.reduce(list(scores.values())) - scores[tuple(gold[real])]
        assert float(found) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("seed", [3, 6])
@pytest.mark.parametrize("names", [None, NAMES])
def test_best_path_is_the_best_of_all(names, seed):
    params, (logits, labels, first, last) = example(seed)
    found = np.asarray(best_paths(params, logits, labels, first, last, names=names))
    assert ((found == -1) == (labels == -1)).all()
    free_and_forbidden = 0
    for path, row, gold, sentences in zip(found, logits, labels, SENTENCES, strict=True):
        real = gold >= 0
        scores = all_paths(params, row[real], sentences)
        best = max(scores, key=scores.get)
        free_and_forbidden += not allowed(best, sentences)
        if names:
            best = max((path for path in scores if allowed(path, sentences)), key=scores.get)
        assert tuple(path[real]) == best
    assert free_and_forbidden > 0  # else the constraints had nothing to do


def test_constraints_are_the_rules_of_iob2():
    forbidden = task.constraints(NAMES)
    for first, second in itertools.product(range(LABELS), repeat=2):
        goes_on = NAMES[second].startswith("I-") and NAMES[first] != "O" and NAMES[first][1:] == NAMES[second][1:]
        assert (forbidden["transitions"][first, second] == 0) == (goes_on or not NAMES[second].startswith("I-"))
    assert forbidden["start"].tolist() == [0, 0, task.FORBIDDEN, task.FORBIDDEN]


def test_gradients_equal_finite_differences():
    params, (logits, labels, first, last) = example(3)
    loss_and_gradients = jax.jit(jax.value_and_grad(lambda at: loss(*at, labels, first, last).sum()))
    gradients = loss_and_gradients((params, logits))[1]
    random = np.random.default_rng(0)
    for _ in range(3):
        direction = jax.tree.map(lambda x: random.standard_normal(x.shape).astype(np.float32), (params, logits))
        ahead, behind = (jax.tree.map(lambda x, d: x + step * d, (params, logits), direction) for step in (0.01, -0.01))
        slope = (float(loss_and_gradients(ahead)[0]) - float(loss_and_gradients(behind)[0])) / 0.02
        along = sum(float((g * d).sum()) for g, d in zip(jax.tree.leaves(gradients), jax.tree.leaves(direction)))
        assert along == pytest.approx(
            slope, rel=2e-3, abs=2e-3
        )  # float32 sums of about 50 differ by 4e-6 over a step of 0.02
    assert not np.any(np.asarray(gradients[1])[labels < 0])  # pieces without a label have no part in the chain


def test_without_transitions_words_stand_alone():
    _, (logits, labels, first, last) = example(4)
    params = arrays(task.ConditionalRandomField(LABELS))
    probabilities = jax.nn.log_softmax(logits)
    picked = np.take_along_axis(np.asarray(probabilities), np.maximum(labels, 0)[..., None], 2)[..., 0] * (labels >= 0)
    np.testing.assert_allclose(loss(params, logits, labels, first, last), -picked.sum(1), rtol=1e-5, atol=1e-5)
    best = best_paths(params, logits, labels, first, last)
    np.testing.assert_array_equal(best, np.where(labels >= 0, logits.argmax(-1), -1))


def test_a_longer_row_changes_nothing():
    params, rows = example(5)
    wide = [
        np.pad(array, ((0, 0), (0, 4), (0, 0))[: array.ndim], constant_values=fill)
        for array, fill in zip(rows, (9, -1, True, True), strict=True)
    ]
    np.testing.assert_allclose(loss(params, *wide), loss(params, *rows), rtol=1e-6)
    np.testing.assert_array_equal(
        best_paths(params, *wide, names=NAMES)[:, :LENGTH], best_paths(params, *rows, names=NAMES)
    )

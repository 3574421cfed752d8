"""GloVe: its loss and gradient, the paper's sum over cells, and what the vectors become."""

import dataclasses

import jax
import numpy as np
import pytest
from model_variants import variant

from bert_jax.config import Config, DataConfig, GloVe, GloVeConfig, ModelConfig, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.console import parse
from bert_jax.data.neighbours import NeighbourCounts
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import pretraining_parts
from bert_jax.objectives.choice import default_objective

VOCABULARY, WINDOW, LENGTH = 12, 3, 10
SIZES = variant(
    ModelConfig(vocab_size=VOCABULARY, hidden_size=8, max_position_embeddings=64, hidden_dropout=0.0), layer="none"
)
CONFIG = Config(
    model=SIZES,
    objective=GloVe(static_vectors=GloVeConfig(window=WINDOW, maximum_count=4.0)),
    data=DataConfig(sentence_pairs="none"),
    phases=(PhaseConfig(sequence_length=LENGTH, batch_size=2),),
)


class Matrix:
    """Counts of the pairs of rows of ids, as `PairCounts` gives those of a store."""

    def __init__(self, rows):
        self.cells = np.zeros((VOCABULARY, VOCABULARY))
        self.counted = GloVeConfig(window=WINDOW)
        for row in rows:
            for place, first in enumerate(row):
                for distance, second in enumerate(row[place + 1 : place + 1 + WINDOW], 1):
                    self.cells[first, second] += 1 / distance
                    self.cells[second, first] += 1 / distance

    def of(self, first, second):
        return self.cells[first, second].astype(np.float32)


def batch_of(texts, matrix, length=LENGTH):
    """Rows of [CLS], a text and [SEP], as the pipeline makes them."""
    ids = np.zeros((len(texts), length), np.int32)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text) + 2] = [2, *text, 3]
    made = NeighbourCounts(matrix, 0)(ids, ids > 3, (ids > 0).sum(1), np.zeros(len(texts), np.uint64))
    return made | {"token_type_ids": np.zeros_like(ids)}


@pytest.fixture(scope="module")
def texts():
    random = np.random.default_rng(0)
    return [random.integers(4, VOCABULARY, size).tolist() for size in (8, 5, 8)]


@pytest.fixture(scope="module")
def model():
    return BertForPreTraining(SIZES, parts=pretraining_parts(SIZES, CONFIG.objective))


@pytest.fixture(scope="module")
def params(model):
    params = jax.jit(model.init)(jax.random.key(0))
    return jax.tree.map(lambda x: np.random.default_rng(x.size).normal(0, 0.5, x.shape).astype(np.float32), params)


def by_cells(params, cells):
    """Return the paper's sum over cells, the sum of its weights, and the gradients of tables and biases, in float64."""
    words, contexts = (
        np.float64(each) for each in (params["embeddings"]["word"]["table"], params["contexts"]["table"])
    )
    centers, neighbours = (np.float64(params["context_biases"][name]) for name in ("center", "neighbour"))
    there = cells > 0
    weights = np.where(there, np.minimum((cells / 4.0) ** 0.75, 1), 0)
    errors = words @ contexts.T + centers[:, None] + neighbours[None] - np.log(np.where(there, cells, 1))
    slopes = 2 * weights * errors
    gradients = slopes @ contexts, slopes.T @ words, slopes.sum(1), slopes.sum(0)
    return (weights * errors**2).sum(), weights.sum(), gradients


def test_over_a_corpus_it_is_the_sum_over_cells_of_the_paper(model, params, texts):
    matrix, objective = Matrix(texts), default_objective(model, CONFIG)
    batch = batch_of(texts, matrix)
    sums = jax.jit(lambda params: objective.sums(params, batch)["glove"])
    gradient = jax.jit(jax.grad(lambda params: sums(params).loss))(params)
    loss, weight, expected = by_cells(params, matrix.cells)
    np.testing.assert_allclose(sums(params)[:2], [loss, weight], rtol=1e-5)
    np.testing.assert_allclose(float(objective.denominators(batch)["glove"]), weight, rtol=1e-5)
    found = [gradient["embeddings"]["word"]["table"], gradient["contexts"]["table"]]
    found += [gradient["context_biases"][name] for name in ("center", "neighbour")]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


def test_texts_that_share_a_row_are_not_neighbours(model, params, texts):
    matrix, objective = Matrix(texts), default_objective(model, CONFIG)
    row = np.array([[id for text in texts for id in (2, *text, 3)] + [0, 0]], np.int32)
    made = NeighbourCounts(matrix, 0)(row, row > 3, (row > 0).sum(1), np.zeros(1, np.uint64))
    found = jax.jit(objective.sums)(params, made | {"token_type_ids": np.zeros_like(row)})["glove"]
    np.testing.assert_allclose(found[:2], by_cells(params, matrix.cells)[:2], rtol=1e-5)


def test_pairs_that_were_never_counted_and_padding_have_no_weight(model, params, texts):
    nothing = batch_of(texts, Matrix([]))
    sums = jax.jit(default_objective(model, CONFIG).sums)(params, nothing)["glove"]
    assert float(sums.loss) == float(sums.weight) == 0
    matrix = Matrix(texts)
    wide, narrow = (batch_of(texts, matrix, length) for length in (LENGTH + 6, LENGTH))
    found = [jax.jit(default_objective(model, CONFIG).sums)(params, batch)["glove"][:2] for batch in (wide, narrow)]
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_vectors_as_wide_as_the_vocabulary_learn_every_count(texts):
    """The rank of log X is no obstacle then: the error falls to nothing, so products and biases are log counts."""
    sizes = dataclasses.replace(SIZES, hidden_size=VOCABULARY)
    model = BertForPreTraining(sizes, parts=pretraining_parts(sizes, CONFIG.objective))
    matrix, objective = Matrix(texts), default_objective(model, CONFIG)
    batch, params = batch_of(texts, matrix), jax.jit(model.init)(jax.random.key(1))
    params = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.ndim), x.shape), params)

    def mean(params):
        sums = objective.sums(params, batch)["glove"]
        return sums.loss / sums.weight

    def descend(params, _):
        return jax.tree.map(lambda x, slope: x - 0.5 * slope, params, jax.grad(mean)(params)), None

    params = jax.jit(lambda params: jax.lax.scan(descend, params, length=3000)[0])(params)
    assert float(jax.jit(mean)(params)) < 1e-6
    scores = params["embeddings"]["word"]["table"] @ params["contexts"]["table"].T
    scores += params["context_biases"]["center"][:, None] + params["context_biases"]["neighbour"][None]
    there = matrix.cells > 0
    np.testing.assert_allclose(np.asarray(scores)[there], np.log(matrix.cells[there]), atol=0.02)


def test_the_model_has_two_tables_and_two_biases(params):
    assert sum(x.size for x in jax.tree.leaves(params)) == 2 * VOCABULARY * 8 + 2 * VOCABULARY


@pytest.mark.parametrize(
    "name, option, message",
    [
        ("glove", "negatives=3", "negatives=3 belongs to objective.name=skip_gram, not to objective.name=glove"),
        ("glove", "subsampling=1e-4", "subsampling=1e-4 belongs to objective.name=skip_gram, .*; set that, or leave"),
        ("skip_gram", "counts=there", "counts=there belongs to objective.name=glove, .*=skip_gram; set that, or leave"),
        ("glove", "maximum_count=0", "maximum_count=0 must be positive"),
        ("glove", "count_power=2", "count_power=2 from 0 to 1"),
    ],
)
def test_options_of_the_other_objective_and_bad_ones_are_refused(name, option, message):
    with pytest.raises(UserError, match=message):
        check(parse(CONFIG, [f"--objective.name={name}", f"--objective.static_vectors.{option}"], "pretrain"))

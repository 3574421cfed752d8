"""GLUE's figures against scikit-learn and SciPy, which the product never imports."""

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks import sentences

sklearn_metrics = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")


def class_cases(classes: int):
    """Skewed, balanced, perfect and tiny label pairs."""
    rng = np.random.default_rng(classes)
    for size in (*range(1, 30), 277, 1043, 9815):
        answers = rng.choice(classes, size, p=rng.dirichlet(np.ones(classes)))
        yield answers, rng.choice(classes, size, p=rng.dirichlet(np.ones(classes)))
        yield answers, np.where(rng.random(size) < 0.3, rng.integers(classes, size=size), answers)
        yield answers, answers.copy()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_classes_equal_scikit_learn(classes):
    for answers, predictions in class_cases(classes):
        assert sentences.accuracy(answers, predictions) == sklearn_metrics.accuracy_score(answers, predictions)
        assert sentences.matthews(answers, predictions) == sklearn_metrics.matthews_corrcoef(answers, predictions)
        if classes == 2:
            expected = sklearn_metrics.f1_score(answers, predictions, zero_division=0.0)
            assert sentences.f1(answers, predictions) == expected


def number_cases():
    rng = np.random.default_rng(0)
    for size in (*range(3, 40), 1500):  # of two, SciPy returns 1 or -1 without computing
        for answers in (
            rng.normal(size=size),
            rng.integers(0, 6, size).astype(float),
            np.round(rng.random(size) * 5, 1),
        ):
            for predictions in (
                rng.normal(size=size),
                answers + rng.normal(size=size),
                -answers,
                np.round(answers / 2),
                (3 + 1e-3 * rng.normal(size=size)).astype(np.float32),
                1e200 * answers,
                1e-200 * answers,
            ):
                if np.ptp(answers) > 0 and np.ptp(predictions) > 0:
                    yield answers, predictions


def test_correlations_equal_scipy():
    pairs = list(number_cases())
    assert len(pairs) > 500
    for answers, predictions in pairs:
        ours = [sentences.pearson(answers, predictions), sentences.spearman(answers, predictions)]
        expected = [stats.pearsonr(answers, predictions.astype(float))[0], stats.spearmanr(answers, predictions)[0]]
        np.testing.assert_allclose(ours, expected, rtol=0, atol=2**-52)  # the last digit


@pytest.mark.parametrize("constant", [0.0, 0.1, 2.75, 1e30])
def test_a_constant_has_no_correlation(constant):
    other = np.array([0.1, 0.7, 0.2])
    for function in (sentences.pearson, sentences.spearman):
        assert function(np.full(3, constant), other) == function(other, np.full(3, constant)) == 0.0
        assert function(other, np.array([1.0, np.nan, 2.0])) == function(other, np.array([1.0, np.inf, 2.0])) == 0.0


def test_one_class_only():
    ones, zeros, mixed = np.ones(4, int), np.zeros(4, int), np.array([0, 1, 1, 0])
    assert sentences.matthews(mixed, ones) == sentences.matthews(ones, mixed) == sentences.matthews(ones, ones) == 0.0
    assert sentences.f1(zeros, zeros) == sentences.f1(zeros, ones) == sentences.f1(ones, zeros) == 0.0
    assert sentences.f1(ones, ones) == 1.0 and sentences.f1(mixed, ones) == 2 / 3


def test_what_cannot_be_scored():
    with pytest.raises(UserError, match="one length"):
        sentences.accuracy(np.zeros(3), np.zeros(4))
    with pytest.raises(UserError, match="0 examples"):
        sentences.pearson(np.zeros(0), np.zeros(0))

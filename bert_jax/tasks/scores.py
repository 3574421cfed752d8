"""The metrics of GLUE, on NumPy arrays, as in scikit-learn and SciPy, but defined in every case.

All return a Python float. A metric that is undefined (a constant, a class that never occurs) is 0, never NaN: a run
that collapsed to one answer then ranks last, and results stay valid JSON.
"""

from typing import Any

import numpy as np

from bert_jax.errors import UserError


def accuracy(answers: np.ndarray, predictions: np.ndarray) -> float:
    """Return the share of equal entries of two integer arrays [E]."""
    answers, predictions = _pair(answers, predictions)
    return float(np.mean(answers == predictions))


def f1(answers: np.ndarray, predictions: np.ndarray) -> float:
    """Return the F1 of class 1 for integer arrays [E]; 0 if class 1 neither occurs nor is predicted."""
    answers, predictions = _pair(answers == 1, predictions == 1)
    found, there_or_predicted = np.sum(answers & predictions), np.sum(answers) + np.sum(predictions)
    return float(2 * found / there_or_predicted) if there_or_predicted else 0.0


def matthews(answers: np.ndarray, predictions: np.ndarray) -> float:
    """Return Matthews' correlation (1975; for more than two classes Gorodkin 2004) of integer arrays [E].

    It is 0 if the answers or the predictions are all in one class.
    """
    answers, predictions = _pair(answers, predictions)
    classes, both = np.unique(np.concatenate([answers, predictions]), return_inverse=True)
    there, predicted = (np.bincount(part, minlength=len(classes)).astype(np.float64) for part in np.split(both, 2))
    total = np.float64(len(answers))
    covariance = np.sum(answers == predictions) * total - there @ predicted
    variances = (total**2 - predicted @ predicted) * (total**2 - there @ there)
    return float(covariance / np.sqrt(variances)) if variances else 0.0


def pearson(answers: np.ndarray, predictions: np.ndarray) -> float:
    """Return the linear correlation of two arrays [E], in float64; 0 if one is constant or has NaN or infinity."""
    answers, predictions = (np.asarray(part, np.float64) for part in _pair(answers, predictions))
    if not (np.isfinite(answers).all() and np.isfinite(predictions).all()):
        return 0.0
    if (answers == answers[0]).all() or (predictions == predictions[0]).all():
        return 0.0
    correlation = np.vecdot(_unit(answers - answers.mean()), _unit(predictions - predictions.mean()))
    return float(np.clip(correlation, -1.0, 1.0))


def spearman(answers: np.ndarray, predictions: np.ndarray) -> float:
    """Return the Pearson correlation of the ranks of two arrays [E], ties at their mean rank; 0 in the same cases."""
    answers, predictions = _pair(answers, predictions)
    if not (np.isfinite(answers).all() and np.isfinite(predictions).all()):
        return 0.0
    ranks = _ranks(answers), _ranks(predictions)
    return float(np.corrcoef(ranks)[0, 1]) if all(np.ptp(part) for part in ranks) else 0.0


METRICS = {each.__name__: each for each in (accuracy, f1, matthews, pearson, spearman)}
"""The metrics by their names in results."""


def _unit(centred: np.ndarray) -> np.ndarray:
    largest = np.abs(centred).max()  # divided out so that the squares of very large or small values stay within float64
    # axis=0 makes NumPy add pairwise, as SciPy does; without it BLAS adds in an order that varies in the last digit
    return centred / (largest * np.linalg.norm(centred / largest, axis=0))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks, 1 for the smallest; equal values share the mean of their ranks."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return ((2 * last - count + 1) / 2)[place]


def _pair(answers: Any, predictions: Any) -> tuple[np.ndarray, np.ndarray]:
    answers, predictions = np.asarray(answers), np.asarray(predictions)
    if answers.shape != predictions.shape or answers.ndim != 1:
        raise UserError(
            f"answers {answers.shape} and predictions {predictions.shape} must be two arrays [E] of one length"
        )
    if not len(answers):
        raise UserError("there is nothing to score: 0 examples; give at least one answer and its prediction")
    return answers, predictions

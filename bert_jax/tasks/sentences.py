"""Examples of one or two sentences with a class or a number, as in GLUE and the user's own text; their metrics.

The metrics of GLUE are those of scikit-learn and SciPy on NumPy arrays, but defined in every case.
"""

import dataclasses
import difflib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config import HeadConfig
from bert_jax.config.finetuning import SentenceOptions
from bert_jax.data.sequences import Features, Uncut
from bert_jax.errors import UserError
from bert_jax.tokenization.tokenizer import Tokenizer, assembled, join, sequence_length


class Record(NamedTuple):
    """One example as spelled in its file."""

    where: str
    """File and line, for messages."""
    first: str
    second: str | None
    label: str | float | None
    """None if there is no label."""
    index: str  # pyright: ignore[reportIncompatibleMethodOverride] (a field; nobody searches a record)
    """Name of the example in a file of predictions."""


@dataclasses.dataclass(frozen=True)
class Sentences:
    """E examples of one split."""

    task: str
    first: list[str]
    second: list[str] | None
    """None if examples are single sentences."""
    answers: np.ndarray | None
    """int32 [E] into `labels`, or float64 [E] if `labels` is empty (regression); None without labels."""
    labels: tuple[str, ...]
    """Names of the classes in the order of the columns of the logits."""
    index: list[str]

    @property
    def has_answers(self) -> bool:
        return self.answers is not None

    def __len__(self) -> int:
        return len(self.first)


def collect(
    task: str, records: list[Record], labels: tuple[str, ...], numbers: dict[str, int], unlabelled: bool
) -> Sentences:
    """Return records as examples.

    Args:
      labels: names of the classes; empty for regression.
      numbers: class of each spelling of a label.
      unlabelled: whether all labels may be missing (test sets).

    Raises:
      UserError: a label is missing, unknown or not a number (names file and line).
    """
    answers = None
    if not (unlabelled and all(record.label is None for record in records)):
        answers = np.array([_answer(record, labels, numbers) for record in records], np.int32 if labels else np.float64)
    second = [record.second for record in records if record.second is not None]
    return Sentences(
        task,
        [record.first for record in records],
        second if len(second) == len(records) else None,
        answers,
        labels,
        [record.index for record in records],
    )


def features(examples: Sentences, tokenizer: Tokenizer, options: SentenceOptions) -> Features:
    """Return one sequence per example, in which the longer sentence is cut first."""
    first = tokenizer.encode_batch(examples.first)
    if options.windows:
        return in_windows(first, tokenizer, options, examples)
    second = [None] * len(first) if examples.second is None else tokenizer.encode_batch(examples.second)
    joined = [join(tokenizer, *pair, options.max_length) for pair in zip(first, second, strict=True)]
    lengths = np.array([sequence_length(tokenizer, *pair) for pair in zip(first, second, strict=True)])
    return Features(
        [ids for ids, _ in joined],
        [types for _, types in joined],
        _numbered(examples),
        np.arange(len(joined), dtype=np.int32),
        options.max_length,
        uncut=Uncut(lengths, options.max_length, "texts" if examples.second is None else "pairs"),
    )


def _numbered(examples: Sentences) -> np.ndarray | None:
    answers = examples.answers
    return None if answers is None else answers.astype(np.int32 if examples.labels else np.float32)


def in_windows(
    texts: Sequence[Sequence[int] | np.ndarray],
    tokenizer: Tokenizer,
    options: SentenceOptions,
    examples: Sentences | None = None,
) -> Features:
    """Return the windows of each text, which overlap and cover it: one of a text that fits into one.

    Args:
      texts: ids without special tokens.
      examples: those that the texts are of; None: they have no labels.

    Raises:
      UserError: the examples are pairs of texts.
    """
    if examples is not None and examples.second is not None:
        raise UserError(
            f"options.windows={options.windows} reads single texts in windows, and {examples.task} has pairs here; "
            "leave it out"
        )
    room, overlap = options.max_length - 2, options.window_overlap
    windows = [
        [
            assembled(tokenizer, list(ids[start : start + room]))
            for start in range(0, max(len(ids) - overlap, 1), room - overlap)
        ]
        for ids in texts
    ]
    return Features(
        [[ids for ids, _ in each] for each in windows],
        [[types for _, types in each] for each in windows],
        None if examples is None else _numbered(examples),
        np.arange(len(windows), dtype=np.int32),
        options.max_length,
        in_windows=True,
    )


def predictions(examples: Sentences, logits: Sequence[np.ndarray]) -> np.ndarray:
    """Return the class of the highest logit, int [E], or the estimated number, float [E]; a row of logits each."""
    if len(logits) != len(examples):
        raise UserError(f"{len(logits)} rows of logits for {len(examples)} examples of {examples.task}")
    values = np.asarray(logits, np.float64)
    return values.argmax(axis=1) if examples.labels else values.reshape(len(examples))


def head(task: str, labels: tuple[str, ...]) -> HeadConfig:
    """Return a classifier with these classes or, without any, a regressor."""
    return HeadConfig(kind="classification" if labels else "regression", labels=tuple(labels))


def _answer(record: Record, labels: tuple[str, ...], numbers: dict[str, int]) -> int | float:
    if record.label is None:
        raise UserError(f"{record.where}: the label is missing")
    if not labels:
        return _number(record)
    if record.label not in numbers:
        close = difflib.get_close_matches(str(record.label), numbers, n=1)
        raise UserError(
            f"{record.where}: unknown label {record.label!r}; expected one of {', '.join(list(numbers)[:20])}"
            + (f"; perhaps {close[0]!r} is meant" if close else "")
        )
    return numbers[record.label]


def _number(record: Record) -> float:
    try:
        value = math.nan if record.label is None else float(record.label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{record.where}: the label {record.label!r} is not a number")
    return value


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

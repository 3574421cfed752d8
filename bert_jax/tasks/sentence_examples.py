"""Examples of one or two sentences with a class or a number, as in GLUE and the user's own text."""

import dataclasses
import difflib
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.config import HeadConfig
from bert_jax.config.task_options import TaskOptions
from bert_jax.data.sequences.features import Features
from bert_jax.data.sequences.lengths import Uncut
from bert_jax.errors import UserError
from bert_jax.tokenization.segments import join, sequence_length
from bert_jax.tokenization.tokenizer import Tokenizer


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


def features(examples: Sentences, tokenizer: Tokenizer, options: TaskOptions) -> Features:
    """Return one sequence per example, in which the longer sentence is cut first."""
    first = tokenizer.encode_batch(examples.first)
    second = [None] * len(first) if examples.second is None else tokenizer.encode_batch(examples.second)
    joined = [join(tokenizer, *pair, options.max_length) for pair in zip(first, second, strict=True)]
    lengths = np.array([sequence_length(tokenizer, *pair) for pair in zip(first, second, strict=True)])
    answers = examples.answers
    labels = None if answers is None else answers.astype(np.int32 if examples.labels else np.float32)
    return Features(
        [ids for ids, _ in joined],
        [types for _, types in joined],
        labels,
        np.arange(len(joined), dtype=np.int32),
        options.max_length,
        uncut=Uncut(lengths, options.max_length, "texts" if examples.second is None else "pairs"),
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

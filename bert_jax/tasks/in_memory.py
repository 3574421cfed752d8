"""Sentences in memory, each with a class or a number, checked like those of a file."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.config.task_options import TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks.sentence_examples import Record
from bert_jax.tasks.text import text_files


def records(split: str, rows: Sequence[Any], regression: bool) -> list[Record]:
    """Return the examples of the split, in order.

    Args:
      rows: (text, label) or ((text, text_b), label) each, as a tuple, a list or a row of an array. A label is a str, an
        int or a bool, or a number for regression; None in a test set without labels.

    Raises:
      UserError: a row has a different form; see `text_files.records_of` for texts and labels. Names the row: train[3].
    """
    return text_files.records_of(split, _named(split, rows, regression), TaskDataConfig(), split)


def _named(split: str, rows: Sequence[Any], regression: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where, columns) of each row, with the columns named as in a file."""
    for number, row in enumerate(rows):
        where, parts = f"{split}[{number}]", row.tolist() if isinstance(row, np.ndarray) else row
        if not isinstance(parts, tuple | list) or len(parts) != 2:
            raise UserError(
                f"{where} is {row!r:.80}; expected (text, label) or ((text, text_b), label). A list of texts and "
                "one of labels become such rows with list(zip(texts, labels))"
            )
        texts, label = parts
        texts = texts if isinstance(texts, tuple | list) else [texts]
        if not 1 <= len(texts) <= 2:
            raise UserError(f"{where} has {len(texts)} texts; expected (text, label) or ((text, text_b), label)")
        yield (
            where,
            {**dict(zip(("text", "text_pair"), texts, strict=False)), "label": _label(where, label, regression)},
        )


def _label(where: str, label: Any, regression: bool):
    label = label.item() if isinstance(label, np.generic) else label
    if isinstance(label, float) and not regression:
        raise UserError(
            f"{where}: the label {label} is a float; give regression=True to estimate numbers; the labels of "
            "classes are names or whole numbers"
        )
    return str(label) if isinstance(label, bool | int) else label

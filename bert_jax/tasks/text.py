"""Classification and regression on the user's own sentences, single or in pairs; and plain texts for prediction.

Examples come from TSV, CSV, text files in one directory per class, or rows (readers.py), which are all checked alike.
A TSV or CSV file begins with a line of column names, unless `text_column` is a number: then it has no header, and
columns are given by number, from 1.
Plain texts are one per line of a .txt file or of standard input, or one per .txt file of a directory.
"""

import functools
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from etils import epath

from bert_jax.config.tasks import TextDataConfig
from bert_jax.errors import UserError
from bert_jax.files import decoded, read_text
from bert_jax.models.bert_parameters import OF_TEXTS
from bert_jax.tasks import readers, sentences
from bert_jax.tasks.glue import MRPC_TEST, MRPC_TRAIN
from bert_jax.tasks.sentences import Record, SentenceFeatures, Sentences
from bert_jax.tasks.sentences import features as features  # names of every TaskFamily
from bert_jax.tasks.sentences import head as head
from bert_jax.tokenization.wordpiece import basic_normalizer, basic_pre_tokenizer

_TEXT, _PAIR, _LABEL = ("text", "sentence", "sentence1"), ("text_pair", "sentence2"), ("label",)
_WITHOUT_CLASS = "unsup"  # IMDb's unlabelled reviews, in a directory next to those of its classes
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def file_names(split: str) -> tuple[str, ...]:
    """Return the names that the file (or directory) of a split may have below --data.dir."""
    return (*readers.table_names(split), split)


def read_records(file: epath.Path, data: TextDataConfig, split: str) -> list[Record]:
    """Return the examples of a file or a directory, in the order of the file or of the file names.

    Raises:
      UserError: the kind of file is unknown; the header or a column is missing; the number of columns is wrong; there
        are stray quotation marks; a text or label is missing or empty; or the file is not UTF-8. Names file and line.
    """
    if file.is_dir():
        if data.several_labels:
            raise UserError(
                f"{file} is a directory for each class, in which a text has one label; give a file of JSON lines with "
                "a list of labels for data.several_labels=True"
            )
        if column := data.weighed_by(split):
            raise UserError(
                f"{file} is a directory of texts without columns, so there is none of data.weight_column={column}; "
                "give a file, or leave the option out"
            )
        return _read_directory(file)
    rows = readers.table_rows(
        file,
        has_header=not data.text_column.isdecimal(),
        others="a directory with a directory of .txt files for each class",
    )
    return records_of(str(file), rows, data, split)


def records_of(
    source: str, rows: readers.Rows, data: TextDataConfig, split: str, spelled: Callable[[Any], str] = json.dumps
) -> list[Record]:
    """Return records for rows, the first of which determines the columns.

    Args:
      spelled: returns the name of the class that a number or a truth value stands for.

    Raises:
      UserError: a column is missing; a later example has a second text or a label, the first has none; or a text, label
        or weight is bad.
    """
    records, columns = [], None
    for where, values in rows:
        columns = columns or _columns(where, values, data, split)
        text, pair, label = columns
        readers.check_absent(
            where, values, (() if pair else _PAIR) + (() if label else (data.label_column or _LABEL[0],))
        )
        records.append(
            Record(
                where,
                readers.text_of(where, values, text),
                None if pair is None else readers.text_of(where, values, pair),
                None if label is None else _labels(where, values.get(label), data, spelled),
                str(len(records)),
                readers.weight_of(where, values, data.weighed_by(split)),
            )
        )
    if not records:
        raise UserError(f"{source} holds no example")
    return records


def _columns(
    where: str, values: Mapping[str, Any], data: TextDataConfig, split: str
) -> tuple[str, str | None, str | None]:
    """Return the columns of text, second text and label; only a test set may lack labels."""
    choices = ((data.text_column, _TEXT), (data.pair_column, _PAIR), (data.label_column, _LABEL))
    text, pair, label = (readers.column(values, asked, usual) for asked, usual in choices)
    missing = [
        option
        for option, found, asked in (
            ("text_column", text, True),
            ("pair_column", pair, data.pair_column),
            ("label_column", label, split != "test"),
        )
        if asked and found is None
    ]
    if missing or text is None:
        usual = _TEXT if missing[0] == "text_column" else _LABEL
        raise UserError(
            readers.no_column(where, values, getattr(data, missing[0]), usual, missing[0])
            + f" (from Python {missing[0]}=…; a file without a line of column names is read by numbers: "
            "--data.text_column=1 --data.label_column=2)"
        )
    return text, pair, label


def _label(where: str, value: Any, spelled: Callable[[Any], str]) -> str | None:
    """Return the label as text: 3 and "3" are the same class. NaN, which JSON can spell, is a missing one."""
    if value is None or value != value or isinstance(value, str) and not value.strip():
        return None
    if isinstance(value, float) and math.isinf(value):
        raise UserError(f"{where}: the label is infinite, or a number too large to be read; give a finite one, or text")
    if not isinstance(value, str | bool | int | float):
        raise UserError(f"{where}: the label {value!r} is neither text nor a number"[:300])
    label = value.strip() if isinstance(value, str) else spelled(value)
    if not label.isprintable():
        raise UserError(f"{where}: the label {label!r} holds characters that do not print")
    return label


def _labels(
    where: str, value: Any, data: TextDataConfig, spelled: Callable[[Any], str]
) -> str | tuple[str, ...] | None:
    """Return the label or, where an example has several, the tuple of them; None where the value is missing."""
    value = sorted(value, key=str) if isinstance(value, set | frozenset) else value
    if not data.several_labels:
        if isinstance(value, list | tuple):
            raise UserError(
                f"{where}: the label {value!r:.80} is a list; give --data.several_labels=true (from Python "
                "several_labels=True) if an example has any number of labels"
            )
        return _label(where, value, spelled)
    if value is None:
        return None
    if isinstance(value, str):
        names = [_label(where, part, spelled) for part in value.split(data.label_separator) if part.strip()]
    else:
        names = [_label(where, part, spelled) for part in (value if isinstance(value, list | tuple) else [value])]
    if None in names:
        raise UserError(f"{where}: one of the labels {value!r:.80} is empty")
    return tuple(name for name in dict.fromkeys(names) if name is not None)


def _names(label: Any) -> tuple[str, ...]:
    """Return the labels of an example as text."""
    return label if isinstance(label, tuple) else () if label is None else (str(label),)


def _read_directory(directory: epath.Path) -> list[Record]:
    """Read IMDb's format: DIRECTORY/pos/*.txt, DIRECTORY/neg/*.txt, whatever the classes are called."""
    classes = sorted(path.name for path in directory.iterdir() if path.is_dir() and path.name != _WITHOUT_CLASS)
    records = []
    for name in classes:
        for file in sorted((directory / name).glob("*.txt")):
            text = read_text(file, by_line=False)
            if not text.strip():
                raise UserError(f"{file} is empty")
            records.append(Record(str(file), text, None, name, f"{name}/{file.name}"))
    if not records:
        raise UserError(f"{directory} has no directory with .txt files for each class (such as pos and neg)")
    return records


def _columns_of_row(data: TextDataConfig, where: str, row: Any) -> dict[str, Any]:
    """Return the values of (text, label) or ((text, text_b), label) by the columns that `data` names."""
    if not isinstance(row, list) or len(row) != 2:
        raise UserError(
            f"{where} is {row!r:.80}; expected (text, label) or ((text, text_b), label), or a dict by column. A list "
            "of texts and one of labels become such rows with list(zip(texts, labels))"
        )
    texts, label = row
    texts = texts if isinstance(texts, list) else [texts]
    if not 1 <= len(texts) <= 2:
        raise UserError(f"{where} has {len(texts)} texts; expected (text, label) or ((text, text_b), label)")
    names = data.text_column or _TEXT[0], data.pair_column or _PAIR[0]
    return dict(zip(names, texts, strict=False)) | {data.label_column or _LABEL[0]: label}


STANDARD_INPUT = "-"


class PlainText(NamedTuple):
    where: str
    """File and line, for messages."""
    text: str
    index: str  # pyright: ignore[reportIncompatibleMethodOverride] (a field; nobody searches a record)
    """Name of the text in a file of predictions: the number of its line, from 0, or the name of its file."""
    is_line: bool = True
    """Whether a tab in it can only separate the two texts of a pair; in a file of a directory it may be layout."""


def is_plain(source: str, head: str) -> bool:
    """Return whether `source` holds plain texts for a `head` of this kind, not examples in a task's own format.

    A .txt file holds columns for tagging, and a directory of .txt files holds RACE's passages for multiple choice. A
    directory with directories in it has a class in each. Microsoft's own files of MRPC end in .txt too.
    """
    if source == STANDARD_INPUT:
        return True
    path = epath.Path(source).expanduser()
    if not path.is_dir():
        return path.suffix == ".txt" and path.name not in (MRPC_TRAIN, MRPC_TEST) and head in OF_TEXTS
    return head in (*OF_TEXTS, "tagging") and not any(entry.is_dir() for entry in path.iterdir())


def read_plain_texts(source: str) -> list[PlainText]:
    """Return the texts of a file, a directory, or (source "-") standard input, without blank lines.

    Raises:
      UserError: there is no text, a file of a directory is blank, or a text is not UTF-8. Names file and line.
    """
    path = epath.Path(source).expanduser()
    if source != STANDARD_INPUT and path.is_dir():
        texts = [
            PlainText(str(file), read_text(file, by_line=False), file.name, is_line=False)
            for file in sorted(path.glob("*.txt"), key=str)
        ]
        if blank := [text.where for text in texts if not text.text.strip()]:
            raise UserError(f"{blank[0]} is empty")
    else:
        name = "standard input" if source == STANDARD_INPUT else str(path)
        whole = decoded(sys.stdin.buffer.read(), name) if source == STANDARD_INPUT else read_text(path)
        lines = [(number, line) for number, line in readers.lines(whole) if line.strip()]
        texts = [PlainText(f"{name}, line {number}", line, str(number - 1)) for number, line in lines]
    if not texts:
        raise UserError(
            f"{'standard input' if source == STANDARD_INPUT else path} holds no text: expected one per line, or a "
            "directory with one per .txt file"
        )
    return texts


def word_places(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) characters of each word, split as BERT does: at whitespace and around punctuation."""
    split = tokenizers.PreTokenizedString(text)
    split.normalize(basic_normalizer(lowercase=False).normalize)  # control characters belong to no word
    basic_pre_tokenizer().pre_tokenize(split)
    return [offsets for _, offsets, _ in split.get_splits("original", "char")]


def splits(task: str, data: TextDataConfig) -> tuple[str, ...]:
    """Return those of train, dev and test that the data has."""
    return readers.file_splits(data, {split: file_names(split) for split in ("train", "dev", "test")})


def load(
    task: str,
    data: TextDataConfig,
    split: str,
    labels: tuple[str, ...] | None = None,
    given: readers.Given | None = None,
) -> Sentences:
    """Return the examples of a split, from TSV, CSV, a directory per class, or rows (see `readers.rows_of`).

    Args:
      labels: classes in the order of a model's outputs, empty for regression. None: those of this split, sorted, unless
        data.regression.
      given: rows of the splits that are in memory: dicts by column, (text, label) or ((text, text_b), label). A label
        is a str, an int, a bool or a float; None in a test set without labels.

    Raises:
      UserError: as for `read_records` and `sentences.collect`, or there are fewer than two classes to learn.
    """
    records = _composed(_read(data, split, given))
    if labels is None and data.several_labels:
        labels = _discover_several(records)
    elif labels is None:
        labels = () if data.regression else _discover(records, decimals=data.regression is False)
    numbers = {readers.composed_form(name): number for number, name in enumerate(labels)}
    return sentences.collect(
        task, records, tuple(labels), numbers, unlabelled=split == "test", several=data.several_labels
    )


def _read(data: TextDataConfig, split: str, given: readers.Given | None) -> list[Record]:
    found = readers.rows_of(data, split, given, functools.partial(_columns_of_row, data))
    if found is not None:
        in_memory = given is not None and split in given
        return records_of(*found, data, split, spelled=str if in_memory else json.dumps)
    return read_records(readers.find_file(data, split, file_names(split)), data, split)


def _composed(records: list[Record]) -> list[Record]:
    """Return the records with their labels in the form in which these are compared."""
    spelled = iter(readers.composed([(each.where, name) for each in records for name in _names(each.label)]))
    found = []
    for each in records:
        names = tuple(next(spelled) for _ in _names(each.label))
        found.append(each._replace(label=names if isinstance(each.label, tuple) else next(iter(names), None)))
    return found


def from_plain(
    texts: Sequence[PlainText], labels: tuple[str, ...], pairs: bool | None, several: bool = False
) -> Sentences:
    """Return plain texts as unlabelled examples.

    Args:
      pairs: whether the model reads pairs, whose two texts are separated by a tab; None: it does if any line has a tab,
        or if each file of a directory has one.
      several: whether the model gives a text any number of labels.

    Raises:
      UserError: a pair does not have exactly one tab or has a blank half, or a model of single texts gets a line with a
        tab. Names the line.
    """
    tabbed = next((text for text in texts if text.is_line and "\t" in text.text), None)
    if pairs is False and tabbed is not None:
        raise UserError(
            f"{tabbed.where}: the model reads single texts, but there is a tab, as between the two texts of a "
            f"pair: {tabbed.text!r:.80}; replace it with a space if this is one text"
        )
    reason = "the model reads pairs of texts"
    if pairs is None:
        pairs = tabbed is not None or all(text.text.count("\t") == 1 for text in texts)
        reason = f"{texts[0].where if tabbed is None else tabbed.where} has a tab, so all are taken for pairs of texts"
    records = []
    for where, text, index, _ in texts:
        first, *more = text.split("\t") if pairs else [text]
        if len(more) != pairs or not all(part.strip() for part in (first, *more)):
            raise UserError(f"{where}: {reason}, written with one tab between the two; found {text!r:.80}")
        records.append(Record(where, first, more[0] if pairs else None, None, index))
    return sentences.collect("text", records, labels, {}, unlabelled=True, several=several)


def prediction_names(examples: Sentences, split: str) -> list[str]:
    """Return the names of the files that `write_predictions` writes, the main one first."""
    return [f"predictions_{split}.jsonl" if examples.several else f"predictions_{split}.tsv"]


def metrics(examples: Sentences) -> tuple[str, ...]:
    """Return the metrics by which runs can be compared, the usual one first; numbers have others than classes."""
    return sentences.MEASURED[
        "multilabel" if examples.several else "classification" if examples.labels else "regression"
    ]


def score(examples: Sentences, features: SentenceFeatures, logits: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the values of `metrics`; where examples have several labels, the threshold of each as well."""
    if examples.several:
        return sentences.several_scores(examples, features, logits)
    found = sentences.predictions(examples, logits)
    assert examples.answers is not None, "has_answers comes first"
    return {name: sentences.METRICS[name](examples.answers, found) for name in metrics(examples)}


def write_predictions(
    examples: Sentences, features: SentenceFeatures, logits: Sequence[np.ndarray], directory: str, split: str
) -> list[str]:
    """Write `predictions_SPLIT.tsv`: index (from 0), prediction, and for classes the probability of the predicted one.

    Where examples have several labels, it is `predictions_SPLIT.jsonl`, with all labels and their probabilities.
    Numbers have all their digits, so that metrics computed from the file equal those of `score`.
    """
    if examples.several:
        return _write_several(examples, features, logits, directory, split)
    found = sentences.predictions(examples, logits)
    if examples.labels:
        below_best = np.asarray(logits) - np.max(logits, axis=1, keepdims=True)
        shares = 1 / np.exp(below_best).sum(axis=1)
        rows = [
            f"{index}\t{examples.labels[number]}\t{share:.4f}"
            for index, number, share in zip(examples.index, found, shares, strict=True)
        ]
    else:
        rows = [f"{index}\t{float(value)!r}" for index, value in zip(examples.index, found, strict=True)]
    header = "index\tprediction" + "\tprobability" * bool(examples.labels)
    return sentences.write_lines(directory, prediction_names(examples, split)[0], [header, *rows])


def _write_several(
    examples: Sentences, features: SentenceFeatures, logits: Sequence[np.ndarray], directory: str, split: str
) -> list[str]:
    """Write {"index": …, "prediction": [label, …], "probabilities": {label: …}} for each example; return the file."""
    shares, _, found = sentences.judged(examples, features, logits)
    lines = (
        json.dumps(
            {
                "index": index,
                "prediction": [label for label, said in zip(examples.labels, row, strict=True) if said],
                "probabilities": dict(zip(examples.labels, values.round(6).tolist(), strict=True)),
            },
            ensure_ascii=False,
        )
        for index, row, values in zip(examples.index, found, shares, strict=True)
    )
    return sentences.write_lines(directory, prediction_names(examples, split)[0], lines)


def _discover(records: list[Record], decimals: bool) -> tuple[str, ...]:
    """Return the classes, sorted: as numbers if all are, else as text.

    Args:
      decimals: whether numbers that are not whole are classes too.
    """
    found: dict[str, Record] = {}
    for record in records:
        if record.label is not None:
            found.setdefault(str(record.label), record)
    are_numbers = all(map(_NUMBER.fullmatch, found))
    labels = sorted(found, key=_order(found))
    if any(record.label is None for record in records):
        return tuple(labels)  # collect() names the first
    if len(labels) == 1:
        raise UserError(
            f"{records[0].where}, and every other example, has the label {labels[0]!r}: there is nothing to learn"
        )
    decimal = next((record for label, record in found.items() if not re.fullmatch(r"[+-]?\d+", label)), None)
    if are_numbers and decimal is not None and not decimals:
        raise UserError(
            f"{decimal.where}: the label {decimal.label!r} is a decimal number, and all {len(labels):,} different "
            "labels are numbers; give --data.regression=true (from Python regression=True) to estimate them, or "
            "--data.regression=false (regression=False) if each is the name of a class"
        )
    if len(labels) == len(records) > 20:
        raise UserError(
            f"{records[0].where}: the label {records[0].label!r} occurs once, as all {len(records):,} labels do; "
            "name another --data.label_column, or give --data.regression=true if the labels are numbers"
        )
    return tuple(labels)


def _discover_several(records: list[Record]) -> tuple[str, ...]:
    """Return the labels of all examples, sorted as `_discover` does; a UserError if there is nothing to tell apart."""
    found = {name for record in records for name in _names(record.label)}
    if len({frozenset(_names(record.label)) for record in records}) == 1 and records[0].label is not None:
        shown = ", ".join(sorted(found)) or "none"
        raise UserError(
            f"{records[0].where}, and every other example, has the same labels ({shown:.80}): there is nothing to learn"
        )
    return tuple(sorted(found, key=_order(found)))


def _order(labels: Collection[str]) -> Callable[[str], Any] | None:
    """Return the key by which labels are sorted: as numbers if all are."""
    return (lambda label: (float(label), label)) if all(map(_NUMBER.fullmatch, labels)) else None

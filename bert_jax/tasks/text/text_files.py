"""The user's own sentences in TSV, CSV, JSON lines, or as text files in one directory per class.

A TSV or CSV file begins with a line of column names, unless `text_column` is a number: then it has no header, and
columns are given by number, from 1. TSV has no quoting; CSV is that of RFC 4180 (table_rows.py).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from etils import epath

from bert_jax.config.task_options import TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks import table_rows
from bert_jax.tasks.sentence_examples import Record

_TEXT, _PAIR, _LABEL = ("text", "sentence", "sentence1"), ("text_pair", "sentence2"), ("label",)
_SUFFIXES = (".tsv", ".csv", ".jsonl")
_WITHOUT_CLASS = "unsup"  # IMDb's unlabelled reviews are beside its classes


def names(split: str) -> tuple[str, ...]:
    """Return the names that the file (or directory) of a split may have below --data.dir."""
    return (*(f"{split}{suffix}" for suffix in _SUFFIXES), split)


def read(file: epath.Path, data: TaskDataConfig, split: str) -> list[Record]:
    """Return the examples of a file or a directory, in the order of the file or of the file names.

    Raises:
      UserError: the kind of file is unknown; the header or a column is missing; the number of columns is wrong; there
        are stray quotation marks; a text or label is missing or empty; or the file is not UTF-8. Names file and line.
    """
    if file.is_dir():
        return _read_directory(file)
    if file.suffix == ".jsonl":
        objects = table_rows.json_lines(table_rows.read_text(file), file)
        return records_of(str(file), ((f"{file}, line {number}", value) for number, value in objects), data, split)
    if file.suffix not in _SUFFIXES:
        raise UserError(
            f"{file}: the format of a file is determined by the end of its name, {', '.join(_SUFFIXES)}; or give a "
            "directory with a directory of .txt files for each class"
        )
    text = table_rows.read_text(file)
    lines = table_rows.tsv(text) if file.suffix == ".tsv" else table_rows.csv(text, file)
    return records_of(str(file), _mappings(file, lines, has_header=not data.text_column.isdecimal()), data, split)


def records_of(
    source: str, examples: Iterable[tuple[str, Mapping[str, Any]]], data: TaskDataConfig, split: str
) -> list[Record]:
    """Return records for (where, mapping from column to value) pairs; the first one determines the columns.

    Raises:
      UserError: a column is missing; a later example has a second text or a label, the first has none; or a text or
        label is bad.
    """
    records, columns = [], None
    for where, values in examples:
        columns = columns or _columns(where, values, data, split)
        text, pair, label = columns
        _check_absent(where, values, (() if pair else _PAIR) + (() if label else (data.label_column or _LABEL[0],)))
        records.append(
            Record(
                where,
                _text(where, values, text),
                None if pair is None else _text(where, values, pair),
                None if label is None else _label(where, values.get(label)),
                str(len(records)),
            )
        )
    if not records:
        raise UserError(f"{source} holds no example")
    return records


def _mappings(
    file: epath.Path, lines: Iterator[table_rows.Row], has_header: bool
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (where, {column: field}) of every line below the header; without one the columns are called 1, 2, 3 …"""
    header, expected = None, ""
    for number, fields in lines:
        if header is None:
            header = [name.strip() for name in fields] if has_header else [str(i + 1) for i in range(len(fields))]
            expected = f"line {number} has {len(header)}"
            if len(set(header)) < len(header):
                raise UserError(f"{file}, line {number}: two columns have the same name: {', '.join(header)}")
            if has_header:
                continue
        if len(fields) != len(header):
            raise UserError(f"{file}, line {number}: {len(fields)} columns, {expected} ({', '.join(header)[:200]})")
        yield f"{file}, line {number}", dict(zip(header, fields, strict=True))


def _columns(
    where: str, values: Mapping[str, Any], data: TaskDataConfig, split: str
) -> tuple[str, str | None, str | None]:
    """Return the columns of text, second text and label; only a test set may lack labels."""
    choices = ((data.text_column, _TEXT), (data.pair_column, _PAIR), (data.label_column, _LABEL))
    text, pair, label = (
        next((name for name in ((asked,) if asked else usual) if name in values), None) for asked, usual in choices
    )
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
        asked = getattr(data, missing[0])
        wanted = repr(asked) if asked else " or ".join(_TEXT if missing[0] == "text_column" else _LABEL)
        shown = ", ".join(repr(str(name)[:40]) for name in list(values)[:12])
        raise UserError(
            f"{where}: no column {wanted} among {shown}; name one with --data.{missing[0]} (a file without a line of "
            "column names is read by numbers: --data.text_column=1 --data.label_column=2)"
        )
    return text, pair, label


def _check_absent(where: str, values: Mapping[str, Any], columns: tuple[str, ...]) -> None:
    """Raise a UserError about columns that only later JSON lines have, which would be lost silently."""
    late = [name for name in columns if values.get(name) not in (None, "")]
    if late:
        raise UserError(f"{where}: a {late[0]!r}, which the first example lacks; give it to every example or to none")


def _text(where: str, values: Mapping[str, Any], column: str) -> str:
    value = values.get(column)
    if not isinstance(value, str):
        problem = "is missing" if value is None else f"is {value!r}, not text"[:100]
        raise UserError(f"{where}: {column!r} {problem}")
    if not value.strip():
        raise UserError(f"{where}: the text in column {column!r} is empty")
    # JSON can spell half a surrogate pair, which no tokenizer accepts.
    return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _label(where: str, value: Any) -> str | None:
    """Return the label as text: 3 and "3" are the same class."""
    if value is None or isinstance(value, str) and not value.strip():
        return None
    if not isinstance(value, str | bool | int | float):
        raise UserError(f"{where}: the label {value!r} is neither text nor a number"[:300])
    label = value.strip() if isinstance(value, str) else json.dumps(value)
    if not label.isprintable():
        raise UserError(f"{where}: the label {label!r} holds characters that do not print")
    return label


def _read_directory(directory: epath.Path) -> list[Record]:
    """Read IMDb's format: DIRECTORY/pos/*.txt, DIRECTORY/neg/*.txt, whatever the classes are called."""
    classes = sorted(path.name for path in directory.iterdir() if path.is_dir() and path.name != _WITHOUT_CLASS)
    records = []
    for name in classes:
        for file in sorted((directory / name).glob("*.txt")):
            text = table_rows.read_text(file)
            if not text.strip():
                raise UserError(f"{file} is empty")
            records.append(Record(str(file), text, None, name, f"{name}/{file.name}"))
    if not records:
        raise UserError(f"{directory} has no directory with .txt files for each class (such as pos and neg)")
    return records

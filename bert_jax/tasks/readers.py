"""Readers of the rows of task files, of named data sets and of what is in memory; the search for the file of a split.

Lines are tab-separated without quoting, CSV by RFC 4180, or JSON; they always come with the line number. Lines end in
LF or CR LF. Other line separators of Unicode are text, and blank lines are skipped.

`rows_of` gives the examples of a split as rows, values by the name of their column, wherever they come from: memory
(`in_memory` says from what), a data set of TFDS or the Hugging Face hub, JSON lines, Parquet or Arrow files. What a
family then reads and checks in them is the same for all. The package that loads a data set is imported at the first
call, by corpus/datasets.py. A row has plain types:

    row["question"]                  # str
    row["answers"]["answer_start"]   # list[int]; a Sequence of a dict becomes a dict of lists
    row["tokens"], row["ner"]        # list[str], list[str]: the names of the classes, not their numbers
"""

import contextlib
import dataclasses
import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from absl import logging
from etils import epath

from bert_jax import hub
from bert_jax.config.tasks import DataSourceConfig
from bert_jax.corpus import datasets
from bert_jax.errors import UserError, need_extra
from bert_jax.files import is_remote, lines_of, parsed, read_text

Row = tuple[int, list[str]]
"""(number of the line on which the row begins, from 1; its fields)"""
Rows = Iterator[tuple[str, Mapping[str, Any]]]
"""Examples: (name for messages, such as `train[3]` or `train.jsonl, line 4`; values by the name of their column)."""
Given = Mapping[str, Sequence[Any]]
"""Rows of those splits that are in memory, as `in_memory` returns them."""
AsColumns = Callable[[str, Any], Mapping[str, Any]]
"""Returns the values of a row without names of columns, such as (text, label), by column; arguments as in `Rows`."""

_CSV_FIELD = re.compile(r'(?:"(?P<quoted>(?:[^"]|"")*+)"|(?P<plain>(?:[^",\r\n]|\r(?!\n))*+))(?P<end>,|\r?\n|\Z)')


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number, line) of every line that is not blank."""
    for number, line in enumerate(lines_of(text), start=1):
        if line:
            yield number, line


def tsv(text: str) -> Iterator[Row]:
    """Yield the fields between tabs; a quotation mark is an ordinary character, as in GLUE's files."""
    for number, line in lines(text):
        yield number, line.split("\t")


def csv(text: str, file: str | os.PathLike[str]) -> Iterator[Row]:
    """Yield the fields between commas; one in quotation marks may hold commas, line ends and doubled quotation marks.

    Raises:
      UserError: a quotation mark is never closed, or is inside a field without quotation marks.
    """
    place, line, first_line, fields = 0, 1, 1, []
    while place < len(text) or fields:
        match = _CSV_FIELD.match(text, place)
        if not match:
            raise UserError(f"{os.fspath(file)}, line {line}: {_stray_quote(text, place)}")
        fields.append(match["plain"] if match["quoted"] is None else match["quoted"].replace('""', '"'))
        line += match[0].count("\n")
        place = match.end()
        if match["end"] == ",":
            continue
        if fields != [""]:
            yield first_line, fields
        first_line, fields = line, []


def json_lines(text: str, file: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield one JSON object per line.

    Raises:
      UserError: a line is not JSON, or not an object.
    """
    for number, line in lines(text):
        try:
            value = parsed(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{os.fspath(file)}, line {number}: not JSON: {error}") from None
        if not isinstance(value, dict):
            raise UserError(
                f'{os.fspath(file)}, line {number}: expected an object {{"text": …}}, not {type(value).__name__}'
            )
        yield number, value


def composed_form(name: str) -> str:
    """Return the name of a class or column in the form in which names are compared (NFC): é is one character."""
    return unicodedata.normalize("NFC", name)


def column(values: Mapping[str, Any], asked: str, usual: Sequence[str]) -> str | None:
    """Return the column of a row that is asked for or, if none is, the first that has a usual name; None without it."""
    spelled = {composed_form(str(name)): name for name in values}
    return next((spelled[name] for name in ((composed_form(asked),) if asked else usual) if name in spelled), None)


class DividedExamples:
    """Common part of the examples of a split, some of which may be held out (see `task_data.Examples`)."""

    @property
    def classes(self) -> list[str] | None:
        """The class of each example; None if it has another number of them than one."""
        return None

    @property
    def pairs(self) -> bool | None:
        """Whether all are pairs of texts; None if they are not only texts."""
        return None

    def judged(self) -> Self:
        """Return training examples as those of dev; a UserError if these cannot be measured."""
        return self


def asked_column(where: str, values: Mapping[str, Any], asked: str, usual: Sequence[str], option: str) -> str | None:
    """Return what `column` does; a UserError if one is asked for that is not there. `option` of `data` names it."""
    name = column(values, asked, usual)
    if name is None and asked:
        raise UserError(no_column(where, values, asked, usual, option))
    return name


def need_column(where: str, values: Mapping[str, Any], asked: str, usual: Sequence[str], option: str) -> str:
    """Return what `column` does; a UserError if there is none. `option` of `data` names it."""
    name = column(values, asked, usual)
    if name is None:
        raise UserError(no_column(where, values, asked, usual, option))
    return name


NEGATIVE = "negative"
"""Beginning of the usual names of columns with texts that do not belong to a query, as `bert-jax mine` writes them."""


def negative_columns(where: str, values: Mapping[str, Any], asked: str) -> list[str]:
    """Return the columns of such texts: those `asked` for, separated by commas, or else all with usual names."""
    names = [name.strip() for name in asked.split(",") if name.strip()]
    if names:
        return [need_column(where, values, name, (), "negative_columns") for name in names]
    return [name for name in values if str(name).startswith(NEGATIVE)]


def no_column(where: str, values: Mapping[str, Any], asked: str, usual: Sequence[str], option: str) -> str:
    """Return the message where `column` finds none; `option` is that of `data` which names it."""
    shown = ", ".join(repr(str(name)[:40]) for name in list(values)[:12])
    wanted = repr(asked) if asked else " or ".join(usual)
    return f"{where}: no column {wanted} among {shown}; name one with --data.{option}"


def check_absent(where: str, values: Mapping[str, Any], columns: Iterable[str]) -> None:
    """Raise a UserError about columns that only later rows have, which would be lost silently."""
    if late := [name for name in columns if values.get(name) not in (None, "")]:
        raise UserError(f"{where} has {late[0]!r}, which the first example lacks; give it to every example or to none")


def composed(labels: Sequence[tuple[str, str]]) -> list[str]:
    """Return labels, given with their places, in the composed form; a warning says once if any changes.

    Keyboards and file systems write é as one character or as two that look the same.
    """
    found = [composed_form(label) for _, label in labels]
    changed = [given for given, label in zip(labels, found, strict=True) if label != given[1]]
    if changed:
        logging.warning(
            "%s: %r%s has letters and accents as separate characters, and is read in the composed form (NFC)",
            *changed[0],
            f", as {len(changed) - 1:,} more labels," if len(changed) > 1 else "",
        )
    return found


def _stray_quote(text: str, place: int) -> str:
    shown = text[place : place + 30].partition("\n")[0]
    if text[place] != '"':
        reason = "a quotation mark inside a field that has none around it"
    elif re.compile(r'"(?:[^"]|"")*+"').match(text, place):
        reason = "text after a closing quotation mark"
    else:
        reason = "a quotation mark opens here and is never closed"
    return f'{reason}: {shown!r}; in CSV a field with quotation marks is "…" with each mark inside doubled'


_SPLITS = {"dev": "validation", "dev_mismatched": "validation_mismatched"}


def dataset_split(data: DataSourceConfig, split: str) -> str:
    """Return the dataset's name of a split: `--data.train` and the like if given (even `train[:90%]`), or the usual."""
    return getattr(data, split, "") or _SPLITS.get(split, split)


def dataset_splits(name: str, data: DataSourceConfig, called: Mapping[str, str]) -> tuple[str, ...]:
    """Return those splits of `called`, which maps them to the dataset's names, that it has or that `data` asks for."""
    if name.startswith(hub.PREFIX):
        _, _, info = datasets.load_hub(_whole(name), dataset_split(data, "train"))
    else:
        _, info, _ = datasets.load(f"tfds:{name}:{dataset_split(data, 'train')}", data.tfds_dir or None)
    return tuple(split for split, theirs in called.items() if getattr(data, split, "") or theirs in info.splits)


def dataset_examples(name: str, split: str, directory: str = "") -> Iterator[dict[str, Any]]:
    """Yield the examples of a data set in stored order; download it first if necessary.

    Values are str, int, float, bool, lists and dicts of them. A ClassLabel becomes the name of its class, or None for
    -1, which marks the unlabelled test sets of GLUE. Bytes must be UTF-8.

    Args:
      name: of TFDS, `name[/config][:version]`, or of the hub, `hf://datasets/owner/name[@revision][:configuration]`.
      split: its split, or a part of it.
      directory: where TFDS keeps its data; "" for its own default.

    Raises:
      UserError: raised by the call itself: the dataset, configuration or split is unknown, or the package that loads it
        is missing.
    """
    if name.startswith(hub.PREFIX):
        rows, _, _ = datasets.load_hub(_whole(name), split)
        return ({key: _plain(rows.features[key], value) for key, value in row.items()} for row in rows)
    dataset, info, _ = datasets.load(f"tfds:{name}:{split}", directory or None)
    return _plain_examples(dataset, info.features, f"{name}, split {split}")


def _whole(name: str) -> hub.HubName:
    found = hub.dataset_name(name)
    if found.split:
        raise UserError(f"data.hub={name} names a split; give splits as --data.train=SPLIT and --data.dev=SPLIT")
    return found


def _plain_examples(dataset: Any, features: Any, source: str) -> Iterator[dict[str, Any]]:
    for index, example in enumerate(dataset.as_numpy_iterator()):
        try:
            yield _plain(features, example)
        except UnicodeDecodeError:
            raise UserError(f"{source}, example {index}: not UTF-8") from None


def _plain(feature: Any, value: Any) -> Any:
    """Return `value` in plain types; `feature` says which numbers are classes."""
    while not isinstance(value, dict) and hasattr(feature, "feature"):
        feature = feature.feature  # a Sequence, whose values are arrays or ragged tensors
    if isinstance(value, dict):
        fields = getattr(feature, "feature", feature)
        return {key: _plain(None if fields is None else fields[key], part) for key, part in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.ndarray) and value.ndim or isinstance(value, list):
        return [_plain(feature, part) for part in value]
    if to_list := getattr(value, "to_list", None):
        return [_plain(feature, part) for part in to_list()]
    value = value.item() if hasattr(value, "item") else value
    if hasattr(feature, "int2str"):
        return feature.int2str(value) if value is not None and value >= 0 else None
    return value


ROW_ENDINGS = (".jsonl", *datasets.ENDINGS)
"""How the names of files end that hold rows with names of columns, in every task."""
TABLE_ENDINGS = (".tsv", ".csv", *ROW_ENDINGS)

"""The same in tasks whose columns have names of the user's own."""


def rows_of(
    data: DataSourceConfig, split: str, given: Given | None, columns: AsColumns, *, name: str = "", part: str = ""
) -> tuple[str, Rows] | None:
    """Return the source, for messages, and the rows of a split; None if it is a file in a form of the task's own.

    Args:
      given: the splits that are in memory.
      columns: says what is in a row of those that has no names of columns.
      name: the data set, if not the one that `data` names.
      part: its split, likewise.

    Raises:
      UserError: see `dataset_examples` and `file_rows`; and `columns`, as soon as such a row is read.
    """
    if given and split in given:
        return split, _named_rows(split, given[split], columns)
    if data.named:
        name, part = name or data.named, part or dataset_split(data, split)
        source = f"{name}, split {part}"
        examples = dataset_examples(name, part, data.tfds_dir)
        return source, ((f"{source}, example {number}", example) for number, example in enumerate(examples))
    if getattr(data, split, "").endswith(ROW_ENDINGS):
        file = find_file(data, split, ())
        return str(file), file_rows(file)
    return None


def file_rows(file: epath.Path) -> Rows:
    """Return the rows of JSON lines, or of a Parquet or Arrow file.

    Raises:
      UserError: its name ends like none of these, it is damaged, or there is no pyarrow to read it with.
    """
    _check_ending(file, ROW_ENDINGS)
    if file.suffix == ".jsonl":
        return ((f"{file}, line {number}", value) for number, value in json_lines(read_text(file), file))
    return ((f"{file}, row {number}", row) for number, row in enumerate(datasets.arrow_rows(str(file))))


def table_names(split: str) -> tuple[str, ...]:
    """Return the names that a file of TABLE_ENDINGS with a split may have below --data.dir."""
    return tuple(f"{split}{ending}" for ending in TABLE_ENDINGS)


def table_splits(data: DataSourceConfig) -> tuple[str, ...]:
    """Return those of train, dev and test that the data has, in files of these names or elsewhere."""
    return file_splits(data, {split: table_names(split) for split in ("train", "dev", "test")})


def own_rows(data: DataSourceConfig, split: str, given: Given | None, columns: AsColumns, first: str) -> Rows:
    """Return the rows of a split in memory, of a data set, or in a file of TABLE_ENDINGS.

    Args:
      given: as for `rows_of`, as `columns` is.
      first: the option that names a column; TSV and CSV have no line of names if it is a number.
    """
    if (found := rows_of(data, split, given, columns)) is not None:
        return found[1]
    return table_rows(find_file(data, split, table_names(split)), has_header=not first.isdecimal())


def table_rows(file: epath.Path, *, has_header: bool, others: str = "") -> Rows:
    """Return the rows of a file in one of the forms of TABLE_ENDINGS.

    Args:
      has_header: whether TSV and CSV begin with a line of column names; without one they are called 1, 2, 3 and so on.
      others: what a message says may be given too.

    Raises:
      UserError: see `file_rows`; or two columns have one name, or a line has more or fewer than the first.
    """
    _check_ending(file, TABLE_ENDINGS, others)
    if file.suffix in ROW_ENDINGS:
        return file_rows(file)
    text = read_text(file)
    return _by_header(file, tsv(text) if file.suffix == ".tsv" else csv(text, file), has_header)


def _check_ending(file: epath.Path, endings: Sequence[str], others: str = "") -> None:
    if file.suffix not in endings or file.is_dir():
        raise UserError(
            f"{file}: the format of a file is determined by the end of its name, {', '.join(endings)}"
            + (f"; or give {others}" if others else "")
        )


def _by_header(file: epath.Path, lines: Iterator[Row], has_header: bool) -> Rows:
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


def _named_rows(split: str, rows: Sequence[Any], columns: AsColumns) -> Rows:
    for number, row in enumerate(rows):
        where, values = f"{split}[{number}]", _own_types(row)
        yield where, values if isinstance(values, dict) else columns(where, values)


_DEV_NAMES = ("validation", "dev", "validation_matched")
_NAMES_IN_DICTS = {"train": ("train",), "dev": _DEV_NAMES, "test": ("test", "test_matched")}


def out_of_dicts(splits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the splits, each DatasetDict replaced by its data set of that name; that of train gives all not given.

    Raises:
      UserError: a DatasetDict has no such split, or two splits are one iterator, whose rows only one can have.
    """
    found = {}
    for split, source in splits.items():
        names = _NAMES_IN_DICTS[split]
        if source is None and _is_dataset_dict(splits.get("train")):
            source = next((splits["train"][name] for name in names if name in splits["train"]), None)
        elif isinstance(source, dict) and _is_dataset_dict(source):
            name = next((name for name in names if name in source), "")
            if not name:
                raise UserError(
                    f"{split} is a DatasetDict without {' or '.join(names[:2])}; it has {', '.join(source)}: give "
                    f"{split}=data['{next(iter(source))}'] or the like"
                )
            source = source[name]
        same = next((other for other, each in found.items() if each is source and isinstance(source, Iterator)), None)
        if same:
            raise UserError(f"{same} and {split} are one iterator, which gives its rows once; give each split its own")
        found[split] = source
    return found


def _is_dataset_dict(source: Any) -> bool:
    return isinstance(source, dict) and bool(source) and all(map(_is_dataset, source.values()))


def _is_dataset(source: Any) -> bool:
    return all(hasattr(source, name) for name in ("features", "column_names", "info"))


def in_memory(split: str, source: Any) -> list[Any]:
    """Return the rows of what somebody has in memory: dicts by column, or whatever an iterable yields.

    Sources are known by what they offer, and no library is imported for them: data sets of the package datasets (whose
    classes become names), data frames of pandas and polars, Arrow tables and whatever has their interface,
    tf.data.Dataset, NumPy arrays (with the names of their fields, if they have any), dicts of columns, and any other
    iterable.

    Raises:
      UserError: it is none of these, columns differ in length or in nothing (two have one name), a set, whose order
        changes, or an iterator that has been used up.
    """
    if _is_dataset(source):
        features = source.features or {}
        source = source if (getattr(source, "format", None) or {}).get("type") == "custom" else source.with_format(None)
        return [{name: _plain(features.get(name), value) for name, value in row.items()} for row in source]
    if hasattr(source, "collect_schema") and hasattr(source, "collect"):  # polars.LazyFrame
        source = source.collect()
    if hasattr(source, "to_dicts"):  # polars
        return source.to_dicts()
    if hasattr(source, "itertuples") and hasattr(source, "notna"):  # pandas
        _check_names(split, list(map(str, source.columns)))
        return _without_gaps(source).to_dict("records")
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "to_pylist") and hasattr(source, "schema"):
        return _rows_of_table(split, source)
    if hasattr(source, "as_numpy_iterator"):  # tf.data.Dataset
        return [_plain(None, row) for row in source.as_numpy_iterator()]
    if isinstance(source, np.ndarray) and source.dtype.names:
        return _rows_of_columns(split, {name: source[name] for name in source.dtype.names})
    if isinstance(source, Mapping):
        return _rows_of_columns(split, source)
    if isinstance(source, set | frozenset):
        raise UserError(f"{split} is a set, whose order differs from one start to the next; give sorted(…) of it")
    if isinstance(source, str | bytes | bytearray) or not isinstance(source, Iterable):
        raise UserError(
            f"{split} is {type(source).__name__}; expected a file, or examples: a data frame, a table, a dict of "
            "columns, or an iterable of rows such as (text, label)"
        )
    rows = list(source)
    if not rows and isinstance(source, Iterator):
        raise UserError(
            f"{split} is a {type(source).__name__} without a row; an iterator gives its rows once, so make a new one"
        )
    return rows


def _rows_of_table(split: str, table: Any) -> list[dict[str, Any]]:
    """Return the rows of an Arrow table, or of what can be read as one (`__arrow_c_stream__`)."""
    if not any(hasattr(table, name) for name in ("schema", "columns", "column_names")):
        raise UserError(
            f"{split} is a {type(table).__name__}, one column; give a data frame, or a dict of columns such as "
            "{'text': …, 'label': …}"
        )
    if not hasattr(table, "to_pylist"):
        need_extra("pyarrow", "corpora", f"{split}, a {type(table).__name__},")
        import pyarrow

        table = pyarrow.table(table)
    _check_names(split, list(table.schema.names))
    return [*datasets.rows_with_classes(table.schema, [table])]


def _rows_of_columns(split: str, columns: Mapping[Any, Any]) -> list[dict[str, Any]]:
    values = {str(name): _values(split, str(name), column) for name, column in columns.items()}
    if len({len(column) for column in values.values()}) > 1:
        lengths = ", ".join(f"{name} {len(column):,}" for name, column in values.items())
        raise UserError(f"{split}: columns of different lengths ({lengths:.300}); each row needs a value of every one")
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def _values(split: str, name: str, column: Any) -> list[Any]:
    if isinstance(column, str | bytes | Mapping | set | frozenset) or not isinstance(column, Iterable):
        raise UserError(
            f"{split}: the column {name!r} is {column!r:.60}, not a list or an array; a dict has a column under a name"
        )
    if hasattr(column, "notna"):  # pandas
        column = _without_gaps(column)
    whole = next(
        (getattr(column, method) for method in ("to_pylist", "tolist", "to_list") if hasattr(column, method)), None
    )
    return list(column) if whole is None else whole()


def _without_gaps(frame: Any) -> Any:
    """Return a data frame or a column of pandas with None in place of what it regards as missing, NaN or NA or NaT."""
    return frame.astype(object).where(frame.notna(), None)


def _check_names(split: str, names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise UserError(f"{split}: two columns have the same name: {', '.join(names):.300}")


def _own_types(value: Any) -> Any:
    """Return a value in Python's own types; NaN, which stands for what is missing, as None."""
    try:
        return _converted(value)
    except RecursionError:
        raise UserError(
            "an example is nested too deeply, or has itself as a part; give texts, numbers and lists"
        ) from None


def _converted(value: Any) -> Any:
    """Do the work of `_own_types`."""
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, float):
        return None if value != value else float(value)
    if hasattr(value, "_asdict"):  # a named tuple, such as those of pandas' itertuples
        value = value._asdict()
    if hasattr(value, "notna"):  # a row of pandas' iterrows
        value = value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _converted(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return list(map(_converted, value))
    for method in ("tolist", "as_py", "to_list"):  # arrays and their numbers; Arrow; polars
        if hasattr(value, method):
            return _converted(getattr(value, method)())
    return value


def has_names(row: Any) -> bool:
    """Return whether a row of `in_memory` has values by the name of their column."""
    return isinstance(_own_types(row), dict)


def text_of(where: str, values: Mapping[str, Any], column: str, *, empty: bool = False) -> str:
    """Return the text in a column of a row.

    Raises:
      UserError: it is missing, not text, or, unless `empty` is allowed, without a character that shows.
    """
    value = values.get(column)
    if not isinstance(value, str):
        problem = "is missing" if value is None else f"is {value!r}, not text"[:100]
        raise UserError(f"{where}: {column!r} {problem}")
    if not empty and not value.strip():
        raise UserError(f"{where}: the text in column {column!r} is empty")
    return whole_characters(value)


LARGEST = 1e30
"""The largest number of `numbers_of`; the squares of differences are float32."""


def numbers_of(where: str, value: Any, option: str) -> float | list[float]:
    """Return a number or a list of numbers, which may be text.

    Raises:
      UserError: it is neither; `option` is that of `data` which names the column.
    """
    given = value
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            value = parsed(value) if value.lstrip().startswith("[") else float(value)
    values = value if isinstance(value, list) else [value]
    numbers = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    if not values or len(numbers) < len(values) or not all(abs(each) <= LARGEST for each in numbers):
        raise UserError(
            f"{where}: the score {given!r:.60} is neither a number nor a list of numbers; if the column holds "
            f"something else, name another with --data.{option}"
        )
    return list(map(float, numbers)) if isinstance(value, list) else float(numbers[0])


def weight_of(where: str, values: Mapping[str, Any], weight_column: str) -> float:
    """Return the weight of an example in the column of this name, 1 if the name is empty.

    Raises:
      UserError: there is no such column, or its value is no number from 0 on.
    """
    if not weight_column:
        return 1.0
    name = need_column(where, values, weight_column, (), "weight_column")
    value = values[name]
    try:
        weight = math.nan if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        weight = math.nan
    if not 0 <= weight <= 1e30:
        raise UserError(f"{where}: the weight in column {name!r} is {value!r:.60}, not a number from 0 to 1e30")
    return weight


def weights_of(examples: Iterable[Any]) -> np.ndarray | None:
    """Return the weights of examples that have one each, float32 [E]; None if all are 1."""
    weights = np.array([each.weight for each in examples], np.float32)
    return weights if np.any(weights != 1) else None


def whole_characters(text: str) -> str:
    """Return `text` without unpaired surrogates, which JSON can spell and no tokenizer accepts."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def need_files(data: DataSourceConfig) -> None:
    """Raise a UserError if a file or directory on this machine that `data` names is not there; nothing is read."""
    named = [("dir", data.dir), *((name, file) for name in ("train", "dev", "test") for file in data.files(name))]
    for name, given in named if not data.named else ():
        if given and not is_remote(given) and not epath.Path(given).expanduser().exists():
            raise UserError(f"data.{name}={given}: no such {'directory' if name == 'dir' else 'file'}")


def find_file(data: DataSourceConfig, split: str, names: Sequence[str]) -> epath.Path:
    """Return `data.train`, `data.dev` or `data.test` if given, else the first of `names` that `data.dir` has.

    Raises:
      UserError: neither exists; the message lists the names and what the directory holds.
    """
    given = getattr(data, split, "")
    if given:
        path = epath.Path(given).expanduser()
        if not path.exists():
            raise UserError(f"data.{split}={given}: no such file")
        return path
    if not data.dir:
        option = f"--data.{split}=FILE, or " if hasattr(data, split) else ""
        raise UserError(f"no {split} data: give {option}--data.dir=DIR with one of {', '.join(names)}")
    directory = epath.Path(data.dir).expanduser()
    for name in names:
        if (directory / name).exists():
            return directory / name
    holds = "(there is no such directory)"
    if directory.is_dir():
        holds = ", ".join(sorted(path.name for path in directory.iterdir())[:10])
    other = f"; --data.{split}=FILE names a file with a different name" if hasattr(data, split) else ""
    if split == "dev":
        other += ", and --data.dev_share=0.1 holds out a tenth of the training examples"
    raise UserError(
        f"data.dir={data.dir} has no {split} data; looked for {', '.join(names)} and found {holds or 'nothing'}{other}"
    )


def file_splits(data: DataSourceConfig, names: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return those of the splits in `names` that `find_file` would find, or that the data set of this name has."""
    if data.named:
        return dataset_splits(data.named, data, {split: dataset_split(data, split) for split in names})
    directory = epath.Path(data.dir).expanduser()
    return tuple(
        split
        for split, files in names.items()
        if getattr(data, split, "") or data.dir and any((directory / name).exists() for name in files)
    )

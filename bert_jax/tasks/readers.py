"""Readers of task files and of named data sets, and the search for the file of a split.

Lines are tab-separated without quoting, CSV by RFC 4180, or JSON; they always come with the line number. Lines end in
LF or CR LF. Other line separators of Unicode are text, and blank lines are skipped.

Examples of a data set of TFDS or the Hugging Face hub are plain dicts. The package that loads it is imported at the
first call, by corpus/datasets.py. A family reads its split thus:

    for example in readers.dataset_examples("squad/v1.1", readers.dataset_split(data, split), data.tfds_dir):
        example["question"]                  # str
        example["answers"]["answer_start"]   # list[int]; a Sequence of a dict becomes a dict of lists

    for example in readers.dataset_examples("hf://datasets/eriktks/conll2003", "train"):
        example["tokens"], example["ner"]    # list[str], list[str]: the names of the classes, not their numbers
"""

import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from bert_jax import hub
from bert_jax.config.finetuning import TaskDataConfig
from bert_jax.corpus import datasets
from bert_jax.errors import UserError
from bert_jax.files import is_remote, lines_of, parsed

Row = tuple[int, list[str]]
"""(number of the line on which the row begins, from 1; its fields)"""

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


def dataset_split(data: TaskDataConfig, split: str) -> str:
    """Return the dataset's name of a split: `--data.train` and the like if given (even `train[:90%]`), or the usual."""
    return getattr(data, split, "") or _SPLITS.get(split, split)


def dataset_splits(name: str, data: TaskDataConfig, called: Mapping[str, str]) -> tuple[str, ...]:
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
        return {key: _plain(fields[key], part) for key, part in value.items()}
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


def need_files(data: TaskDataConfig) -> None:
    """Raise a UserError if a file or directory on this machine that `data` names is not there; nothing is read."""
    named = [("dir", data.dir), *((name, file) for name in ("train", "dev", "test") for file in data.files(name))]
    for name, given in named if not data.named else ():
        if given and not is_remote(given) and not epath.Path(given).expanduser().exists():
            raise UserError(f"data.{name}={given}: no such {'directory' if name == 'dir' else 'file'}")


def find_file(data: TaskDataConfig, split: str, names: Sequence[str]) -> epath.Path:
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
    raise UserError(
        f"data.dir={data.dir} has no {split} data; looked for {', '.join(names)} and found {holds or 'nothing'}{other}"
    )


def file_splits(data: TaskDataConfig, names: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return those of the splits in `names` that `find_file` would find, or that the data set of this name has."""
    if data.named:
        return dataset_splits(data.named, data, {split: dataset_split(data, split) for split in names})
    directory = epath.Path(data.dir).expanduser()
    return tuple(
        split
        for split, files in names.items()
        if getattr(data, split, "") or data.dir and any((directory / name).exists() for name in files)
    )

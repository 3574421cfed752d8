"""The texts of evaluation sets, from the files in which they are published."""

import csv
import io
import json
import re
from collections.abc import Iterator
from typing import Any

from etils import epath

from bert_jax.data.corpus.compression import opened
from bert_jax.errors import UserError

LARGEST_FILE = 1 << 30
_HELD_OUT = re.compile(r"(^|[^a-z])(dev|test|val|valid|validation|eval|matched|mismatched)([^a-z]|$)", re.IGNORECASE)
_KINDS = (".tsv", ".csv", ".json", ".jsonl", ".txt")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def evaluation_files(paths: str) -> list[epath.Path]:
    """Return the files that --clean.decontaminate names, those of a directory in a fixed order.

    Raises:
      UserError: a path does not exist, or a directory has no file for development or testing.
    """
    found: list[epath.Path] = []
    for name in filter(None, (part.strip() for part in paths.split(","))):
        path = epath.Path(name).expanduser()
        if path.is_dir():
            inside = [each for each in _files(path) if _is_held_out(each)]
            if not inside:
                raise UserError(
                    f"clean.decontaminate={name} has no file of {', '.join(_KINDS)} whose name says dev, valid or "
                    "test; name the files themselves"
                )
            found += inside
        elif path.is_file():
            if _kind(path) not in _KINDS:
                raise UserError(f"clean.decontaminate={name} must be a file of {', '.join(_KINDS)}, or a directory")
            found.append(path)
        else:
            raise UserError(f"clean.decontaminate={name} does not exist; give the files of an evaluation set")
    return found


def read_texts(path: epath.Path) -> Iterator[str]:
    """Yield the texts of a file: cells, strings inside of JSON, or lines.

    Raises:
      UserError: the file is damaged, not UTF-8, or not what its name says.
    """
    with opened(str(path)) as (stream, _):
        content = stream.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise UserError(f"{path} has more than {LARGEST_FILE >> 30} GiB, too much for an evaluation set; divide it")
    try:
        yield from _TEXTS[_kind(path)](content.decode("utf-8-sig"))
    except (UnicodeDecodeError, csv.Error, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not a readable {_kind(path)} file: {error}") from error


def _files(directory: epath.Path, depth: int = 3) -> Iterator[epath.Path]:
    """Yield the files in a directory and in those inside it, in a fixed order."""
    for path in sorted(directory.iterdir()):
        if path.is_file():
            yield path
        elif depth and path.is_dir():
            yield from _files(path, depth - 1)


def _is_held_out(path: epath.Path) -> bool:
    return _kind(path) in _KINDS and bool(_HELD_OUT.search(path.name))


def _kind(path: epath.Path) -> str:
    name = path.name.lower()
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return f".{name.rpartition('.')[2]}"


def _rows(text: str) -> Iterator[str]:
    for row in text.splitlines():  # GLUE's tables have quotes that are never closed
        yield from row.split("\t")


def _cells(text: str) -> Iterator[str]:
    for row in csv.reader(io.StringIO(text), strict=False):
        yield from row


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _records(text: str) -> Iterator[str]:
    for line in filter(str.strip, text.splitlines()):
        yield from _strings(json.loads(line))


_TEXTS = {
    ".tsv": _rows,
    ".csv": _cells,
    ".json": lambda text: _strings(json.loads(text)),
    ".jsonl": _records,
    ".txt": str.splitlines,
}

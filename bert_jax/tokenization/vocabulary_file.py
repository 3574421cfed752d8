"""Finding, checking, reading and atomically writing the files that hold a vocabulary.

A vocab.txt has one entry per line, whose number (from 0) is its id; tokenizer_config.json in the same directory
specifies the casing. An error in such a file shows only much later, as a model that does not learn, so it is rejected
here.
"""

import collections
import json
import os
from typing import Any

from absl import logging
from etils import epath

from bert_jax.config.json_form import first_lines
from bert_jax.errors import UserError
from bert_jax.files import is_remote, read_object, write_atomically

SPECIAL_NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
STRAY_CAPITALS = 0.01  # share of entries; BERT's cased vocabulary has 0.29, an uncased one may have a stray symbol
WORDPIECE_FILE, SENTENCEPIECE_FILE, CONFIG_FILE = "vocab.txt", "spm.model", "tokenizer_config.json"
BYTE_LEVEL_FILE, MERGES_FILE, JSON_FILE = "vocab.json", "merges.txt", "tokenizer.json"
JSON_KIND = "tokenizer_json"
"""In tokenizer_config.json beside a tokenizer.json that is a vocabulary of its own."""


def find(path: epath.Path) -> epath.Path:
    """Return the vocabulary file that `path` is or, as a directory, holds; a UserError if that is not exactly one."""
    if not path.exists():
        raise UserError(
            f"no vocabulary at {path}: expected a vocab.txt, a SentencePiece .model, the vocab.json of a byte-level "
            "BPE or a directory that holds one; "
            "`bert-jax train-vocab` makes one"
        )
    if not path.is_dir():
        return path
    found = vocabularies(path)
    if len(found) != 1:
        seen = ", ".join(file.name for file in found) or "neither"
        raise UserError(
            f"{path} must hold one vocab.txt, one vocab.json or one SentencePiece .model, but has {seen}; name the "
            "file itself"
        )
    return found[0]


def vocabularies(directory: epath.Path) -> list[epath.Path]:
    """Return the vocabulary files in `directory`, which need not exist."""
    if not directory.is_dir():
        return []
    names = (WORDPIECE_FILE, BYTE_LEVEL_FILE)
    found = sorted(file for file in directory.iterdir() if file.name in names or file.suffix == ".model")
    return found or [file for file in (directory / JSON_FILE,) if is_json_vocabulary(file)]


def is_json_vocabulary(file: epath.Path) -> bool:
    """Return whether a tokenizer.json, which need not exist, is a vocabulary of its own, as the file beside it says."""
    config = file.parent / CONFIG_FILE
    return file.exists() and config.exists() and read_object(config).get("kind") == JSON_KIND


def parse(contents: bytes, file: epath.Path) -> list[str]:
    """Return the entries of a vocab.txt in the order of their ids.

    Raises:
      UserError: it is empty, broken, has duplicates or lacks a special token.
    """
    try:
        lines = contents.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = contents[: error.start].count(b"\n") + 1
        raise UserError(
            f"{file} is not UTF-8 (line {line}, byte {error.start}); convert it, for example with iconv -t UTF-8"
        ) from None
    tokens = [line.strip(" \t\r") for line in lines]
    if tokens[-1] == "":
        tokens.pop()
    if not tokens:
        raise UserError(f"{file} is empty; `bert-jax train-vocab` makes a vocabulary")
    if "" in tokens:
        raise UserError(
            f"{file}: line {tokens.index('') + 1} is empty; each line is an entry whose id is the line number, so "
            "fetch the file again, or delete the line if no store or checkpoint was made with it"
        )
    missing = [name for name in SPECIAL_NAMES if name not in tokens]
    if missing:
        raise UserError(
            f"{file} has no {', '.join(missing)}; BERT needs {' '.join(SPECIAL_NAMES)}, each on a line of its own "
            "(an [unusedN] line can be renamed)"
        )
    if len(set(tokens)) < len(tokens):
        raise UserError(f"{file} has duplicate entries: {_duplicates(tokens)}; every entry may occur only once")
    return tokens


def _duplicates(tokens: list[str]) -> str:
    """Return the first few repeated entries with their line numbers, for an error message."""
    lines = collections.defaultdict(list)
    for number, token in enumerate(tokens, 1):
        lines[token].append(number)
    repeated = [f"{token!r} on lines {', '.join(map(str, at))}" for token, at in lines.items() if len(at) > 1]
    return first_lines(repeated, 3)


def casing(tokens: list[str], file: epath.Path, lowercase: bool | None) -> bool:
    """Return whether text is lowercased for this vocabulary.

    Raises:
      UserError: Google's validate_case_matches_checkpoint would reject the combination too.
    """
    capitals = [token for token in tokens if token != token.lower() and not (token[0] == "[" and token[-1] == "]")]
    source, stored = "", {}
    if lowercase is None:
        config = file.parent / CONFIG_FILE  # describes only the vocab.txt of its directory, not other files there
        stored = _read_config(config) if file.name == WORDPIECE_FILE and config.exists() else {}
        lowercase = bool(stored.get("do_lower_case", not capitals))
        source = f" (by {config})"
    if lowercase and len(capitals) > STRAY_CAPITALS * len(tokens):
        raise UserError(
            f"lowercase=True{source}, but {file} is a cased vocabulary ({len(capitals)} of its {len(tokens)} "
            f"entries have capitals, for example {capitals[0]!r}, and would never be used); set lowercase=False "
            f'or "do_lower_case": false in the {CONFIG_FILE} of a model'
        )
    written_by_us = "kind" in stored  # then the warning came when it was written; do not repeat it in each worker
    if not lowercase and not capitals and "##a" in tokens and not written_by_us:
        logging.warning(
            "lowercase=False, but no entry of %s has a capital letter: words that have one become [UNK]", file
        )
    return lowercase


def _read_config(file: epath.Path) -> dict[str, Any]:
    config = read_object(file, "repair or delete it")
    if not isinstance(config.get("do_lower_case", True), bool):
        raise UserError(f'{file} must be a JSON object with "do_lower_case": true or false')
    return config


def serialize(tokens: list[str]) -> bytes:
    """Return the contents of a vocab.txt with these entries; `parse` is the inverse."""
    return "".join(f"{token}\n" for token in tokens).encode()


def check_writable(file: epath.Path) -> None:
    """Raise a UserError if a local place cannot be written to, before hours are spent on what should go there."""
    if is_remote(file):
        return
    nearest = next(parent for parent in file.absolute().parents if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UserError(f"cannot write {file}: {nearest} is not a writable directory; choose another")


def make_directory(directory: epath.Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the directory {directory}: {error.strerror or error}; choose another") from None


def write_config(
    directory: epath.Path, kind: str, lowercase: bool, options: dict[str, bool | str] | None = None
) -> None:
    """Write the tokenizer_config.json of the vocabulary in `directory`."""
    config = {"kind": kind, "do_lower_case": lowercase, **(options or {})}
    write(directory / CONFIG_FILE, (json.dumps(config) + "\n").encode())


def write(file: epath.Path, contents: bytes) -> None:
    """Write the whole file or nothing."""
    try:
        write_atomically(file, contents)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}; choose a writable directory") from None

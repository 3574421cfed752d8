"""Plain texts for prediction: one per line of a .txt file or of standard input, or one per .txt file of a directory."""

import sys
from typing import NamedTuple

import tokenizers
from etils import epath

from bert_jax.errors import UserError
from bert_jax.tasks import table_rows
from bert_jax.tasks.glue.glue_files import MRPC_TEST, MRPC_TRAIN
from bert_jax.tokenization.tokenizer import basic_normalizer, basic_pre_tokenizer

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
        return (
            path.suffix == ".txt"
            and path.name not in (MRPC_TRAIN, MRPC_TEST)
            and head in ("classification", "regression")
        )
    return head in ("classification", "regression", "tagging") and not any(entry.is_dir() for entry in path.iterdir())


def read(source: str) -> list[PlainText]:
    """Return the texts of a file, a directory, or (source "-") standard input, without blank lines.

    Raises:
      UserError: there is no text, a file of a directory is blank, or a text is not UTF-8. Names file and line.
    """
    path = epath.Path(source).expanduser()
    if source != STANDARD_INPUT and path.is_dir():
        texts = [
            PlainText(str(file), table_rows.read_text(file), file.name, is_line=False)
            for file in sorted(path.glob("*.txt"), key=str)
        ]
        if blank := [text.where for text in texts if not text.text.strip()]:
            raise UserError(f"{blank[0]} is empty")
    else:
        name = "standard input" if source == STANDARD_INPUT else str(path)
        whole = (
            table_rows.decode(sys.stdin.buffer.read(), name) if source == STANDARD_INPUT else table_rows.read_text(path)
        )
        lines = [(number, line) for number, line in table_rows.lines(whole) if line.strip()]
        texts = [PlainText(f"{name}, line {number}", line, str(number - 1)) for number, line in lines]
    if not texts:
        raise UserError(
            f"{'standard input' if source == STANDARD_INPUT else path} holds no text: expected one per line, or a "
            "directory with one per .txt file"
        )
    return texts


def words(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) characters of each word, split as BERT does: at whitespace and around punctuation."""
    split = tokenizers.PreTokenizedString(text)
    split.normalize(basic_normalizer(lowercase=False).normalize)  # control characters belong to no word
    basic_pre_tokenizer().pre_tokenize(split)
    return [offsets for _, offsets, _ in split.get_splits("original", "char")]

"""Tagged words in CoNLL's files: a word per line, a blank line after each sentence, -DOCSTART- before each document.

Columns are separated by tabs, or else by spaces. CoNLL-2003 has four (word, part of speech, chunk, entity), but any
number is accepted. CoNLL-U files (*.conllu) are read too, without their comments, ranges of words (1-2) and empty nodes
(1.1).
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence

from absl import logging

from bert_jax.config.task_options import TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks.ner import entities
from bert_jax.tasks.table_rows import read_text

DOCUMENT_START = "-DOCSTART-"
_WORD, _TAG = 2, 4  # columns of CoNLL-U: the word and its universal part of speech


@dataclasses.dataclass(frozen=True)
class Sentence:
    """One sentence and its origin."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    """None if the file has no column of tags."""
    document: int | None
    """Number of its document; None if the file marks none, in which case the sentence has no context."""
    places: tuple[str, ...]
    """Origin of each word, for messages: "FILE, line N"."""
    spans: tuple[tuple[int, int], ...] | None = None
    """(start, end) characters of each word in the plain text that it was split from; None for a file of words."""

    def need_tags(self) -> tuple[str, ...]:
        """Return the tags of a sentence that has them; ValueError if it has none."""
        if self.tags is None:
            raise ValueError(f"{self.places[0]}: the sentence has no tags")
        return self.tags


def read(file: str | os.PathLike[str], data: TaskDataConfig, *, to_predict: bool = False) -> list[Sentence]:
    """Return the sentences of a file; one with a single column has no tags.

    Args:
      file: local or gs://, UTF-8, with line ends of Unix or Windows.
      data: only word_column and tag_column are used.
      to_predict: whether the file may lack the column of tags, with a warning: the options are those of training.

    Raises:
      UserError: the file cannot be read, is not UTF-8, or holds no words; a line has more or fewer columns than the
        first; there is no such column; or a word or tag is empty. Names file and line.
    """
    universal = os.fspath(file).endswith(".conllu")
    sentences: list[Sentence] = []
    lines = [*_rows(read_text(file), universal), (0, [])]
    parted = any(fields[:1] == [DOCUMENT_START] for _, fields in lines)
    document = 0
    columns, places, rows = 0, None, []
    for number, fields in lines:
        if fields and fields[0] != DOCUMENT_START:
            columns = columns or len(fields)
            _check_columns(f"{os.fspath(file)}, line {number}", fields, columns)
            rows.append((f"{os.fspath(file)}, line {number}", fields))
            continue
        if rows:
            places = places or _places(columns, universal, data, to_predict, rows[0][0])
            sentences.append(_sentence(rows, places, document if parted else None))
            rows = []
        if fields:
            document += bool(sentences)  # the part before the first mark is a document, too
    if not sentences:
        raise UserError(
            f"{os.fspath(file)} holds no words; expected one per line, its tag in the last column, "
            "and a blank line after each sentence"
        )
    return sentences


def _rows(text: str, universal: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, fields) of every word; no fields for a blank line; [DOCUMENT_START, …] where a document begins."""
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.rstrip("\r \t")
        if universal and line.startswith("#"):
            if line.startswith("# newdoc"):
                yield number, [DOCUMENT_START]
            continue
        fields = line.split("\t") if "\t" in line else [field for field in line.split(" ") if field]
        if not (universal and fields and set(fields[0]) & {"-", "."}):
            yield number, fields


def _check_columns(place: str, fields: list[str], columns: int) -> None:
    if len(fields) != columns:
        raise UserError(
            f"{place}: {len(fields)} columns, but earlier words have {columns}: {' '.join(fields)[:60]!r}; "
            "every word needs its tag on its own line, and columns are separated by tabs, or else by spaces"
        )
    if not all(field.strip(" ") for field in fields):
        raise UserError(f"{place}: an empty column: {fields}")


def _places(
    columns: int, universal: bool, data: TaskDataConfig, to_predict: bool, place: str
) -> tuple[int, int | None]:
    """Return the indices of the columns of words and of tags; None if there are no tags."""
    if columns == 1:
        return 0, None
    word = data.word_column or (_WORD if universal else 1)
    tag = data.tag_column or (_TAG if universal else columns)
    lacks_tags = to_predict and tag > columns
    for name, column in (("word_column", word), *(() if lacks_tags else (("tag_column", tag),))):
        if not 1 <= column <= columns:
            raise UserError(f"{place}: data.{name}={column}, but there are {columns} columns")
    if lacks_tags:
        logging.warning("%s: data.tag_column=%d, but there are %d columns: words without tags", place, tag, columns)
    return word - 1, None if tag == word or lacks_tags else tag - 1


def _sentence(rows: list[tuple[str, list[str]]], columns: tuple[int, int | None], document: int | None) -> Sentence:
    word, tag = columns
    return Sentence(
        words=tuple(fields[word] for _, fields in rows),
        tags=None if tag is None else tuple(fields[tag] for _, fields in rows),
        document=document,
        places=tuple(place for place, _ in rows),
    )


def in_iob2(sentences: Sequence[Sentence], scheme: str = "auto") -> list[Sentence]:
    """Return the same entities in IOB2; tags that mark no entities (`plain`) stay as they are.

    Args:
      sentences: sentences that all have tags.
      scheme: one of entities.SCHEMES, or auto to recognize it from the tags.

    Raises:
      UserError: a tag is not allowed in its place by the scheme; names file and line.
    """
    if scheme == "auto":
        scheme = entities.recognise(sentence.need_tags() for sentence in sentences)
    for sentence in sentences:
        if found := entities.fault(sentence.need_tags(), scheme):
            word, message = found
            raise UserError(
                f"{sentence.places[word]}: {message}; the tags are read as {scheme.upper()}, "
                "give --data.scheme=… if they are in another scheme"
            )
    return [dataclasses.replace(sentence, tags=tuple(entities.to_iob2(sentence.need_tags()))) for sentence in sentences]

"""CoNLL's files of tagged words, and entities in sequences of tags: prefixes, spans, F1 of the shared tasks.

A file has a word per line, a blank line after each sentence, and -DOCSTART- before each document. Columns are
separated by tabs, or else by spaces. CoNLL-2003 has four (word, part of speech, chunk, entity), but any number is
accepted. CoNLL-U files (*.conllu) are read too, without their comments, ranges of words (1-2) and empty nodes (1.1).

A tag is O (outside), or a prefix and a type, separated by the first hyphen: B-PER. Three schemes are in use:

    IOB1   I- for every word of an entity; B- only if an entity directly follows another of the same type (CoNLL-2003)
    IOB2   B- for the first word of every entity, I- for the others
    IOBES  B- I- … E- for entities of several words, S- for those of one

Tags without these prefixes (parts of speech) are a separate scheme, `plain`: each word is one entity of that type.
"""

import collections
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence

from absl import logging

from bert_jax.config.tasks import TaggingDataConfig
from bert_jax.errors import UserError
from bert_jax.files import read_text

OUTSIDE = "O"
_CONTINUED, _CONTINUING = ("B", "I"), ("I", "E")

Entity = tuple[str, int, int]
"""Entity as (type, first word, last word)."""


def split(tag: str) -> tuple[str, str]:
    """Return ("B", "PER") for B-PER; ("O", "") for O; ("", tag) for a tag without prefix."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, hyphen, kind = tag.partition("-")
    return (prefix, kind) if hyphen and prefix in ("B", "I", "E", "S") else ("", tag)


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of one sentence as conlleval and seqeval read them, in any scheme, however broken.

    A word continues the entity before it if it is I- or E-, the previous word is B- or I-, and the types agree; any
    other tag except O begins an entity. So O I-PER I-LOC has two.
    """
    found: list[Entity] = []
    before = (OUTSIDE, "")
    for position, tag in enumerate(tags):
        prefix, kind = split(tag)
        if prefix in _CONTINUING and before[0] in _CONTINUED and before[1] == kind:
            found[-1] = (kind, found[-1][1], position)
        elif prefix != OUTSIDE:
            found.append((kind, position, position))
        before = (prefix, kind)
    return found


def recognise(sentences: Iterable[Sequence[str]]) -> str:
    """Return the scheme of a set of tagged sentences: iob1, iob2, iobes or plain.

    E- or S- occurs only in IOBES. B- after anything but the same type occurs in IOB2 and not in IOB1. The scheme is
    plain if no tag has a prefix; if some have, the others are mistakes, which `fault` finds.
    """
    seen, scheme = set(), "iob1"
    for tags in sentences:
        before = ""
        for prefix, kind in map(split, tags):
            seen.add(prefix)
            if prefix == "B" and before != kind:
                scheme = "iob2"
            before = kind
    if "" in seen and seen <= {"", OUTSIDE}:
        return "plain"
    return "iobes" if seen & {"E", "S"} else scheme


def fault(tags: Sequence[str], scheme: str) -> tuple[int, str] | None:
    """Return (word, message) for the first tag that `scheme` does not allow in its place, or None if all are fine."""
    if scheme == "plain":
        return None
    before = (OUTSIDE, "")
    for position, tag in enumerate([*tags, OUTSIDE]):
        prefix, kind = split(tag)
        if prefix not in (("O", "B", "I", "E", "S") if scheme == "iobes" else ("O", "B", "I")):
            return position, f"{tag!r} is not a tag of {scheme.upper()}"
        inside = before[0] in _CONTINUED
        same = inside and before[1] == kind
        if prefix in _CONTINUING and not same and scheme != "iob1":
            return position, f"{tag} does not follow B-{kind} or I-{kind}"
        if prefix == "B" and not same and scheme == "iob1":
            return position, f"{tag} does not follow an entity of its type, the only place of B- in IOB1"
        if scheme == "iobes" and inside and prefix not in _CONTINUING:
            return position - 1, f"{before[0]}-{before[1]} is the last word of its entity, which has E- or S- in IOBES"
        before = (prefix, kind)
    return None


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Return the same entities in IOB2; `plain` tags stay as they are."""
    result = list(tags)
    for kind, first, last in entities(tags):
        if split(tags[first])[0]:
            result[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return result


def scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return precision, recall and F1 over entities (in total and per type), and accuracy over words.

    An entity is right if its type, first and last word are. The F1 of no entities at all is 0, as in seqeval.

    Args:
      gold, predicted: sentences of tags; the two lists agree in all lengths.

    Returns:
      precision, recall, f1, accuracy, and precision_TYPE, recall_TYPE, f1_TYPE of every type; fractions.
    """
    counts = {name: collections.Counter() for name in ("gold", "predicted", "both")}
    words = right = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        words += len(gold_tags)
        right += sum(g == p for g, p in zip(gold_tags, predicted_tags, strict=True))
        found = {"gold": set(entities(gold_tags)), "predicted": set(entities(predicted_tags))}
        found["both"] = found["gold"] & found["predicted"]
        for name, spans in found.items():
            counts[name].update(kind for kind, _, _ in spans)
    result = _precision_recall_f1(*(counts[name].total() for name in ("both", "predicted", "gold")))
    result["accuracy"] = _share(right, words)
    for kind in sorted(counts["gold"] | counts["predicted"]):
        of_type = _precision_recall_f1(*(counts[name][kind] for name in ("both", "predicted", "gold")))
        result |= {f"{name}_{kind}": value for name, value in of_type.items()}
    return result


def _precision_recall_f1(both: int, predicted: int, gold: int) -> dict[str, float]:
    precision, recall = _share(both, predicted), _share(both, gold)
    return {"precision": precision, "recall": recall, "f1": _share(2 * precision * recall, precision + recall)}


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


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
    weight: float = 1.0
    """Factor of the losses of its words in training."""

    def need_tags(self) -> tuple[str, ...]:
        """Return the tags of a sentence that has them; ValueError if it has none."""
        if self.tags is None:
            raise ValueError(f"{self.places[0]}: the sentence has no tags")
        return self.tags


def read(file: str | os.PathLike[str], data: TaggingDataConfig, *, to_predict: bool = False) -> list[Sentence]:
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
    columns: int, universal: bool, data: TaggingDataConfig, to_predict: bool, place: str
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
      scheme: one of `TagScheme`; auto recognizes it from the tags.

    Raises:
      UserError: a tag is not allowed in its place by the scheme; names file and line.
    """
    if scheme == "auto":
        scheme = recognise(sentence.need_tags() for sentence in sentences)
    for sentence in sentences:
        if found := fault(sentence.need_tags(), scheme):
            word, message = found
            raise UserError(
                f"{sentence.places[word]}: {message}; the tags are read as {scheme.upper()}, "
                "give --data.scheme=… if they are in another scheme"
            )
    return [dataclasses.replace(sentence, tags=tuple(to_iob2(sentence.need_tags()))) for sentence in sentences]

"""Records of questions in SQuAD's JSON format or from TFDS, with the types of all fields checked."""

import json
from collections.abc import Iterator
from typing import Any

from etils import epath

from bert_jax.config.task_options import TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks import tfds_examples
from bert_jax.tasks.table_rows import read_text


def read_json(file: epath.Path) -> tuple[list[str], list[tuple[int, dict[str, Any]]]]:
    """Return (contexts, [(index of the context, record of the question)]), with the types of all fields checked."""
    try:
        contents = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{file}, line {error.lineno}: not JSON: {error.msg}; SQuAD's format is one object "
            '{"version": …, "data": […]}'
        ) from None
    except (RecursionError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise UserError(f"{file} is not in SQuAD's format: {error}") from None
    contexts, records = [], []
    for in_file, article in _items(file, contents, "data", ""):
        for in_article, paragraph in _items(file, article, "paragraphs", in_file):
            contexts.append(_value(file, paragraph, "context", str, in_article))
            for in_paragraph, record in _items(file, paragraph, "qas", in_article):
                _check_record(file, record, in_paragraph)
                records.append((len(contexts) - 1, record))
    return contexts, records


def read_tfds(name: str, data: TaskDataConfig, split: str) -> tuple[str, list[str], list[tuple[int, dict[str, Any]]]]:
    """Return (name of dataset and split, contexts, records) of a dataset with the features of TFDS squad."""
    tfds_split = tfds_examples.split_name(data, split)
    source = f"{name}, split {tfds_split}"
    contexts: dict[str, int] = {}
    records = []
    for index, example in enumerate(tfds_examples.examples(name, tfds_split, data.tfds_dir)):
        place = f"example {index}"
        answers = _value(source, example, "answers", dict, place)
        texts, starts = (_value(source, answers, key, list, f"{place}, answers") for key in ("text", "answer_start"))
        record = {
            **example,
            "answers": [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=False)],
        }
        _check_record(source, record, place)
        context = _value(source, example, "context", str, place)
        records.append((contexts.setdefault(context, len(contexts)), record))
    return source, list(contexts), records


def _check_record(file: Any, record: Any, place: str) -> None:
    id = _value(file, record, "id", str, place)
    _value(file, record, "question", str, f"question {id}")
    if "is_impossible" in record:
        _value(file, record, "is_impossible", bool, f"question {id}")
    for in_question, answer in _items(file, record, "answers", f"question {id}") if "answers" in record else ():
        _value(file, answer, "text", str, in_question)
        _value(file, answer, "answer_start", int, in_question)


def _items(file: Any, parent: Any, key: str, place: str) -> Iterator[tuple[str, object]]:
    """Yield (place for messages, item) of a list."""
    for index, item in enumerate(_value(file, parent, key, list, place)):
        yield f"{place}{', ' if place else ''}{key}[{index}]", item


def _value(file: Any, parent: Any, key: str, kind: type, place: str):
    where = f"{file}: {place or 'the file'}"
    if not isinstance(parent, dict) or key not in parent:
        held = (
            f"only {', '.join(map(repr, list(parent)[:6])) or 'nothing'}"
            if isinstance(parent, dict)
            else f"{parent!r:.80}"
        )
        raise UserError(
            f"{where} has no {key!r}, {held}; "
            "SQuAD's format is data > paragraphs > context, qas > id, question, answers > text, answer_start"
        )
    value = parent[key]
    if type(value) is not kind:
        raise UserError(f"{where}: {key!r} is {value!r:.80}, not of type {kind.__name__}")
    if kind is str and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"{where}: {key!r} holds half a surrogate pair (\\u{ord(value[error.start]):04x}) at character "
                f"{error.start}, which is not text"
            ) from None
    return value

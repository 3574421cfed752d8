"""Multiple-choice questions in SWAG's CSV, RACE's directories, JSON lines, and TFDS records of these three shapes.

SWAG    sent1, sent2, ending0 … endingN and label (a number from 0); other columns are ignored
RACE    one file per passage: {"article", "questions": […], "options": [[…], …], "answers": ["A", …]}
lines   {"context": …, "question": … (optional), "choices": […], "answer": a number from 0 or a letter from A}
"""

import json
import string
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from etils import epath

from bert_jax.errors import UserError
from bert_jax.tasks import table_rows

LETTERS = string.ascii_uppercase


class Question(NamedTuple):
    where: str
    """File and line, for messages."""
    context: str
    stem: str
    """Text that each choice continues: SWAG's sent2, or the question; may be empty."""
    choices: tuple[str, ...]
    answer: int | None
    """Index into `choices`; None without a label."""
    index: str  # pyright: ignore[reportIncompatibleMethodOverride] (a field; nobody searches a record)
    """Name of the question in a file of predictions."""


def read(path: epath.Path) -> list[Question]:
    """Return the questions of a file (.csv as SWAG, .jsonl) or of all .txt and .json files below a directory (RACE).

    Raises:
      UserError: the kind of file is unknown; a column or field is missing, empty or of the wrong type; an answer is
        none of the choices; questions have different numbers of choices; or there is no question. Names file and line.
    """
    if path.is_dir():
        files = sorted(file for pattern in ("*.txt", "*/*.txt", "*.json", "*/*.json") for file in path.glob(pattern))
        records = ((str(file), _json(file)) for file in files)
    elif path.suffix == ".csv":
        records = _csv(path)
    elif path.suffix == ".jsonl":
        records = (
            (f"{path}, line {number}", value)
            for number, value in table_rows.json_lines(table_rows.read_text(path), path)
        )
    else:
        raise UserError(f"{path}: expected SWAG's .csv, a .jsonl file, or a directory of RACE's passages")
    return questions(str(path), records)


def questions(source: str, records: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Question]:
    """Return the questions in (where, record) pairs, each in one of the three formats; see `read` for errors."""
    result: list[Question] = []
    for where, record in records:
        for question in _questions(where, record, len(result)):
            if len(question.choices) != len(result[0].choices if result else question.choices):
                raise UserError(
                    f"{question.where}: {len(question.choices)} choices, but earlier questions have "
                    f"{len(result[0].choices)}; a data set has one number of choices"
                )
            result.append(question)
    if not result:
        raise UserError(
            f"{source} holds no question; expected the rows of SWAG's CSV, RACE's .txt or .json files in a directory, "
            'or lines such as {"context": …, "choices": […], "answer": 0} in a .jsonl file'
        )
    missing = [question for question in result if question.answer is None]
    if missing and len(missing) < len(result):
        raise UserError(f"{missing[0].where}: the answer is missing, but other questions of the file have one")
    return result


def _questions(where: str, record: Mapping[str, Any], number: int) -> Iterator[Question]:
    if "sent1" in record:
        endings = [record[f"ending{i}"] for i in range(len(record)) if f"ending{i}" in record]
        index = record.get("", str(number))  # a column without a name has the rows' own numbers
        yield _question(where, record["sent1"], record.get("sent2", ""), endings, record.get("label"), index)
    elif "article" in record:
        name = record.get("id") or record.get("example_id") or epath.Path(where).name
        asked, options, answers = (_list(where, record, key) for key in ("questions", "options", "answers"))
        if not len(asked) == len(options) == len(answers or asked):
            raise UserError(
                f"{where}: {len(asked)} questions, {len(options)} lists of options and {len(answers)} answers; "
                "each question needs one of each"
            )
        for i, (stem, choices, answer) in enumerate(zip(asked, options, answers or [None] * len(asked), strict=True)):
            yield _question(f"{where}, question {i + 1}", record["article"], stem, choices, answer, f"{name}/{i}")
    elif "context" in record:
        yield _question(
            where,
            record["context"],
            record.get("question") or "",
            _list(where, record, "choices"),
            record.get("answer"),
            str(record.get("id", number)),
        )
    else:
        raise UserError(
            f"{where}: neither sent1 (SWAG) nor article (RACE) nor context (JSON lines) among "
            f"{', '.join(map(repr, list(record)[:12]))}"
        )


def _question(where: str, context: Any, stem: str, choices: Any, answer: Any, index: str) -> Question:
    named = [("context", context), ("question", stem), *((f"choice {i}", choice) for i, choice in enumerate(choices))]
    for name, text in named:
        if not isinstance(text, str):
            raise UserError(f"{where}: {name} is not text but {json.dumps(text)[:60]}")
        if name != "question" and not text.strip():
            raise UserError(f"{where}: {name} is empty")
    if not 2 <= len(choices) <= len(LETTERS):
        raise UserError(
            f"{where}: {len(choices)} choices; a question has 2 to {len(LETTERS)} (SWAG: ending0, ending1, …)"
        )
    context, stem, *choices = map(_whole_characters, (context, stem, *choices))
    return Question(where, context, stem, tuple(choices), _answer(where, answer, len(choices)), index)


def _answer(where: str, value: Any, count: int) -> int | None:
    """Return the index for a number from 0 (as number or text) or a letter from A; None for no answer."""
    if value is None or value == "":
        return None
    number = value
    if isinstance(value, str):
        text = value.strip().upper()
        number = int(text) if text.isdecimal() and len(text) < 4 else LETTERS.find(text) if len(text) == 1 else -1
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < count:
        raise UserError(
            f"{where}: the answer {str(value)[:40]!r} is none of the {count} choices, which are numbered 0 to "
            f"{count - 1} or A to {LETTERS[count - 1]}"
        )
    return number


def _list(where: str, record: Mapping[str, Any], key: str) -> list[Any]:
    value = record.get(key)
    if value is None and key == "answers":
        return []
    if not isinstance(value, list):
        raise UserError(f"{where}: {key} is {'missing' if value is None else f'no list but {json.dumps(value)[:60]}'}")
    if key == "options" and (wrong := [options for options in value if not isinstance(options, list)]):
        raise UserError(f"{where}: options holds {json.dumps(wrong[0])[:60]} where a list of choices belongs")
    return value


def _csv(file: epath.Path) -> Iterator[tuple[str, dict[str, str]]]:
    header: list[str] | None = None
    for number, fields in table_rows.csv(table_rows.read_text(file), file):
        if header is None:
            header = fields
            needed = ("sent1", "sent2", "ending0", "ending1")
            if missing := [name for name in needed if name not in header]:
                raise UserError(
                    f"{file}, line {number}: no column {', '.join(missing)} among "
                    f"{', '.join(map(repr, header[:20]))} (SWAG's train_full.csv has a different format than train.csv)"
                )
            continue
        if len(fields) != len(header):
            raise UserError(f"{file}, line {number}: {len(fields)} columns, but the header has {len(header)}")
        yield f"{file}, line {number}", dict(zip(header, fields, strict=True))


def _json(file: epath.Path) -> dict[str, Any]:
    try:
        value = json.loads(table_rows.read_text(file))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{file}: expected a JSON object with an article, not {type(value).__name__}")
    return value


def _whole_characters(text: str) -> str:
    """Return `text` without unpaired surrogates, which JSON can spell and no tokenizer accepts."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

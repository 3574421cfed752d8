"""Multiple choice: SWAG, RACE, and the user's own questions (task `choice`), each from any of three formats.

Each choice is a separate sequence, and the softmax runs over their scores (Devlin et al. 2018, section 4.4). The
formats, which TFDS records may have too:

    SWAG    CSV with sent1, sent2, ending0 … endingN and label (a number from 0); other columns are ignored
    RACE    one file per passage: {"article", "questions": […], "options": [[…], …], "answers": ["A", …]}
    lines   JSON lines: {"context": …, "question": … (optional), "choices": […], "answer": 0, 1, … or "A", "B", …}
"""

import dataclasses
import json
import os
import string
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from etils import epath

from bert_jax.config import HeadConfig
from bert_jax.config.tasks import ChoiceOptions, TaskDataConfig
from bert_jax.data.sequences import Features, Uncut
from bert_jax.errors import UserError
from bert_jax.files import parsed, read_text, write_atomically
from bert_jax.tasks import readers
from bert_jax.tokenization.tokenizer import Tokenizer, join, sequence_length

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
    weight: float = 1.0
    """Factor of its loss in training."""


def read(path: epath.Path, weight_column: str = "") -> list[Question]:
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
    elif path.suffix in readers.ROW_ENDINGS:
        records = readers.file_rows(path)
    else:
        raise UserError(
            f"{path}: expected SWAG's .csv, a {' or '.join(readers.ROW_ENDINGS)} or a directory of RACE's passages"
        )
    return read_questions(str(path), records, weight_column)


def read_questions(
    source: str, records: Iterable[tuple[str, Mapping[str, Any]]], weight_column: str = ""
) -> list[Question]:
    """Return the questions in (where, record) pairs, each in one of the three formats; see `read` for errors."""
    result: list[Question] = []
    for where, record in records:
        weight = readers.weight_of(where, record, weight_column)
        for question in _questions(where, record, len(result)):
            if len(question.choices) != len(result[0].choices if result else question.choices):
                raise UserError(
                    f"{question.where}: {len(question.choices)} choices, but earlier questions have "
                    f"{len(result[0].choices)}; a data set has one number of choices"
                )
            result.append(question._replace(weight=weight))
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
            raise UserError(f"{where}: {name} is not text but {_shown(text)}")
        if name != "question" and not text.strip():
            raise UserError(f"{where}: {name} is empty")
    if not 2 <= len(choices) <= len(LETTERS):
        raise UserError(
            f"{where}: {len(choices)} choices; a question has 2 to {len(LETTERS)} (SWAG: ending0, ending1, …)"
        )
    context, stem, *choices = map(readers.whole_characters, (context, stem, *choices))
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
        raise UserError(f"{where}: {key} is {'missing' if value is None else f'no list but {_shown(value)}'}")
    if key == "options" and (wrong := [options for options in value if not isinstance(options, list)]):
        raise UserError(f"{where}: options holds {_shown(wrong[0])} where a list of choices belongs")
    return value


def _shown(value: Any) -> str:
    return json.dumps(value, default=repr)[:60]


def _columns_of_row(where: str, row: Any) -> dict[str, Any]:
    if not isinstance(row, list) or len(row) != 3:
        raise UserError(
            f"{where} is {row!r:.80}; expected (context, [choice, …], answer), ((context, question), [choice, …], "
            "answer) or a dict by column"
        )
    context, choices, answer = row
    context, question = context if isinstance(context, list) and len(context) == 2 else (context, "")
    return {"context": context, "question": question, "choices": choices, "answer": answer}


def _csv(file: epath.Path) -> Iterator[tuple[str, dict[str, str]]]:
    header: list[str] | None = None
    for number, fields in readers.csv(read_text(file), file):
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
        value = parsed(read_text(file, by_line=False))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{file}: expected a JSON object with an article, not {type(value).__name__}")
    return value


FILES = {
    "train": ("train.csv", "train.jsonl", "train"),
    "dev": ("val.csv", "dev.csv", "dev.jsonl", "dev"),
    "test": ("test.csv", "test.jsonl", "test"),
}
"""Names that a split may have in `data.dir`: SWAG's files, JSON lines, RACE's directories."""


@dataclasses.dataclass(frozen=True)
class Examples(readers.DividedExamples):
    """The questions of one split; `labels` is empty because choices have no names."""

    task: str
    questions: tuple[Question, ...]
    has_answers: bool
    labels: tuple[str, ...] = ()
    unit: ClassVar[str] = "contexts"

    @property
    def together(self) -> list[Any]:
        """The contexts, whose questions are held out together."""
        return [question.context for question in self.questions]

    def chosen(self, numbers: np.ndarray) -> Self:
        """Return some of the examples."""
        return dataclasses.replace(self, questions=tuple(self.questions[number] for number in numbers))

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def index(self) -> list[str]:
        return [question.index for question in self.questions]


def splits(task: str, data: TaskDataConfig) -> tuple[str, ...]:
    """Return those of train, dev and test that the data has."""
    return readers.file_splits(data, FILES)


def load(
    task: str,
    data: TaskDataConfig,
    split: str,
    labels: tuple[str, ...] | None = None,
    given: readers.Given | None = None,
) -> Examples:
    """Read split "train", "dev" or "test"; only a test split may lack answers. `labels` is ignored.

    Args:
      given: rows of the splits that are in memory: dicts in one of the formats, (context, choices, answer) or
        ((context, question), choices, answer).

    Raises:
      UserError: see `read`; or answers are missing.
    """
    found = readers.rows_of(data, split, given, _columns_of_row)
    if found is None:
        questions = read(readers.find_file(data, split, FILES[split]), data.weighed_by(split))
    else:
        questions = read_questions(*found, data.weighed_by(split))
    has_answers = questions[0].answer is not None
    if not has_answers and split != "test":
        raise UserError(f"{questions[0].where}: the answer is missing; {split} needs questions with answers")
    return Examples(task, tuple(questions), has_answers)


def features(examples: Examples, tokenizer: Tokenizer, options: ChoiceOptions) -> Features:
    """Return, per question, one [CLS] context [SEP] stem choice [SEP] per choice; the longer segment is cut first."""
    contexts = tokenizer.encode_batch([question.context for question in examples.questions])
    continued = tokenizer.encode_batch(
        [f"{question.stem} {choice}" for question in examples.questions for choice in question.choices]
    )
    count = len(examples.questions[0].choices)
    pairs = [
        [(context, second) for second in continued[i * count : (i + 1) * count]] for i, context in enumerate(contexts)
    ]
    joined = [[join(tokenizer, *pair, options.max_length) for pair in row] for row in pairs]
    lengths = np.array([max(sequence_length(tokenizer, *pair) for pair in row) for row in pairs])
    answers = np.array([question.answer for question in examples.questions], np.int32) if examples.has_answers else None
    return Features(
        input_ids=[[ids for ids, _ in row] for row in joined],
        token_type_ids=[[types for _, types in row] for row in joined],
        labels=answers,
        example=np.arange(len(joined), dtype=np.int32),
        max_length=options.max_length,
        uncut=Uncut(lengths, options.max_length, "questions"),
        weights=readers.weights_of(examples.questions),
    )


def prediction_names(examples: Examples, split: str) -> list[str]:
    """Return the names of the files that `write_predictions` writes, the main one first."""
    return [f"{'' if split == 'dev' else f'{split}_'}predictions.{'csv' if examples.task == 'swag' else 'jsonl'}"]


def metrics(examples: Examples) -> tuple[str, ...]:
    """Return the metrics by which runs can be compared, the usual one first."""
    return ("accuracy",)


def score(examples: Examples, features: Features, logits: list[np.ndarray]) -> dict[str, float]:
    """Return accuracy: the share of the questions whose right choice scores highest (the first of a tie counts)."""
    right = [
        int(scores.argmax()) == question.answer for question, scores in zip(examples.questions, logits, strict=True)
    ]
    return {"accuracy": sum(right) / len(right)}


def write_predictions(
    examples: Examples, features: Features, logits: list[np.ndarray], directory: str | os.PathLike[str], split: str
) -> list[str]:
    """Write predictions (test_predictions … for splits different from dev) in the order of the questions.

    swag: .csv with the row's index and `pred`, as its authors' own script does. Others: .jsonl with id, answer (race: a
      letter) and the probability of every choice.
    """
    file = epath.Path(directory) / prediction_names(examples, split)[0]
    if examples.task == "swag":
        lines = [",pred"]
        lines += [
            f"{question.index},{scores.argmax()}" for question, scores in zip(examples.questions, logits, strict=True)
        ]
    else:
        lines = []
        for question, scores in zip(examples.questions, logits, strict=True):
            best = int(scores.argmax())
            odds = np.exp(scores.astype(np.float64) - scores.max())
            answer = LETTERS[best] if examples.task == "race" else best
            lines.append(
                json.dumps(
                    {"id": question.index, "answer": answer, "probabilities": (odds / odds.sum()).round(6).tolist()},
                    ensure_ascii=False,
                )
            )
    write_atomically(file, ("\n".join(lines) + "\n").encode())
    return [os.fspath(file)]


def head(task: str, labels: tuple[str, ...] = ()) -> HeadConfig:
    """Return a head with one score per choice."""
    return HeadConfig(kind="choice")

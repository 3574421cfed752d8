"""Questions on paragraphs, read from a file in SQuAD's JSON format (v1.1, v2.0, converted TriviaQA) or from TFDS."""

import dataclasses
from typing import Any

from absl import logging
from etils import epath

from bert_jax.config.task_options import TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks import task_files, tfds_examples
from bert_jax.tasks.squad.records import read_json, read_tfds

VERSIONS = {"squad_v1": "v1.1", "squad_v2": "v2.0"}
_TOLERATED = 0.01  # share of the answers that may be in a different place than the file says
_LISTED = 20
_FORM = '{"data": [{"paragraphs": [{"context": …, "qas": [{"id": …, "question": …, "answers": […]}]}]}]}'


@dataclasses.dataclass(frozen=True)
class Question:
    """One question on one paragraph."""

    id: str
    text: str
    context: int
    """Index into Examples.contexts."""
    answers: tuple[str, ...] = ()
    """Gold answers, as the metric compares them; empty if the question has none, or is unlabelled."""
    span: tuple[int, int] | None = None
    """(start, end) characters in the context of the first answer that is where the file says, used for training."""


@dataclasses.dataclass(frozen=True)
class Examples:
    """The questions of one split. `labels` is empty because the answers are spans."""

    task: str
    contexts: tuple[str, ...]
    questions: tuple[Question, ...]
    has_answers: bool
    problems: tuple[str, ...] = ()
    """One line per answer that is not where the file says; training leaves out questions without any other answer."""
    labels: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def gold(self) -> list[Any]:
        """What the metric compares with; the labels for training are only one answer per question."""
        return [(question.id, question.answers) for question in self.questions]


def splits(task: str, data: TaskDataConfig) -> tuple[str, ...]:
    """Return those of train, dev and test that the data has."""
    if data.tfds:
        called = {split: tfds_examples.split_name(data, split) for split in ("train", "dev", "test")}
        return tfds_examples.splits(_tfds_name(task, data), data, called)
    return tuple(split for split in ("train", "dev", "test") if getattr(data, split) or _names(task, data, split)[1])


def load(task: str, data: TaskDataConfig, split: str, labels: tuple[str, ...] | None = None) -> Examples:
    """Read split "train", "dev" or "test" of squad_v1 or squad_v2.

    Files in `data.dir` are named train-v1.1.json and so on, or train-anything-v1.1.json if there is only one.
    data.tfds=squad means squad/v1.1 or squad/v2.0. plausible_answers are ignored, and so is `labels`, because spans
    have none.

    Raises:
      UserError: there is no such file; it is not JSON; a field is missing or has the wrong type; two questions have the
        same id; a context has no words; some questions have no answer although the task has none without; or more than
        1 % of the answers are not where the file says. Names the file and the id of the question (for broken JSON the
        line).
    """
    if data.tfds:
        source, contexts, records = read_tfds(_tfds_name(task, data), data, split)
    else:
        source = _find(task, data, split)
        contexts, records = read_json(source)
    if not records:
        raise UserError(f"{source} holds no question; expected {_FORM}")
    # Templates for prediction often have is_impossible: false everywhere; in training that is a mistake worth an error.
    labelled = any(
        record.get("answers") or (record.get("is_impossible") if split == "test" else "is_impossible" in record)
        for _, record in records
    )
    if split == "train" and not labelled:
        raise UserError(f"{source}: none of {len(records)} questions has an answer; training needs them")
    problems: list[str] = []
    questions, seen = [], set()
    for context, record in records:
        question = _question(source, task, context, contexts[context], record, labelled, problems)
        if question.id in seen:
            raise UserError(
                f"{source}: question {question.id} occurs twice; predictions are stored by id, so give each its own"
            )
        seen.add(question.id)
        questions.append(question)
    _report(source, problems, questions)
    if split == "train":
        questions = [question for question in questions if question.span or not question.answers]
    return Examples(task, tuple(contexts), tuple(questions), labelled, tuple(problems))


def _question(
    source: Any, task: str, context: int, text: str, record: dict[str, Any], labelled: bool, problems: list[str]
) -> Question:
    id, where = record["id"], f"{source}: question {record['id']}"
    if not text.strip():
        raise UserError(f"{where}: its context has no words; an answer must be a part of the context")
    answers = record.get("answers") or []
    impossible = record.get("is_impossible", not answers)
    if not labelled or (impossible and task == "squad_v2"):
        if answers:
            raise UserError(
                f"{where} is_impossible, yet it has the answer {answers[0]['text']!r:.80}; "
                "put it under plausible_answers, or set is_impossible to false"
            )
        return Question(id, record["question"], context)
    if impossible or not answers:
        raise UserError(
            f"{where} has no answer, "
            + (
                "but is_impossible is false"
                if task == "squad_v2"
                else "which squad_v1 does not know; fine-tune on squad_v2 instead"
            )
        )
    span = None
    for answer in answers:
        start, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        if start < 0 or text[start:end] != answer["text"] or not answer["text"].strip():
            problems.append(
                f"{where}: answer {answer['text']!r:.80} is not at character {start}, where the context reads "
                f"{text[max(start, 0) : max(end, 0)]!r:.80}"
            )
        elif span is None:
            span = start, end
    return Question(id, record["question"], context, tuple(answer["text"] for answer in answers), span)


def _report(source: Any, problems: list[str], questions: list[Question]) -> None:
    if blank := [question.id for question in questions if not question.text.strip()]:
        logging.warning("%s: %d questions have no words: %s", source, len(blank), ", ".join(blank[:_LISTED]))
    if not problems:
        return
    answers = sum(len(question.answers) for question in questions)
    listed = "\n".join(
        [*problems[:_LISTED], *([f"… and {len(problems) - _LISTED} more"] if len(problems) > _LISTED else [])]
    )
    if len(problems) > _TOLERATED * answers:
        raise UserError(
            f"{source}: {len(problems)} of {answers} answers ({len(problems) / answers:.1%}) are not where "
            f"answer_start says, more than {_TOLERATED:.0%}; answer_start counts characters (code points) from 0, "
            f"not bytes:\n{listed}"
        )
    logging.warning(
        "%d of %d answers are not where answer_start says and not trained on:\n%s", len(problems), answers, listed
    )


def _find(task: str, data: TaskDataConfig, split: str) -> epath.Path:
    name, others = _names(task, data, split)
    if len(others) > 1 and name not in others and not getattr(data, split):
        raise UserError(
            f"data.dir={data.dir} has no {name}, but {', '.join(others)}; name the file: --data.{split}=FILE"
        )
    return task_files.find(data, split, [name, *others])


def _names(task: str, data: TaskDataConfig, split: str) -> tuple[str, list[str]]:
    """Return the split's published name, and the file names in data.dir of that form."""
    directory, version = epath.Path(data.dir).expanduser(), VERSIONS[task]
    found = directory.glob(f"{split}-*{version}.json") if data.dir and directory.is_dir() else ()
    return f"{split}-{version}.json", sorted(path.name for path in found)


def _tfds_name(task: str, data: TaskDataConfig) -> str:
    return f"squad/{VERSIONS[task]}" if data.tfds == "squad" else data.tfds

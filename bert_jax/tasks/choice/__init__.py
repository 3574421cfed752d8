"""Choosing one of K answers: SWAG, RACE, and the user's own questions (task `choice`), each from any of three formats.

Each choice is a separate sequence, and the softmax runs over their scores (Devlin et al. 2018, section 4.4).
"""

import dataclasses
import json
import os

import numpy as np
from etils import epath

from bert_jax.config import HeadConfig
from bert_jax.config.task_options import TaskDataConfig, TaskOptions
from bert_jax.data.sequences.features import Features
from bert_jax.data.sequences.lengths import Uncut
from bert_jax.errors import UserError
from bert_jax.files import write_atomically
from bert_jax.tasks import task_files, tfds_examples
from bert_jax.tasks.choice import choice_files
from bert_jax.tasks.choice.choice_files import Question
from bert_jax.tokenization.segments import join, sequence_length
from bert_jax.tokenization.tokenizer import Tokenizer

MAIN_METRIC = dict.fromkeys(("swag", "race", "choice"), "accuracy")
FILES = {
    "train": ("train.csv", "train.jsonl", "train"),
    "dev": ("val.csv", "dev.csv", "dev.jsonl", "dev"),
    "test": ("test.csv", "test.jsonl", "test"),
}
"""Names that a split may have in `data.dir`: SWAG's files, JSON lines, RACE's directories."""


@dataclasses.dataclass(frozen=True)
class Examples:
    """The questions of one split; `labels` is empty because choices have no names."""

    task: str
    questions: tuple[Question, ...]
    has_answers: bool
    labels: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def index(self) -> list[str]:
        return [question.index for question in self.questions]


def splits(task: str, data: TaskDataConfig) -> tuple[str, ...]:
    """Return those of train, dev and test that the data has."""
    return task_files.splits(data, FILES)


def load(task: str, data: TaskDataConfig, split: str, labels: tuple[str, ...] | None = None) -> Examples:
    """Read split "train", "dev" or "test"; only a test split may lack answers. `labels` is ignored.

    Raises:
      UserError: see `choice_files.read`; or answers are missing.
    """
    if data.tfds:
        name = tfds_examples.split_name(data, split)
        source = f"{data.tfds}, split {name}"
        examples = tfds_examples.examples(data.tfds, name, data.tfds_dir)
        questions = choice_files.questions(
            source, ((f"{source}, example {i}", example) for i, example in enumerate(examples))
        )
    else:
        questions = choice_files.read(task_files.find(data, split, FILES[split]))
    has_answers = questions[0].answer is not None
    if not has_answers and split != "test":
        raise UserError(f"{questions[0].where}: the answer is missing; {split} needs questions with answers")
    return Examples(task, tuple(questions), has_answers)


def features(examples: Examples, tokenizer: Tokenizer, options: TaskOptions) -> Features:
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
    )


def prediction_names(examples: Examples, split: str) -> list[str]:
    """Return the names of the files that `write_predictions` writes, the main one first."""
    return [f"{'' if split == 'dev' else f'{split}_'}predictions.{'csv' if examples.task == 'swag' else 'jsonl'}"]


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
            answer = choice_files.LETTERS[best] if examples.task == "race" else best
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

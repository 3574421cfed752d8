"""The GLUE benchmark: its nine tasks and the diagnostic set AX, from files or TFDS to the files of a submission."""

from collections.abc import Sequence

import numpy as np
from absl import logging
from etils import epath

from bert_jax.config import HeadConfig
from bert_jax.config.task_options import TaskDataConfig
from bert_jax.data.sequences.features import Features
from bert_jax.errors import UserError
from bert_jax.tasks import scores, sentence_examples, task_files, tfds_examples
from bert_jax.tasks.glue import glue_files
from bert_jax.tasks.glue.facts import GLUE_TASKS, GlueTask
from bert_jax.tasks.sentence_examples import Record, Sentences
from bert_jax.tasks.sentence_examples import features as features  # a name of every Family

MAIN_METRIC = {task: spec.metrics[0] for task, spec in GLUE_TASKS.items()}
HIGHEST_SCORE = 5
"""STS-B's score of sentences with the same meaning; 0 is for those with nothing in common."""


def splits(task: str, data: TaskDataConfig) -> tuple[str, ...]:
    """Return those of train, dev, dev_mismatched (MNLI), test and test_mismatched that the data has."""
    known = tuple(GLUE_TASKS[task].rows)
    if data.tfds:
        called = {split: _tfds_split(task, data, split) for split in known}
        return ("test",) if task == "ax" else tfds_examples.splits(_tfds_name(task, data), data, called)
    directory = epath.Path(data.dir).expanduser()
    return tuple(
        split
        for split in known
        if getattr(data, split, "")
        or data.dir
        and any((directory / name).exists() for name in glue_files.names(task, split))
    )


def load(task: str, data: TaskDataConfig, split: str, labels: tuple[str, ...] | None = None) -> Sentences:
    """Return the examples of one split; those of a test set usually have no answers.

    Args:
      labels: classes in the order of a model's outputs, if that differs from the benchmark's.

    Raises:
      UserError: there is no such split or file, the classes are not the task's, or a row is bad (names file and line).
    """
    spec = GLUE_TASKS[task]
    if split not in spec.rows:
        raise UserError(
            f"{task} has no {split} split, only {', '.join(spec.rows)}"
            + ("; it tests models of mnli: give one as init_from" if task == "ax" else "")
        )
    if labels is None:
        labels = spec.labels
    if sorted(labels) != sorted(spec.labels):
        remedy = ("; give one that was fine-tuned on mnli" if task == "ax" else f"; fine-tune it on {task} first") + (
            ", or put the names of its classes into id2label of its config.json" if "LABEL_0" in labels else ""
        )
        raise UserError(
            f"{task} has the classes {', '.join(spec.labels) or '(none: a number is estimated)'}, but the model has "
            f"{', '.join(labels) or 'none: it estimates a number'}{remedy}"
        )
    if data.tfds:
        records = _tfds_records(task, spec, data, split)
    else:
        file = task_files.find(data, split, glue_files.names(task, split))
        records = glue_files.read(task, file, split, by_original_name=not getattr(data, split, ""))
    if len(records) != spec.rows[split]:
        logging.warning("%s %s: %d examples; the benchmark has %d", task, split, len(records), spec.rows[split])
    spelled = ("0", "1") if spec.numbered and not data.tfds else spec.labels
    numbers = {spelling: labels.index(name) for spelling, name in zip(spelled, spec.labels, strict=True)}
    examples = sentence_examples.collect(task, records, tuple(labels), numbers, unlabelled=split.startswith("test"))
    if not spec.labels and examples.answers is not None:
        _check_range(records, examples.answers)
    return examples


def score(examples: Sentences, features: Features, logits: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the task's own metrics, each in [-1, 1]; `MAIN_METRIC` comes first."""
    found = sentence_examples.predictions(examples, logits)
    answers = examples.answers
    assert answers is not None, "has_answers comes first"
    if "f1" in GLUE_TASKS[examples.task].metrics:
        # Its class 1 is the benchmark's, whatever the order of the model's outputs.
        positive = examples.labels.index(GLUE_TASKS[examples.task].labels[1])
        found, answers = (found == positive).astype(int), (answers == positive).astype(int)
    return {name: scores.METRICS[name](answers, found) for name in GLUE_TASKS[examples.task].metrics}


def write_predictions(
    examples: Sentences, features: Features, logits: Sequence[np.ndarray], directory: str, split: str
) -> list[str]:
    """Write the file that a submission to the benchmark needs of this split, and return its name.

    Columns `index` and `prediction`: the name of a class for MNLI, QNLI, RTE and AX, 0 or 1 for the other classifiers,
    for STS-B a number in [0, 5] with three decimals. The file of a dev split has the same format and -dev in its name,
    but exact numbers: it is not submitted, and metrics computed from it equal those of `score`.
    """
    spec = GLUE_TASKS[examples.task]
    found = sentence_examples.predictions(examples, logits)
    if not spec.labels:
        submitted = split.startswith("test")
        answers = [f"{np.clip(value, 0, HIGHEST_SCORE):.3f}" if submitted else repr(float(value)) for value in found]
    else:
        names = [examples.labels[number] for number in found]
        answers = [str(spec.labels.index(name)) for name in names] if spec.numbered else names
    file = epath.Path(directory) / prediction_names(examples, split)[0]
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        "index\tprediction",
        *(f"{index}\t{answer}" for index, answer in zip(examples.index, answers, strict=True)),
    ]
    file.write_text("\n".join(lines) + "\n")
    return [str(file)]


def prediction_names(examples: Sentences, split: str) -> list[str]:
    """Return the names of the files that `write_predictions` writes, the main one first."""
    return [submission_name(examples.task, split)]


def submission_name(task: str, split: str) -> str:
    """Return CoLA.tsv, MNLI-m.tsv, MNLI-mm.tsv, …; CoLA-dev.tsv for a split that is not submitted."""
    kind, _, mismatched = split.partition("_")
    suffix = {"": "-m", "mismatched": "-mm"}[mismatched] if task == "mnli" else ""
    return GLUE_TASKS[task].names[0] + suffix + ("" if kind == "test" else f"-{kind}") + ".tsv"


def head(task: str, labels: tuple[str, ...]) -> HeadConfig:
    """Return a classifier with the task's classes, or a regressor for STS-B."""
    return HeadConfig(kind="classification" if GLUE_TASKS[task].labels else "regression", labels=labels)


def _check_range(records: list[Record], answers: np.ndarray) -> None:
    outside = np.flatnonzero((answers < 0) | (answers > HIGHEST_SCORE))
    if len(outside):
        first = outside[0]
        raise UserError(f"{records[first].where}: the score {answers[first]:g} is not between 0 and {HIGHEST_SCORE}")


def _tfds_name(task: str, data: TaskDataConfig) -> str:
    return f"{data.tfds}/{task}" if data.tfds == "glue" else data.tfds


def _tfds_split(task: str, data: TaskDataConfig, split: str) -> str:
    name = tfds_examples.split_name(data, split)
    return f"{name}_matched" if task == "mnli" and name in ("validation", "test") else name


def _tfds_records(task: str, spec: GlueTask, data: TaskDataConfig, split: str) -> list[Record]:
    name, tfds_split = _tfds_name(task, data), _tfds_split(task, data, split)
    examples, test = list(tfds_examples.examples(name, tfds_split, data.tfds_dir)), split.startswith("test")
    if test:  # stored in a shuffled order, but the rows of a submission ascend
        examples.sort(key=lambda example: example.get("idx", 0))
    problems, records, columns = [], [], spec.tfds_columns or spec.columns
    for position, example in enumerate(examples):
        missing = [column for column in (*columns, "label") if column not in example]
        if missing:
            raise UserError(f"{name} has no {' and '.join(missing)}, but {', '.join(example)}: it is not {task}")
        index = str(example.get("idx", position))
        where = f"{name}, {tfds_split}, example {index}"
        texts = [example[column] for column in columns]
        if not test and (problem := glue_files.empty_text(zip(columns, texts, strict=True))):
            problems.append(f"{where}: {problem}")
            continue
        label = example["label"]
        if not spec.labels and label is not None and label < 0:
            label = None
        records.append(Record(where, texts[0], texts[1] if len(texts) > 1 else None, label, index))
    glue_files.check_broken(task, split, f"{name}, {tfds_split}", problems, len(examples))
    return records

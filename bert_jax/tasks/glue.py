"""The GLUE benchmark: its nine tasks and the diagnostic set AX, from files or TFDS to the files of a submission.

Columns, classes, metrics and sizes are those of Wang et al. 2019. The files are those of the benchmark's download,
with its names and quirks.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from bert_jax.config import HeadConfig
from bert_jax.config.tasks import TaskDataConfig
from bert_jax.data.sequences import Features
from bert_jax.errors import UserError
from bert_jax.files import read_text
from bert_jax.tasks import readers, sentences
from bert_jax.tasks.sentences import Record, Sentences
from bert_jax.tasks.sentences import features as features  # a name of every TaskFamily


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """One task in the benchmark's own download."""

    names: tuple[str, ...]
    """Names of its directory in the download; the first is also that of its file in a submission."""
    columns: tuple[str, ...]
    """Headers of the sentence, or of the two sentences."""
    labels: tuple[str, ...]
    """Classes in the benchmark's order; none if a number is estimated."""
    metrics: tuple[str, ...]
    """Metrics; the first is the one in the paper's table, which selects among runs."""
    rows: dict[str, int]
    """Published number of examples of each split."""
    label: str = "label"
    """Header of the label."""
    numbered: bool = False
    """Whether files and submissions write 0 and 1 for the two classes."""
    dataset_columns: tuple[str, ...] = ()
    """Headers of the sentences in TFDS and on the hub, if different."""


_INFERENCE = ("entailment", "neutral", "contradiction")
_ENTAILMENT = ("entailment", "not_entailment")
_PREMISE = ("premise", "hypothesis")
_PAIR = ("sentence1", "sentence2")

GLUE_TASKS = {
    "cola": GlueTask(
        ("CoLA",),
        ("sentence",),
        ("unacceptable", "acceptable"),
        ("matthews", "accuracy"),
        {"train": 8551, "dev": 1043, "test": 1063},
        numbered=True,
    ),
    "sst2": GlueTask(
        ("SST-2",),
        ("sentence",),
        ("negative", "positive"),
        ("accuracy",),
        {"train": 67_349, "dev": 872, "test": 1821},
        numbered=True,
    ),
    "mrpc": GlueTask(
        ("MRPC",),
        ("#1 String", "#2 String"),
        ("not_equivalent", "equivalent"),
        ("f1", "accuracy"),
        {"train": 3668, "dev": 408, "test": 1725},
        label="Quality",
        numbered=True,
        dataset_columns=_PAIR,
    ),
    "stsb": GlueTask(
        ("STS-B",), _PAIR, (), ("spearman", "pearson"), {"train": 5749, "dev": 1500, "test": 1379}, label="score"
    ),
    "qqp": GlueTask(
        ("QQP",),
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        ("f1", "accuracy"),
        {"train": 363_846, "dev": 40_430, "test": 390_965},
        label="is_duplicate",
        numbered=True,
    ),
    "mnli": GlueTask(
        ("MNLI",),
        _PAIR,
        _INFERENCE,
        ("accuracy",),
        {"train": 392_702, "dev": 9815, "dev_mismatched": 9832, "test": 9796, "test_mismatched": 9847},
        label="gold_label",
        dataset_columns=_PREMISE,
    ),
    # The second version, which replaced that of the paper (108 thousand examples) in January 2019.
    "qnli": GlueTask(
        ("QNLI",), ("question", "sentence"), _ENTAILMENT, ("accuracy",), {"train": 104_743, "dev": 5463, "test": 5463}
    ),
    "rte": GlueTask(("RTE",), _PAIR, _ENTAILMENT, ("accuracy",), {"train": 2490, "dev": 277, "test": 3000}),
    "wnli": GlueTask(
        ("WNLI",),
        _PAIR,
        ("not_entailment", "entailment"),
        ("accuracy",),
        {"train": 635, "dev": 71, "test": 146},
        numbered=True,
    ),
    "ax": GlueTask(
        ("AX", "diagnostic"),
        _PAIR,
        _INFERENCE,
        ("matthews", "accuracy"),
        {"dev": 1104, "test": 1104},
        dataset_columns=_PREMISE,
    ),
}

LABELLED_DIAGNOSTICS = ("Premise", "Hypothesis", "Label")
"""Headers of diagnostic-full.tsv, the labelled form of AX, instead of sentence1, sentence2 and label."""

COLA_COLUMNS = ("source", "label", "original_judgement", "sentence")
"""Columns of CoLA's train.tsv and dev.tsv, which have no header."""


MRPC_TRAIN, MRPC_TEST = "msr_paraphrase_train.txt", "msr_paraphrase_test.txt"  # Microsoft's own files
_MRPC_DEV_IDS = "dev_ids.tsv"  # ids of the training pairs that GLUE holds out
_BROKEN_SHARE = 0.01


def glue_file_names(task: str, split: str) -> list[str]:
    """Return the original names of a split's file, below --data.dir or the task's directory in it, best first."""
    if task == "mnli":
        files = [f"{split}.tsv" if split == "train" or split.endswith("_mismatched") else f"{split}_matched.tsv"]
    elif task == "ax":
        files = [{"dev": "diagnostic-full.tsv", "test": "diagnostic.tsv"}[split]]
    else:
        files = [f"{split}.tsv"]
    if task == "mrpc":
        files.append(MRPC_TEST if split == "test" else MRPC_TRAIN)
    return [f"{place}{file}" for file in files for place in ("", *(f"{name}/" for name in GLUE_TASKS[task].names))]


def read(
    task: str, file: epath.Path, split: str, by_original_name: bool = True, weight_column: str = ""
) -> list[Record]:
    """Return the examples of one file, with their labels as spelled there.

    Skipped and counted: rows of MNLI on which the annotators disagreed (label "-"), and up to 1 % of rows in QQP's
    training and dev files, which are broken in the benchmark itself.

    Args:
      by_original_name: whether msr_paraphrase_train.txt is split into train and dev as GLUE does.
      weight_column: header of the weights; empty if there are none.

    Raises:
      UserError: the header is missing, a row has the wrong number of columns or an empty text, or the file is not
        UTF-8; names file and line.
    """
    layout, lines = _layout(task, file, list(readers.tsv(read_text(file))), labelled=not split.startswith("test"))
    problems, records = [], []
    for number, fields in lines:
        where = f"{file}, line {number}"
        if problem := layout.problem(fields, empty_allowed=split.startswith("test")):
            problems.append(f"{where}: {problem}")
        else:
            weight = readers.weight_of(where, dict(zip(layout.header, fields, strict=True)), weight_column)
            records.append(layout.record(fields, where, str(len(records)))._replace(weight=weight))
    check_broken(task, split, str(file), problems, len(lines))
    if task == "mnli":
        records = _agreed(str(file), records)
    if by_original_name and file.name == MRPC_TRAIN:
        records = _part(file, records, lines, layout, split)
    if not records:
        raise UserError(f"{file} holds no example of {task} {split}")
    return records


def empty_text(columns: Iterable[tuple[str, str]]) -> str | None:
    """Return what is wrong with a row of these (name, text) pairs if a text is empty."""
    return next((f"the text in column {name!r} is empty" for name, text in columns if not text.strip()), None)


def check_broken(task: str, split: str, source: str, problems: list[str], total: int) -> None:
    """Raise a UserError if any of `total` rows is broken; only warn about up to 1 % of QQP's train and dev."""
    if problems and (task != "qqp" or split == "test"):
        raise UserError(problems[0])
    if len(problems) > _BROKEN_SHARE * total:
        raise UserError(
            f"{problems[0]}; {len(problems):,} of {total:,} rows are broken, although only a few of the original are"
        )
    if problems:
        logging.warning("%s: %d of %d rows skipped, the first: %s", source, len(problems), total, problems[0])


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The columns of a file and their contents."""

    header: tuple[str, ...]
    texts: tuple[int, ...]
    label: int | None
    index: int | None

    def problem(self, fields: list[str], empty_allowed: bool) -> str | None:
        """Return what is wrong with a row, if anything."""
        if len(fields) != len(self.header):
            return f"{len(fields)} columns, expected {len(self.header)} ({', '.join(self.header)})"
        return None if empty_allowed else empty_text((self.header[column], fields[column]) for column in self.texts)

    def record(self, fields: list[str], where: str, position: str) -> Record:
        texts = [fields[column] for column in self.texts]
        label = None if self.label is None else fields[self.label].strip() or None
        return Record(
            where,
            texts[0],
            texts[1] if len(texts) > 1 else None,
            label,
            position if self.index is None else fields[self.index],
        )


def _layout(task: str, file: epath.Path, lines: list[readers.Row], labelled: bool) -> tuple[_Layout, list[readers.Row]]:
    """Return the layout of a file, and its rows below the header."""
    if not lines:
        raise UserError(f"{file} is empty")
    spec, header, top = GLUE_TASKS[task], tuple(lines[0][1]), f"{file}, line {lines[0][0]}"
    texts, label = spec.columns, spec.label
    if task == "ax" and set(LABELLED_DIAGNOSTICS) <= set(header):
        *texts, label = LABELLED_DIAGNOSTICS
    if set(texts) <= set(header):
        lines = lines[1:]
    elif task == "cola":
        header = COLA_COLUMNS
    else:
        shown = ", ".join(repr(name[:30]) for name in header[:12])
        raise UserError(
            f"{top}: no header with {' and '.join(map(repr, texts))}, but {shown}; "
            "the benchmark's own file begins with a line of column names (the task text reads other formats)"
        )
    if labelled and label not in header:
        raise UserError(
            f"{top}: no column {label!r} among {', '.join(header)}: examples for training or evaluation need labels"
        )
    index = next((header.index(name) for name in ("index", "id") if name in header), None)
    return _Layout(
        header, tuple(map(header.index, texts)), header.index(label) if label in header else None, index
    ), lines


def _agreed(file: str, records: list[Record]) -> list[Record]:
    kept = [record for record in records if record.label != "-"]
    if len(kept) < len(records):
        skipped = len(records) - len(kept)
        logging.warning(
            "%s: %d of %d rows skipped because their annotators disagreed (label -)", file, skipped, len(records)
        )
    return kept


def _part(
    file: epath.Path, records: list[Record], lines: list[readers.Row], layout: _Layout, split: str
) -> list[Record]:
    """Return those of Microsoft's training pairs of MRPC that GLUE trains on, or those that it holds out as dev."""
    ids = file.parent / _MRPC_DEV_IDS
    if not ids.exists():
        raise UserError(
            f"{file} needs {ids}, the list of the pairs that GLUE holds out as dev; or give --data.train and --data.dev"
        )
    held_out = {tuple(fields) for _, fields in readers.tsv(read_text(ids))}
    columns = [layout.header.index(name) for name in ("#1 ID", "#2 ID")]
    pairs = (tuple(fields[column] for column in columns) for _, fields in lines)
    kept = [record for record, pair in zip(records, pairs, strict=True) if (pair in held_out) == (split == "dev")]
    return [record._replace(index=str(position)) for position, record in enumerate(kept)]


HIGHEST_SCORE = 5
"""STS-B's score of sentences with the same meaning; 0 is for those with nothing in common."""


def splits(task: str, data: TaskDataConfig) -> tuple[str, ...]:
    """Return those of train, dev, dev_mismatched (MNLI), test and test_mismatched that the data has."""
    known = tuple(GLUE_TASKS[task].rows)
    if data.named:
        called = {split: _dataset_split(task, data, split) for split in known}
        return ("test",) if task == "ax" else readers.dataset_splits(_dataset_name(task, data), data, called)
    directory = epath.Path(data.dir).expanduser()
    return tuple(
        split
        for split in known
        if getattr(data, split, "")
        or data.dir
        and any((directory / name).exists() for name in glue_file_names(task, split))
    )


def load(
    task: str,
    data: TaskDataConfig,
    split: str,
    labels: tuple[str, ...] | None = None,
    given: readers.Given | None = None,
) -> Sentences:
    """Return the examples of one split; those of a test set usually have no answers.

    Args:
      labels: classes in the order of a model's outputs, with or without capitals, if that differs from the benchmark's.
      given: rows of the splits that are in memory, with the columns of the files or of TFDS, or (text, label) or
        ((text, text_b), label). A label is the name of a class, or its number in the order of the benchmark.

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
    own = {label.casefold(): label for label in spec.labels}
    labels = tuple(own.get(label.casefold(), label) for label in labels)
    if sorted(labels) != sorted(spec.labels):
        remedy = ("; give one that was fine-tuned on mnli" if task == "ax" else f"; fine-tune it on {task} first") + (
            ", or put the task's names of its classes into id2label of its config.json" if labels and own else ""
        )
        raise UserError(
            f"{task} has the classes {', '.join(spec.labels) or '(none: a number is estimated)'}, but the model has "
            f"{', '.join(labels) or 'none: it estimates a number'}{remedy}"
        )
    found = readers.rows_of(
        data,
        split,
        given,
        functools.partial(_columns_of_row, spec),
        name=_dataset_name(task, data),
        part=_dataset_split(task, data, split),
    )
    if found is not None:
        records = _records(task, spec, *found, split, data.weighed_by(split))
    else:
        file = readers.find_file(data, split, glue_file_names(task, split))
        records = read(task, file, split, not getattr(data, split, ""), data.weighed_by(split))
    if len(records) != spec.rows[split]:
        logging.warning("%s %s: %d examples; the benchmark has %d", task, split, len(records), spec.rows[split])
    numbers = {name: labels.index(name) for name in spec.labels}
    by_number = {str(number): numbers[name] for number, name in enumerate(spec.labels)}
    if found is None and spec.numbered:
        numbers = by_number
    elif found is not None and not data.named:
        numbers |= by_number
    examples = sentences.collect(task, records, tuple(labels), numbers, unlabelled=split.startswith("test"))
    if not spec.labels and examples.answers is not None:
        _check_range(records, examples.answers)
    return examples


def metrics(examples: Sentences) -> tuple[str, ...]:
    """Return the metrics by which runs can be compared, the usual one first."""
    return GLUE_TASKS[examples.task].metrics


def score(examples: Sentences, features: Features, logits: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the values of `metrics`, each in [-1, 1]."""
    found = sentences.predictions(examples, logits)
    answers = examples.answers
    assert answers is not None, "has_answers comes first"
    if "f1" in metrics(examples):
        # Its class 1 is the benchmark's, whatever the order of the model's outputs.
        positive = examples.labels.index(GLUE_TASKS[examples.task].labels[1])
        found, answers = (found == positive).astype(int), (answers == positive).astype(int)
    return {name: sentences.METRICS[name](answers, found) for name in metrics(examples)}


def write_predictions(
    examples: Sentences, features: Features, logits: Sequence[np.ndarray], directory: str, split: str
) -> list[str]:
    """Write the file that a submission to the benchmark needs of this split, and return its name.

    Columns `index` and `prediction`: the name of a class for MNLI, QNLI, RTE and AX, 0 or 1 for the other classifiers,
    for STS-B a number in [0, 5] with three decimals. The file of a dev split has the same format and -dev in its name,
    but exact numbers: it is not submitted, and metrics computed from it equal those of `score`.
    """
    spec = GLUE_TASKS[examples.task]
    found = sentences.predictions(examples, logits)
    if not spec.labels:
        submitted = split.startswith("test")
        answers = [f"{np.clip(value, 0, HIGHEST_SCORE):.3f}" if submitted else repr(float(value)) for value in found]
    else:
        names = [examples.labels[number] for number in found]
        answers = [str(spec.labels.index(name)) for name in names] if spec.numbered else names
    rows = (f"{index}\t{answer}" for index, answer in zip(examples.index, answers, strict=True))
    return sentences.write_lines(directory, prediction_names(examples, split)[0], ["index\tprediction", *rows])


def prediction_names(examples: Sentences, split: str) -> list[str]:
    """Return CoLA.tsv, MNLI-m.tsv, MNLI-mm.tsv, …; CoLA-dev.tsv for a split that is not submitted."""
    kind, _, mismatched = split.partition("_")
    suffix = {"": "-m", "mismatched": "-mm"}[mismatched] if examples.task == "mnli" else ""
    return [GLUE_TASKS[examples.task].names[0] + suffix + ("" if kind == "test" else f"-{kind}") + ".tsv"]


def head(task: str, labels: tuple[str, ...]) -> HeadConfig:
    """Return a classifier with the task's classes, or a regressor for STS-B."""
    return HeadConfig(kind="classification" if GLUE_TASKS[task].labels else "regression", labels=labels)


def _check_range(records: list[Record], answers: np.ndarray) -> None:
    outside = np.flatnonzero((answers < 0) | (answers > HIGHEST_SCORE))
    if len(outside):
        first = outside[0]
        raise UserError(f"{records[first].where}: the score {answers[first]:g} is not between 0 and {HIGHEST_SCORE}")


def _dataset_name(task: str, data: TaskDataConfig) -> str:
    return f"{data.named}/{task}" if data.named == "glue" else data.named


def _dataset_split(task: str, data: TaskDataConfig, split: str) -> str:
    name = readers.dataset_split(data, split)
    return f"{name}_matched" if task == "mnli" and name in ("validation", "test") else name


def _columns_of_row(spec: GlueTask, where: str, row: Any) -> dict[str, Any]:
    """Return the values of (text, label) or ((text, text_b), label) by the columns of the task."""
    form = "((text, text_b), label)" if len(spec.columns) > 1 else "(text, label)"
    texts = row[0] if isinstance(row, list) and len(row) == 2 else None
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or len(texts) != len(spec.columns):
        raise UserError(f"{where} is {row!r:.80}; expected {form}, or a dict by column")
    return dict(zip(spec.columns, texts, strict=True)) | {spec.label: row[1]}


def _records(
    task: str, spec: GlueTask, source: str, rows: readers.Rows, split: str, weight_column: str
) -> list[Record]:
    """Return the examples in rows with the columns of the task's files, or with those of TFDS and the hub."""
    examples, test = list(rows), split.startswith("test")
    if test:  # stored in a shuffled order, but the rows of a submission ascend
        examples.sort(key=lambda example: _index(example[1].get("idx", 0)))
    problems, records, columns = [], [], spec.dataset_columns or spec.columns
    for position, (where, example) in enumerate(examples):
        used = next((names for names in (columns, spec.columns) if set(names) <= example.keys()), columns)
        label = next((name for name in ("label", spec.label) if name in example), "label")
        if missing := [column for column in (*used, *([] if test else [label])) if column not in example]:
            raise UserError(f"{where} has no {' and '.join(missing)}, but {', '.join(example)}: it is not {task}")
        texts = [readers.text_of(where, example, column, empty=True) for column in used]
        if not test and (problem := empty_text(zip(used, texts, strict=True))):
            problems.append(f"{where}: {problem}")
            continue
        second = texts[1] if len(texts) > 1 else None
        index = str(example.get("idx", position))
        weight = readers.weight_of(where, example, weight_column)
        records.append(Record(where, texts[0], second, _label(where, spec, example.get(label)), index, weight))
    check_broken(task, split, source, problems, len(examples))
    if task == "mnli":
        records = _agreed(source, records)
    if not records:
        raise UserError(f"{source} holds no example of {task} {split}")
    return records


def _index(value: Any) -> tuple[bool, Any]:
    """Return what rows are sorted by: their numbers, and what is none behind them."""
    return (False, value) if isinstance(value, int) else (True, str(value))


def _label(where: str, spec: GlueTask, value: Any) -> str | float | None:
    """Return a label as it is compared with the classes, or a number; None for none, which is -1 or less for all."""
    if value is None or isinstance(value, int | float) and value < 0:
        return None
    if not isinstance(value, str | int | float) or isinstance(value, bool) and not spec.labels:
        raise UserError(f"{where}: the label {value!r:.60} is neither text nor a number")
    if isinstance(value, str):
        return value.strip() or None
    return value if not spec.labels else str(int(value) if isinstance(value, float) and value.is_integer() else value)

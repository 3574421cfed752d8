"""Classification and regression on the user's own sentences, single or in pairs."""

from collections.abc import Mapping, Sequence

import numpy as np
from etils import epath

from bert_jax.config import HeadConfig
from bert_jax.errors import UserError
from bert_jax.finetune_config import TaskDataConfig
from bert_jax.tasks import files, in_memory, metrics, sentences, text_files, tfds
from bert_jax.tasks.features import Features
from bert_jax.tasks.sentences import Record, Sentences

MAIN_METRIC = {"text": "accuracy"}
"""Of classes; numbers have pearson in its place (`families.main_metric`)."""

features = sentences.features


def splits(task: str, data: TaskDataConfig) -> tuple[str, ...]:
    """Those of train, dev and test that the data has."""
    return files.splits(data, {split: text_files.names(split) for split in ("train", "dev", "test")})


def load(task: str, data: TaskDataConfig, split: str, labels: tuple[str, ...] | None = None,
         given: Mapping[str, Sequence] | None = None) -> Sentences:
    """The examples of one split, from TSV, CSV, JSON lines, a directory with a subdirectory a class, TFDS, or memory.

    Args:
      labels: the classes in the order of a model's outputs, empty for regression. None: those of this split, sorted, unless
        data.regression.
      given: rows of the splits that are in memory, see `in_memory.records`.

    Raises:
      UserError: as `text_files.read` and `sentences.collect`; fewer than two classes to learn.
    """
    if given and split in given:
        records = in_memory.records(split, given[split], data.regression)
    elif data.tfds:
        records = _tfds_records(data, split)
    else:
        records = text_files.read(files.find(data, split, text_files.names(split)), data, split)
    regression = data.regression if labels is None else not labels
    if labels is None:
        labels = () if regression else _discover(records)
    numbers = {name: number for number, name in enumerate(labels)}
    return sentences.collect(task, records, tuple(labels), numbers, unlabelled=split == "test")


def score(examples: Sentences, features: Features, logits: Sequence[np.ndarray]) -> dict[str, float]:
    """accuracy and matthews, or pearson and spearman for regression."""
    found = sentences.predictions(examples, logits)
    names = ("accuracy", "matthews") if examples.labels else ("pearson", "spearman")
    return {name: getattr(metrics, name)(examples.answers, found) for name in names}


def write_predictions(examples: Sentences, features: Features, logits: Sequence[np.ndarray], directory: str,
                      split: str) -> list[str]:
    """Writes `predictions_SPLIT.tsv`: index (from 0), prediction, and for classes the probability given to it."""
    found = sentences.predictions(examples, logits)
    if examples.labels:
        below_best = np.asarray(logits) - np.max(logits, axis=1, keepdims=True)
        shares = 1 / np.exp(below_best).sum(axis=1)
        rows = [f"{index}\t{examples.labels[number]}\t{share:.4f}"
                for index, number, share in zip(examples.index, found, shares)]
    else:
        rows = [f"{index}\t{value:.6g}" for index, value in zip(examples.index, found)]
    file = epath.Path(directory) / f"predictions_{split}.tsv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(["index\tprediction" + "\tprobability" * bool(examples.labels), *rows]) + "\n")
    return [str(file)]


def head(task: str, labels: tuple[str, ...]) -> HeadConfig:
    """A classifier with these classes; without any, a regressor."""
    return sentences.head(task, labels)


def _discover(records: list[Record]) -> tuple[str, ...]:
    """The classes, sorted: as whole numbers where all are, else as text."""
    found = {str(record.label): record.where for record in records if record.label is not None}
    labels = sorted(found, key=int if all(label.isascii() and label.isdecimal() for label in found) else None)
    if any(record.label is None for record in records):
        return tuple(labels)  # collect() names the first
    if len(labels) == 1:
        raise UserError(f"{records[0].where}, and every other example, has the label {labels[0]!r}: there is nothing to learn")
    if len(labels) == len(records) > 20:
        raise UserError(f"{records[0].where}: the label {records[0].label!r} occurs once, as all {len(records):,} labels do; "
                        "name another --data.label_column, or give --data.regression=true where the labels are numbers")
    return tuple(labels)


def _tfds_records(data: TaskDataConfig, split: str) -> list[Record]:
    name = tfds.split_name(data, split)
    source = f"{data.tfds}, split {name}"
    rows = ((f"{source}, example {position}", example)
            for position, example in enumerate(tfds.examples(data.tfds, name, data.tfds_dir)))
    return text_files.records_of(source, rows, data, split)

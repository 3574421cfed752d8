"""Classification and regression on the user's own sentences, single or in pairs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from bert_jax.config import HeadConfig
from bert_jax.config.task_options import TaskDataConfig
from bert_jax.data.ordering import permute
from bert_jax.data.randomness import Stream
from bert_jax.data.sequences.features import Features
from bert_jax.errors import UserError
from bert_jax.tasks import in_memory, scores, sentence_examples, task_files, tfds_examples
from bert_jax.tasks.plain_text import PlainText
from bert_jax.tasks.sentence_examples import Record, Sentences
from bert_jax.tasks.sentence_examples import features as features  # a name of every Family
from bert_jax.tasks.text import text_files

MAIN_METRIC = {"text": "accuracy"}
"""Main metric for classes; numbers have pearson instead (`families.main_metric`)."""


def splits(task: str, data: TaskDataConfig) -> tuple[str, ...]:
    """Return those of train, dev and test that the data has."""
    return task_files.splits(data, {split: text_files.names(split) for split in ("train", "dev", "test")})


def load(
    task: str,
    data: TaskDataConfig,
    split: str,
    labels: tuple[str, ...] | None = None,
    given: Mapping[str, Sequence[Any]] | None = None,
) -> Sentences:
    """Return the examples of a split, from TSV, CSV, JSON lines, a directory per class, TFDS, or memory.

    Args:
      labels: classes in the order of a model's outputs, empty for regression. None: those of this split, sorted, unless
        data.regression.
      given: rows of the splits that are in memory, see `in_memory.records`.

    Raises:
      UserError: as for `text_files.read` and `sentence_examples.collect`, or there are fewer than two classes to learn.
    """
    parted = data.dev_share > 0 and split in ("train", "dev")
    source = "train" if parted else split
    if given and source in given:
        records = in_memory.records(source, given[source], data.regression)
    elif data.tfds:
        records = _tfds_records(data, source)
    else:
        _check_dev(task, data, source)
        records = text_files.read(task_files.find(data, source, text_files.names(source)), data, source)
    regression = data.regression if labels is None else not labels
    if labels is None:
        labels = () if regression else _discover(records)
    numbers = {name: number for number, name in enumerate(labels)}
    if parted:
        if "dev" in splits(task, data):
            raise UserError(
                f"data.dev_share={data.dev_share}, but data.dir={data.dir} has a dev file; leave the option out"
            )
        records = _part(records, data.dev_share, split)
    return sentence_examples.collect(task, records, tuple(labels), numbers, unlabelled=split == "test")


def from_plain(texts: Sequence[PlainText], labels: tuple[str, ...], pairs: bool | None) -> Sentences:
    """Return plain texts as unlabelled examples.

    Args:
      pairs: whether the model reads pairs, whose two texts are separated by a tab; None: it does if any line has a tab,
        or if each file of a directory has one.

    Raises:
      UserError: a pair does not have exactly one tab or has a blank half, or a model of single texts gets a line with a
        tab. Names the line.
    """
    tabbed = next((text for text in texts if text.is_line and "\t" in text.text), None)
    if pairs is False and tabbed is not None:
        raise UserError(
            f"{tabbed.where}: the model reads single texts, but there is a tab, as between the two texts of a "
            f"pair: {tabbed.text!r:.80}; replace it with a space if this is one text"
        )
    reason = "the model reads pairs of texts"
    if pairs is None:
        pairs = tabbed is not None or all(text.text.count("\t") == 1 for text in texts)
        reason = f"{texts[0].where if tabbed is None else tabbed.where} has a tab, so all are taken for pairs of texts"
    records = []
    for where, text, index, _ in texts:
        first, *more = text.split("\t") if pairs else [text]
        if len(more) != pairs or not all(part.strip() for part in (first, *more)):
            raise UserError(f"{where}: {reason}, written with one tab between the two; found {text!r:.80}")
        records.append(Record(where, first, more[0] if pairs else None, None, index))
    return sentence_examples.collect("text", records, labels, {}, unlabelled=True)


def prediction_names(examples: Sentences, split: str) -> list[str]:
    """Return the names of the files that `write_predictions` writes, the main one first."""
    return [f"predictions_{split}.tsv"]


def score(examples: Sentences, features: Features, logits: Sequence[np.ndarray]) -> dict[str, float]:
    """Return accuracy and matthews, or pearson and spearman for regression."""
    found = sentence_examples.predictions(examples, logits)
    assert examples.answers is not None, "has_answers comes first"
    names = ("accuracy", "matthews") if examples.labels else ("pearson", "spearman")
    return {name: scores.METRICS[name](examples.answers, found) for name in names}


def write_predictions(
    examples: Sentences, features: Features, logits: Sequence[np.ndarray], directory: str, split: str
) -> list[str]:
    """Write `predictions_SPLIT.tsv`: index (from 0), prediction, and for classes the probability of the predicted one.

    Numbers have all their digits, so that metrics computed from the file equal those of `score`.
    """
    found = sentence_examples.predictions(examples, logits)
    if examples.labels:
        below_best = np.asarray(logits) - np.max(logits, axis=1, keepdims=True)
        shares = 1 / np.exp(below_best).sum(axis=1)
        rows = [
            f"{index}\t{examples.labels[number]}\t{share:.4f}"
            for index, number, share in zip(examples.index, found, shares, strict=True)
        ]
    else:
        rows = [f"{index}\t{float(value)!r}" for index, value in zip(examples.index, found, strict=True)]
    file = epath.Path(directory) / prediction_names(examples, split)[0]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(["index\tprediction" + "\tprobability" * bool(examples.labels), *rows]) + "\n")
    return [str(file)]


def head(task: str, labels: tuple[str, ...]) -> HeadConfig:
    """Return a classifier with these classes or, without any, a regressor."""
    return sentence_examples.head(task, labels)


def _check_dev(task: str, data: TaskDataConfig, split: str) -> None:
    """Raise a UserError if the directory has no dev file; one may be held out of the training file."""
    if split == "dev" and data.dir and epath.Path(data.dir).expanduser().is_dir() and "dev" not in splits(task, data):
        raise UserError(
            f"data.dir={data.dir} has no dev file; looked for {', '.join(text_files.names('dev'))}; give "
            "--data.dev=FILE, or --data.dev_share=0.1 to hold out a tenth of the training file"
        )


def _part(records: list[Record], share: float, split: str) -> list[Record]:
    """Return the part of a training file to train on, or the `share` of its different texts that is held out as dev."""
    texts = list(dict.fromkeys((record.first, record.second) for record in records))
    count = round(share * len(texts))
    if not 0 < count < len(texts):
        raise UserError(
            f"data.dev_share={share} of {len(texts):,} different texts leaves none "
            f"{'to learn from' if count else 'for dev'}; give another share, or --data.dev=FILE"
        )
    held_out = {texts[place] for place in permute(np.arange(count), len(texts), 0, Stream.HELD_OUT)}
    return [record for record in records if ((record.first, record.second) in held_out) == (split == "dev")]


def _discover(records: list[Record]) -> tuple[str, ...]:
    """Return the classes, sorted: as whole numbers if all are, else as text."""
    found = {str(record.label): record.where for record in records if record.label is not None}
    labels = sorted(found, key=int if all(label.isascii() and label.isdecimal() for label in found) else None)
    if any(record.label is None for record in records):
        return tuple(labels)  # collect() names the first
    if len(labels) == 1:
        raise UserError(
            f"{records[0].where}, and every other example, has the label {labels[0]!r}: there is nothing to learn"
        )
    if len(labels) == len(records) > 20:
        raise UserError(
            f"{records[0].where}: the label {records[0].label!r} occurs once, as all {len(records):,} labels do; "
            "name another --data.label_column, or give --data.regression=true if the labels are numbers"
        )
    return tuple(labels)


def _tfds_records(data: TaskDataConfig, split: str) -> list[Record]:
    name = tfds_examples.split_name(data, split)
    source = f"{data.tfds}, split {name}"
    rows = (
        (f"{source}, example {position}", example)
        for position, example in enumerate(tfds_examples.examples(data.tfds, name, data.tfds_dir))
    )
    return text_files.records_of(source, rows, data, split)

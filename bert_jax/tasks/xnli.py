"""XNLI (Conneau et al. 2018): which of two texts follows from the other, in 15 languages, from files or the hub.

A model learns from MultiNLI in one language or several, as XNLI has translated it, and is measured in every language
of dev and test: `accuracy` is the mean over the languages, and `accuracy_de` that of one. The files are those of
XNLI-1.0 and XNLI-MT-1.0.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from absl import logging

from bert_jax.config import HeadConfig
from bert_jax.config.tasks import XNLI_LANGUAGES, XnliDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks import readers, sentences
from bert_jax.tasks.glue import GLUE_TASKS
from bert_jax.tasks.sentences import Record, Sentences
from bert_jax.tasks.sentences import features as features  # a name of every TaskFamily

LABELS = GLUE_TASKS["mnli"].labels
ROWS = {"train": 392_702, "dev": 2490, "test": 5010}
"""Published number of examples of each split in one language."""
TEXTS = (("sentence1", "sentence2"), ("premise", "hypothesis"), ("premise", "hypo"))
"""Columns of the two texts: XNLI's and MultiNLI's files, the hub, the translated training files."""
LABEL = ("gold_label", "label")
_TRANSLATED = {"contradictory": "contradiction"}  # the name of a class in the translated files
_BROKEN_SHARE = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Multilingual(Sentences):
    """Pairs of texts in several languages."""

    languages: list[str]
    """That of each example; empty if it is not known, as of a training file of one's own."""

    def chosen(self, numbers: np.ndarray) -> Self:
        return dataclasses.replace(super().chosen(numbers), languages=[self.languages[number] for number in numbers])

    def of(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Return those of the values [E] that belong to each language, in the order of their names."""
        names = np.array(self.languages)
        return {name: values[names == name] for name in sorted(set(self.languages))}


def _file_names(split: str, language: str = "en") -> tuple[str, ...]:
    """Return the names that a file may have below --data.dir, which is the place of both downloads, or of one."""
    if split == "train":
        file = f"multinli.train.{language}.tsv"
        return tuple(f"{place}{file}" for place in ("XNLI-MT-1.0/multinli/", "multinli/", ""))
    return tuple(f"{place}xnli.{split}.tsv" for place in ("XNLI-1.0/", ""))


def splits(task: str, data: XnliDataConfig) -> tuple[str, ...]:
    """Return those of train, dev and test that the data has."""
    return readers.file_splits(data, {split: _file_names(split, data.trained[0]) for split in ROWS})


def load(
    task: str,
    data: XnliDataConfig,
    split: str,
    labels: tuple[str, ...] | None = None,
    given: readers.Given | None = None,
) -> Multilingual:
    """Return the examples of one split: of train those in `data.trained`, of dev and test those in all languages.

    Training rows on which annotators disagreed (label "-") are left out and counted, and up to 1 % of them with an
    empty text, which a translation can be.

    Args:
      labels: classes in the order of a model's outputs, if that differs from MultiNLI's.
      given: rows of the splits that are in memory, dicts as in the files or in a data set.

    Raises:
      UserError: there is no such file, the classes are not the task's, or a row is bad (names file and line).
    """
    labels = labels or LABELS
    if sorted(labels) != sorted(LABELS):
        raise UserError(
            f"{task} has the classes {', '.join(LABELS)}, but the model has {', '.join(labels) or 'none'}; fine-tune "
            f"it on {task} or mnli first"
        )
    pairs = [
        (name, record._replace(weight=readers.weight_of(where, row, data.weighed_by(split))))
        for where, row, language in _rows(data, split, given)
        for name, record in _pairs(where, row, language, split)
    ]
    source = data.named or getattr(data, split, "") or data.dir or split
    if split == "train":
        pairs = _complete(source, pairs)
        if data.named:
            pairs = [pair for pair in pairs if pair[0] in data.trained]
    if not pairs:
        raise UserError(f"{source} holds no example of {task} {split}")
    for language, count in collections.Counter(language for language, _ in pairs).items():
        if count != ROWS[split]:
            logging.warning(
                "xnli %s, %s: %d examples; the benchmark has %d", split, language or "all", count, ROWS[split]
            )
    numbers = {label: number for number, label in enumerate(labels)}
    records = [record._replace(index=record.index or str(number)) for number, (_, record) in enumerate(pairs)]
    found = sentences.collect(task, records, tuple(labels), numbers, unlabelled=split == "test")
    return Multilingual(**vars(found), languages=[language for language, _ in pairs])


def _rows(
    data: XnliDataConfig, split: str, given: readers.Given | None
) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield (place, values by column, language of those that do not say theirs) of every row of a split."""
    if (found := readers.rows_of(data, split, given, _without_names)) is not None:
        configuration = data.named.rpartition(":")[2]
        language = configuration if configuration in XNLI_LANGUAGES else ""
        yield from ((where, row, language) for where, row in found[1])
        return
    for language in data.trained if split == "train" and not data.train else ("",):
        file = readers.find_file(data, split, _file_names(split, language))
        yield from ((where, row, language) for where, row in readers.table_rows(file, has_header=True))


def _without_names(where: str, row: Any) -> dict[str, Any]:
    raise UserError(f"{where} is {row!r:.80}; expected a dict with language, sentence1, sentence2 and gold_label")


def _pairs(where: str, row: Mapping[str, Any], language: str, split: str) -> Iterator[tuple[str, Record]]:
    """Yield the language and the pair of a row, or the pairs of one with a text in every language."""
    columns = next((names for names in TEXTS if set(names) <= row.keys()), None)
    label = next((name for name in LABEL if name in row), None)
    if columns is None or label is None and split != "test":
        shown = ", ".join(repr(str(name)[:30]) for name in list(row)[:20])
        raise UserError(f"{where}: no columns sentence1, sentence2 and gold_label among {shown}: it is not xnli")
    given, index = None if label is None else row.get(label), str(row.get("pairID", ""))
    answer = str(given).strip() if given not in (None, -1) else ""
    answer = _TRANSLATED.get(answer, answer) or None
    if isinstance(row[columns[0]], Mapping):
        for name, first, second in _translations(where, *(row[column] for column in columns)):
            yield name, Record(where, first, second, answer, index)
        return
    named = row.get("language")
    language = language if named in (None, "") else named
    if language == "" and split != "train":
        raise UserError(f"{where}: no column 'language', by which {split} is measured; XNLI's own file has it")
    _check_language(where, language)
    first, second = (readers.text_of(where, row, column, empty=split != "dev") for column in columns)
    yield language, Record(where, first, second, answer, index)


def _check_language(where: str, language: Any) -> None:
    """Raise a UserError if this cannot be the name of a language, which names metrics and begins rows of files."""
    if not isinstance(language, str) or language and not re.fullmatch(r"[A-Za-z][\w-]{0,40}", language):
        raise UserError(f"{where}: 'language' is {language!r:.60}; expected a name such as en")


def _translations(where: str, premises: Any, hypotheses: Any) -> Iterator[tuple[str, str, str]]:
    """Yield language, premise and hypothesis of a row of the hub's all_languages."""
    names, texts = (
        hypotheses.get(key) if isinstance(hypotheses, Mapping) else None for key in ("language", "translation")
    )
    if not isinstance(names, Sequence) or not isinstance(texts, Sequence) or len(names) != len(texts):
        raise UserError(f"{where}: 'hypothesis' is {hypotheses!r:.60}; expected lists 'language' and 'translation'")
    if len(set(map(str, names))) < len(names) or set(map(str, names)) != set(premises):
        raise UserError(
            f"{where}: the hypothesis is in {list(names)!r:.80} and the premise in {list(premises)!r:.80}; each "
            "language has one of both"
        )
    by_language = dict(zip(map(str, names), texts, strict=True))
    for name in premises:
        _check_language(where, name)
        yield name, readers.text_of(where, premises, name), readers.text_of(where, by_language, name)


def _complete(source: str, pairs: list[tuple[str, Record]]) -> list[tuple[str, Record]]:
    """Return the training pairs with a label that annotators agreed on and two texts; a warning counts the others."""
    agreed = [pair for pair in pairs if pair[1].label != "-"]
    kept = [pair for pair in agreed if pair[1].first.strip() and (pair[1].second or "").strip()]
    if len(agreed) - len(kept) > _BROKEN_SHARE * len(pairs):
        first = next(record for _, record in agreed if not record.first.strip() or not (record.second or "").strip())
        raise UserError(
            f"{first.where}: a text is empty, and so are those of {len(agreed) - len(kept):,} of {len(pairs):,} rows; "
            "at most 1 % may be"
        )
    if len(kept) < len(pairs):
        logging.warning(
            "%s: %d of %d rows without a label or a text are left out", source, len(pairs) - len(kept), len(pairs)
        )
    return kept


def head(task: str, labels: tuple[str, ...]) -> HeadConfig:
    """Return a classifier."""
    return HeadConfig(kind="classification", labels=labels)


def metrics(examples: Multilingual) -> tuple[str, ...]:
    """Return the metrics by which runs can be compared: the mean over the languages, and each of them."""
    return ("accuracy", *(f"accuracy_{name}" for name in sorted(set(examples.languages))))


def score(examples: Multilingual, features: Any, logits: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the values of `metrics`, each in [0, 1]."""
    assert examples.answers is not None, "has_answers comes first"
    right = examples.of(examples.answers == sentences.predictions(examples, logits))
    of_each = {f"accuracy_{name}": float(values.mean()) for name, values in right.items()}
    return {"accuracy": float(np.mean(list(of_each.values()))), **of_each}


def prediction_names(examples: Multilingual, split: str) -> list[str]:
    """Return XNLI-dev.tsv, XNLI-test.tsv."""
    return [f"XNLI-{split}.tsv"]


def write_predictions(
    examples: Multilingual, features: Any, logits: Sequence[np.ndarray], directory: str, split: str
) -> list[str]:
    """Write language, index (XNLI's pairID) and predicted class of every example; return the name of the file."""
    found = [examples.labels[number] for number in sentences.predictions(examples, logits)]
    rows = map("\t".join, zip(examples.languages, examples.index, found, strict=True))
    lines = itertools.chain(["language\tindex\tprediction"], rows)
    return sentences.write_lines(directory, prediction_names(examples, split)[0], lines)

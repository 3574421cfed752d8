"""All data that fine-tuning reads before it starts: the splits of a task as sequences, and the head for them."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.data.sequences.features import Features
from bert_jax.errors import UserError
from bert_jax.tasks import text
from bert_jax.tasks.families import Family, main_metric
from bert_jax.tasks.families import family as family_of
from bert_jax.tasks.noisy_examples import noisy_examples
from bert_jax.tasks.sentence_examples import Sentences
from bert_jax.tokenization.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Split:
    examples: Any
    """Examples of the family's own type, which has labels, has_answers and a length."""
    features: Features


@dataclasses.dataclass(frozen=True)
class TaskData:
    task: str
    family: Family
    head: HeadConfig
    train: Split
    evaluations: dict[str, Split]
    """dev and, for MNLI, dev_mismatched; the first one selects."""
    tests: dict[str, Split]
    """All test sets of the data, labelled or not; predictions are written for them."""

    @property
    def splits(self) -> dict[str, Split]:
        """All splits by name, train first."""
        return {"train": self.train} | self.evaluations | self.tests

    @property
    def pairs(self) -> bool | None:
        """Whether the examples, and so the model's inputs, are pairs of texts; None if they are not only texts."""
        return self.train.examples.second is not None if isinstance(self.train.examples, Sentences) else None

    @property
    def truncated(self) -> dict[str, float]:
        """Share of the examples of each split that are longer than what is read (for SQuAD, of the questions)."""
        return {
            name: split.features.uncut.share for name, split in self.splits.items() if split.features.uncut is not None
        }

    @property
    def main_metric(self) -> str:
        return main_metric(self.task, self.head.labels)

    def fingerprint(self) -> str:
        """Return the fingerprint of training and dev set, which must not change within a work directory."""
        return _fingerprint((self.train, *self.evaluations.values()))

    def test_fingerprint(self) -> str:
        """Return the fingerprint of the test sets and of the names of their examples in files of predictions."""
        names = [list(getattr(split.examples, "index", ())) for split in self.tests.values()]
        return hashlib.sha256(json.dumps([_fingerprint(self.tests.values()), names]).encode()).hexdigest()


def _fingerprint(splits: Iterable[Split]) -> str:
    """Return the SHA-256 over sequences, labels and whatever else the metric compares answers with."""
    digest = hashlib.sha256()
    for split in splits:
        digest.update(json.dumps(getattr(split.examples, "gold", None)).encode())
        for part in (split.features.input_ids, split.features.token_type_ids, split.features.labels):
            for values in _arrays(part):
                digest.update(np.ascontiguousarray(values).tobytes() + b"|")
    return digest.hexdigest()


def _arrays(part: Any) -> Iterator[np.ndarray]:
    """Yield the arrays of one part of features, of which choices have several per example."""
    for entry in () if part is None else part:
        yield from entry if isinstance(entry, list) else [entry]


def read_task(
    config: FinetuneConfig, model: ModelConfig, tokenizer: Tokenizer, given: Mapping[str, Sequence[Any]] | None = None
) -> TaskData:
    """Read and tokenize train, dev and, if it exists, test.

    Args:
      given: rows of those splits of the task text that are in memory.

    Raises:
      UserError: the family rejects the files, max_length exceeds the model's positions, a model with one segment gets
        pairs, or the dev set has no labels.
    """
    if config.options.max_length > model.longest_sequence:
        raise UserError(
            f"options.max_length={config.options.max_length}, but {config.init_from} has "
            f"{model.longest_sequence} positions; set --options.max_length={model.longest_sequence}"
        )
    family = family_of(config.task)
    load = functools.partial(text.load, given=given) if given else family.load

    def split(name: str, labels: tuple[str, ...] | None = None) -> Split:
        examples = load(config.task, config.data, name, labels)
        if name == "train":
            examples = noisy_examples(examples, config.noise)
        return Split(examples, family.features(examples, tokenizer, config.options))

    train = split("train")
    if model.type_vocab_size == 1 and any(map(np.any, _arrays(train.features.token_type_ids))):
        raise UserError(
            f"{config.task} has pairs of texts, but {config.init_from} has one segment (type_vocab_size=1) and cannot "
            "read them; take another model, or join the two texts in files of your own"
        )
    labels = train.examples.labels
    others = [name for name in family.splits(config.task, config.data) if name not in ("train", "dev")]
    evaluations = {name: split(name, labels) for name in ("dev", *(name for name in others if name.startswith("dev")))}
    if not evaluations["dev"].examples.has_answers:
        raise UserError(
            "the dev set has no labels, so it cannot be used to choose a run; give a labelled one with --data.dev=FILE"
        )
    changes = {name: getattr(config, name) for name in ("crf", "features", "lstm_size", "train_encoder")}
    if config.head_dropout is not None:
        changes["dropout"] = config.head_dropout
    head = dataclasses.replace(family.head(config.task, labels), **changes)
    tests = {name: split(name, labels) for name in others if name.startswith("test")}
    return TaskData(config.task, family, head, train, evaluations, tests)

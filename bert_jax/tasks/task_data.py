"""All data of fine-tuning before it starts: the splits of a task as sequences, the head, and the task's module.

Splits can be read with spelling errors in their texts, put in before tokenization; the answers stay. The checkpoint
of a fine-tuned model records its task and the options of its sequences. All prediction uses these, so that new inputs
are cut, windowed and answered as in the model's evaluation.
"""

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np

from bert_jax.config import EncoderConfig, HeadConfig
from bert_jax.config.finetuning import (
    GLUE,
    FinetuneConfig,
    SentenceOptions,
    SequenceOptions,
    SquadOptions,
    TextDataConfig,
    task_defaults,
)
from bert_jax.config.options import from_dict, to_dict, with_options
from bert_jax.config.pretraining import NoiseConfig
from bert_jax.data.sequences import Features
from bert_jax.data.spelling_errors import edited_text, edited_words
from bert_jax.errors import UserError
from bert_jax.randomness import Stream, bits
from bert_jax.tasks import choice, ner, text
from bert_jax.tasks.conll import Sentence
from bert_jax.tasks.sentences import Sentences
from bert_jax.tasks.squad import tuned
from bert_jax.tokenization.tokenizer import Tokenizer


class TaskFamily(Protocol):
    """A module of tasks. Data and options are of the kinds of its tasks, and examples of a type of its own, with
    `labels`, `has_answers` and a length."""

    @property
    def MAIN_METRIC(self) -> Mapping[str, str]:
        """The metric by which runs are compared, by task."""
        ...

    def splits(self, task: str, data: Any) -> tuple[str, ...]:
        """Return those splits of the task that the data has."""
        ...

    def load(self, task: str, data: Any, split: str, labels: tuple[str, ...] | None = None) -> Any:
        """Return the examples of one split; `labels` are the classes in the order of a model's outputs."""
        ...

    def features(self, examples: Any, tokenizer: Tokenizer, options: Any) -> Any:
        """Return the sequences of the examples, `Features` or more than those."""
        ...

    def head(self, task: str, labels: tuple[str, ...]) -> HeadConfig:
        """Return the head that a model needs."""
        ...

    def score(self, examples: Any, features: Any, logits: list[np.ndarray]) -> dict[str, float]:
        """Return the metrics of the scores of every sequence."""
        ...

    def prediction_names(self, examples: Any, split: str) -> list[str]:
        """Return the names of the files that `write_predictions` writes, the main one first."""
        ...

    def write_predictions(
        self, examples: Any, features: Any, logits: list[np.ndarray], directory: str, split: str
    ) -> list[str]:
        """Write the predictions into a directory, and return the paths of the files, the main one first."""
        ...


FAMILIES = {
    **dict.fromkeys(GLUE, "bert_jax.tasks.glue"),
    **dict.fromkeys(("squad_v1", "squad_v2"), "bert_jax.tasks.squad"),
    **dict.fromkeys(("swag", "race", "choice"), "bert_jax.tasks.choice"),
    "ner": "bert_jax.tasks.ner",
    "text": "bert_jax.tasks.text",
}


def family_of(task: str) -> TaskFamily:
    """Return the module of a task.

    Raises:
      UserError: there is no such task; the message names the nearest.
    """
    task_defaults(task)
    return cast(TaskFamily, importlib.import_module(FAMILIES[task]))


def main_metric(task: str, labels: tuple[str, ...]) -> str:
    """Return the name in `score` that selects among runs; in the task text it is pearson for numbers (no labels)."""
    return "pearson" if task == "text" and not labels else family_of(task).MAIN_METRIC[task]


def noisy_examples(examples: Any, noise: NoiseConfig, seed: int = 0) -> Any:
    """Return the examples with errors; which ones is a pure function of the seed and the number of the example.

    The words of sentences with tags keep their number, so each keeps its tag.

    Args:
      examples: of one split, of the family's own type.
      noise: the errors; with a rate of 0 the examples stay as they are.

    Raises:
      UserError: answers are positions in the text (SQuAD), which errors would move.
    """
    if noise.rate == 0:
        return examples
    keys = bits(seed, Stream.EDITED_TEXT, np.arange(len(examples)))
    if isinstance(examples, Sentences):
        second = examples.second and _texts(examples.second, bits(keys, Stream.EDITED_TEXT, 1), noise)
        return dataclasses.replace(examples, first=_texts(examples.first, keys, noise), second=second)
    if isinstance(examples, ner.Examples):
        pairs = zip(examples.sentences, keys, strict=True)
        return dataclasses.replace(examples, sentences=tuple(_sentence(*pair, noise) for pair in pairs))
    if isinstance(examples, choice.Examples):
        pairs = zip(examples.questions, keys, strict=True)
        return dataclasses.replace(examples, questions=tuple(_question(*pair, noise) for pair in pairs))
    raise UserError(
        f"noise.rate={noise.rate} would move the answers of {examples.task}, which are positions in the text; leave it "
        "at 0, or choose a task whose answers are classes, numbers, choices or tags"
    )


def _texts(texts: list[str], keys: np.ndarray, noise: NoiseConfig) -> list[str]:
    return [edited_text(text, key, noise) for text, key in zip(texts, keys, strict=True)]


def _sentence(sentence: Sentence, key: np.ndarray, noise: NoiseConfig) -> Sentence:
    keys = bits(key, Stream.EDITED_WORD, np.arange(len(sentence.words)))
    return dataclasses.replace(sentence, words=tuple(edited_words(list(sentence.words), keys, noise)))


def _question(question: choice.Question, key: np.ndarray, noise: NoiseConfig) -> choice.Question:
    texts = [question.context, question.stem, *question.choices]
    context, stem, *choices = _texts(texts, bits(key, Stream.EDITED_TEXT, 2 + np.arange(len(texts))), noise)
    return question._replace(context=context, stem=stem, choices=tuple(choices))


def recorded_task(history: dict[str, Any]) -> str:
    """Return the task that the model of `history` (StoredModel.history) was fine-tuned on; "" if not recorded."""
    return _settings(history).get("task", "")


def recorded_config(history: dict[str, Any], task: str) -> FinetuneConfig:
    """Return the options of its fine-tuning for `task`, usually its own; ax is read as mnli is.

    For a model from elsewhere these are the defaults of `task`.
    """
    task, settings = "mnli" if task == "ax" else task, _settings(history)
    return with_options(from_dict(FinetuneConfig, settings), {"task": task}) if settings else task_defaults(task)


def recorded_pairs(history: dict[str, Any]) -> bool | None:
    """Return whether the model was fine-tuned on pairs of texts; None of a task without texts, or if not recorded."""
    return (history.get("config") or {}).get("pairs")


def check_pairs(
    history: dict[str, Any], features: Features, tokenizer: Tokenizer, named: Callable[[int], str], path: str
) -> None:
    """Raise a UserError about a pair for a model that was fine-tuned on single texts, and the reverse.

    Args:
      features: features of texts, or of pairs, which have more than one [SEP].
      named: returns how a message names the example of a number, from 0.
    """
    pairs = recorded_pairs(history)
    ends = (np.count_nonzero(ids == tokenizer.sep_id) for ids in features.input_ids)
    wrong = next((number for number, count in enumerate(ends) if (count > 1) != pairs), None)
    if pairs is not None and wrong is not None:
        seen, taught = ("a single text", "pairs of texts") if pairs else ("a pair", "single texts")
        raise UserError(
            f"{named(wrong)} is {seen}, but {path} was fine-tuned on {taught} ({recorded_task(history)}) "
            f"and its answers would mean nothing; give {taught}, or a model that was fine-tuned on what you have"
        )


def recorded_options(history: dict[str, Any], task: str, positions: int) -> SequenceOptions:
    """Return the options of its sequences, with the "no answer" threshold that was best on dev unless one was given.

    For a model from elsewhere these are the defaults of `task`. Lengths are within `positions` tokens in either case:
    new questions are cut to a third of a row, or no shorter than those that such short rows were trained with.
    """
    options = tuned(recorded_config(history, task).options, history.get("metrics") or {})
    assert isinstance(options, SequenceOptions)  # even of ax
    length = min(options.max_length, positions)
    if isinstance(options, SquadOptions) and options.max_query_length + 3 >= length:
        room = 5  # at most, for what `_check_room` of squad.py wants next to a question
        longest = length - room if length == options.max_length else length // 3
        options = dataclasses.replace(options, max_query_length=max(longest, 1))
    return dataclasses.replace(options, max_length=length)


def without_metrics(history: dict[str, Any]) -> dict[str, Any]:
    """Return `history` for parameters that may differ from those evaluated; a threshold tuned on dev is kept."""
    settings = _settings(history)
    if "options" in settings:
        options = tuned(from_dict(FinetuneConfig, settings).options, history.get("metrics") or {})
        history = history | {"config": history["config"] | {"finetune": settings | {"options": to_dict(options)}}}
    return history | {"metrics": None}


def _settings(history: dict[str, Any]) -> dict[str, Any]:
    return (history.get("config") or {}).get("finetune") or {}


@dataclasses.dataclass(frozen=True)
class Split:
    examples: Any
    """Examples of the family's own type, which has labels, has_answers and a length."""
    features: Features


@dataclasses.dataclass(frozen=True)
class TaskData:
    task: str
    family: TaskFamily
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
    config: FinetuneConfig, model: EncoderConfig, tokenizer: Tokenizer, given: Mapping[str, Sequence[Any]] | None = None
) -> TaskData:
    """Read and tokenize train, dev and, if it exists, test.

    Args:
      given: rows of those splits of the task text that are in memory.

    Raises:
      UserError: the family rejects the files, max_length exceeds the model's positions, a model with one segment gets
        pairs, or the dev set has no labels.
    """
    if config.max_length > model.longest_sequence:
        raise UserError(
            f"options.max_length={config.max_length}, but {config.init_from} has "
            f"{model.longest_sequence} positions; set --options.max_length={model.longest_sequence}"
        )
    family = family_of(config.task)

    def split(name: str, labels: tuple[str, ...] | None = None) -> Split:
        if isinstance(config.data, TextDataConfig):
            examples = text.load(config.task, config.data, name, labels, given)
        else:
            examples = family.load(config.task, config.data, name, labels)
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
    if isinstance(config.options, SentenceOptions):
        changes["windows"] = config.options.windows
    if config.head_dropout is not None:
        changes["dropout"] = config.head_dropout
    head = dataclasses.replace(family.head(config.task, labels), **changes)
    tests = {name: split(name, labels) for name in others if name.startswith("test")}
    return TaskData(config.task, family, head, train, evaluations, tests)

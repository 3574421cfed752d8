"""All data of fine-tuning before it starts: the splits of a task as sequences, the head, and the task's module.

Splits can be read with spelling errors in their texts, put in before tokenization; the answers stay. The checkpoint
of a fine-tuned model records its task and the options of its sequences. All prediction uses these, so that new inputs
are cut, windowed and answered as in the model's evaluation.
"""

import dataclasses
import hashlib
import importlib
import json
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, cast

import numpy as np

from bert_jax.config import EncoderConfig, HeadConfig
from bert_jax.config.finetuning import FinetuneConfig, task_defaults
from bert_jax.config.options import from_dict, to_dict, with_options
from bert_jax.config.pretraining import NoiseConfig
from bert_jax.config.tasks import (
    DIAGNOSES,
    GLUE,
    SUPERGLUE_SENTENCES,
    DividedDataConfig,
    RankingOptions,
    SentenceOptions,
    SequenceOptions,
    SquadOptions,
    TaskOptions,
    TextDataConfig,
)
from bert_jax.data.sequences import Features
from bert_jax.data.spelling_errors import edited_text, edited_words
from bert_jax.errors import UserError
from bert_jax.randomness import Stream, bits, permute
from bert_jax.tasks import choice, ner, readers, sentences, squad
from bert_jax.tasks.conll import Sentence
from bert_jax.tasks.sentences import SentenceFeatures, Sentences
from bert_jax.tokenization.tokenizer import Tokenizer


class Examples(Protocol):
    """The examples of a split, of a type of each family; what has no docstring here is in `readers.DividedExamples`."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes; empty if there are none."""
        ...

    @property
    def has_answers(self) -> bool: ...

    @property
    def unit(self) -> str:
        """Name of what is not divided: texts, documents, articles."""
        ...

    @property
    def together(self) -> Sequence[Hashable]:
        """What each example is a part of, such as its article: those with the same are held out together."""
        ...

    @property
    def classes(self) -> list[str] | None: ...

    @property
    def pairs(self) -> bool | None: ...

    def judged(self) -> Self: ...

    def chosen(self, numbers: np.ndarray) -> Self:
        """Return those of the examples that have these numbers."""
        ...

    def __len__(self) -> int: ...


class TaskFamily(Protocol):
    """A module of tasks. Data and options are of the kinds of its tasks, and examples of a type of its own that is
    `Examples`."""

    def splits(self, task: str, data: Any) -> tuple[str, ...]:
        """Return those splits of the task that the data has."""
        ...

    def load(
        self,
        task: str,
        data: Any,
        split: str,
        labels: tuple[str, ...] | None = None,
        given: readers.Given | None = None,
    ) -> Any:
        """Return the examples of one split.

        Args:
          labels: the classes in the order of a model's outputs; None for the split to train on, which determines them.
          given: rows of the splits that are in memory, see `readers.rows_of`.
        """
        ...

    def features(self, examples: Any, tokenizer: Tokenizer, options: Any) -> Any:
        """Return the sequences of the examples, `Features` or more than those."""
        ...

    def head(self, task: str, labels: tuple[str, ...]) -> HeadConfig:
        """Return the head that a model needs."""
        ...

    def metrics(self, examples: Any) -> tuple[str, ...]:
        """Return the metrics by which runs can be compared on these examples of dev, the usual one first."""
        ...

    def score(self, examples: Any, features: Any, logits: list[np.ndarray]) -> dict[str, float]:
        """Return the metrics of the scores of every sequence, those of `metrics` and perhaps others."""
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
    **dict.fromkeys((*SUPERGLUE_SENTENCES, "copa", "axb", "axg"), "bert_jax.tasks.superglue"),
    "xnli": "bert_jax.tasks.xnli",
    **dict.fromkeys(("squad_v1", "squad_v2"), "bert_jax.tasks.squad"),
    **dict.fromkeys(("swag", "race", "choice"), "bert_jax.tasks.choice"),
    "ner": "bert_jax.tasks.ner",
    "text": "bert_jax.tasks.text",
    "vectors": "bert_jax.tasks.vectors",
    "ranking": "bert_jax.tasks.ranking",
}


def family_of(task: str) -> TaskFamily:
    """Return the module of a task.

    Raises:
      UserError: there is no such task; the message names the nearest.
    """
    task_defaults(task)
    return cast(TaskFamily, importlib.import_module(FAMILIES[task]))


def family_for(task: str, head: HeadConfig, path: str) -> TaskFamily:
    """Return the module of a task that the model in `path` answers with its head.

    Raises:
      UserError: the task needs a head of another kind.
    """
    family = family_of(task)
    usual = family.head(task, head.labels).kind
    wanted = (usual, "multilabel") if task == "text" and usual == "classification" else (usual,)
    if head.kind not in wanted:
        raise UserError(
            f"{path} has a {head.kind} head, but {task} needs one of {' or '.join(wanted)}; give another model or "
            "another task"
        )
    return family


Metric = Callable[[np.ndarray, np.ndarray], float]
"""A function of answers and predictions as `sentences.answered` returns them, from outside the package."""


def check_metrics(task: str, metrics: Mapping[str, Metric]) -> None:
    """Raise a UserError about metrics from outside that are not functions by name, or have nothing to measure."""
    if not isinstance(metrics, Mapping):
        raise UserError(f"metrics={metrics!r:.60} must be a dict from names to functions of (answers, predictions)")
    for name, function in metrics.items():
        if not (isinstance(name, str) and re.fullmatch(r"\w+", name)) or not callable(function):
            raise UserError(
                f"metrics has {name!r:.60}: {function!r:.60}; expected a name of letters, digits and _, and a function "
                "of (answers, predictions) that returns a number"
            )
    if metrics and task not in SentenceOptions.chosen_for:
        raise UserError(
            f"metrics belong to tasks on sentences ({', '.join(SentenceOptions.chosen_for)}), not to {task}"
        )


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


def tuned(options: TaskOptions, metrics: Mapping[str, float], head: HeadConfig | None) -> TaskOptions:
    """Return `options` for prediction after training: with the thresholds best on dev, unless some are given."""
    if isinstance(options, SentenceOptions):
        return options if head is None else sentences.tuned(options, metrics, head)
    return squad.tuned(options, dict(metrics))


def recorded_task(history: dict[str, Any]) -> str:
    """Return the task that the model of `history` (StoredModel.history) was fine-tuned on; "" if not recorded."""
    return _settings(history).get("task", "")


def recorded_config(history: dict[str, Any], task: str, head: HeadConfig | None = None) -> FinetuneConfig:
    """Return the options of its fine-tuning for `task`, usually its own; of a diagnostic set those of what it tests.

    For a model from elsewhere these are the defaults of `task`; whether a text has several labels, its `head` says.
    """
    task, settings = DIAGNOSES.get(task, task), _settings(history)
    found = with_options(from_dict(FinetuneConfig, settings), {"task": task}) if settings else task_defaults(task)
    if head is not None and head.kind == "multilabel" and isinstance(found.data, TextDataConfig):  # from elsewhere too
        found = dataclasses.replace(found, data=dataclasses.replace(found.data, several_labels=True))
    return found


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


def recorded_options(
    history: dict[str, Any], task: str, positions: int, head: HeadConfig | None = None
) -> SequenceOptions:
    """Return the options of its sequences, with the thresholds that were best on dev unless some were given.

    For a model from elsewhere these are the defaults of `task`. Lengths are within `positions` tokens in either case:
    new questions are cut to a third of a row, or no shorter than those that such short rows were trained with.
    """
    options = tuned(recorded_config(history, task).options, history.get("metrics") or {}, head)
    assert isinstance(options, SequenceOptions)  # even of a diagnostic set
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
        head = from_dict(HeadConfig, history["config"].get("head") or {})
        options = tuned(from_dict(FinetuneConfig, settings).options, history.get("metrics") or {}, head)
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
    metrics: Mapping[str, Metric] = dataclasses.field(default_factory=dict)
    """Those from outside, by name."""
    select_by: str = ""
    """The metric that chooses among runs, if it is not the task's main one."""
    held_out: float = 0.0
    """Share of what the training examples are parts of that has become the dev set."""
    parts: np.ndarray | None = None
    """int [E]: part of each training example in a cross-validation, from 0; there are no evaluations but these."""
    clean: Split | None = None
    """The training examples without spelling errors, which are evaluated part by part."""
    as_split: Callable[[Any], Split] | None = None
    """Makes the sequences of some of the examples."""

    @property
    def fewest_sequences(self) -> int:
        """Number of sequences that every run trains on, at least."""
        features = self.train.features
        if self.parts is None:
            return features.in_epoch
        return features.in_epoch - int(np.bincount(self.parts[features.divided]).max())

    def fold(self, number: int) -> "TaskData":
        """Return the data of a run of a cross-validation: dev is part `number`, from 0, and train all others."""
        assert self.parts is not None and self.clean is not None and self.as_split, "there is a cross-validation"
        here = self.parts == number
        train, dev = self.train.examples.chosen(np.flatnonzero(~here)), self.clean.examples.chosen(np.flatnonzero(here))
        _check_weights(split := self.as_split(train))
        return dataclasses.replace(self, train=split, evaluations={"dev": self.as_split(dev)})

    @property
    def comparable(self) -> bool:
        """Whether the scores that different models give different examples can be judged together: vectors cannot."""
        return self.head.kind != "vectors"

    @property
    def splits(self) -> dict[str, Split]:
        """All splits by name, train first."""
        return {"train": self.train} | self.evaluations | self.tests

    @property
    def pairs(self) -> bool | None:
        """Whether the examples, and so the model's inputs, are pairs of texts; None if they are not only texts."""
        return self.train.examples.pairs

    @property
    def truncated(self) -> dict[str, float]:
        """Share of the examples of each split that are longer than what is read (for SQuAD, of the questions)."""
        return {
            name: split.features.uncut.share for name, split in self.splits.items() if split.features.uncut is not None
        }

    @property
    def main_metric(self) -> str:
        return self.select_by or self.selecting[0]

    @property
    def _judged(self) -> Split:
        """Examples by which runs are compared, or of a cross-validation all those that are."""
        return self.evaluations["dev"] if self.evaluations else self.train

    @property
    def selecting(self) -> tuple[str, ...]:
        """Metrics of the task by which runs can be compared, the usual one first."""
        return self.family.metrics(self._judged.examples)

    def scores(self, split: Split, features: Features, logits: list[np.ndarray]) -> dict[str, float]:
        """Return the metrics of a split that has answers, those from outside after those of the task."""
        found = {key: float(value) for key, value in self.family.score(split.examples, features, logits).items()}
        if self.metrics:
            answers, predictions = sentences.answered(split.examples, cast(SentenceFeatures, features), logits)
            found |= {name: _measured(name, each, answers, predictions) for name, each in self.metrics.items()}
        return found

    def measured_by(self, metrics: Mapping[str, Metric], select_by: str) -> "TaskData":
        """Return the data with metrics from outside, tried on the answers of dev, and the name of the one that chooses.

        Raises:
          UserError: one has the name of another or returns no number, or `select_by` is none of all.
        """
        usual, examples = self.selecting, self._judged.examples
        if taken := next((name for name in metrics if name in usual), None):
            raise UserError(f"metrics has {taken!r}, the name of one that {self.task} has already; give yours another")
        if select_by and select_by not in (known := [*usual, *metrics]):
            raise UserError(f"select_by={select_by!r:.60} is none of the metrics on dev, {', '.join(known)}")
        for name, function in metrics.items():
            answers = sentences.named_answers(examples)
            _measured(name, function, answers, answers)
        return dataclasses.replace(self, metrics=metrics, select_by=select_by)

    def fingerprint(self) -> str:
        """Return the fingerprint of training and dev set, which must not change within a work directory."""
        return _fingerprint((self.train, *self.evaluations.values()))

    def test_fingerprint(self) -> str:
        """Return the fingerprint of the test sets and of the names of their examples in files of predictions."""
        names = [list(getattr(split.examples, "index", ())) for split in self.tests.values()]
        return hashlib.sha256(json.dumps([_fingerprint(self.tests.values()), names]).encode()).hexdigest()


def _measured(name: str, function: Metric, answers: np.ndarray, predictions: np.ndarray) -> float:
    """Return what a metric from outside says of copies of the arrays; what is undefined counts as 0."""
    try:
        value = function(answers.copy(), predictions.copy())
    except Exception as error:  # whatever a function from outside raises
        raise UserError(
            f"the metric {name!r} raised {type(error).__name__}: {str(error)[:200]}; it gets arrays of answers and "
            "predictions, and returns a number, NaN for what is undefined"
        ) from error
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise UserError(f"the metric {name!r} returned {value!r:.60}; expected a number") from None
    return found if math.isfinite(found) else 0.0


def _fingerprint(splits: Iterable[Split]) -> str:
    """Return the SHA-256 over sequences, labels and whatever else the metric compares answers with."""
    digest = hashlib.sha256()
    for split in splits:
        digest.update(json.dumps(getattr(split.examples, "gold", None)).encode())
        features = split.features
        for part in (features.input_ids, features.token_type_ids, features.labels, features.weights):
            for values in _arrays(part):
                digest.update(np.ascontiguousarray(values).tobytes() + b"|")
    return digest.hexdigest()


def _arrays(part: Any) -> Iterator[np.ndarray]:
    """Yield the arrays of one part of features, of which choices have several per example."""
    for entry in () if part is None else part:
        yield from entry if isinstance(entry, list) else [entry]


def read_task(
    config: FinetuneConfig, model: EncoderConfig, tokenizer: Tokenizer, given: readers.Given | None = None
) -> TaskData:
    """Read and tokenize train, dev and, if it exists, test.

    Without a dev set, some of the training examples are held out, see `DividedDataConfig`.

    Args:
      given: rows of the splits that are in memory, see `readers.in_memory`.

    Raises:
      UserError: the family rejects the files, max_length exceeds the model's positions, a model with one segment gets
        pairs, the dev set has no labels, or too few training examples would become one.
    """
    if config.max_length > model.longest_sequence:
        raise UserError(
            f"options.max_length={config.max_length}, but {config.init_from} has "
            f"{model.longest_sequence} positions; set --options.max_length={model.longest_sequence}"
        )
    family, data = family_of(config.task), config.data
    assert isinstance(data, DividedDataConfig), "the task is trained"
    present = family.splits(config.task, data)
    share = held_out_share(data, present)

    def split(examples: Any) -> Split:
        return Split(examples, family.features(examples, tokenizer, config.options))

    clean, evaluations = family.load(config.task, data, "train", None, given), {}
    labels = clean.labels

    def evaluated(name: str) -> Split:
        examples = family.load(config.task, data, name, labels, given)
        _check_texts(clean, examples, name)
        return split(examples)

    if share:
        out = held_out(clean, share, data.stratified is not False)
        evaluations["dev"] = split(clean.chosen(np.flatnonzero(out)).judged())
        clean = clean.chosen(np.flatnonzero(~out))
    train = split(noisy_examples(clean, config.noise))
    _check_train(config, model, train)
    devs = () if config.folds else (name for name in ("dev", *present) if name.startswith("dev"))
    evaluations |= {name: evaluated(name) for name in dict.fromkeys(devs) if name not in evaluations}
    if evaluations:
        _check_dev(data, present, evaluations["dev"].examples, len(clean))
    head = _head(config, family, labels)
    tests = {name: evaluated(name) for name in present if name.startswith("test")}
    task = TaskData(config.task, family, head, train, evaluations, tests, held_out=share)
    if not config.folds:
        return task
    judged = clean.judged()
    scored = train if judged is train.examples else split(judged)
    _check_answers(judged)
    return dataclasses.replace(task, parts=folds(clean, config.folds), clean=scored, as_split=split)


def _check_train(config: FinetuneConfig, model: EncoderConfig, train: Split) -> None:
    """Raise a UserError if the model cannot read the training examples, or none of them counts."""
    if model.type_vocab_size == 1 and any(map(np.any, _arrays(train.features.token_type_ids))):
        raise UserError(
            f"{config.task} has pairs of texts, but {config.init_from} has one segment (type_vocab_size=1) and cannot "
            "read them; take another model, or join the two texts in files of your own"
        )
    _check_weights(train)


def _check_weights(train: Split) -> None:
    if train.features.weights is not None and not np.any(train.features.weights):
        raise UserError("every training example has the weight 0: there is nothing to learn; give some a higher one")


USUAL_SHARE = 0.1
"""Share of the training examples without a dev set that is held out as one."""
FEWEST = 10
"""Examples of such a part by which runs can be compared; fewer must be asked for."""


def held_out_share(data: DividedDataConfig, present: Sequence[str]) -> float:
    """Return the share of the training examples that is held out as dev: `data.dev_share` or, if that is None, a tenth.

    It is 0 where there are dev examples, or where they are the parts of a cross-validation. A benchmark's directory
    without its dev file is a mistake, and none is made for it.

    Args:
      present: the splits that the data has.
    """
    if data.folds:
        if data.dir and "dev" in present:
            raise UserError(
                f"data.folds={data.folds} scores every training example, so the dev data of data.dir={data.dir} have "
                "no use; leave the option out, or name the training examples alone: --data.train=FILE"
            )
        return 0.0
    if data.dev_share is None:
        own = data.train or isinstance(data, TextDataConfig)
        return USUAL_SHARE if own and "dev" not in present else 0.0
    if data.dev_share and "dev" in present:
        where = f"data.dir={data.dir} has a dev file" if data.dir else f"{data.named} has a dev split"
        raise UserError(f"data.dev_share={data.dev_share}, but {where}; leave the option out")
    return data.dev_share


def held_out(examples: Examples, share: float, stratified: bool) -> np.ndarray:
    """Return which training examples become the dev set, bool [E]; which these are depends on the examples alone.

    Args:
      share: of what the examples are parts of, see `Examples.together`.
      stratified: whether it is the same of every class, where an example has one.

    Raises:
      UserError: that leaves nothing for one of the two.
    """
    groups = _groups(examples, stratified)
    sizes = np.cumsum([0, *map(len, groups)])
    total = int(sizes[-1])
    # Of the sums, so that small classes are not left out by rounding; one text of each class is for training.
    counts = np.diff([round(share * int(size)) for size in sizes])
    if groups[1:]:
        counts = np.minimum(counts, np.diff(sizes) - 1)
    if not 0 < counts.sum() < total:
        raise UserError(
            f"data.dev_share={share} of {total:,} different {examples.unit} leaves none "
            f"{'to learn from' if counts.sum() else 'for dev'}; give another share, or --data.dev=FILE"
        )
    chosen = {each for group, count in zip(groups, counts, strict=True) for each in group[:count]}
    return np.array([each in chosen for each in examples.together])


def folds(examples: Examples, count: int) -> np.ndarray:
    """Return the part of each example in a cross-validation, int [E] from 0 on.

    What belongs together (see `Examples.together`) is in one part, and each part has the same share of every class, to
    within one text.

    Raises:
      UserError: there are fewer different texts than parts.
    """
    different = [each for group in _groups(examples, stratified=True) for each in group]
    if len(different) < count:
        raise UserError(
            f"data.folds={count}, but there are {len(different):,} different {examples.unit}; give at most that many"
        )
    part = {each: number % count for number, each in enumerate(different)}
    return np.array([part[each] for each in examples.together])


def _groups(examples: Examples, stratified: bool) -> list[list[Hashable]]:
    """Return what the examples are parts of, by the class of the first example of each, in a random order.

    Which order depends on the examples alone, and the classes are in the order of their names. Where an example has not
    one class, all are in one group.
    """
    classes = examples.classes if stratified else None
    first: dict[Hashable, str] = {}
    for each, name in zip(examples.together, classes or [""] * len(examples), strict=True):
        first.setdefault(each, name)
    different, groups = list(first), {name: [] for name in sorted(set(first.values()))}
    for place in permute(np.arange(len(different)), len(different), 0, Stream.HELD_OUT):
        groups[first[different[place]]].append(different[place])
    return list(groups.values())


def _check_texts(train: Examples, other: Examples, split: str) -> None:
    """Raise a UserError about a split of pairs beside single texts to train on, and the reverse."""
    if train.pairs != other.pairs:
        taught, seen = ("pairs of texts", "single texts") if train.pairs else ("single texts", "pairs")
        raise UserError(
            f"the training examples are {taught}, and those of {split} are {seen}; give the same columns everywhere "
            "(from Python text_column=…, pair_column=…; --data.text_column, --data.pair_column)"
        )


def _head(config: FinetuneConfig, family: TaskFamily, labels: tuple[str, ...]) -> HeadConfig:
    """Return the head that the options ask for; a UserError if there are neither thresholds for all classes nor one."""
    changes: dict[str, Any] = {
        name: getattr(config, name) for name in ("crf", "features", "lstm_size", "train_encoder")
    }
    if isinstance(config.options, SentenceOptions):
        changes["windows"] = config.options.windows
        if len(given := config.options.thresholds) not in (0, 1, len(labels)):
            raise UserError(
                f"options.thresholds has {len(given)} numbers, but the texts have {len(labels)} classes "
                f"({', '.join(labels):.200}); give one for each in this order, or one for all"
            )
    if isinstance(config.options, RankingOptions):
        changes["activation"] = config.options.loss.answers
    if config.several_labels:
        changes["kind"] = "multilabel"
    if config.head_dropout is not None:
        changes["dropout"] = config.head_dropout
    return dataclasses.replace(family.head(config.task, labels), **changes)


def _check_answers(dev: Examples) -> None:
    if not dev.has_answers:
        raise UserError(
            "the dev set has no labels, so it cannot be used to choose a run; give a labelled one with --data.dev=FILE"
        )


def _check_dev(data: DividedDataConfig, present: Sequence[str], dev: Examples, size: int) -> None:
    """Raise a UserError if there is nothing to choose runs by, `size` being the number of training examples."""
    _check_answers(dev)
    if data.dev_share is None and "dev" not in present and len(dev) < FEWEST:
        raise UserError(
            f"no dev data, and a tenth of {size + len(dev):,} training examples is too few to choose a run by: give "
            "--data.dev=FILE (from Python dev=…), --data.dev_share=0.3 to hold that share out all the same, or "
            "--data.folds=5 for a cross-validation"
        )

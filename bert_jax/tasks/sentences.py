"""Examples of one or two sentences with classes or a number, as in GLUE and the user's own text; their metrics.

The metrics are those of scikit-learn and SciPy on NumPy arrays, but defined in every case. Where a text may have
several labels, it has those whose probability reaches a threshold of their own.
"""

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from etils import epath

from bert_jax.config import HeadConfig
from bert_jax.config.tasks import SentenceOptions
from bert_jax.data.sequences import Features, Uncut
from bert_jax.errors import UserError
from bert_jax.files import write_atomically
from bert_jax.tasks import readers
from bert_jax.tokenization.tokenizer import Tokenizer, assembled, join, sequence_length


class Record(NamedTuple):
    """One example as spelled in its file."""

    where: str
    """File and line, for messages."""
    first: str
    second: str | None
    label: str | float | tuple[str, ...] | None
    """None if there is no label; a tuple where an example has several, or none of them."""
    index: str  # pyright: ignore[reportIncompatibleMethodOverride] (a field; nobody searches a record)
    """Name of the example in a file of predictions."""
    weight: float = 1.0
    """Factor of its loss in training."""


@dataclasses.dataclass(frozen=True)
class Sentences(readers.DividedExamples):
    """E examples of one split."""

    task: str
    first: list[str]
    second: list[str] | None
    """None if examples are single sentences."""
    answers: np.ndarray | None
    """int32 [E] into `labels`, bool [E, C] if `several`, or float64 [E] if `labels` is empty (regression); None without
    labels."""
    labels: tuple[str, ...]
    """Names of the classes in the order of the columns of the logits."""
    index: list[str]
    several: bool = False
    """Whether an example may have any number of labels."""
    weights: np.ndarray | None = None
    """float32 [E]: factor of the loss of each example in training; None: all count the same."""

    unit: ClassVar[str] = "texts"

    @property
    def together(self) -> list[Any]:
        """The texts, of which equal ones are held out together."""
        return list(zip(self.first, self.second or [None] * len(self), strict=True))

    @property
    def pairs(self) -> bool:
        return self.second is not None

    @property
    def classes(self) -> list[str] | None:
        if self.answers is None or not self.labels or self.several:
            return None
        return [self.labels[answer] for answer in self.answers]

    def chosen(self, numbers: np.ndarray) -> Self:
        """Return some of the examples."""
        columns = {name: [getattr(self, name)[number] for number in numbers] for name in ("first", "index")}
        second = self.second and [self.second[number] for number in numbers]
        answers, weights = (None if each is None else each[numbers] for each in (self.answers, self.weights))
        return dataclasses.replace(self, **columns, second=second, answers=answers, weights=weights)

    @property
    def has_answers(self) -> bool:
        return self.answers is not None

    def __len__(self) -> int:
        return len(self.first)


def collect(
    task: str,
    records: list[Record],
    labels: tuple[str, ...],
    numbers: dict[str, int],
    unlabelled: bool,
    several: bool = False,
) -> Sentences:
    """Return records as examples.

    Args:
      labels: names of the classes; empty for regression.
      numbers: class of each spelling of a label.
      unlabelled: whether all labels may be missing (test sets).
      several: whether an example has any number of labels; a test set in which none has any is without labels.

    Raises:
      UserError: a label is missing, unknown or not a number (names file and line).
    """
    answers = None
    if not (unlabelled and all(record.label in (None, ()) for record in records)):
        answer, kind = (_answers, np.bool_) if several else (_answer, np.int32 if labels else np.float64)
        answers = np.array([answer(record, labels, numbers) for record in records], kind)
    second = [record.second for record in records if record.second is not None]
    return Sentences(
        task,
        [record.first for record in records],
        second if len(second) == len(records) else None,
        answers,
        labels,
        [record.index for record in records],
        several,
        readers.weights_of(records),
    )


@dataclasses.dataclass(frozen=True)
class SentenceFeatures(Features):
    """Sequences, and what reading answers from their scores needs."""

    options: SentenceOptions = dataclasses.field(kw_only=True)


def features(examples: Sentences, tokenizer: Tokenizer, options: SentenceOptions) -> SentenceFeatures:
    """Return one sequence per example, in which the longer sentence is cut first."""
    first = tokenizer.encode_batch(examples.first)
    if options.windows:
        return in_windows(first, tokenizer, options, examples)
    second = [None] * len(first) if examples.second is None else tokenizer.encode_batch(examples.second)
    joined = [join(tokenizer, *pair, options.max_length) for pair in zip(first, second, strict=True)]
    lengths = np.array([sequence_length(tokenizer, *pair) for pair in zip(first, second, strict=True)])
    return SentenceFeatures(
        [ids for ids, _ in joined],
        [types for _, types in joined],
        _numbered(examples),
        np.arange(len(joined), dtype=np.int32),
        options.max_length,
        uncut=Uncut(lengths, options.max_length, "texts" if examples.second is None else "pairs"),
        options=options,
        weights=examples.weights,
    )


def _numbered(examples: Sentences) -> np.ndarray | None:
    answers, whole = examples.answers, examples.labels and not examples.several
    return None if answers is None else answers.astype(np.int32 if whole else np.float32)


def in_windows(
    texts: Sequence[Sequence[int] | np.ndarray],
    tokenizer: Tokenizer,
    options: SentenceOptions,
    examples: Sentences | None = None,
) -> SentenceFeatures:
    """Return the windows of each text, which overlap and cover it: one of a text that fits into one.

    Args:
      texts: ids without special tokens.
      examples: those that the texts are of; None: they have no labels.

    Raises:
      UserError: the examples are pairs of texts.
    """
    if examples is not None and examples.second is not None:
        raise UserError(
            f"options.windows={options.windows} reads single texts in windows, and {examples.task} has pairs here; "
            "leave it out"
        )
    room, overlap = options.max_length - 2, options.window_overlap
    windows = [
        [
            assembled(tokenizer, list(ids[start : start + room]))
            for start in range(0, max(len(ids) - overlap, 1), room - overlap)
        ]
        for ids in texts
    ]
    return SentenceFeatures(
        [[ids for ids, _ in each] for each in windows],
        [[types for _, types in each] for each in windows],
        None if examples is None else _numbered(examples),
        np.arange(len(windows), dtype=np.int32),
        options.max_length,
        in_windows=True,
        options=options,
        weights=None if examples is None else examples.weights,
    )


def predictions(examples: Sentences, logits: Sequence[np.ndarray]) -> np.ndarray:
    """Return the class of the highest logit, int [E], or the estimated number, float [E]; a row of logits each."""
    values = _checked(examples, logits)
    return values.argmax(axis=1) if examples.labels else values.reshape(len(examples))


def _checked(examples: Sentences, logits: Sequence[np.ndarray]) -> np.ndarray:
    """Return the logits as float64; raise a UserError unless there is a row for each example."""
    if len(logits) != len(examples):
        raise UserError(f"{len(logits)} rows of logits for {len(examples)} examples of {examples.task}")
    return np.asarray(logits, np.float64)


def probabilities(logits: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Return the probability that a text has a label, whatever others it has, float64 [E, C], from its logits."""
    return np.exp(-np.logaddexp(0.0, -np.nan_to_num(np.asarray(logits, np.float64))))


def thresholds(examples: Sentences, features: SentenceFeatures, shares: np.ndarray) -> np.ndarray:
    """Return the probability from which an example has each label, float64 [C].

    It is that of the options or else, of examples with answers, that with the best F1 on them, for `shares` of
    `probabilities`.
    """
    if (given := features.options.thresholds) or examples.answers is None:
        return np.broadcast_to(np.array(given or (0.5,), np.float64), len(examples.labels))
    return np.array([best_threshold(*columns) for columns in zip(examples.answers.T, shares.T, strict=True)])


def judged(
    examples: Sentences, features: SentenceFeatures, logits: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which labels the examples have by their logits.

    Returns:
      The probability of each label, float64 [E, C]; the threshold of each, float64 [C]; which reach it, bool [E, C].
    """
    shares = probabilities(_checked(examples, logits))
    cuts = thresholds(examples, features, shares)
    return shares, cuts, shares >= cuts


def best_threshold(there: np.ndarray, shares: np.ndarray) -> float:
    """Return the probability from which to say that an example has a label, so that the F1 is the best.

    It is halfway between two neighbouring ones; of several that are as good, it is the nearest to 0.5, as it is if no
    example has the label.

    Args:
      there: bool [E], whether an example has it.
      shares: float64 [E], probability of that.
    """
    if not there.any():
        return 0.5
    order = np.argsort(-shares, kind="stable")
    ranked, below = shares[order], np.append(shares[order][1:], 0.0)
    quality = 2 * np.cumsum(there[order]) / (np.arange(1, len(ranked) + 1) + there.sum())
    quality[below == ranked] = -1.0  # equal ones are said together
    halfway = (ranked + below) / 2
    cuts = np.where(halfway > below, halfway, ranked)[quality == quality.max()]
    return float(cuts[np.abs(cuts - 0.5).argmin()])


THRESHOLD = "threshold:"
"""What the name of a metric begins with that is the threshold of the class behind it."""


def tuned(options: SentenceOptions, metrics: Mapping[str, float], head: HeadConfig) -> SentenceOptions:
    """Return `options` for prediction after training: with the thresholds that were best on dev, unless some are given.

    Those that are not recorded, as of models from elsewhere, are 0.5.
    """
    if head.kind != "multilabel":
        return options
    recorded = (metrics.get(f"{THRESHOLD}{label}", 0.5) for label in head.labels)
    found = options.thresholds or tuple(recorded)
    if len(found) not in (1, len(head.labels)) or not all(type(each) is float and 0 <= each <= 1 for each in found):
        raise UserError(
            f"the model records the thresholds {found!r:.80} for its {len(head.labels)} labels, which are no "
            "probabilities of each; its record is damaged"
        )
    return dataclasses.replace(options, thresholds=found)


def several_scores(examples: Sentences, features: SentenceFeatures, logits: Sequence[np.ndarray]) -> dict[str, float]:
    """Return micro_f1, macro_f1 and exact_match at the thresholds, and the threshold of each label."""
    assert examples.answers is not None, "has_answers comes first"
    _, cuts, found = judged(examples, features, logits)
    return {
        "micro_f1": micro_f1(examples.answers, found),
        "macro_f1": float(np.mean([figures["f1"] for figures in by_class(examples.answers, found)])),
        "exact_match": float(np.mean((examples.answers == found).all(axis=1))),
        **{f"{THRESHOLD}{label}": float(cut) for label, cut in zip(examples.labels, cuts, strict=True)},
    }


def named_answers(examples: Sentences) -> np.ndarray:
    """Return answers as others compare them: names [E], bool [E, C] of several labels, or numbers [E]."""
    assert examples.answers is not None, "has_answers comes first"
    named = examples.labels and not examples.several
    return np.array(examples.labels)[examples.answers] if named else examples.answers


def answered(
    examples: Sentences, features: SentenceFeatures, logits: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return answers and predictions in the form of `named_answers`."""
    found = judged(examples, features, logits)[2] if examples.several else predictions(examples, logits)
    return named_answers(examples), named_answers(dataclasses.replace(examples, answers=found))


def write_lines(directory: str, name: str, lines: Iterable[str]) -> list[str]:
    """Write a file of predictions into a directory, which is made if there is none; return its path."""
    file = epath.Path(directory) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, "".join(f"{line}\n" for line in lines).encode())
    return [str(file)]


def head(task: str, labels: tuple[str, ...]) -> HeadConfig:
    """Return a classifier with these classes or, without any, a regressor."""
    return HeadConfig(kind="classification" if labels else "regression", labels=tuple(labels))


def _answers(record: Record, labels: tuple[str, ...], numbers: dict[str, int]) -> np.ndarray:
    """Return which of the labels an example has, bool [C]."""
    if record.label is None:
        raise UserError(f"{record.where}: the labels are missing; an example without any has an empty list or field")
    found = np.zeros(len(labels), bool)
    for name in record.label if isinstance(record.label, tuple) else (record.label,):
        found[int(_answer(record._replace(label=name), labels, numbers))] = True
    return found


def _answer(record: Record, labels: tuple[str, ...], numbers: dict[str, int]) -> int | float:
    if record.label is None:
        raise UserError(f"{record.where}: the label is missing")
    if not labels:
        return _number(record)
    if record.label not in numbers:
        close = difflib.get_close_matches(str(record.label), numbers, n=1)
        raise UserError(
            f"{record.where}: unknown label {record.label!r}; expected one of {', '.join(list(numbers)[:20])}"
            + (f"; perhaps {close[0]!r} is meant" if close else "")
        )
    return numbers[record.label]


def _number(record: Record) -> float:
    try:
        value = float(record.label) if isinstance(record.label, str | int | float) else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{record.where}: the label {record.label!r} is not a number")
    return value


def accuracy(answers: np.ndarray, predictions: np.ndarray) -> float:
    """Return the share of equal entries of two integer arrays [E]."""
    answers, predictions = _pair(answers, predictions)
    return float(np.mean(answers == predictions))


def f1(answers: np.ndarray, predictions: np.ndarray) -> float:
    """Return the F1 of class 1 for integer arrays [E]; 0 if class 1 neither occurs nor is predicted."""
    answers, predictions = _pair(answers == 1, predictions == 1)
    found, there_or_predicted = np.sum(answers & predictions), np.sum(answers) + np.sum(predictions)
    return float(2 * found / there_or_predicted) if there_or_predicted else 0.0


def matthews(answers: np.ndarray, predictions: np.ndarray) -> float:
    """Return Matthews' correlation (1975; for more than two classes Gorodkin 2004) of integer arrays [E].

    It is 0 if the answers or the predictions are all in one class.
    """
    answers, predictions = _pair(answers, predictions)
    classes, both = np.unique(np.concatenate([answers, predictions]), return_inverse=True)
    there, predicted = (np.bincount(part, minlength=len(classes)).astype(np.float64) for part in np.split(both, 2))
    total = np.float64(len(answers))
    covariance = np.sum(answers == predictions) * total - there @ predicted
    variances = (total**2 - predicted @ predicted) * (total**2 - there @ there)
    return float(covariance / np.sqrt(variances)) if variances else 0.0


def pearson(answers: np.ndarray, predictions: np.ndarray) -> float:
    """Return the linear correlation of two arrays [E], in float64; 0 if one is constant or has NaN or infinity."""
    answers, predictions = (np.asarray(part, np.float64) for part in _pair(answers, predictions))
    if not (np.isfinite(answers).all() and np.isfinite(predictions).all()):
        return 0.0
    if (answers == answers[0]).all() or (predictions == predictions[0]).all():
        return 0.0
    correlation = np.vecdot(_unit(answers - answers.mean()), _unit(predictions - predictions.mean()))
    return float(np.clip(correlation, -1.0, 1.0))


def spearman(answers: np.ndarray, predictions: np.ndarray) -> float:
    """Return the Pearson correlation of the ranks of two arrays [E], ties at their mean rank; 0 in the same cases."""
    answers, predictions = _pair(answers, predictions)
    if not (np.isfinite(answers).all() and np.isfinite(predictions).all()):
        return 0.0
    ranks = _ranks(answers), _ranks(predictions)
    return float(np.corrcoef(ranks)[0, 1]) if all(np.ptp(part) for part in ranks) else 0.0


def by_class(answers: np.ndarray, predictions: np.ndarray) -> list[dict[str, float]]:
    """Return precision, recall, f1 and support of each class; what is undefined is 0.

    Args:
      answers: bool [E, C], which classes an example has.
      predictions: bool [E, C].
    """
    right, said, there = (answers & predictions).sum(0), predictions.sum(0), answers.sum(0)
    return [
        {
            "precision": float(hits / max(claims, 1)),
            "recall": float(hits / max(support, 1)),
            "f1": float(2 * hits / max(claims + support, 1)),
            "support": int(support),
        }
        for hits, claims, support in zip(right, said, there, strict=True)
    ]


def micro_f1(answers: np.ndarray, predictions: np.ndarray) -> float:
    """Return the F1 of all cells of two arrays bool [E, C] together; 0 if neither has any."""
    return float(2 * (answers & predictions).sum() / max(answers.sum() + predictions.sum(), 1))


def macro_f1(answers: np.ndarray, predictions: np.ndarray) -> float:
    """Return the mean of the F1 of all classes that occur in one of two integer arrays [E]."""
    return float(np.mean([figures["f1"] for figures in by_class(*_cells(*_pair(answers, predictions)))]))


def balanced_accuracy(answers: np.ndarray, predictions: np.ndarray) -> float:
    """Return the mean of the recall of all classes that occur in `answers`, of two integer arrays [E]."""
    found = by_class(*_cells(*_pair(answers, predictions)))
    return float(np.mean([figures["recall"] for figures in found if figures["support"]]))


def _cells(answers: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the two as bool [E, C], for the C classes that occur in one of them."""
    classes = np.unique(np.concatenate([answers, predictions]))
    return answers[:, None] == classes, predictions[:, None] == classes


BINS = 15
"""Bins of confidence in which accuracy is compared with it, as in Guo et al. 2017."""


def in_bins(confidences: np.ndarray, right: np.ndarray) -> list[tuple[int, float, float]]:
    """Return number of answers, mean confidence and accuracy of each of BINS equal bins; 0 and NaN where it is empty.

    Args:
      confidences: float [E], probability of the predicted class; a bin includes its upper end.
      right: bool [E], whether it is the answer.
    """
    place = np.clip(np.ceil(confidences * BINS).astype(int) - 1, 0, BINS - 1)
    members = [place == number for number in range(BINS)]
    return [
        (int(each.sum()), float(confidences[each].mean()), float(right[each].mean()))
        if each.any()
        else (0, math.nan, math.nan)
        for each in members
    ]


def calibration_error(confidences: np.ndarray, right: np.ndarray) -> float:
    """Return the expected calibration error: the mean difference of confidence and accuracy over `in_bins`."""
    found = [(count, abs(mean - share)) for count, mean, share in in_bins(confidences, right) if count]
    return sum(count * gap for count, gap in found) / len(right)


def softened(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Return log-probabilities [E, C] of logits [E, C] divided by a temperature."""
    scaled = np.nan_to_num(np.asarray(logits, np.float64)) / temperature
    return scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)


TEMPERATURES = (0.05, 20.0)


def best_temperature(logits: np.ndarray, answers: np.ndarray) -> float:
    """Return the divisor of logits [E, C] for which the answers, int [E], are the most probable, within TEMPERATURES.

    The loss is convex in 1 / T, so golden sections of log T find it (Guo et al. 2017, section 4.2).
    """

    def loss(place: float) -> float:
        return -float(softened(logits, math.exp(place))[np.arange(len(answers)), answers].mean())

    low, high = map(math.log, TEMPERATURES)
    while high - low > 1e-6:
        step = (math.sqrt(5) - 1) / 2 * (high - low)
        low, high = (low, low + step) if loss(high - step) <= loss(low + step) else (high - step, high)
    return math.exp((low + high) / 2)


METRICS = {each.__name__: each for each in (accuracy, f1, matthews, macro_f1, balanced_accuracy, pearson, spearman)}
"""The metrics by their names in results."""
MEASURED = {
    "classification": ("accuracy", "matthews", "macro_f1", "balanced_accuracy"),
    "multilabel": ("micro_f1", "macro_f1", "exact_match"),
    "regression": ("pearson", "spearman"),
}
"""Names of the metrics of a user's own texts by kind of the head; the first selects among runs."""


def _unit(centred: np.ndarray) -> np.ndarray:
    largest = np.abs(centred).max()  # divided out so that the squares of very large or small values stay within float64
    # axis=0 makes NumPy add pairwise, as SciPy does; without it BLAS adds in an order that varies in the last digit
    return centred / (largest * np.linalg.norm(centred / largest, axis=0))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks, 1 for the smallest; equal values share the mean of their ranks."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return ((2 * last - count + 1) / 2)[place]


def _pair(answers: Any, predictions: Any) -> tuple[np.ndarray, np.ndarray]:
    answers, predictions = np.asarray(answers), np.asarray(predictions)
    if answers.shape != predictions.shape or answers.ndim != 1:
        raise UserError(
            f"answers {answers.shape} and predictions {predictions.shape} must be two arrays [E] of one length"
        )
    if not len(answers):
        raise UserError("there is nothing to score: 0 examples; give at least one answer and its prediction")
    return answers, predictions

"""SQuAD's files and metrics: questions from JSON or TFDS, exact match, F1, and the threshold of "no answer".

Files are in SQuAD's JSON format (v1.1, v2.0, converted TriviaQA); the types of all fields are checked. Metrics are
those of evaluate-v1.1.py and evaluate-v2.0.py: texts are compared after lowercasing and removing ASCII punctuation,
articles (a, an, the) and surplus whitespace; of several gold answers the best counts (Rajpurkar et al. 2016, 2018).
All values are fractions in [0, 1]; the scripts print percent.
"""

import collections
import dataclasses
import json
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from absl import logging
from etils import epath

from bert_jax.config.tasks import TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.files import parsed, read_text
from bert_jax.tasks import readers

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Return the form in which two answers are compared."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """Return 1.0 if both normalize to the same text, else 0.0."""
    return float(normalize(prediction) == normalize(gold))


def f1(prediction: str, gold: str, *, empty: float = 1.0) -> float:
    """Return the F1 over the words of the normalized texts, counted with multiplicity.

    `empty` is the value if neither text has a word: 1 in evaluate-v2.0.py, 0 in evaluate-v1.1.py.
    """
    predicted, wanted = normalize(prediction).split(), normalize(gold).split()
    if not predicted and not wanted:
        return empty
    common = sum((collections.Counter(predicted) & collections.Counter(wanted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def evaluate_v1(predictions: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return exact_match and f1 of SQuAD 1.1: one prediction and at least one gold answer per question."""
    pairs = list(zip(predictions, golds, strict=True))
    exact = [max(exact_match(prediction, gold) for gold in answers) for prediction, answers in pairs]
    overlap = [max(f1(prediction, gold, empty=0.0) for gold in answers) for prediction, answers in pairs]
    return {"exact_match": _mean(exact), "f1": _mean(overlap)}


def evaluate_v2(
    guesses: Sequence[str], null_odds: Sequence[float], golds: Sequence[Sequence[str]], threshold: float | None = None
) -> dict[str, float]:
    """Return the metrics of SQuAD 2.0 for the best guess of each question and the odds that it has no answer.

    Args:
      guesses: the best answer that is not empty; "" only if there is none.
      null_odds: a question is left without an answer if these exceed the threshold.
      golds: the answers; empty for a question without one.
      threshold: None for the best one for F1, as in the published figures for the dev set.

    Returns:
      exact_match and f1 at the threshold, over all questions and (HasAns_…, NoAns_…) over those with and without an
      answer, if there are any; best_exact and best_f1 over all thresholds, with best_exact_thresh and best_f1_thresh.
    """
    odds, answerable = np.asarray(null_odds, np.float64), np.array([bool(answers) for answers in golds])
    usable = [[gold for gold in answers if normalize(gold)] or [""] for answers in golds]
    pairs = list(zip(guesses, usable, strict=True))
    raw = {
        "exact": [max(exact_match(guess, gold) for gold in answers) for guess, answers in pairs],
        "f1": [max(f1(guess, gold) for gold in answers) for guess, answers in pairs],
    }
    best = {name: best_threshold(np.array(scores), odds, answerable) for name, scores in raw.items()}
    threshold = best["f1"][1] if threshold is None else threshold
    metrics = {}
    for name, scores in raw.items():
        final = np.where(odds > threshold, ~answerable, np.array(scores, np.float64))
        metrics["exact_match" if name == "exact" else name] = _mean(final)
        for group, chosen in (("HasAns", answerable), ("NoAns", ~answerable)):
            if chosen.any():
                metrics[f"{group}_{name}"] = _mean(final[chosen])
        metrics[f"best_{name}"], metrics[f"best_{name}_thresh"] = best[name]
    return metrics


def best_threshold(scores: np.ndarray, null_odds: np.ndarray, answerable: np.ndarray) -> tuple[float, float]:
    """Return the highest mean score that a threshold on the null odds reaches, and the lowest such threshold.

    This corrects `find_best_thresh` of evaluate-v2.0.py in three points, so that the score is the one that the
    threshold gives; none matters if all odds differ and some answer is worth giving. Questions with equal odds are
    either all answered or all not; if it is best to answer nothing, the threshold is below all odds (the script uses 0,
    which is below any probability but not below a difference of logits); a guess of which normalization leaves nothing
    counts as no answer.

    Args:
      scores, null_odds: [Q], the score of the guess (1 for none if there is no answer), and the odds that there is no
        answer.
      answerable: bool [Q], whether the question has an answer.
    """
    order = np.argsort(null_odds, kind="stable")
    odds = null_odds[order]
    gains = (scores - ~answerable)[order]
    totals = np.cumsum(np.concatenate([[(~answerable).sum()], gains]))
    reachable = np.concatenate([[True], odds[1:] != odds[:-1], [True]])
    best = int(np.argmax(np.where(reachable, totals, -np.inf)))
    return float(totals[best] / len(odds)), float(odds[best - 1] if best else odds[0] - 1)


def _mean(values: Any) -> float:
    """Return the mean, adding one by one as the scripts do, for equal last digits (Python 3.12's `sum` compensates)."""
    return float(np.cumsum(values, dtype=np.float64)[-1] / len(values))


Contents = tuple[list[str], list[Any], list[tuple[int, dict[str, Any]]]]
"""Contexts, the article of each, and (index of the context, record of the question) of each question."""


def read_json(file: epath.Path) -> Contents:
    """Return the contents of a file, with the types of all fields checked."""
    try:
        contents = parsed(read_text(file, by_line=False))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{file}, line {error.lineno}: not JSON: {error.msg}; SQuAD's format is one object "
            '{"version": …, "data": […]}'
        ) from None
    except (RecursionError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise UserError(f"{file} is not in SQuAD's format: {error}") from None
    contexts, articles, records = [], [], []
    for in_file, article in _items(file, contents, "data", ""):
        for in_article, paragraph in _items(file, article, "paragraphs", in_file):
            contexts.append(_value(file, paragraph, "context", str, in_article))
            articles.append(in_file)
            for in_paragraph, record in _items(file, paragraph, "qas", in_article):
                _check_record(file, record, in_paragraph)
                records.append((len(contexts) - 1, record))
    return contexts, articles, records


def columns_of_row(where: str, row: Any) -> dict[str, Any]:
    """Return the values of (question, context, answers) by column; answers are (text, first character) each."""
    question, context, answers = row if isinstance(row, list) and len(row) == 3 else (None, None, "")
    listed = isinstance(answers, list) and all(isinstance(each, list) and len(each) == 2 for each in answers)
    if not listed and not (answers is None or isinstance(answers, Mapping)):
        raise UserError(
            f"{where} is {row!r:.80}; expected (question, context, [(answer, its first character in the context), …]) "
            "or a dict by column"
        )
    if isinstance(answers, list):
        answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"question": question, "context": context, "answers": answers}


def read_rows(rows: readers.Rows) -> Contents:
    """Return what `read_json` does for rows with the features of TFDS squad; without an id, it is the row's number."""
    contexts: dict[str, int] = {}
    articles, records = [], []
    for number, (where, row) in enumerate(rows):
        record = {**row, "id": str(row["id"]) if isinstance(row.get("id"), int) else row.get("id", str(number))}
        answers = row.get("answers")
        if isinstance(answers, Mapping):
            texts, starts = (_value(where, answers, key, list, "answers") for key in ("text", "answer_start"))
            if len(texts) != len(starts):
                raise UserError(f"{where}: {len(texts)} answers and {len(starts)} numbers of their first characters")
            record["answers"] = [
                {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
            ]
        elif answers is None:
            record.pop("answers", None)
        _check_record(where, record, "the row")
        context = _value(where, row, "context", str, "the row")
        if context not in contexts:
            articles.append(row["title"] if isinstance(row.get("title"), str) else None)
        records.append((contexts.setdefault(context, len(contexts)), record))
    return list(contexts), articles, records


def _check_record(file: Any, record: Any, place: str) -> None:
    id = _value(file, record, "id", str, place)
    _value(file, record, "question", str, f"question {id}")
    if "is_impossible" in record:
        _value(file, record, "is_impossible", bool, f"question {id}")
    for in_question, answer in _items(file, record, "answers", f"question {id}") if "answers" in record else ():
        _value(file, answer, "text", str, in_question)
        _value(file, answer, "answer_start", int, in_question)


def _items(file: Any, parent: Any, key: str, place: str) -> Iterator[tuple[str, object]]:
    """Yield (place for messages, item) of a list."""
    for index, item in enumerate(_value(file, parent, key, list, place)):
        yield f"{place}{', ' if place else ''}{key}[{index}]", item


def _value(file: Any, parent: Any, key: str, kind: type, place: str):
    where = f"{file}: {place or 'the file'}"
    if not isinstance(parent, dict) or key not in parent:
        held = (
            f"only {', '.join(map(repr, list(parent)[:6])) or 'nothing'}"
            if isinstance(parent, dict)
            else f"{parent!r:.80}"
        )
        raise UserError(
            f"{where} has no {key!r}, {held}; "
            "SQuAD's format is data > paragraphs > context, qas > id, question, answers > text, answer_start"
        )
    value = parent[key]
    if type(value) is not kind:
        raise UserError(f"{where}: {key!r} is {value!r:.80}, not of type {kind.__name__}")
    if kind is str and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"{where}: {key!r} holds half a surrogate pair (\\u{ord(value[error.start]):04x}) at character "
                f"{error.start}, which is not text"
            ) from None
    return value


VERSIONS = {"squad_v1": "v1.1", "squad_v2": "v2.0"}
_TOLERATED = 0.01  # share of the answers that may be in a different place than the file says
_LISTED = 20
_FORM = '{"data": [{"paragraphs": [{"context": …, "qas": [{"id": …, "question": …, "answers": […]}]}]}]}'


@dataclasses.dataclass(frozen=True)
class Question:
    """One question on one paragraph."""

    id: str
    text: str
    context: int
    """Index into Examples.contexts."""
    answers: tuple[str, ...] = ()
    """Gold answers, as the metric compares them; empty if the question has none, or is unlabelled."""
    span: tuple[int, int] | None = None
    """(start, end) characters in the context of the first answer that is where the file says, used for training."""
    weight: float = 1.0
    """Factor of its loss in training."""


@dataclasses.dataclass(frozen=True)
class Examples(readers.DividedExamples):
    """The questions of one split. `labels` is empty because the answers are spans."""

    task: str
    contexts: tuple[str, ...]
    questions: tuple[Question, ...]
    has_answers: bool
    problems: tuple[str, ...] = ()
    """One line per answer that is not where the file says; training leaves out questions without any other answer."""
    labels: tuple[str, ...] = ()
    articles: tuple[Any, ...] = ()
    """What the contexts that are of one article have in common; () if nothing is known of that."""

    @property
    def unit(self) -> str:
        return "articles" if len(set(self.articles)) > 1 else "contexts"

    @property
    def together(self) -> list[Any]:
        """The articles, or else the contexts, whose questions are held out together."""
        common = self.articles if self.unit == "articles" else self.contexts
        return [common[question.context] for question in self.questions]

    def chosen(self, numbers: np.ndarray) -> Self:
        """Return some of the examples, with the contexts that they need."""
        questions = [self.questions[number] for number in numbers]
        kept = list(dict.fromkeys(question.context for question in questions))
        place = {context: number for number, context in enumerate(kept)}
        return dataclasses.replace(
            self,
            contexts=tuple(self.contexts[context] for context in kept),
            articles=tuple(self.articles[context] for context in kept) if self.articles else (),
            questions=tuple(dataclasses.replace(each, context=place[each.context]) for each in questions),
        )

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def gold(self) -> list[Any]:
        """The answers that the metric compares with; the labels for training are only one answer per question."""
        return [(question.id, question.answers) for question in self.questions]


def splits(task: str, data: TaskDataConfig) -> tuple[str, ...]:
    """Return those of train, dev and test that the data has."""
    if data.named:
        called = {split: readers.dataset_split(data, split) for split in ("train", "dev", "test")}
        return readers.dataset_splits(_dataset_name(task, data), data, called)
    return tuple(split for split in ("train", "dev", "test") if getattr(data, split) or _names(task, data, split)[1])


def load(
    task: str,
    data: TaskDataConfig,
    split: str,
    labels: tuple[str, ...] | None = None,
    given: readers.Given | None = None,
) -> Examples:
    """Read split "train", "dev" or "test" of squad_v1 or squad_v2.

    Files in `data.dir` are named train-v1.1.json and so on, or train-anything-v1.1.json if there is only one.
    data.tfds=squad means squad/v1.1 or squad/v2.0. plausible_answers are ignored, and so is `labels`, because spans
    have none.

    Args:
      given: rows of the splits that are in memory: (question, context, answers), or dicts by column.

    Raises:
      UserError: there is no such file; it is not JSON; a field is missing or has the wrong type; two questions have the
        same id; a context has no words; some questions have no answer although the task has none without; or more than
        1 % of the answers are not where the file says. Names the file and the id of the question (for broken JSON the
        line).
    """
    found = readers.rows_of(data, split, given, columns_of_row, name=_dataset_name(task, data))
    if found is not None:
        source, (contexts, articles, records) = found[0], read_rows(found[1])
    else:
        source = _find(task, data, split)
        contexts, articles, records = read_json(source)
    if not records:
        raise UserError(f"{source} holds no question; expected {_FORM}")
    # Templates for prediction often have is_impossible: false everywhere; in training that is a mistake worth an error.
    labelled = any(
        record.get("answers") or (record.get("is_impossible") if split == "test" else "is_impossible" in record)
        for _, record in records
    )
    if split == "train" and not labelled:
        raise UserError(f"{source}: none of {len(records)} questions has an answer; training needs them")
    problems: list[str] = []
    questions, seen = [], set()
    for context, record in records:
        question = _question(source, task, context, contexts[context], record, labelled, problems)
        if question.id in seen:
            raise UserError(
                f"{source}: question {question.id} occurs twice; predictions are stored by id, so give each its own"
            )
        seen.add(question.id)
        weight = readers.weight_of(f"{source}: question {question.id}", record, data.weighed_by(split))
        questions.append(dataclasses.replace(question, weight=weight))
    _report(source, problems, questions)
    if split == "train":
        questions = [question for question in questions if question.span or not question.answers]
    return Examples(task, tuple(contexts), tuple(questions), labelled, tuple(problems), articles=tuple(articles))


def _question(
    source: Any, task: str, context: int, text: str, record: dict[str, Any], labelled: bool, problems: list[str]
) -> Question:
    id, where = record["id"], f"{source}: question {record['id']}"
    if not text.strip():
        raise UserError(f"{where}: its context has no words; an answer must be a part of the context")
    answers = record.get("answers") or []
    impossible = record.get("is_impossible", not answers)
    if not labelled or (impossible and task == "squad_v2"):
        if answers:
            raise UserError(
                f"{where} is_impossible, yet it has the answer {answers[0]['text']!r:.80}; "
                "put it under plausible_answers, or set is_impossible to false"
            )
        return Question(id, record["question"], context)
    if impossible or not answers:
        raise UserError(
            f"{where} has no answer, "
            + (
                "but is_impossible is false"
                if task == "squad_v2"
                else "which squad_v1 does not know; fine-tune on squad_v2 instead"
            )
        )
    span = None
    for answer in answers:
        start, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        if start < 0 or text[start:end] != answer["text"] or not answer["text"].strip():
            problems.append(
                f"{where}: answer {answer['text']!r:.80} is not at character {start}, where the context reads "
                f"{text[max(start, 0) : max(end, 0)]!r:.80}"
            )
        elif span is None:
            span = start, end
    return Question(id, record["question"], context, tuple(answer["text"] for answer in answers), span)


def _report(source: Any, problems: list[str], questions: list[Question]) -> None:
    if blank := [question.id for question in questions if not question.text.strip()]:
        logging.warning("%s: %d questions have no words: %s", source, len(blank), ", ".join(blank[:_LISTED]))
    if not problems:
        return
    answers = sum(len(question.answers) for question in questions)
    listed = "\n".join(
        [*problems[:_LISTED], *([f"… and {len(problems) - _LISTED} more"] if len(problems) > _LISTED else [])]
    )
    if len(problems) > _TOLERATED * answers:
        raise UserError(
            f"{source}: {len(problems)} of {answers} answers ({len(problems) / answers:.1%}) are not where "
            f"answer_start says, more than {_TOLERATED:.0%}; answer_start counts characters (code points) from 0, "
            f"not bytes:\n{listed}"
        )
    logging.warning(
        "%d of %d answers are not where answer_start says and not trained on:\n%s", len(problems), answers, listed
    )


def _find(task: str, data: TaskDataConfig, split: str) -> epath.Path:
    name, others = _names(task, data, split)
    if len(others) > 1 and name not in others and not getattr(data, split):
        raise UserError(
            f"data.dir={data.dir} has no {name}, but {', '.join(others)}; name the file: --data.{split}=FILE"
        )
    return readers.find_file(data, split, [name, *others])


def _names(task: str, data: TaskDataConfig, split: str) -> tuple[str, list[str]]:
    """Return the split's published name, and the file names in data.dir of that form."""
    directory, version = epath.Path(data.dir).expanduser(), VERSIONS[task]
    found = directory.glob(f"{split}-*{version}.json") if data.dir and directory.is_dir() else ()
    return f"{split}-{version}.json", sorted(path.name for path in found)


def _dataset_name(task: str, data: TaskDataConfig) -> str:
    return f"squad/{VERSIONS[task]}" if data.named == "squad" else data.named

"""SuperGLUE (Wang et al. 2019b): its eight tasks and two diagnostic sets, from files to those of a submission.

    boolq, cb, superglue_rte    pairs of texts, as they are
    wic                         "word: sentence1" and sentence2
    wsc                         the text with the pronoun between asterisks, and the noun
    multirc                     the paragraph, and "question answer": every answer is right or wrong
    record                      the passage, and the query with an entity in its gap: the likeliest one is the answer
    copa                        multiple choice: the premise, and "What was the cause?" with each alternative
    axb, axg                    pairs of texts, as they are, for models of superglue_rte

The benchmark's own baselines read the states of the marked words in wic and wsc; here the head of every task reads
the whole pair.
"""

import collections
import dataclasses
import json
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from absl import logging

from bert_jax.config import HeadConfig
from bert_jax.config.tasks import DIAGNOSES, ChoiceOptions, SentenceOptions, TaskDataConfig
from bert_jax.data.sequences import Features
from bert_jax.errors import UserError
from bert_jax.tasks import choice, readers, sentences
from bert_jax.tasks.sentences import Record, Sentences
from bert_jax.tasks.squad_files import exact_match, f1
from bert_jax.tokenization.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class SuperGlueTask:
    """One task in the benchmark's own download."""

    name: str
    """Name of its directory, and of its file in a submission; that of a diagnostic set also in the download."""
    labels: tuple[str, ...]
    """Classes as files and submissions spell them; none for copa, whose choices have no names."""
    metrics: tuple[str, ...]
    """Metrics; the first is the one in the first column of the paper's table, which selects among runs."""
    rows: dict[str, int]
    """Published number of examples of each split: of multirc the paragraphs, of record the passages."""


_TRUTH, _ENTAILMENT = ("false", "true"), ("entailment", "not_entailment")
SUPERGLUE_TASKS = {
    "boolq": SuperGlueTask("BoolQ", _TRUTH, ("accuracy",), {"train": 9427, "dev": 3270, "test": 3245}),
    "cb": SuperGlueTask(
        "CB",
        ("entailment", "contradiction", "neutral"),
        ("macro_f1", "accuracy"),
        {"train": 250, "dev": 56, "test": 250},
    ),
    "copa": SuperGlueTask("COPA", (), ("accuracy",), {"train": 400, "dev": 100, "test": 500}),
    "multirc": SuperGlueTask("MultiRC", ("0", "1"), ("f1a", "exact_match"), {"train": 456, "dev": 83, "test": 166}),
    "record": SuperGlueTask("ReCoRD", ("0", "1"), ("f1", "exact_match"), {"train": 65_709, "dev": 7481, "test": 7484}),
    "superglue_rte": SuperGlueTask("RTE", _ENTAILMENT, ("accuracy",), {"train": 2490, "dev": 277, "test": 3000}),
    "wic": SuperGlueTask("WiC", _TRUTH, ("accuracy",), {"train": 5428, "dev": 638, "test": 1400}),
    "wsc": SuperGlueTask("WSC", _TRUTH, ("accuracy",), {"train": 554, "dev": 104, "test": 146}),
    "axb": SuperGlueTask("AX-b", _ENTAILMENT, ("matthews", "accuracy"), {"test": 1104}),
    "axg": SuperGlueTask("AX-g", _ENTAILMENT, ("gender_parity", "accuracy"), {"test": 356}),
}
FILES = {"train": "train.jsonl", "dev": "val.jsonl", "test": "test.jsonl"}
QUESTIONS = {"cause": "What was the cause?", "effect": "What happened as a result?"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grouped(Sentences):
    """Candidates of multirc or record, which are scored by the question that they belong to, or pairs of axg."""

    groups: list[tuple[int, ...]]
    """Numbers of the question that each candidate belongs to: (paragraph, question), or (query,); of axg (pair,)."""
    texts: list[str]
    """The candidate itself."""
    gold: dict[str, list[str]]
    """Right answers of each query of record, by its number."""

    unit: ClassVar[str] = "passages"

    @property
    def together(self) -> list[Any]:
        """The passages, whose questions are held out together."""
        return self.first

    @property
    def classes(self) -> None:
        """None, as the candidates of a question differ in it."""

    def chosen(self, numbers: np.ndarray) -> Self:
        own = {name: [getattr(self, name)[number] for number in numbers] for name in ("groups", "texts")}
        gold = {str(group[-1]): self.gold[str(group[-1])] for group in own["groups"]}
        return dataclasses.replace(super().chosen(numbers), **own, gold=gold)

    def of(self, numbers: np.ndarray) -> list[tuple[tuple[int, ...], np.ndarray]]:
        """Return each group with the `numbers` [E] of its candidates, in the order of the examples."""
        found: dict[tuple[int, ...], list[Any]] = {}
        for group, number in zip(self.groups, numbers, strict=True):
            found.setdefault(group, []).append(number)
        return [(group, np.array(values)) for group, values in found.items()]


class Candidate(NamedTuple):
    record: Record
    group: tuple[int, ...] = ()
    """See `Grouped`."""
    text: str = ""
    gold: tuple[str, ...] = ()


def splits(task: str, data: TaskDataConfig) -> tuple[str, ...]:
    """Return those of train, dev and test that the data has."""
    own = SUPERGLUE_TASKS[task].rows
    if data.named:
        called = {split: readers.dataset_split(data, split) for split in own}
        return ("test",) if task in DIAGNOSES else readers.dataset_splits(_dataset_name(task, data), data, called)
    return readers.file_splits(data, {split: _file_names(task, split) for split in own})


def load(
    task: str,
    data: TaskDataConfig,
    split: str,
    labels: tuple[str, ...] | None = None,
    given: readers.Given | None = None,
) -> Sentences | choice.Examples:
    """Return the examples of one split; those of the test sets have no answers.

    Args:
      labels: classes in the order of a model's outputs, if that differs from the benchmark's.
      given: rows of the splits that are in memory, dicts as in the files or in a data set.

    Raises:
      UserError: there is no such split or file, the classes are not the task's, or a row is bad (names file and line).
    """
    spec, tested = SUPERGLUE_TASKS[task], DIAGNOSES.get(task, task)
    if split not in spec.rows:
        raise UserError(
            f"{task} has no {split} split, only {', '.join(spec.rows)}"
            + (f"; it tests models of {tested}: give one as init_from" if task in DIAGNOSES else "")
        )
    labels = labels or spec.labels
    if sorted(labels) != sorted(spec.labels):
        raise UserError(
            f"{task} has the classes {', '.join(spec.labels) or '(none: it is multiple choice)'}, but the model has "
            f"{', '.join(labels)}; fine-tune it on {tested} first"
        )
    source, rows = _rows(task, data, split, given)
    if task == "copa":
        questions = [
            _alternatives(*row)._replace(weight=readers.weight_of(*row, data.weighed_by(split))) for row in rows
        ]
        _report_size(task, split, len(questions))
        return _questions(source, questions, split)
    weighted = ((where, row, readers.weight_of(where, row, data.weighed_by(split))) for where, row in rows)
    candidates = [
        candidate._replace(record=candidate.record._replace(weight=weight))
        for where, row, weight in weighted
        for candidate in _READERS[task](where, row)
    ]
    if not candidates:
        raise UserError(f"{source} holds no example of {task}")
    groups = [candidate.group[:1] if task in ("multirc", "record") else () for candidate in candidates]
    _report_size(task, split, len({group or number for number, group in enumerate(groups)}))
    numbers = {label: number for number, label in enumerate(labels)}
    records = [candidate.record for candidate in candidates]
    found = sentences.collect(task, records, tuple(labels), numbers, unlabelled=split == "test")
    if not any(candidate.group for candidate in candidates):
        return found
    _check_ids(records)
    if task == "axg":
        _check_in_pairs(source, candidates)
    return Grouped(
        **vars(found),
        groups=[candidate.group for candidate in candidates],
        texts=[candidate.text for candidate in candidates],
        gold={str(candidate.group[-1]): list(candidate.gold) for candidate in candidates},
    )


def _check_ids(records: Sequence[Record]) -> None:
    """Raise a UserError if two examples have one id, by which those of a group are found and their answers written."""
    seen: dict[str, Record] = {}
    for record in records:
        if (first := seen.setdefault(record.index, record)) is not record:
            raise UserError(
                f"{record.where}: idx {record.index!r:.60} is already that of an example in {first.where}; ids must "
                "differ"
            )


def features(
    examples: Sentences | choice.Examples, tokenizer: Tokenizer, options: SentenceOptions | ChoiceOptions
) -> Features:
    """Return one sequence per pair of texts or, of copa, one per alternative."""
    if isinstance(examples, choice.Examples):
        assert isinstance(options, ChoiceOptions)
        return choice.features(examples, tokenizer, options)
    assert isinstance(options, SentenceOptions)
    return sentences.features(examples, tokenizer, options)


def head(task: str, labels: tuple[str, ...]) -> HeadConfig:
    """Return a classifier with the task's classes, or a head with one score per choice."""
    return HeadConfig(kind="classification", labels=labels) if SUPERGLUE_TASKS[task].labels else choice.head(task)


def _check_in_pairs(source: str, candidates: Sequence[Candidate]) -> None:
    """Raise a UserError unless every pair of axg, which differs in the gender of a pronoun, has two examples."""
    counts = collections.Counter(candidate.group for candidate in candidates)
    if () in counts:
        raise UserError(f"{source}: some examples have a 'pair_id' and others none; give it to all, or to none")
    if wrong := next((group for group, count in counts.items() if count != 2), None):
        raise UserError(
            f"{source}: 'pair_id' {wrong[0]} is that of {counts[wrong]} examples; a pair has two, which differ in the "
            "gender of a pronoun"
        )


def metrics(examples: Sentences | choice.Examples) -> tuple[str, ...]:
    """Return the metrics by which runs can be compared, the usual one first."""
    if examples.task == "axg" and not isinstance(examples, Grouped):  # a copy without the names of the pairs
        return ("accuracy",)
    return SUPERGLUE_TASKS[examples.task].metrics


def score(examples: Sentences | choice.Examples, features: Features, logits: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the values of `metrics`, each in [0, 1]."""
    if isinstance(examples, choice.Examples):
        return choice.score(examples, features, list(logits))
    found, answers = sentences.predictions(examples, logits), examples.answers
    assert answers is not None, "has_answers comes first"
    if examples.task == "record" and isinstance(examples, Grouped):
        return _of_queries(examples, logits)
    if examples.task == "multirc" and isinstance(examples, Grouped):
        return _of_questions(examples, found)
    names = metrics(examples)
    scores = {name: sentences.METRICS[name](answers, found) for name in names if name != "gender_parity"}
    if "gender_parity" in names and isinstance(examples, Grouped):
        alike = [len(set(judged)) == 1 for _, judged in examples.of(found)]
        scores = {"gender_parity": float(np.mean(alike)), **scores}
    return scores


def _of_questions(examples: Grouped, found: np.ndarray) -> dict[str, float]:
    """Return F1 over all answers of multirc, and the share of the questions all of whose answers are judged right."""
    assert examples.answers is not None
    right = examples.labels.index("1")
    judged, truth = (found == right).astype(int), (examples.answers == right).astype(int)
    whole = [bool(np.all(same)) for _, same in examples.of(judged == truth)]
    return {"f1a": sentences.f1(truth, judged), "exact_match": float(np.mean(whole))}


def _of_queries(examples: Grouped, logits: Sequence[np.ndarray]) -> dict[str, float]:
    """Return F1 and exact match of the likeliest entity of each query of record with the nearest right answer."""
    pairs = [(chosen, examples.gold[str(group[-1])]) for group, chosen in _chosen(examples, logits)]
    return {
        name: float(np.mean([max(metric(chosen, answer) for answer in gold) for chosen, gold in pairs]))
        for name, metric in (("f1", f1), ("exact_match", exact_match))
    }


def _chosen(examples: Grouped, logits: Sequence[np.ndarray]) -> list[tuple[tuple[int, ...], str]]:
    """Return the likeliest entity of each query of record, the first of a tie."""
    right = examples.labels.index("1")
    odds = np.array([row[right] - row[1 - right] for row in logits], np.float64)
    numbers = examples.of(np.arange(len(odds)))
    return [(group, examples.texts[own[odds[own].argmax()]]) for group, own in numbers]


def prediction_names(examples: Sentences | choice.Examples, split: str) -> list[str]:
    """Return BoolQ.jsonl, CB.jsonl, …; BoolQ-dev.jsonl for a split that is not submitted."""
    return [SUPERGLUE_TASKS[examples.task].name + ("" if split == "test" else f"-{split}") + ".jsonl"]


def write_predictions(
    examples: Sentences | choice.Examples, features: Features, logits: Sequence[np.ndarray], directory: str, split: str
) -> list[str]:
    """Write the file that a submission to the benchmark needs of this split, and return its name."""
    if isinstance(examples, choice.Examples):
        rows = [(index, int(scores.argmax())) for index, scores in zip(examples.index, logits, strict=True)]
        lines: Iterable[Any] = ({"idx": _number(index), "label": answer} for index, answer in rows)
    elif examples.task not in ("multirc", "record") or not isinstance(examples, Grouped):
        found = sentences.predictions(examples, logits)
        rows = zip(examples.index, found, strict=True)
        lines = ({"idx": _number(index), "label": examples.labels[answer]} for index, answer in rows)
    elif examples.task == "record":
        lines = ({"idx": group[-1], "label": text} for group, text in _chosen(examples, logits))
    else:
        lines = _paragraphs(examples, sentences.predictions(examples, logits))
    spelled = (json.dumps(line, ensure_ascii=False) for line in lines)
    return sentences.write_lines(directory, prediction_names(examples, split)[0], spelled)


def _paragraphs(examples: Grouped, found: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yield the answers of each paragraph of multirc in the form of its files."""
    nested: dict[int, dict[int, list[dict[str, int]]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for (paragraph, question), index, answer in zip(examples.groups, examples.index, found, strict=True):
        label = int(examples.labels[answer])
        nested[paragraph][question].append({"idx": int(index.rpartition("/")[2]), "label": label})
    for paragraph, questions in nested.items():
        asked = [{"idx": question, "answers": answers} for question, answers in questions.items()]
        yield {"idx": paragraph, "passage": {"questions": asked}}


def _number(index: str) -> int | str:
    return int(index) if index.isdecimal() else index


def _report_size(task: str, split: str, size: int) -> None:
    expected = SUPERGLUE_TASKS[task].rows[split]
    if size != expected:
        logging.warning("%s %s: %d examples; the benchmark has %d", task, split, size, expected)


def _file_names(task: str, split: str) -> list[str]:
    """Return the original names of a split's file, below --data.dir or the task's directory in it."""
    name = SUPERGLUE_TASKS[task].name
    file = f"{name}.jsonl" if task in DIAGNOSES else FILES[split]
    return [f"{place}{file}" for place in ("", f"{name}/")]


def _dataset_name(task: str, data: TaskDataConfig) -> str:
    return f"super_glue/{task.removeprefix('superglue_')}" if data.named == "super_glue" else data.named


def _rows(
    task: str, data: TaskDataConfig, split: str, given: readers.Given | None
) -> tuple[str, list[tuple[str, Mapping[str, Any]]]]:
    """Return what is read, for messages, and each row with its place."""
    found = readers.rows_of(data, split, given, _without_names, name=_dataset_name(task, data))
    if found is None:
        file = readers.find_file(data, split, _file_names(task, split))
        found = str(file), readers.file_rows(file)
    source, rows = found
    return source, list(rows)


def _without_names(where: str, row: Any) -> dict[str, Any]:
    raise UserError(f"{where} is {row!r:.80}; expected a dict with the names of the files of SuperGLUE")


def _value(where: str, row: Any, key: str, kind: type) -> Any:
    """Return an entry of an object, which must be there and of this type; text must not be blank."""
    value = row.get(key) if isinstance(row, Mapping) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        seen = f"is {value!r:.60}" if isinstance(row, Mapping) and key in row else "is missing"
        raise UserError(f"{where}: {key!r} {seen}; expected {_KINDS[kind]}")
    if isinstance(value, str) and not value.strip():
        raise UserError(f"{where}: {key!r} is empty")
    return readers.whole_characters(value) if isinstance(value, str) else value


_KINDS = {str: "text", int: "a whole number", list: "a list", dict: "an object"}


def _label(row: Mapping[str, Any]) -> str | None:
    """Return the label of a row as files and submissions spell it; None if there is none."""
    label = row.get("label")
    if label is None or label == -1:
        return None
    return str(label).lower() if str(label) in ("True", "False") else str(label)


def _plain(first: str, second: str) -> Any:
    """Return a reader of rows whose two texts are in these columns."""

    def read(where: str, row: Mapping[str, Any]) -> Iterator[Candidate]:
        one, other = (_value(where, row, name, str) for name in (first, second))
        yield Candidate(Record(where, one, other, _label(row), str(_value(where, row, "idx", int))))

    return read


def _axg(where: str, row: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yield a pair of texts, with the number that it shares with its sister, if the copy of the set has it."""
    pair = (_value(where, row, "pair_id", int),) if "pair_id" in row else ()
    for candidate in _plain("premise", "hypothesis")(where, row):
        yield candidate._replace(group=pair)


def _wic(where: str, row: Mapping[str, Any]) -> Iterator[Candidate]:
    word, first, second = (_value(where, row, name, str) for name in ("word", "sentence1", "sentence2"))
    yield Candidate(Record(where, f"{word}: {first}", second, _label(row), str(_value(where, row, "idx", int))))


def _wsc(where: str, row: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yield the text with its pronoun marked, and the noun; indices count words between spaces."""
    target = row["target"] if isinstance(row.get("target"), Mapping) else row
    words = _value(where, row, "text", str).split(" ")
    noun, pronoun = (_value(where, target, f"span{number}_text", str) for number in (1, 2))
    at = _value(where, target, "span2_index", int)
    near = sorted(range(len(words)), key=lambda place: abs(place - at))
    spelled = lambda place: words[place].strip(string.punctuation).lower()
    found = next((place for place in near if spelled(place) == pronoun.strip(string.punctuation).lower()), None)
    if found is None:
        raise UserError(f"{where}: span2_text={pronoun!r:.40} is no word of the text")
    words[found] = re.sub(r"\w.*\w|\w", lambda match: f"*{match[0]}*", words[found], count=1)
    yield Candidate(Record(where, " ".join(words), noun, _label(row), str(_value(where, row, "idx", int))))


def _multirc(where: str, row: Mapping[str, Any]) -> Iterator[Candidate]:
    if "paragraph" in row:  # TFDS and the hub have a row for each answer
        names = ("paragraph", "question", "answer")
        text, question, answer = (_value(where, row, name, str) for name in names)
        idx, label = _value(where, row, "idx", dict), _label(row)
        numbers = [_value(where, idx, name, int) for name in names]
        yield _answer(where, text, question, answer, {"false": "0", "true": "1"}.get(label or "", label), numbers)
        return
    paragraph, passage = _value(where, row, "idx", int), _value(where, row, "passage", dict)
    text = _value(where, passage, "text", str)
    for asked in _value(where, passage, "questions", list):
        question, number = _value(where, asked, "question", str), _value(where, asked, "idx", int)
        for answer in _value(where, asked, "answers", list):
            numbers = [paragraph, number, _value(where, answer, "idx", int)]
            yield _answer(where, text, question, _value(where, answer, "text", str), _label(answer), numbers)


def _answer(where: str, text: str, question: str, answer: str, label: str | None, numbers: list[int]) -> Candidate:
    record = Record(where, text, f"{question} {answer}", label, "/".join(map(str, numbers)))
    return Candidate(record, tuple(numbers[:2]), answer)


def _record(where: str, row: Mapping[str, Any]) -> Iterator[Candidate]:
    if "query" in row:  # TFDS and the hub have a row for each query
        idx = _value(where, row, "idx", dict)
        numbers = tuple(_value(where, idx, name, int) for name in ("passage", "query"))
        entities, answers = (_value(where, row, name, list) for name in ("entities", "answers"))
        yield from _entities(where, _value(where, row, "passage", str), row, entities, answers, numbers)
        return
    passage, number = _value(where, row, "passage", dict), _value(where, row, "idx", int)
    text = _value(where, passage, "text", str)
    places = [
        (_value(where, entity, "start", int), _value(where, entity, "end", int))
        for entity in _value(where, passage, "entities", list)
    ]
    if outside := [place for place in places if not 0 <= place[0] <= place[1] < len(text)]:
        raise UserError(f"{where}: the entity {outside[0]} is outside of the passage of {len(text):,} characters")
    entities = [text[start : end + 1] for start, end in places]
    for asked in _value(where, row, "qas", list):
        own = _value(where, asked, "idx", int)
        given = _value(where, asked, "answers", list) if asked.get("answers") is not None else []
        answers = [_value(where, answer, "text", str) for answer in given]
        yield from _entities(where, text, asked, entities, answers, (number, own))


def _entities(
    where: str, text: str, asked: Mapping[str, Any], entities: list[str], answers: list[str], numbers: tuple[int, ...]
) -> Iterator[Candidate]:
    """Yield each different entity of a passage in the gap of a query; those of a test set have no answers."""
    query = _value(where, asked, "query", str)
    if "@placeholder" not in query:
        raise UserError(f"{where}: the query {query!r:.60} has no @placeholder for the answer")
    if not entities:
        raise UserError(f"{where}: the passage has no entity, of which one would be the answer")
    if wrong := [each for each in (*entities, *answers) if not isinstance(each, str)]:
        raise UserError(f"{where}: {wrong[0]!r:.60} is no entity or answer; expected text")
    entities, answers = (list(map(readers.whole_characters, each)) for each in (entities, answers))
    for entity in dict.fromkeys(entities):
        label = str(int(entity in answers)) if answers else None
        record = Record(where, text, query.replace("@placeholder", entity), label, f"{numbers[-1]}/{entity}")
        yield Candidate(record, numbers, entity, tuple(answers))


_READERS = {
    "boolq": _plain("passage", "question"),
    "cb": _plain("premise", "hypothesis"),
    "superglue_rte": _plain("premise", "hypothesis"),
    "wic": _wic,
    "wsc": _wsc,
    "multirc": _multirc,
    "record": _record,
    "axb": _plain("sentence1", "sentence2"),
    "axg": _axg,
}
"""What makes the candidates of a row, by task."""


def _alternatives(where: str, row: Mapping[str, Any]) -> choice.Question:
    premise, asked, *choices = (_value(where, row, name, str) for name in ("premise", "question", "choice1", "choice2"))
    if asked not in QUESTIONS:
        raise UserError(f"{where}: 'question' is {asked!r:.40}; expected {' or '.join(QUESTIONS)}")
    label = _label(row)
    answer = {None: None, "0": 0, "1": 1, "choice1": 0, "choice2": 1}.get(label, -1)
    if answer == -1:
        raise UserError(f"{where}: unknown label {label!r:.40}; expected 0 or 1")
    index = str(_value(where, row, "idx", int))
    return choice.Question(where, premise, QUESTIONS[asked], tuple(choices), answer, index)


def _questions(source: str, questions: list[choice.Question], split: str) -> choice.Examples:
    """Return the questions of copa, all of which have answers, or none, of a test set."""
    if not questions:
        raise UserError(f"{source} holds no example of copa")
    missing = [question for question in questions if question.answer is None]
    if missing and (split != "test" or len(missing) < len(questions)):
        raise UserError(f"{missing[0].where}: the label is missing")
    return choice.Examples("copa", tuple(questions), not missing)

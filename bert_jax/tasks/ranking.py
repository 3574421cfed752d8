"""Queries with their documents: what a model that reads both together is trained and measured on, and the measures.

Examples come from TSV, CSV, JSON lines, TFDS or the hub, as those of the task text do: a row has a query with a list of
documents and their grades, or with a document that answers it and others that do not, or with one document and its
grade, where the rows of one query make an example.

Measures have the definitions of trec_eval: nDCG, MRR, MAP, recall and precision. A ranking is ordered by score, and
documents of equal score by their ids from the last to the first, as trec_eval does whatever order a file has; the
metrics of the task vectors (`tasks.vectors.ranks`) give a positive the last place among equal ones. A document without
a judgement is not relevant, one with a score of 1 or more is. Gains are the scores themselves (nDCG of Järvelin and
Kekäläinen 2002 with linear gains). What was found for queries without judgements is left out; a judged query for which
nothing was found counts 0.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from absl import logging

from bert_jax.config import HeadConfig
from bert_jax.config.ranking import BinaryLoss, RankingLoss, SoftmaxLoss
from bert_jax.config.tasks import RankingDataConfig, RankingOptions
from bert_jax.data.sequences import GroupedFeatures, Uncut
from bert_jax.errors import UserError
from bert_jax.tasks import readers, sentences
from bert_jax.tokenization.tokenizer import Tokenizer, join, sequence_length

QUERY = ("query", "anchor", "question", "sentence1")
DOCUMENT = ("documents", "document", "positive", "passage", "answer", "sentence2")
LABEL = ("labels", "label", "grade", "score", "scores")
GROUP = ("query_id", "query-id", "qid")
MOST = 1000  # documents of a training query, whose pairs are compared

MEASURES = ("ndcg@10", "mrr@10", "map@100", "recall@100")
"""What tables show."""
TITLES = {"ndcg": "nDCG", "mrr": "MRR", "map": "MAP", "recall": "recall", "precision": "precision"}


def title(measure: str) -> str:
    """Return a measure as people write it, such as nDCG@10."""
    name, _, cutoff = measure.partition("@")
    return f"{TITLES[name]}@{cutoff}"


def ordered(scores: Mapping[str, float]) -> list[str]:
    """Return the ids of documents in the order in which trec_eval ranks them; its scores are of 32 bits."""
    ids = list(scores)
    with np.errstate(over="ignore"):
        values = np.array([scores[each] for each in ids], np.float64).astype(np.float32).tolist()
    return [name for _, name in sorted(zip(values, ids, strict=True), reverse=True)]


def measured(judged: Mapping[str, int], scores: Mapping[str, float], measures: Iterable[str]) -> dict[str, float]:
    """Return measures of the ranking of one query, such as ndcg@10, by their names.

    Args:
      judged: scores of the judged documents by id.
      scores: scores of the documents that were found, by id.
    """
    gains = [max(judged.get(name, 0), 0) for name in ordered(scores)]
    ideal = sorted((score for score in judged.values() if score > 0), reverse=True)
    return {measure: _measure(measure, gains, ideal) for measure in measures}


def _measure(measure: str, gains: Sequence[int], ideal: Sequence[int]) -> float:
    """Return a measure of the gains of a ranking, next to the gains of the best one, which has all that is relevant."""
    name, at, text = measure.partition("@")
    if name not in TITLES or at and not (text.isdecimal() and int(text)) or not at and name != "map":
        raise UserError(f"there is no measure {measure!r:.40}; expected one such as ndcg@10, of {', '.join(TITLES)}")
    cutoff = int(text) if at else len(gains)
    top = gains[:cutoff]
    if not ideal:
        return 0.0
    if name == "ndcg":
        return _discounted(top) / _discounted(ideal[:cutoff])
    ranks = [rank for rank, gain in enumerate(top, 1) if gain]
    if name == "mrr":
        return 1 / ranks[0] if ranks else 0.0
    if name == "map":
        return sum(count / rank for count, rank in enumerate(ranks, 1)) / len(ideal)
    return len(ranks) / (len(ideal) if name == "recall" else cutoff)


def _discounted(gains: Iterable[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def evaluated(
    judgements: Mapping[str, Mapping[str, int]],
    run: Mapping[str, Mapping[str, float]],
    measures: Sequence[str] = MEASURES,
) -> dict[str, float]:
    """Return the means of measures over the judged queries.

    Args:
      judgements: scores by query, then by document.
      run: scores of what was found by query, then by document.
    """
    if not judgements:
        raise UserError("there is nothing to measure: no query has a judgement")
    rows = [measured(judged, run.get(query, {}), measures) for query, judged in judgements.items()]
    return {measure: math.fsum(row[measure] for row in rows) / len(rows) for measure in measures}


METRICS = ("ndcg@10", "mrr@10", "map")
"""Measures of the documents of each query in the order of a model, the main one first."""


@dataclasses.dataclass(frozen=True)
class RankingExamples(readers.DividedExamples):
    """E queries of one split, each with its documents."""

    task: str
    split: str
    queries: list[str]
    documents: list[list[str]]
    grades: list[list[float]] | None
    """Of each document: how well it answers the query, or the score of a teacher; None without."""
    given: bool
    """Whether the grades are given, and do not just say which document is the one that answers."""
    index: list[str]
    """Names of the queries in a file of predictions."""
    labels: tuple[str, ...] = ()
    unit: ClassVar[str] = "queries"

    @property
    def together(self) -> list[Any]:
        """The queries, of which equal ones are held out together."""
        return self.queries

    def chosen(self, numbers: np.ndarray) -> Self:
        """Return some of the examples."""
        columns = {
            name: [getattr(self, name)[number] for number in numbers] for name in ("queries", "documents", "index")
        }
        grades = self.grades and [self.grades[number] for number in numbers]
        return dataclasses.replace(self, **columns, grades=grades)

    @property
    def pairs(self) -> bool:
        return True

    def judged(self) -> Self:
        """Return training examples as those of dev; a UserError if they have grades that cannot be measured by."""
        _check_grades(
            (f"the training query {self.queries[place]!r:.60}", grades)
            for place, grades in enumerate(self.grades or ())
        )
        return dataclasses.replace(self, split="dev")

    @property
    def has_answers(self) -> bool:
        return self.grades is not None

    @property
    def gold(self) -> list[int]:
        """The number of documents of each query, which the sequences of all do not say."""
        return list(map(len, self.documents))

    def __len__(self) -> int:
        return len(self.queries)


class _Row(NamedTuple):
    """What a row says of a query."""

    where: str
    query: str
    documents: list[str]
    grades: list[float] | None
    group: str | None
    """What it has in common with the other rows of the query; None if it has the whole query."""


@dataclasses.dataclass(frozen=True)
class _Columns:
    """Names of the columns of a source."""

    query: str
    document: str
    negatives: tuple[str, ...]
    label: str | None
    group: str | None

    @classmethod
    def of(cls, where: str, values: Mapping[str, Any], data: RankingDataConfig) -> "_Columns":
        """Return those that the options name, or of the usual names those that the first row has."""
        return cls(
            readers.need_column(where, values, data.query_column, QUERY, "query_column"),
            readers.need_column(where, values, data.document_column, DOCUMENT, "document_column"),
            tuple(readers.negative_columns(where, values, data.negative_columns)),
            readers.asked_column(where, values, data.label_column, LABEL, "label_column"),
            readers.asked_column(where, values, data.group_column, GROUP, "group_column"),
        )

    def row(self, where: str, values: Mapping[str, Any], teacher: bool) -> _Row:
        """Return what a row says; a UserError if a text or a grade is none.

        `teacher`: whether numbers next to an answer and others that are none are a teacher's, and no grades.
        """
        query = readers.text_of(where, values, self.query)
        value = values.get(self.document)
        listed = isinstance(value, list)
        if listed and self.negatives:
            raise UserError(
                f"{where}: {self.document!r} is a list, and {self.negatives[0]!r} has more; give one of both"
            )
        documents = [
            readers.text_of(where, {self.document: each}, self.document) for each in (value if listed else [value])
        ]
        if not documents:
            raise UserError(f"{where}: the list {self.document!r} is empty; a query has at least one document")
        names = [name for name in self.negatives if values.get(name) not in (None, "")]
        documents += [readers.text_of(where, values, name) for name in names]
        grades = None
        if self.label is not None and values.get(self.label) not in (None, "") and not (teacher and self.negatives):
            found = readers.numbers_of(where, values[self.label], "label_column")
            grades = self._grades(where, found, len(documents), listed)
        elif self.negatives:
            grades = [1.0] + [0.0] * (len(documents) - 1)
        whole = listed or bool(self.negatives)
        group = None if whole else query if self.group is None else repr(values.get(self.group))
        return _Row(where, query, documents, grades, group)

    def _grades(self, where: str, found: float | list[float], count: int, listed: bool) -> list[float]:
        """Return a grade for each document of a row."""
        grades: list[float] = found if isinstance(found, list) else [found]
        if not isinstance(found, list) and count == 2 and not listed and self.negatives:  # the difference of both
            grades.append(0.0)
        if len(grades) != count:
            raise UserError(
                f"{where}: {count} documents, but {len(grades)} numbers in {self.label!r}; give each document one"
            )
        return grades


def splits(task: str, data: RankingDataConfig) -> tuple[str, ...]:
    """Return those of train, dev and test that the data has."""
    return readers.table_splits(data)


def load(
    task: str,
    data: RankingDataConfig,
    split: str,
    labels: tuple[str, ...] | None = None,
    given: readers.Given | None = None,
) -> RankingExamples:
    """Return the examples of a split.

    Args:
      given: rows of the splits that are in memory: dicts with the names of columns, or (query, [document, …], [grade,
        …]), (query, document, grade) or (query, positive, negative, …).

    Raises:
      UserError: the kind of file is unknown; a column is missing; a text is missing or empty; a grade is no number, or
        of dev or test no whole one; some documents have grades and others have none. Names file and line.
    """
    rows, columns = [], None
    for where, values in readers.own_rows(data, split, given, _columns_of_row, data.query_column):
        columns = columns or _Columns.of(where, values, data)
        watched = [name for name in values if str(name).startswith(readers.NEGATIVE) and name not in columns.negatives]
        if not data.negative_columns:
            readers.check_absent(where, values, (*watched, *(() if columns.label else LABEL)))
        rows.append(columns.row(where, values, teacher=split != "train"))
    if columns is None:
        raise UserError(f"{data.named or getattr(data, split) or data.dir}, split {split}, holds no example")
    graded = next((row.where for row in rows if row.grades is not None), None)
    bare = next((row.where for row in rows if row.grades is None), None)
    if bare is not None and (graded is not None or split != "test"):
        raise UserError(
            f"{bare}: the grade is missing; give a column {' or '.join(LABEL)}, or of documents that do not answer the "
            f"query {readers.NEGATIVE}_1, {readers.NEGATIVE}_2 and so on, which `bert-jax mine` finds"
        )
    if split != "train" and graded is not None:
        _check_grades((row.where, row.grades or ()) for row in rows)
    queries, documents, grades, index = _grouped(rows)
    graded_by_file = columns.label is not None
    return RankingExamples(task, split, queries, documents, None if graded is None else grades, graded_by_file, index)


def _check_grades(rows: Iterable[tuple[str, Sequence[float]]]) -> None:
    """Raise a UserError unless the grades that are measured by are whole numbers, and some document answers."""
    highest = 0.0
    for where, grades in rows:
        highest = max([highest, *grades])
        if wrong := [each for each in grades if each != int(each)]:
            raise UserError(
                f"{where}: the grade {wrong[0]:g} is no whole number; dev and test are measured by whole ones, of "
                "which 1 and more mean that a document answers the query"
            )
    if highest < 1:
        raise UserError(
            f"no document of dev or test has a grade of 1 or more, which means that it answers the query; the highest "
            f"is {highest:g}"
        )


def _columns_of_row(where: str, row: Any) -> dict[str, Any]:
    """Return the values of a row without names."""
    if isinstance(row, list) and len(row) > 1 and isinstance(row[0], str):
        query, document, *more = row
        if isinstance(document, list) and len(more) < 2 or len(more) == 1 and isinstance(more[0], int | float):
            return {QUERY[0]: query, DOCUMENT[1]: document} | dict(zip(LABEL, more, strict=False))
        if all(isinstance(each, str) for each in row):
            return {QUERY[0]: query, DOCUMENT[1]: document} | {
                f"{readers.NEGATIVE}_{n}": each for n, each in enumerate(more, 1)
            }
    raise UserError(
        f"{where} is {row!r:.80}; expected (query, [document, …], [grade, …]), (query, document, grade) or (query, "
        "positive, negative, …), or a dict by column"
    )


def _grouped(rows: Sequence[_Row]) -> tuple[list[str], list[list[str]], list[list[float]], list[str]]:
    """Return queries, their documents and grades, and names; the rows of one query are put together."""
    places: dict[str, int] = {}
    queries, documents, grades, index = [], [], [], []
    for row in rows:
        place = len(queries) if row.group is None else places.setdefault(row.group, len(queries))
        if place == len(queries):
            queries.append(row.query)
            documents.append([])
            grades.append([])
            index.append(str(place))
        elif queries[place] != row.query:
            raise UserError(
                f"{row.where}: the query {row.query!r:.60} has the id {row.group:.40} of another one, "
                f"{queries[place]!r:.60}; give each query its own, or name the column with --data.group_column"
            )
        documents[place] += row.documents
        grades[place] += row.grades or []
    return queries, documents, grades, index


def features(examples: RankingExamples, tokenizer: Tokenizer, options: RankingOptions) -> GroupedFeatures:
    """Return a sequence for each document, with its query, in which the longer text is cut first.

    Raises:
      UserError: training examples lack what the loss learns from, or have what it cannot take.
    """
    if examples.split == "train":
        _check_fit(examples, options.loss)
    encoded = dict(_encoded([*examples.queries, *(each for group in examples.documents for each in group)], tokenizer))
    pairs = [
        (encoded[query], encoded[document])
        for query, group in zip(examples.queries, examples.documents, strict=True)
        for document in group
    ]
    joined = [join(tokenizer, *pair, options.max_length) for pair in pairs]
    grades = examples.grades
    return GroupedFeatures(
        [ids for ids, _ in joined],
        [types for _, types in joined],
        None if grades is None else np.array([each for group in grades for each in group], np.float32),
        np.repeat(np.arange(len(examples), dtype=np.int32), examples.gold),
        options.max_length,
        uncut=Uncut(np.array([sequence_length(tokenizer, *pair) for pair in pairs]), options.max_length, "pairs"),
    )


def _encoded(texts: Sequence[str], tokenizer: Tokenizer) -> Iterator[tuple[str, list[int]]]:
    """Yield each different text and its ids, without [CLS] and [SEP]."""
    different = list(dict.fromkeys(texts))
    return zip(different, tokenizer.encode_batch(different), strict=True)


def _check_fit(examples: RankingExamples, loss: RankingLoss) -> None:
    """Raise a UserError if a loss cannot learn from these training examples; say of how many queries it learns
    nothing."""
    name, grades = f"options.loss.name={loss.name}", examples.grades
    assert grades is not None, "load comes first"
    if (longest := max(examples.gold)) > MOST:
        query = examples.queries[examples.gold.index(longest)]
        raise UserError(
            f"the training query {query!r:.60} has {longest:,} documents, which are compared with each other; at most "
            f"{MOST:,} are, so leave some of the irrelevant ones out"
        )
    if isinstance(loss, BinaryLoss):
        wrong = next((each for group in grades for each in group if not 0 <= each <= loss.highest), None)
        if wrong is not None:
            raise UserError(
                f"a training document has the grade {wrong:g}, but {name} takes 0 to options.loss.highest="
                f"{loss.highest:g}; give the highest that there can be, or --options.loss.name=lambda for any"
            )
    if loss.learns == "scores" and not examples.given:
        raise UserError(
            f"{name} learns the scores of a teacher, but the training examples have no column {' or '.join(LABEL)} "
            "with a list of them; name one with --data.label_column, or give --options.loss.name=softmax for documents "
            "of which one answers"
        )
    if isinstance(loss, BinaryLoss):
        apart = len({each for group in grades for each in group}) > 1
        alike = 0
    else:
        chosen = [{each > 0 for each in group} if isinstance(loss, SoftmaxLoss) else set(group) for group in grades]
        alike = sum(len(group) < 2 for group in chosen)
        apart = alike < len(grades)
    if not apart:
        raise UserError(
            f"{name} tells documents apart, but all those of a training query are graded alike (the first has "
            f"{grades[0][0]:g}): there is nothing to learn; `bert-jax mine` finds documents that do not answer"
        )
    if alike:
        logging.warning(
            "%s of %s training queries have documents of one grade alone, from which %s learns nothing",
            f"{alike:,}",
            f"{len(grades):,}",
            name,
        )


def head(task: str, labels: tuple[str, ...]) -> HeadConfig:
    """Return a head with one score."""
    return HeadConfig(kind="regression")


def metrics(examples: RankingExamples) -> tuple[str, ...]:
    """Return the metrics by which runs can be compared, the usual one first."""
    return METRICS


def _ranked(examples: RankingExamples, logits: Sequence[np.ndarray]) -> list[dict[str, float]]:
    """Return the scores of the documents of each query by their places; of equal ones the first place is the last."""
    ends = np.cumsum(examples.gold)
    scores = np.asarray(logits, np.float64).reshape(-1)
    return [
        {f"{place:09d}": score for place, score in enumerate(scores[end - size : end].tolist())}
        for size, end in zip(examples.gold, ends.tolist(), strict=True)
    ]


def score(examples: RankingExamples, features: GroupedFeatures, logits: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the values of `metrics`, means over the queries, of the order of their documents by score."""
    assert examples.grades is not None, "has_answers comes first"
    judged = {
        name: {f"{place:09d}": int(grade) for place, grade in enumerate(group)}
        for name, group in zip(examples.index, examples.grades, strict=True)
    }
    return evaluated(judged, dict(zip(examples.index, _ranked(examples, logits), strict=True)), METRICS)


def prediction_names(examples: RankingExamples, split: str) -> list[str]:
    """Return the names of the files that `write_predictions` writes, the main one first."""
    return [f"predictions_{split}.tsv"]


def write_predictions(
    examples: RankingExamples, features: GroupedFeatures, logits: Sequence[np.ndarray], directory: str, split: str
) -> list[str]:
    """Write `predictions_SPLIT.tsv`: number of the query and of its document, from 0, rank, from 1, and score."""
    rows = [
        f"{name}\t{int(place)}\t{rank}\t{scores[place]!r}"
        for name, scores in zip(examples.index, _ranked(examples, logits), strict=True)
        for rank, place in enumerate(ordered(scores), 1)
    ]
    return sentences.write_lines(
        directory, prediction_names(examples, split)[0], ["query\tdocument\trank\tscore", *rows]
    )

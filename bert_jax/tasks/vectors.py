"""Texts whose vectors are learned and compared: pairs that belong together, with scores, with negatives, or alone.

Examples come from TSV, CSV, JSON lines, TFDS or the hub, as those of the task text do, and have their parts in columns:
an anchor, its positive, perhaps negatives, perhaps a score. Pairs with scores are measured by the correlation of scores
and similarities; pairs without by how often the positive of an anchor is found among the positives of all.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from absl import logging

from bert_jax.config import HeadConfig
from bert_jax.config.heads import SingleVector, TextVectors, TokenVectors, WordVector
from bert_jax.config.tasks import VectorDataConfig, VectorOptions
from bert_jax.config.vectors import CosineRegression, MarginMse, VectorLoss
from bert_jax.data.sequences import TextFeatures, TokenReader, Uncut
from bert_jax.errors import UserError
from bert_jax.tasks import readers, sentences
from bert_jax.tokenization.tokenizer import Tokenizer, join

ANCHOR = ("anchor", "query", "question", "sentence1", "sentence", "text")
POSITIVE = ("positive", "answer", "document", "passage", "sentence2", "text_pair")
SCORE = ("score", "similarity", "label")
_BLOCK = 1024  # anchors that are compared with all positives at once
DEPTH = 10  # places in which a positive counts as found

METRICS = ("spearman", "pearson"), (f"mrr@{DEPTH}", "accuracy@1")
"""Metrics of pairs with scores and of pairs without, the main one first."""


@dataclasses.dataclass(frozen=True)
class VectorExamples(readers.DividedExamples):
    """E examples of one split."""

    task: str
    split: str
    texts: list[list[str]]
    """Columns of E texts each: the anchors, the positives or second texts, and the negatives; anchors alone for texts
    without pairs."""
    scores: np.ndarray | None
    """float32 [E] of pairs, or [E, S] of a teacher; None without."""
    index: list[str]
    """Names of the examples in a file of predictions."""
    labels: tuple[str, ...] = ()
    unit: ClassVar[str] = "anchors"

    @property
    def together(self) -> list[Any]:
        """The anchors, whose positives and negatives are held out together."""
        return self.texts[0]

    def chosen(self, numbers: np.ndarray) -> Self:
        """Return some of the examples."""
        return dataclasses.replace(
            self,
            texts=[[column[number] for number in numbers] for column in self.texts],
            scores=None if self.scores is None else self.scores[numbers],
            index=[self.index[number] for number in numbers],
        )

    def judged(self) -> Self:
        """Return training examples as those of dev, whose texts are compared as they are."""
        return dataclasses.replace(self, split="dev")

    @property
    def has_answers(self) -> bool:
        return len(self.texts) > 1

    @property
    def rated(self) -> bool:
        """Whether each pair has one score."""
        return self.scores is not None and self.scores.ndim == 1

    def __len__(self) -> int:
        return len(self.texts[0])


@dataclasses.dataclass(frozen=True)
class _Columns:
    """Names of the columns of a source."""

    texts: tuple[str, ...]
    score: str | None

    @classmethod
    def of(cls, where: str, values: Mapping[str, Any], data: VectorDataConfig, split: str) -> "_Columns":
        """Return those that the options name, or of the usual names those that the first example has."""
        anchor = readers.need_column(where, values, data.anchor_column, ANCHOR, "anchor_column")
        second = readers.asked_column if split == "train" else readers.need_column
        positive = second(where, values, data.positive_column, POSITIVE, "positive_column")
        negatives = readers.negative_columns(where, values, data.negative_columns)
        if negatives and positive is None:
            raise UserError(
                f"{where}: a {negatives[0]!r} but no column {' or '.join(POSITIVE)}; name one with "
                "--data.positive_column"
            )
        score = readers.asked_column(where, values, data.score_column, SCORE, "score_column")
        return cls((anchor, *([] if positive is None else [positive]), *negatives), score)

    def say_alone(self, where: str, values: Mapping[str, Any]) -> None:
        """Warn that training texts are their own positives where other columns may have what belongs to them."""
        others = [repr(str(name)[:30]) for name in values if name not in (*self.texts, self.score)]
        if len(self.texts) == 1 and others:
            logging.warning(
                "%s: of the texts only %r is read, so each is its own positive; %s is left out. If it has the "
                "positives, name it with --data.positive_column",
                where,
                self.texts[0],
                ", ".join(others[:10]),
            )

    def check_late(self, where: str, values: Mapping[str, Any], data: VectorDataConfig) -> None:
        """Raise a UserError about a column that the first example lacks, which would be lost silently."""
        watched = [*(POSITIVE if len(self.texts) == 1 else ()), *(() if self.score else SCORE)]
        if not data.negative_columns:
            watched += [name for name in values if str(name).startswith(readers.NEGATIVE) and name not in self.texts]
        readers.check_absent(where, values, watched)


def splits(task: str, data: VectorDataConfig) -> tuple[str, ...]:
    """Return those of train, dev and test that the data has."""
    return readers.table_splits(data)


def load(
    task: str,
    data: VectorDataConfig,
    split: str,
    labels: tuple[str, ...] | None = None,
    given: readers.Given | None = None,
) -> VectorExamples:
    """Return the examples of a split.

    Args:
      given: rows of the splits that are in memory: dicts with the names of columns, or (anchor, positive), (first,
        second, score), or (anchor, positive, negative, …).

    Raises:
      UserError: the kind of file is unknown; a column is missing; a text is missing or empty; a score is no number, or
        no list of as many as the other examples have. Names file and line.
    """
    in_parts = split == "train" and data.train and not data.named and not (given and split in given)
    parts = data.parts if in_parts else ((getattr(data, split), 1),)
    texts, scores, wheres = [], [], []
    for file, times in parts:
        found = _read(dataclasses.replace(data, **{split: file}), split, given)
        for all_parts, part in zip((texts, scores, wheres), found, strict=True):
            all_parts += part * times
    _check_alike(texts, scores, wheres)
    found = _scores(scores, wheres) if scores else None
    numbers = np.arange(len(texts))
    if split == "train" and data.lowest_score is not None:
        numbers, found = _belonging(found, data.lowest_score, wheres[0]), None
    kept = [texts[number] for number in numbers]
    by_column = [list(column) for column in zip(*kept, strict=True)]
    return VectorExamples(task, split, by_column, found, [str(number) for number in numbers])


def _read(
    data: VectorDataConfig, split: str, given: readers.Given | None
) -> tuple[list[list[str]], list[float | list[float]], list[str]]:
    """Return texts, scores (if there are any) and place of every example of a source."""
    texts, scores, wheres = [], [], []
    columns, keys = None, set()
    for where, values in readers.own_rows(data, split, given, _columns_of_row, data.anchor_column):
        if columns is None:
            columns, keys = _Columns.of(where, values, data, split), set(values)
            columns.say_alone(where, values)
        elif not values.keys() <= keys:
            columns.check_late(where, values, data)
        texts.append([readers.text_of(where, values, name) for name in columns.texts])
        if columns.score is not None:
            scores.append(readers.numbers_of(where, values.get(columns.score), "score_column"))
        wheres.append(where)
    if columns is None:
        raise UserError(f"{data.named or getattr(data, split) or data.dir}, split {split}, holds no example")
    return texts, scores, wheres


def _check_alike(texts: list[list[str]], scores: list[float | list[float]], wheres: list[str]) -> None:
    """Raise a UserError if the examples of one file have other columns than those of the first."""
    other = next((number for number, each in enumerate(texts) if len(each) != len(texts[0])), None)
    if other is not None:
        raise UserError(
            f"{wheres[other]}: {len(texts[other])} texts, but {wheres[0]} has {len(texts[0])}; files that are trained "
            "on together have the same columns"
        )
    if scores and len(scores) < len(texts):
        raise UserError(
            f"the file of {wheres[0]} or another one has scores and others have none; files that are trained on "
            "together have the same columns"
        )


def _columns_of_row(where: str, row: Any) -> dict[str, Any]:
    """Return the values of a row without names: one or two texts, and a score, or negatives, after them."""
    texts = row if isinstance(row, list) else [row]
    if not texts or not all(isinstance(each, str) for each in texts[:2]):
        raise UserError(
            f"{where} is {row!r:.80}; expected a text, (anchor, positive), (first, second, score) or (anchor, "
            "positive, negative, …), or a dict by column"
        )
    values = dict(zip((ANCHOR[0], POSITIVE[0]), texts, strict=False))
    if len(texts) == 3 and not isinstance(texts[2], str):
        return values | {SCORE[0]: texts[2]}
    return values | {f"negative_{number}": each for number, each in enumerate(texts[2:], 1)}


def _scores(found: Sequence[float | list[float]], wheres: Sequence[str]) -> np.ndarray:
    """Return float32 [E] or [E, S]; raise a UserError if one has another length than the first."""
    sizes = [len(each) if isinstance(each, list) else None for each in found]
    other = next((number for number, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        seen, first = (f"{size} scores" if size is not None else "one score" for size in (sizes[other], sizes[0]))
        raise UserError(f"{wheres[other]}: {seen}, but the first example has {first}; give all as many")
    return np.array(found, np.float32)


def _belonging(scores: np.ndarray | None, lowest: float, where: str) -> np.ndarray:
    """Return the numbers of the pairs with at least this score; raise a UserError if there are none."""
    if scores is None or scores.ndim > 1:
        raise UserError(f"{where}: data.lowest_score={lowest:g} chooses pairs by one score each, and there is none")
    numbers = np.flatnonzero(scores >= lowest)
    if not len(numbers):
        raise UserError(
            f"no training pair has a score of at least data.lowest_score={lowest:g}; the highest is {scores.max():g}"
        )
    logging.warning(
        "%s of %s training pairs have a score below data.lowest_score=%g and are left out",
        f"{len(scores) - len(numbers):,}",
        f"{len(scores):,}",
        lowest,
    )
    return numbers


def features(examples: VectorExamples, tokenizer: Tokenizer, options: VectorOptions) -> TextFeatures:
    """Return a sequence for every text; a training text without a positive is its own.

    Raises:
      UserError: training examples lack what the loss takes, or have what it would ignore; every model would be equally
        good on those of dev; or a prompt leaves no room for a text.
    """
    columns, scores = examples.texts, examples.scores
    _check_prompts(tokenizer, options)
    if examples.split == "dev":
        _check_measured(columns, scores)
    if examples.split == "train":
        scores = _fitting_scores(examples, options.loss)
        _check_differences(columns, scores, options.loss)
        columns = columns * 2 if len(columns) == 1 else columns
    numbers: dict[str, int] = {}
    for text in (text for column in columns for text in column):
        numbers.setdefault(text, len(numbers))
    prompts = [options.query_prompt, *[options.document_prompt] * (len(columns) - 1)]
    encoded = [
        _encoded(column, prompt or "", tokenizer, options) for column, prompt in zip(columns, prompts, strict=True)
    ]
    ids, types, *marks = _sequences(encoded, tokenizer, options)
    lengths = np.array([len(ids) + 2 for column in encoded for ids in column])
    return TextFeatures(
        ids,
        types,
        None if scores is None else scores.astype(np.float32),
        np.arange(len(examples), dtype=np.int32),
        max(options.max_length, options.form.query_length if isinstance(options.form, TokenVectors) else 0),
        uncut=Uncut(lengths, options.max_length, "texts"),
        marks=marks[0] if marks else None,
        numbers=np.array([[numbers[text] for text in column] for column in columns], np.int32).T.copy(),
        apart=options.loss.in_batch,
        form=options.embedding.form,
    )


def _sequences(encoded: list[list[list[int]]], tokenizer: Tokenizer, options: VectorOptions) -> list[list[Any]]:
    """Return, of columns of ids, the ids, token types and perhaps marks of each example: a list for each of its texts.

    The first column has the queries.
    """
    if not isinstance(options.form, TokenVectors):
        joined = [[join(tokenizer, ids, None, options.max_length) for ids in column] for column in encoded]
    else:
        reader = TokenReader(options.form, tokenizer)
        joined = [
            [
                reader.read(*join(tokenizer, ids, None, reader.limit(place == 0, options.max_length)), place == 0)
                for ids in column
            ]
            for place, column in enumerate(encoded)
        ]
    examples = list(zip(*joined, strict=True))
    return [[[text[part] for text in texts] for texts in examples] for part in range(len(joined[0][0]))]


def _encoded(texts: Sequence[str], prompt: str, tokenizer: Tokenizer, options: VectorOptions) -> list[list[int]]:
    """Return the ids of each text after a prompt, without [CLS] and [SEP]; of equal texts they are made once."""
    different = list(dict.fromkeys(texts))
    read = [f"{prompt}{text}".lower() if options.lowercase else f"{prompt}{text}" for text in different]
    ids = dict(zip(different, tokenizer.encode_batch(read), strict=True))
    return [ids[text] for text in texts]


def _check_prompts(tokenizer: Tokenizer, options: VectorOptions) -> None:
    """Raise a UserError if every text would be cut off after a prompt."""
    for name in ("query_prompt", "document_prompt"):
        tokens = len(tokenizer.encode(getattr(options, name) or ""))
        if tokens > 0 and tokens + 2 >= options.max_length:
            raise UserError(
                f"options.{name} has {tokens} tokens, which leave none of options.max_length={options.max_length} for "
                "a text; shorten it, or give a larger length"
            )


def _check_measured(columns: Sequence[Sequence[str]], scores: np.ndarray | None) -> None:
    """Raise a UserError if dev examples would measure all models the same."""
    if scores is None and len(set(columns[1])) < 2:
        raise UserError(
            f"all dev examples have the positive {columns[1][0]!r:.60}, which every model finds; give some that differ"
        )
    if scores is not None and scores.ndim == 1 and np.ptp(scores) == 0:
        raise UserError(f"all dev examples have the score {scores[0]:g}, an order of which means nothing; give others")


def _fitting_scores(examples: VectorExamples, loss: VectorLoss) -> np.ndarray | None:
    """Return the scores as a loss takes them; raise a UserError if it does not take examples of these columns."""
    scores, texts = examples.scores, len(examples.texts)
    given = "options.loss.name=" + loss.name
    if loss.takes != "pairs" and texts < 2:
        raise UserError(
            f"{given} compares two texts or more, but the training examples have one; only info_nce takes those"
        )
    if loss.takes in ("pairs", "triplets"):
        if scores is not None:
            raise UserError(
                f"{given} takes texts that belong together, but the training examples have scores; give "
                "--options.loss.name=cosent for scores, --data.lowest_score=NUMBER to take the pairs from that score "
                "on, or leave the column out of the file"
            )
        if loss.takes == "triplets" and texts != 3:
            raise UserError(
                f"{given} takes an anchor, a positive and one negative, but the examples have {texts} texts; "
                "give as many columns, or --options.loss.name=info_nce, which takes any number of negatives"
            )
        return None
    if scores is None:
        raise UserError(
            f"{given} takes scores, but the training examples have no column {' or '.join(SCORE)}; name one with "
            "--data.score_column, or give --options.loss.name=info_nce for pairs that belong together"
        )
    if loss.takes == "scores":
        if scores.ndim > 1 or texts != 2:
            raise UserError(f"{given} takes two texts with one score, but the examples have {_shape(texts, scores)}")
        if isinstance(loss, CosineRegression) and scores.max() > loss.highest:
            raise UserError(
                f"a training pair has the score {scores.max():g}, but options.loss.highest={loss.highest:g}; give the "
                "highest that there can be"
            )
        return scores
    if isinstance(loss, MarginMse) and scores.ndim == 1 and texts == 3:  # the difference itself
        return np.stack([scores, np.zeros_like(scores)], axis=1)
    if texts < 3 or scores.ndim != 2 or scores.shape[1] != texts - 1:
        raise UserError(
            f"{given} takes an anchor, a positive, negatives and a list with the score of each but the anchor, but the "
            f"examples have {_shape(texts, scores)}"
        )
    return scores


def _check_differences(columns: Sequence[Sequence[str]], scores: np.ndarray | None, loss: VectorLoss) -> None:
    """Raise a UserError if a loss that compares examples finds all of them alike, and would teach nothing."""
    if loss.in_batch and len(columns) < 3 and len(set(columns[-1])) < 2:
        raise UserError(
            f"options.loss.name={loss.name} tells texts from those of other examples, but all training examples have "
            f"the text {columns[-1][0]!r:.60}: there is nothing to learn"
        )
    if loss.compares_examples and scores is not None and not np.ptp(scores):
        raise UserError(
            f"options.loss.name={loss.name} learns the order of scores, but all training examples have the score "
            f"{scores[0]:g}: there is nothing to learn"
        )


def _shape(texts: int, scores: np.ndarray) -> str:
    return f"{texts} texts and {'one score' if scores.ndim == 1 else f'{scores.shape[1]} scores'}"


def head(task: str, labels: tuple[str, ...]) -> HeadConfig:
    """Return the head whose outputs are vectors."""
    return HeadConfig(kind="vectors")


Vectors = Sequence[Any]
"""Of each example those of its K texts: float32 [K, H]; of tokens a list of K arrays [L, D]; of words a sparse matrix
[K, V]."""


def similarities(vectors: Vectors, form: TextVectors) -> np.ndarray:
    """Return float64 [E]: how similar the first two texts of each example are, by cosines, MaxSim or dot products."""
    match form:
        case TokenVectors():
            return np.array([_max_sims(each[0], each[1], np.zeros(1, np.int64))[0] for each in vectors])
        case WordVector():
            anchors, positives = (_stacked(vectors, place) for place in (0, 1))
            return np.asarray(anchors.multiply(positives).sum(axis=1), np.float64).reshape(-1)
        case SingleVector():
            first, second = (unit(_stacked(vectors, place)) for place in (0, 1))
            return np.sum(first * second, axis=1)


def _stacked(vectors: Vectors, place: int) -> Any:
    """Return the vectors of the texts with that place in their examples, of a form with one for each text."""
    if isinstance(vectors[0], np.ndarray):
        return np.stack([each[place] for each in vectors])
    from scipy import sparse

    return sparse.vstack([each[place] for each in vectors], format="csr", dtype=np.float64)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors [n, H] divided by their norms, float64; one of zeros stays so."""
    wide = vectors.astype(np.float64)
    return wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)


def _max_sims(query: np.ndarray, tokens: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return float64 [N]: for each document, Σ over the query's tokens of the highest product with one of its own.

    Args:
      query: [L, D].
      tokens: [T, D], those of all documents.
      starts: int [N], the first token of each document.
    """
    return np.maximum.reduceat(query @ tokens.T, starts, axis=1).sum(axis=0, dtype=np.float64)


def ranks(vectors: Vectors, numbers: np.ndarray, form: TextVectors) -> np.ndarray:
    """Return int64 [E]: the place, from 1, of the positive of each anchor among the different positives of all.

    Other positives of an equal anchor are left out. Of equal similarities, and of those that are no numbers, the
    positive has the last place.

    Args:
      vectors: those of each example, the anchor and the positive first.
      numbers: int [E, K], those of the texts.
      form: of the vectors.
    """
    _, chosen, own = np.unique(numbers[:, 1], return_index=True, return_inverse=True)
    compare = _comparison(vectors, chosen, form)
    also: dict[int, list[int]] = {}
    for anchor, place in zip(numbers[:, 0].tolist(), own.tolist(), strict=True):
        also.setdefault(anchor, []).append(place)
    found = np.zeros(len(vectors), np.int64)
    for start in range(0, len(vectors), _BLOCK):
        block = slice(start, start + _BLOCK)
        scores = compare(block)
        rows = np.arange(len(scores))
        right = scores[rows, own[block]]
        for row, anchor in enumerate(numbers[block, 0].tolist()):
            scores[row, also[anchor]] = -np.inf
        found[block] = 1 + np.sum(~(scores < right[:, None]), axis=1)
    return found


def _comparison(vectors: Vectors, chosen: np.ndarray, form: TextVectors) -> Callable[[slice], np.ndarray]:
    """Return a function from a part of the examples to the similarities of their anchors to the chosen positives."""
    if isinstance(form, TokenVectors):
        documents = [vectors[number][1] for number in chosen]
        tokens, starts = np.concatenate(documents), np.cumsum([0, *map(len, documents[:-1])])
        return lambda block: np.stack([_max_sims(each[0], tokens, starts) for each in vectors[block]])
    anchors, positives = _stacked(vectors, 0), _stacked(vectors, 1)[chosen]
    if isinstance(form, WordVector):
        return lambda block: (anchors[block] @ positives.T).toarray()
    anchors, positives = unit(anchors), unit(positives)
    return lambda block: anchors[block] @ positives.T


def metrics(examples: VectorExamples) -> tuple[str, ...]:
    """Return the metrics by which runs can be compared on these examples, the usual one first."""
    return METRICS[0] if examples.rated else METRICS[1]


def score(examples: VectorExamples, features: TextFeatures, logits: Sequence[np.ndarray]) -> dict[str, float]:
    """Return spearman and pearson of similarities and scores, or of pairs without mrr@10 and accuracy@1.

    The latter are the mean of 1 / place of the positives that are among the first ten, and the share in the first.
    """
    if examples.rated and examples.scores is not None:
        found, scores = similarities(logits, features.form), examples.scores
        return {name: sentences.METRICS[name](scores, found) for name in METRICS[0]}
    places = ranks(logits, features.numbers, features.form)
    return {
        f"mrr@{DEPTH}": float(np.mean(np.where(places <= DEPTH, 1 / places, 0.0))),
        "accuracy@1": float(np.mean(places == 1)),
    }


def prediction_names(examples: VectorExamples, split: str) -> list[str]:
    """Return the names of the files that `write_predictions` writes, the main one first."""
    return [f"predictions_{split}.tsv"]


def write_predictions(
    examples: VectorExamples, features: TextFeatures, logits: Sequence[np.ndarray], directory: str, split: str
) -> list[str]:
    """Write `predictions_SPLIT.tsv`: index (from 0), similarity and, of pairs without scores, place of the positive."""
    columns: dict[str, Iterable[str]] = {
        "index": examples.index,
        features.form.similarities[0]: (repr(float(each)) for each in similarities(logits, features.form)),
    }
    if not examples.rated:
        columns["place"] = map(str, ranks(logits, features.numbers, features.form))
    rows = ["\t".join(columns), *map("\t".join, zip(*columns.values(), strict=True))]
    return sentences.write_lines(directory, prediction_names(examples, split)[0], rows)

"""What a model is asked: the kinds of questions, each with its way to the library's call, and what they compute."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from bert_jax.config.heads import SingleVector, TokenVectors
from bert_jax.data.sequences import RUNGS, Features, as_features
from bert_jax.errors import UserError
from bert_jax.pretrained import outputs
from bert_jax.pretrained.encodings import token_features, vector_form
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.pretrained.outputs import Output, most_rows, row_width, rows_of_batch
from bert_jax.tasks.task_data import recorded_options, recorded_task
from bert_jax.tokenization.tokenizer import assembled
from bert_jax.tools.search.vectors import FORMS


class Question(Protocol):
    """What is asked of a model."""

    def texts(self) -> Sequence[Any]:
        """Return what is counted: each a text, or something with texts in it."""
        ...

    def answer(self, model: PretrainedModel) -> Any:
        """Return the answer of `model`; raise a UserError for what it cannot read."""
        ...


@dataclasses.dataclass(frozen=True)
class FillMask:
    """Words for each [MASK] of texts: a bert_jax.Filled for each."""

    asked: Sequence[str]
    top_k: int = 5

    def texts(self) -> Sequence[str]:
        return self.asked

    def answer(self, model: PretrainedModel) -> list[Any]:
        return model.fill_mask(list(self.asked), self.top_k)


@dataclasses.dataclass(frozen=True)
class Predict:
    """The answers of the task head, as PretrainedModel.predict: Label, Labels, float, tagged words, Choice, Answer."""

    inputs: Sequence[Any]

    def texts(self) -> Sequence[Any]:
        return self.inputs

    def answer(self, model: PretrainedModel) -> list[Any]:
        return model.predict(list(self.inputs))


@dataclasses.dataclass(frozen=True)
class Embed:
    """Vectors of texts, as PretrainedModel.embed; of their first `dimensions` values if it is given.

    Vectors that have norm 1 have it after that, too.
    """

    asked: Sequence[str]
    prompt: Literal["query", "document"] | None = None
    normalize: bool | None = None
    dimensions: int | None = None

    def texts(self) -> Sequence[str]:
        return self.asked

    def answer(self, model: PretrainedModel) -> Any:
        found = model.embed(list(self.asked), prompt=self.prompt, normalize=self.normalize)
        if self.dimensions is None:
            return found
        if not isinstance(found, np.ndarray) or not 0 < self.dimensions <= found.shape[1]:
            most = f"between 1 and {found.shape[1]}" if isinstance(found, np.ndarray) else "left out for this model"
            raise UserError(f"dimensions={self.dimensions} must be {most}")
        found = found[:, : self.dimensions]
        if not (model.embedding.normalize if self.normalize is None else self.normalize):
            return found
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)


@dataclasses.dataclass(frozen=True)
class NextSentence:
    """The probabilities that the second text of each pair follows the first, list[float]."""

    pairs: Sequence[tuple[str, str]]

    def texts(self) -> Sequence[Any]:
        return self.pairs

    def answer(self, model: PretrainedModel) -> list[float]:
        return model.next_sentence(*_columns(self.pairs))


@dataclasses.dataclass(frozen=True)
class Rank:
    """A score for each document, list[float], in their order; the highest is the best.

    It is the answer of a head to the pair of query and document: a number, or the probability of the class "1"; of a
    model without a head the product of their vectors, in the form that the model makes.
    """

    query: str
    documents: Sequence[str]

    def texts(self) -> Sequence[str]:
        return [self.query, *self.documents]

    def answer(self, model: PretrainedModel) -> list[float]:
        if not self.documents:
            raise UserError("documents is empty; give the texts to rank")
        if model.head is not None:
            answers = model.predict([(self.query, document) for document in self.documents])
            return [_grade(model, answer) for answer in answers]
        query = model.embed([self.query], prompt="query")
        documents = model.embed(list(self.documents), prompt="document")
        return FORMS[model.vector_form].scores(query, documents).tolist()


def _grade(model: PretrainedModel, answer: Any) -> float:
    if isinstance(answer, float):
        return answer
    probabilities = getattr(answer, "probabilities", {})
    if "1" not in probabilities:
        raise UserError(f"{model.path} cannot rank: its head gives neither a number nor a class 1")
    return probabilities["1"]


@dataclasses.dataclass(frozen=True)
class Similarity:
    """The likeness of the texts of each pair, list[float]: what a regression head says, or cosines of vectors."""

    pairs: Sequence[tuple[str, str]]

    def texts(self) -> Sequence[Any]:
        return self.pairs

    def answer(self, model: PretrainedModel) -> list[float]:
        firsts, seconds = _columns(self.pairs)
        if model.head is not None and model.head.kind == "regression":
            return model.predict(list(zip(firsts, seconds, strict=True)))
        if not isinstance(model.embedding.form, SingleVector):
            form = FORMS[model.vector_form]
            found = (model.embed(firsts, prompt="query"), model.embed(seconds, prompt="document"))
            return [float(form.scores(found[0][i : i + 1], found[1][i : i + 1])[0]) for i in range(len(firsts))]
        vectors = model.embed([*firsts, *seconds], normalize=True).astype(np.float64)
        return (vectors[: len(firsts)] * vectors[len(firsts) :]).sum(axis=1).tolist()


def _columns(pairs: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
    if not pairs:
        raise UserError("there are no pairs; give at least one")
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise UserError(f"cannot read {pair!r:.80}; expected a pair of texts")
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def longest_text(model: PretrainedModel) -> int:
    """Return how many tokens of a text or pair a model reads for a vector or for its head."""
    positions = model.config.longest_sequence
    if model.head is None:
        return min(positions, model.embedding.max_length or positions)
    task = recorded_task(model.history)
    return recorded_options(model.history, task, positions, model.head).max_length if task else positions


def sequences_like(model: PretrainedModel, positions: int) -> Iterator[tuple[Output, Features]]:
    """Yield what questions compute with a model, and sequences that have every shape of its batches.

    There are two candidates for a question, and up to four windows of a text; other numbers are compiled when they
    come.

    Args:
      positions: most positions of a batch of several rows.
    """
    tokenizer, longest = model.need_tokenizer(), model.config.longest_sequence
    (cls, *others), _ = assembled(tokenizer, [])
    groups = (1, 2, 4) if model.head is not None and model.head.windows else (0,)
    groups = (2,) if model.head is not None and model.head.kind == "choice" else groups
    for output, limit, words in _outputs(model):
        filler = tokenizer.mask_id if isinstance(output, outputs.MaskedWords) else cls
        widths = {row_width(size, longest) for size in (*RUNGS, limit) if size <= min(limit, positions)}
        for group, width in itertools.product(groups, sorted(widths)):
            size = width - (words is not None)  # to which a mark of the form is added
            ids = np.array([cls, filler, *[cls] * (size - 2 - len(others)), *others], np.int32)[:size]
            most = 1 if group else most_rows(width, positions)
            for rows in sorted({rows_of_batch(needed, most) for needed in range(1, most + 1)}):
                features = _alike(ids, rows, group, longest, windows=len(groups) > 1)
                yield output, features if words is None else token_features(model, features, words, query=False)


def _alike(ids: np.ndarray, rows: int, group: int, longest: int, windows: bool) -> Features:
    types = np.zeros_like(ids)
    if not group:
        return as_features([(ids, types)] * rows, longest)
    numbers = np.arange(rows, dtype=np.int32)
    return Features([[ids] * group] * rows, [[types] * group] * rows, None, numbers, longest, in_windows=windows)


def _outputs(model: PretrainedModel) -> Iterator[tuple[Output, int, TokenVectors | None]]:
    """Yield what questions compute of texts, their most tokens, and the form of token vectors, which adds marks."""
    tokenizer, config = model.need_tokenizer(), model.config
    limit, longest = longest_text(model), config.longest_sequence
    if model.head is not None:
        yield outputs.TaskScores(), limit, None
        return
    form = model.embedding.form
    if isinstance(form, TokenVectors):
        yield outputs.VectorsOfTokens(), limit, form
    elif not isinstance(form, SingleVector):
        yield outputs.WeightsOfWords(), limit, None
    elif not model.embedding.unsupported:
        for normalize in (True, False):
            yield vector_form(model, "last", None, None, None, normalize).output, limit, None
    if {"pooler", "next_sentence"} <= set(model.network.parts):
        yield outputs.NextSentence(), longest, None
    if "mlm" in model.network.parts and not config.two_directions:
        yield outputs.MaskedWords(tokenizer.mask_id, 5, config.predicts_ahead), longest, None

"""Answers of a fine-tuned model to new texts: classes, numbers, tags, choices, answers.

The task families make features and answers with the options of fine-tuning, so a loaded model answers as in its
evaluation. `bert-jax predict` does the same for the files of a task (finetuning/prediction.py).
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from absl import logging

from bert_jax.config.task_options import TaskOptions
from bert_jax.data.sequences.features import Features
from bert_jax.data.sequences.lengths import Uncut
from bert_jax.data.sequences.text_batches import as_features
from bert_jax.errors import UserError
from bert_jax.pretrained.model_inputs import in_batches
from bert_jax.pretrained.runner import Runner, softmax
from bert_jax.tasks import ner, plain_text, squad
from bert_jax.tasks.ner.conll import Sentence
from bert_jax.tasks.recorded import check_pairs, recorded_options, recorded_task
from bert_jax.tasks.squad import answer_spans, reading, windows
from bert_jax.tokenization.segments import join, sequence_length
from bert_jax.tokenization.texts import check_utf8, tokenize

SEVERAL = "; several are given as a list"

Scores = Callable[[Features], list[np.ndarray]]
"""Computes the scores of every sequence without its padding, as the families expect them."""


@dataclasses.dataclass(frozen=True)
class Label:
    """Answer of a classifier."""

    name: str
    """The most probable class."""
    probabilities: dict[str, float]
    """Probabilities by name of the class."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """Answer to a question with candidates."""

    index: int
    """Number of the most probable candidate, from 0."""
    probabilities: tuple[float, ...]
    """Probabilities of the candidates."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """Answer to a question on a context."""

    text: str
    """Part of the context; "" if the model was trained to say that there is no answer, and says so."""
    candidates: tuple[tuple[str, float], ...]
    """The best answers with their probabilities among themselves, the best first."""


class TaggedWord(tuple[str, str]):
    """(word, tag) of the word text[start:end] of a text."""

    start: int
    """First character of the word in the text."""
    end: int
    """Character after the word's last."""

    def __new__(cls, word: str, tag: str, span: tuple[int, int]) -> "TaggedWord":
        found = super().__new__(cls, (word, tag))
        found.start, found.end = span
        return found

    def __getnewargs__(self) -> tuple[str, str, tuple[int, int]]:
        return self[0], self[1], (self.start, self.end)

    def __repr__(self) -> str:
        return f"TaggedWord({self[0]!r}, {self[1]!r}, {(self.start, self.end)})"


def predict(model: Any, runner: Runner, inputs: Iterable[Any], batch_size: int, progress: bool | None) -> list[Any]:
    """Return an answer to each of `inputs`; PretrainedModel.predict describes the forms of both."""
    if model.head is None:
        raise UserError(f"{model.path} has no task head to predict with; fine-tune it first, or use encode or embed")
    kind = model.head.kind

    def scores(features: Features) -> list[np.ndarray]:
        return task_scores(kind, runner, features, batch_size, progress)

    kinds = {"classification": _labels, "regression": _numbers, "tagging": _tags, "choice": _choices, "span": _answers}
    return kinds[kind](model, inputs, scores)


def task_scores(
    kind: str, runner: Runner, features: Features, batch_size: int, progress: bool | None
) -> list[np.ndarray]:
    """Return the scores of every sequence by a head of this kind, in order and without padding, float32."""
    found: list[Any] = [None] * len(features)
    for numbers, batch in in_batches(features, batch_size, progress, runner.packs_scores):
        for row, number in zip(runner.task_scores(batch), numbers, strict=False):
            found[number] = row[: len(features.input_ids[number])] if kind in ("span", "tagging") else row
    return found


def _labels(model: Any, texts: Any, scores: Scores) -> list[Label]:
    found = []
    for row in scores(_sequences(model, texts)):
        shares = softmax(row)
        found.append(
            Label(
                model.head.labels[int(shares.argmax())], dict(zip(model.head.labels, map(float, shares), strict=True))
            )
        )
    return found


def _numbers(model: Any, texts: Any, scores: Scores) -> list[float]:
    return [float(row) for row in scores(_sequences(model, texts))]


def _sequences(model: Any, texts: Any) -> Features:
    longest = model.config.longest_sequence
    features = as_features(tokenize(model.need_tokenizer(), texts, longest, _longest(model)), longest)
    check_pairs(
        model.history, features, model.need_tokenizer(), lambda number: f"text {number} of the list", model.path
    )
    return features


def _tags(model: Any, sentences: Any, scores: Scores) -> list[list[tuple[str, str]]]:
    rows = _rows(sentences, (str, tuple), "a sentence")
    sentences = tuple(_sentence(row) for row in rows)
    examples = ner.Examples(sentences, model.head.labels, has_answers=False)
    options = dataclasses.replace(_options(model, "ner"), context=False)
    features = ner.features(examples, model.need_tokenizer(), options)
    tags = ner.predicted_tags(examples, features, scores(features))
    return [
        [TaggedWord(*found) for found in zip(sentence.words, names, sentence.spans, strict=True)]
        if sentence.spans
        else list(zip(sentence.words, names, strict=True))
        for sentence, names in zip(sentences, tags, strict=True)
    ]


def _sentence(row: Any) -> Sentence:
    """Return the words of a str as BERT splits it, or those that a tuple has."""
    good = isinstance(row, str) or isinstance(row, tuple) and all(isinstance(word, str) and word for word in row)
    if good:
        check_utf8(*((row,) if isinstance(row, str) else row))
    spans = tuple(plain_text.words(row)) if isinstance(row, str) else None
    words: Any = row if spans is None else tuple(row[start:end] for start, end in spans)
    _check(good and len(words) > 0, row, "a sentence as a str, or as a tuple of its words")
    return Sentence(words, None, None, words, spans)


def _choices(model: Any, questions: Any, scores: Scores) -> list[Choice]:
    rows = _rows(questions, (tuple,), "(text, [candidate, candidate, …])")
    tokenizer, longest = model.need_tokenizer(), _longest(model)
    ids, types, lengths = [], [], []
    for row in rows:
        _check(
            isinstance(row, tuple)
            and len(row) == 2
            and isinstance(row[0], str)
            and isinstance(row[1], (list, tuple))
            and len(row[1]) > 1
            and all(isinstance(text, str) for text in row[1]),
            row,
            "(text, [candidate, candidate, …])",
        )
        check_utf8(row[0], *row[1])
        first = tokenizer.encode(row[0])
        seconds = tokenizer.encode_batch(list(row[1]))
        pairs = [join(tokenizer, first, second, longest) for second in seconds]
        lengths.append(max(sequence_length(tokenizer, first, second) for second in seconds))
        ids.append([pair[0] for pair in pairs])
        types.append([pair[1] for pair in pairs])
    _check(
        len({len(row) for row in ids}) == 1,
        [len(row) for row in ids],
        "the same number of candidates for every question",
    )
    features = Features(
        ids,
        types,
        None,
        np.arange(len(ids), dtype=np.int32),
        longest,
        uncut=Uncut(np.array(lengths), longest, "questions"),
    )
    _warn_of_what_is_cut(features)
    shares = [softmax(row) for row in scores(features)]
    return [Choice(int(row.argmax()), tuple(map(float, row))) for row in shares]


def _answers(model: Any, questions: Any, scores: Scores) -> list[Answer]:
    rows = _rows(questions, (tuple,), "(question, context)")
    for row in rows:
        _check(
            isinstance(row, tuple) and len(row) == 2 and all(isinstance(text, str) and text.strip() for text in row),
            row,
            "(question, context)",
        )
        check_utf8(*row)
    contexts = tuple(dict.fromkeys(context for _, context in rows))
    numbered = tuple(
        reading.Question(str(number), question, contexts.index(context))
        for number, (question, context) in enumerate(rows)
    )
    task = "squad_v2" if recorded_task(model.history) == "squad_v2" else "squad_v1"
    examples = reading.Examples(task, contexts, numbered, has_answers=False)
    features = windows.features(examples, model.need_tokenizer(), _options(model, task))
    _warn_of_what_is_cut(features)
    predictions = answer_spans.predict(examples, features, scores(features))
    return [
        Answer(text, tuple((entry["text"], entry["probability"]) for entry in prediction.entries()))
        for text, prediction in zip(squad.final_texts(examples, features, predictions), predictions, strict=True)
    ]


def _warn_of_what_is_cut(features: Features) -> None:
    if features.uncut is not None and features.uncut.share:
        logging.warning("%s", features.uncut.describe("", f"the {features.uncut.limit} tokens that this model reads"))


def _options(model: Any, task: str) -> TaskOptions:
    return recorded_options(model.history, task, model.config.longest_sequence)


def _longest(model: Any) -> int:
    """Return the maximum number of tokens of a text: as in fine-tuning or, if not recorded, the number of positions."""
    task = recorded_task(model.history)
    return _options(model, task).max_length if task else model.config.longest_sequence


def _rows(inputs: Any, one: tuple[type, ...], wanted: str) -> list[Any]:
    """Return `inputs` as a list, whether they are one, of a type in `one`, or several."""
    rows = [inputs] if isinstance(inputs, one) or not isinstance(inputs, Iterable) else list(inputs)
    _check(bool(rows), rows, wanted)
    return rows


def _check(good: bool, seen: Any, wanted: str) -> None:
    if not good:
        raise UserError(f"cannot read {seen!r:.80}; expected {wanted}{SEVERAL}")

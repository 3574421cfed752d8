"""Answers of a loaded model to new texts: classes, numbers, tags, choices, spans, and words for each [MASK].

The task families make features and answers with the options of fine-tuning, so a loaded model answers as in its
evaluation. `bert-jax predict` does the same for the files of a task (finetuning/prediction.py), and `bert-jax
fill-mask` prints the most likely words.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from bert_jax.config.tasks import SentenceOptions, SequenceOptions, SquadOptions, TaggingOptions
from bert_jax.data.sequences import Features, Uncut, as_features
from bert_jax.errors import UserError
from bert_jax.pretrained.outputs import Compute, MaskedWords, TaskScores, most_likely
from bert_jax.pretrained.runner import softmax
from bert_jax.tasks import ner, sentences, squad, squad_files
from bert_jax.tasks.conll import Sentence
from bert_jax.tasks.sentences import in_windows
from bert_jax.tasks.task_data import check_pairs, recorded_options, recorded_task
from bert_jax.tasks.text import word_places
from bert_jax.tokenization.tokenizer import (
    Tokenizer,
    assembled,
    check_utf8,
    join,
    sequence_length,
    tell_of_cuts,
    text_start,
    tokenize,
)

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
class Labels:
    """Answer of a classifier that gives a text any number of labels."""

    names: tuple[str, ...]
    """The labels whose probability reaches their threshold."""
    probabilities: dict[str, float]
    """Probabilities by name of the label."""


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


def predict(model: Any, compute: Compute, inputs: Iterable[Any], batch_size: int, progress: bool | None) -> list[Any]:
    """Return an answer to each of `inputs`; PretrainedModel.predict describes the forms of both."""
    if model.head is None:
        raise UserError(f"{model.path} has no task head to predict with; fine-tune it first, or use encode or embed")
    kind = model.head.kind

    def scores(features: Features) -> list[np.ndarray]:
        return task_scores(kind, compute, features, batch_size, progress)

    kinds = {
        "classification": _labels,
        "multilabel": _several_labels,
        "regression": _numbers,
        "tagging": _tags,
        "choice": _choices,
        "span": _answers,
    }
    return kinds[kind](model, inputs, scores)


def task_scores(
    kind: str, compute: Compute, features: Features, batch_size: int, progress: bool | None
) -> list[np.ndarray]:
    """Return the scores of every sequence by a head of this kind, in order and without padding, float32."""
    found: list[Any] = [None] * len(features)
    for numbers, rows in compute(TaskScores(), features, batch_size, progress):
        for row, number in zip(rows, numbers, strict=False):
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


def _several_labels(model: Any, texts: Any, scores: Scores) -> list[Labels]:
    names, options = model.head.labels, _options(model, "text")
    assert isinstance(options, SentenceOptions)
    shares = sentences.probabilities(np.array(scores(_sequences(model, texts))))
    said = shares >= np.array(options.thresholds)
    return [
        Labels(
            tuple(name for name, chosen in zip(names, row, strict=True) if chosen),
            dict(zip(names, values.tolist(), strict=True)),
        )
        for row, values in zip(np.broadcast_to(said, shares.shape), shares, strict=True)
    ]


def _numbers(model: Any, texts: Any, scores: Scores) -> list[float]:
    return [float(row) for row in scores(_sequences(model, texts))]


def _sequences(model: Any, texts: Any) -> Features:
    longest, tokenizer = model.config.longest_sequence, model.need_tokenizer()
    windows = bool(model.head.windows and recorded_task(model.history))
    rows = tokenize(tokenizer, texts, None if windows else longest, None if windows else _longest(model))
    features = as_features(rows, longest)
    check_pairs(model.history, features, tokenizer, lambda number: f"text {number} of the list", model.path)
    if not windows:
        return features
    options, start = _options(model, recorded_task(model.history)), text_start(tokenizer)
    assert isinstance(options, SentenceOptions)
    return in_windows([ids[start : start + len(ids) - 2] for ids, _ in rows], tokenizer, options)


def _tags(model: Any, sentences: Any, scores: Scores) -> list[list[tuple[str, str]]]:
    rows = _rows(sentences, (str, tuple), "a sentence")
    sentences = tuple(_sentence(row) for row in rows)
    examples = ner.Examples(sentences, model.head.labels, has_answers=False)
    options = _options(model, "ner")
    assert isinstance(options, TaggingOptions)
    features = ner.features(examples, model.need_tokenizer(), dataclasses.replace(options, context=False))
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
    spans = tuple(word_places(row)) if isinstance(row, str) else None
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
        squad_files.Question(str(number), question, contexts.index(context))
        for number, (question, context) in enumerate(rows)
    )
    task = "squad_v2" if recorded_task(model.history) == "squad_v2" else "squad_v1"
    examples = squad_files.Examples(task, contexts, numbered, has_answers=False)
    options = _options(model, task)
    assert isinstance(options, SquadOptions)
    features = squad.features(examples, model.need_tokenizer(), options)
    _warn_of_what_is_cut(features)
    predictions = squad.predict(examples, features, scores(features))
    return [
        Answer(text, tuple((entry["text"], entry["probability"]) for entry in prediction.entries()))
        for text, prediction in zip(squad.final_texts(examples, features, predictions), predictions, strict=True)
    ]


def _warn_of_what_is_cut(features: Features) -> None:
    if features.uncut is not None and features.uncut.share:
        cut = int((features.uncut.lengths > features.uncut.limit).sum())
        tell_of_cuts(cut, features.uncut.describe("", f"the {features.uncut.limit} tokens that this model reads"))


def _options(model: Any, task: str) -> SequenceOptions:
    return recorded_options(model.history, task, model.config.longest_sequence, model.head)


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


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A piece that a model would write in place of a mask."""

    token: str
    """The piece, as the vocabulary spells it."""
    probability: float
    """Its probability at the mask."""


Filled = list[list[Candidate]]
"""Candidates for each mask of a text, the most likely first."""


def fill_mask(model: Any, texts: str | Iterable[str], top_k: int, batch_size: int) -> Any:
    """Return the `top_k` most likely pieces for each [MASK], in order, of one text, or of each of several.

    Every mask is predicted with the other masks in place; from left to right, from the words before it alone.

    Raises:
      UserError: there is no mask or too much text.
    """
    tokenizer = model.need_tokenizer()
    if not 0 < top_k <= tokenizer.vocab_size:
        raise UserError(f"top_k={top_k} must be between 1 and the {tokenizer.vocab_size} entries of the vocabulary")
    single = isinstance(texts, str)
    if isinstance(texts, tuple) or not isinstance(texts, Iterable):
        raise UserError(f"fill_mask takes a text or a list of texts, not {texts!r:.60}")
    rows = [_masked_row(model, text) for text in ([texts] if single else texts)]
    if not rows or batch_size < 1:
        raise UserError(
            "no texts were given: an empty list" if not rows else f"batch_size={batch_size} must be positive"
        )
    filled = [[_named(tokenizer, *best) for best in masks] for masks in _at_masks(model, rows, top_k, batch_size)]
    return filled[0] if single else filled


def mask_logits(model: Any, rows: list[tuple[np.ndarray, np.ndarray]], batch_size: int = 32) -> list[np.ndarray]:
    """Return the logits at each mask of texts as ids and token types, int32 [L] each: float32 [masks, V].

    Every row has at least one mask, and no more tokens than the model reads.
    """
    return [np.stack(masks) for masks in _at_masks(model, rows, None, batch_size)]


def _at_masks(model: Any, rows: list[tuple[np.ndarray, np.ndarray]], top_k: int | None, batch_size: int) -> list[Any]:
    """Return for every row what `MaskedWords` are."""
    check_fills_masks(model)
    features = as_features(rows, model.config.longest_sequence)
    found: list[Any] = [None] * len(rows)
    output = MaskedWords(model.tokenizer.mask_id, top_k, model.config.predicts_ahead)
    for numbers, masks in model.compute(output, features, batch_size, False):
        for number, own in zip(numbers, masks, strict=False):
            found[number] = own
    return found


def check_fills_masks(model: Any) -> None:
    """Raise a UserError if a model cannot predict a word from what is around it."""
    if model.config.two_directions:
        raise UserError(
            "this model predicts a word from one side of it at a time (model.layer=lstm, both directions), so it fills "
            "no mask; use one with model.direction=left_to_right, or a Transformer"
        )
    model.network.require("mlm")


def _masked_row(model: Any, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Return input_ids and token_type_ids of a text with at least one mask."""
    tokenizer, longest = model.tokenizer, model.config.longest_sequence
    mask = tokenizer.tokens[tokenizer.mask_id]
    if not isinstance(text, str):
        raise UserError(f"fill_mask takes a text or a list of texts, each a str, not {text!r:.60}")
    check_utf8(text)
    ids, types = assembled(tokenizer, tokenizer.encode_masked(text))
    if tokenizer.mask_id not in ids:
        raise UserError(f"there is no {mask} in {text[:60]!r}; write {mask} where a word is to be filled in")
    if len(ids) > longest:
        raise UserError(
            f"the text {text[:60]!r} has {len(ids)} tokens with its [CLS] and [SEP], but the model takes {longest}; "
            "shorten it"
        )
    return ids, types


def candidates(logits: np.ndarray, tokenizer: Tokenizer, top_k: int) -> Filled:
    """Return the `top_k` most likely pieces for each row of logits [masks, V]."""
    return [_named(tokenizer, *most_likely(row, top_k)) for row in logits]


def _named(tokenizer: Tokenizer, tokens: np.ndarray, shares: np.ndarray) -> list[Candidate]:
    return [Candidate(tokenizer.tokens[token], float(share)) for token, share in zip(tokens, shares, strict=True)]

"""SQuAD 1.1 and 2.0, and anything in their format: a question, a context, and the part of it that is the answer.

Long contexts become overlapping windows together with their question, as in run_squad.py of google-research/bert. The
scores of tokens become an answer in the original characters as in its `write_predictions`. The original maps answers
to tokens and back by searching for texts (`_improve_answer_span`, `get_final_text`); here the character offsets of
the tokenizer give the exact positions.
"""

import dataclasses
import functools
import itertools
import json
import os
import unicodedata
from typing import Any, TypeVar

import numpy as np
from etils import epath

from bert_jax.config import HeadConfig
from bert_jax.config.tasks import Squad2Options, SquadOptions
from bert_jax.data.sequences import Features, Uncut
from bert_jax.errors import UserError
from bert_jax.files import write_atomically
from bert_jax.tasks import readers, squad_files
from bert_jax.tasks.squad_files import Examples, load, splits
from bert_jax.tokenization.tokenizer import Tokenizer, assembled, text_start


@dataclasses.dataclass(frozen=True)
class Context:
    """The T tokens of one context."""

    ids: np.ndarray
    """int32 [T]."""
    starts: np.ndarray
    """int32 [T]: first character that each token came from."""
    ends: np.ndarray
    """int32 [T]: character after the last one that each token came from."""


@dataclasses.dataclass(frozen=True)
class SpanFeatures(Features):
    """[CLS] question [SEP] window [SEP] for every window of every question, and what reading answers needs.

    Position 0 stands for "no answer" in every format of pairs.
    """

    prefix: np.ndarray
    """int32 [E]: number of tokens before the window, [CLS] and [SEP] included."""
    suffix: int
    """Number of tokens after the window: its [SEP] and, where the class token is the last, this."""
    first: np.ndarray
    """int32 [E]: index of the window's first token among those of its context."""
    contexts: list[Context]
    options: SquadOptions


def features(examples: Examples, tokenizer: Tokenizer, options: SquadOptions) -> SpanFeatures:
    """Return every question with every window of its context, in order; a window without the answer is labelled (0, 0).

    Questions are cut after `max_query_length` tokens; windows start `doc_stride` tokens apart and fill the rest.

    Raises:
      UserError: max_length leaves no room for a context, or the tokenizer leaves nothing of a context.
    """
    between, suffix = [tokenizer.sep_id] * tokenizer.separators, 1 + tokenizer.class_last
    queries = tokenizer.encode_batch([question.text for question in examples.questions])
    _check_room([query[: options.max_query_length] for query in queries], examples, len(between), options)
    contexts = [encode(text, tokenizer) for text in examples.contexts]
    rows = []
    for example, (question, query) in enumerate(zip(examples.questions, queries, strict=True)):
        context, query = contexts[question.context], query[: options.max_query_length]
        if not len(context.ids):
            raise UserError(
                f"question {question.id}: the tokenizer leaves nothing of its context "
                f"{examples.contexts[question.context]!r:.80}; an answer must be a part of the context"
            )
        span = answer_tokens(context, *question.span) if question.span else None
        prefix = text_start(tokenizer) + len(query) + len(between)
        for first, length in windows(len(context.ids), options.max_length - prefix - suffix, options.doc_stride):
            ids, types = assembled(tokenizer, query, context.ids[first : first + length].tolist())
            types = _shared(types.tobytes())  # which would otherwise double the memory
            label = _label(span, first, length, prefix)
            rows.append((ids, types, label, example, prefix, first))
    ids, types, labels, *columns = zip(*rows, strict=True)
    example, prefix, first = (np.array(column, np.int32) for column in columns)
    uncut = Uncut(
        np.array([len(query) for query in queries]),
        options.max_query_length,
        "questions",
        "max_query_length",
        most=options.max_length - 3 - len(between),  # [CLS], each [SEP] and one token of the context
    )
    return SpanFeatures(
        list(ids),
        list(types),
        np.array(labels, np.int32) if examples.has_answers else None,
        example,
        options.max_length,
        prefix,
        suffix,
        first,
        contexts,
        options,
        uncut=uncut,
        weights=None if (weights := readers.weights_of(examples.questions)) is None else weights[example],
    )


def _check_room(queries: list[list[int]], examples: Examples, between: int, options: SquadOptions) -> None:
    """Raise a UserError if the longest question leaves no room for a context, with the shortest length that does."""
    longest = max(range(len(queries)), key=lambda number: len(queries[number]))
    needed = len(queries[longest]) + 3 + between  # [CLS], each [SEP] and one token of the context
    if options.max_length < needed:
        raise UserError(
            f"options.max_length={options.max_length} leaves no room for a context next to question "
            f"{examples.questions[longest].id}, which has {len(queries[longest])} tokens, [CLS] and {1 + between} "
            f"[SEP]; give {needed} or more, or cut the questions with a lower options.max_query_length="
            f"{options.max_query_length}"
        )


def encode(text: str, tokenizer: Tokenizer) -> Context:
    """Tokenize one context; what the tokenizer drops does not begin or end what a token came from.

    SentencePiece includes the space before a word in its first piece; `read` strips it.
    """
    ids, offsets = tokenizer.encode_with_offsets(text)
    unusual = {character for character in {*text} if unicodedata.category(character)[0] in "CPSZ"}
    if dropped := {character for character in unusual if not character.isspace() and not tokenizer.encode(character)}:
        offsets = [_without_dropped(text, start, end, dropped) for start, end in offsets]
    offsets = np.array(offsets, np.int32).reshape(-1, 2)
    return Context(np.array(ids, np.int32), offsets[:, 0], offsets[:, 1])


def _without_dropped(text: str, start: int, end: int, dropped: set[str]) -> tuple[int, int]:
    """Return the characters of a token without those at its ends that the tokenizer drops, and white space there."""
    kept = [i for i in range(start, end) if text[i] not in dropped and not text[i].isspace()]
    return (kept[0], kept[-1] + 1) if kept else (start, end)


def windows(tokens: int, room: int, step: int) -> list[tuple[int, int]]:
    """Return (first token, length) of each window over `tokens` tokens, at most `room` long and `step` apart.

    The last window is the first one that reaches the end. Hugging Face's `doc_stride` is the overlap, not the step.
    """
    step = min(step, room)
    count = 1 + max(0, -(-(tokens - room) // step))
    return [(index * step, min(room, tokens - index * step)) for index in range(count)]


def has_most_context(spans: list[tuple[int, int]]) -> list[np.ndarray]:
    """Return for each window bool [length]: the tokens that no other window shows with more context.

    Context is the smaller number of tokens to the left and right, plus 0.01 × length; the earlier window wins a tie.
    """
    if len(spans) == 1:
        return [np.ones(spans[0][1], bool)]
    position = np.arange(max(first + length for first, length in spans))
    scores = np.full((len(spans), len(position)), -np.inf)
    for row, (first, length) in zip(scores, spans, strict=True):
        inside = position[first : first + length]
        row[first : first + length] = np.minimum(inside - first, first + length - 1 - inside) + 0.01 * length
    best = scores.argmax(axis=0)
    return [best[first : first + length] == index for index, (first, length) in enumerate(spans)]


def answer_tokens(context: Context, start: int, end: int) -> tuple[int, int] | None:
    """Return (first, last) of the tokens that share a character with [start, end); None if none remains.

    An answer that begins or ends inside a token includes the whole token.
    """
    first = int(np.searchsorted(context.ends, start, side="right"))
    last = int(np.searchsorted(context.starts, end, side="left")) - 1
    return (first, last) if first <= last else None


def read(text: str, context: Context, first: int, last: int) -> str:
    """Return the characters of `text` that tokens first to last came from, without surrounding whitespace.

    Accents after the last letter are included: if the tokenizer strips accents, one that is a separate character
    belongs to no token.
    """
    end = int(context.ends[last])
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return text[int(context.starts[first]) : end].strip()


def _label(span: tuple[int, int] | None, first: int, length: int, prefix: int) -> tuple[int, int]:
    if span is None or span[0] < first or span[1] >= first + length:
        return 0, 0
    return prefix + span[0] - first, prefix + span[1] - first


@functools.cache
def _shared(types: bytes) -> np.ndarray:
    """Return token_type_ids from their bytes, one array for all windows that have the same."""
    return np.frombuffer(types, np.int32)


_LEAST = 1e9  # replaces the scores of a diverged model, which are not numbers


@dataclasses.dataclass(frozen=True)
class Answer:
    """One entry of the n-best list; the text "" means that there is no answer."""

    text: str
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A model's answers to one question."""

    answers: list[Answer]
    """Answers, the best first; never empty. They include "no answer" if the task has it, or if there is no other."""
    guess: str
    """The best text; "" only if no tokens make up a valid answer."""
    null_odds: float
    """Score of "no answer" minus that of the guess (minus 0 if there is none)."""

    def text(self, threshold: float) -> str:
        """Return the guess, or "" if the odds that there is no answer exceed the threshold."""
        return "" if self.null_odds > threshold else self.guess

    def entries(self) -> list[dict[str, Any]]:
        """Return the n-best list for nbest.json, with the softmax of the scores as probabilities."""
        scores = np.array([answer.score for answer in self.answers])
        shares = np.exp(scores - scores.max())
        return [
            {
                "text": answer.text,
                "probability": float(share),
                "start_logit": answer.start_logit,
                "end_logit": answer.end_logit,
            }
            for answer, share in zip(self.answers, shares / shares.sum(), strict=True)
        ]


def predict(examples: Examples, features: SpanFeatures, logits: list[np.ndarray]) -> list[Prediction]:
    """Return a prediction per question, from the start and end scores of its windows (float32 [L, 2] per feature)."""
    bounds = np.searchsorted(features.example, np.arange(len(examples) + 1))
    predictions = []
    for question, (begin, end) in zip(examples.questions, itertools.pairwise(bounds), strict=True):
        context = features.contexts[question.context]
        windows = [
            _Window(
                np.nan_to_num(logits[i].astype(np.float64), nan=-_LEAST, posinf=_LEAST, neginf=-_LEAST),
                int(features.prefix[i]),
                int(features.first[i]),
                features.suffix,
            )
            for i in range(begin, end)
        ]
        answers = _answers(examples.contexts[question.context], context, windows, features.options)
        null = min((Answer("", *map(float, window.logits[0])) for window in windows), key=lambda answer: answer.score)
        guess = answers[0] if answers else Answer("", 0.0, 0.0)
        if isinstance(features.options, Squad2Options) or not answers:
            answers = _with_null(answers, null, features.options.n_best)
        predictions.append(Prediction(answers, guess.text, null.score - guess.score))
    return predictions


@dataclasses.dataclass(frozen=True)
class _Window:
    logits: np.ndarray
    """float64 [L, 2]."""
    prefix: int
    first: int
    suffix: int

    @property
    def length(self) -> int:
        return len(self.logits) - self.prefix - self.suffix


def _answers(text: str, context: Any, windows: list[_Window], options: SquadOptions) -> list[Answer]:
    """Return up to n_best answers with different texts, the best first."""
    most_context = has_most_context([(window.first, window.length) for window in windows])
    spans = np.concatenate([_spans(window, most, options) for window, most in zip(windows, most_context, strict=True)])
    answers: dict[str, Answer] = {}
    for start_logit, end_logit, first, last in spans[np.argsort(-(spans[:, 0] + spans[:, 1]), kind="stable")].tolist():
        if len(answers) == options.n_best:
            break
        words = read(text, context, int(first), int(last))
        if words:
            answers.setdefault(words, Answer(words, start_logit, end_logit))
    return list(answers.values())


def _spans(window: _Window, most_context: np.ndarray, options: SquadOptions) -> np.ndarray:
    """Return the window's valid answers, float64 [N, 4]: start score, end score, first and last token of the context.

    They combine the n_best best starts and ends of all positions. An answer is valid if it is inside the window, starts
    where no other window shows more context, and has at most max_answer_length tokens.
    """
    best = np.argsort(-window.logits, axis=0, kind="stable")[: options.n_best] - window.prefix
    start, end = (grid.ravel() for grid in np.meshgrid(best[:, 0], best[:, 1], indexing="ij"))
    valid = (start >= 0) & (start <= end) & (end < window.length) & (end - start < options.max_answer_length)
    start, end = start[valid], end[valid]
    keep = most_context[start]
    start, end = start[keep], end[keep]
    scores = window.logits[start + window.prefix, 0], window.logits[end + window.prefix, 1]
    return np.stack([*scores, start + window.first, end + window.first], axis=1)


def _with_null(answers: list[Answer], null: Answer, n_best: int) -> list[Answer]:
    """Return the answers with `null` in its place, or at the end if it is not among the n_best."""
    better = sum(answer.score >= null.score for answer in answers)
    return [*answers[:better], null, *answers[better : n_best - 1]] if better < n_best else [*answers, null]


__all__ = [  # what each family has
    "Examples",
    "features",
    "head",
    "load",
    "metrics",
    "prediction_names",
    "score",
    "splits",
    "write_predictions",
]


def head(task: str, labels: tuple[str, ...] = ()) -> HeadConfig:
    """Return a head with two scores per token, for start and end of the answer; no dropout, as in run_squad.py."""
    return HeadConfig(kind="span", dropout=0.0)


def prediction_names(examples: Examples, split: str) -> list[str]:
    """Return the names of the files that `write_predictions` writes, the main one first."""
    return ["predictions.json", "nbest.json", *(["null_odds.json"] if examples.task == "squad_v2" else [])]


def metrics(examples: Examples) -> tuple[str, ...]:
    """Return the metrics by which runs can be compared, the usual one first."""
    return ("f1", "exact_match")


def score(examples: Examples, features: SpanFeatures, logits: list[np.ndarray]) -> dict[str, float]:
    """Return exact_match and f1; for squad_v2 all of `metric.evaluate_v2`, at options.null_threshold or the best."""
    return _score(examples, features, predict(examples, features, logits))


def write_predictions(
    examples: Examples, features: SpanFeatures, logits: list[np.ndarray], directory: str | os.PathLike[str], split: str
) -> list[str]:
    """Write predictions.json, nbest.json and, for squad_v2, null_odds.json.

    predictions.json holds final answers: "" if the null odds exceed options.null_threshold or, if that is None, the
    best threshold for F1 on these very questions, or 0 (the original's) if they are unlabelled.
    """
    predictions = predict(examples, features, logits)
    ids = [question.id for question in examples.questions]
    contents = {
        "predictions.json": final_texts(examples, features, predictions),
        "nbest.json": [prediction.entries() for prediction in predictions],
        "null_odds.json": [prediction.null_odds for prediction in predictions],
    }
    directory, files = epath.Path(directory), []
    directory.mkdir(parents=True, exist_ok=True)
    for name in prediction_names(examples, split):
        file, content = directory / name, dict(zip(ids, contents[name], strict=True))
        write_atomically(file, (json.dumps(content, indent=4, ensure_ascii=False) + "\n").encode())
        files.append(os.fspath(file))
    return files


Options = TypeVar("Options")


def tuned(options: Options, metrics: dict[str, float]) -> Options:
    """Return `options` for prediction after training: with the threshold that was best on dev unless one is given."""
    if not isinstance(options, Squad2Options) or options.null_threshold is not None or "best_f1_thresh" not in metrics:
        return options
    return dataclasses.replace(options, null_threshold=metrics["best_f1_thresh"])


def final_texts(examples: Examples, features: SpanFeatures, predictions: list[Prediction]) -> list[str]:
    """Return the answer to every question, "" for no answer."""
    if not isinstance(features.options, Squad2Options):
        return [prediction.guess for prediction in predictions]
    threshold = features.options.null_threshold
    if threshold is None:
        threshold = _score(examples, features, predictions)["best_f1_thresh"] if examples.has_answers else 0.0
    return [prediction.text(threshold) for prediction in predictions]


def _score(examples: Examples, features: SpanFeatures, predictions: list[Prediction]) -> dict[str, float]:
    guesses, golds = (
        [prediction.guess for prediction in predictions],
        [question.answers for question in examples.questions],
    )
    if not isinstance(features.options, Squad2Options):
        return squad_files.evaluate_v1(guesses, golds)
    odds = [prediction.null_odds for prediction in predictions]
    return squad_files.evaluate_v2(guesses, odds, golds, features.options.null_threshold)

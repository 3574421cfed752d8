"""Turns the scores of tokens into an answer in the original characters, as `write_predictions` of run_squad.py does."""

import dataclasses
import itertools
from typing import Any

import numpy as np

from bert_jax.config.task_options import TaskOptions
from bert_jax.tasks.squad.reading import Examples
from bert_jax.tasks.squad.windows import SpanFeatures, has_most_context, read

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
        if examples.task == "squad_v2" or not answers:
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


def _answers(text: str, context: Any, windows: list[_Window], options: TaskOptions) -> list[Answer]:
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


def _spans(window: _Window, most_context: np.ndarray, options: TaskOptions) -> np.ndarray:
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

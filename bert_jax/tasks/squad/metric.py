"""Exact match and F1 of answers, and the threshold of "no answer", as in evaluate-v1.1.py and evaluate-v2.0.py.

Texts are compared after lowercasing and removing ASCII punctuation, articles (a, an, the) and surplus whitespace; of
several gold answers the best counts (Rajpurkar et al. 2016, 2018). All values are fractions in [0, 1]; the scripts
print percent.
"""

import collections
import re
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

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

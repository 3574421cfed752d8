"""SQuAD 1.1 and 2.0, and anything in their format: a question, a context, and the part of it that is the answer."""

import dataclasses
import json
import os

import numpy as np
from etils import epath

from bert_jax.config import HeadConfig
from bert_jax.config.task_options import TaskOptions
from bert_jax.files import write_atomically
from bert_jax.tasks.squad import metric
from bert_jax.tasks.squad.answer_spans import Prediction, predict
from bert_jax.tasks.squad.reading import Examples, load, splits
from bert_jax.tasks.squad.windows import SpanFeatures, features

__all__ = [  # what each family has
    "MAIN_METRIC",
    "Examples",
    "features",
    "head",
    "load",
    "prediction_names",
    "score",
    "splits",
    "write_predictions",
]

MAIN_METRIC = {"squad_v1": "f1", "squad_v2": "f1"}


def head(task: str, labels: tuple[str, ...] = ()) -> HeadConfig:
    """Return a head with two scores per token, for start and end of the answer; no dropout, as in run_squad.py."""
    return HeadConfig(kind="span", dropout=0.0)


def prediction_names(examples: Examples, split: str) -> list[str]:
    """Return the names of the files that `write_predictions` writes, the main one first."""
    return ["predictions.json", "nbest.json", *(["null_odds.json"] if examples.task == "squad_v2" else [])]


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


def tuned(options: TaskOptions, metrics: dict[str, float]) -> TaskOptions:
    """Return `options` for prediction after training: with the threshold that was best on dev unless one is given."""
    if options.null_threshold is not None or "best_f1_thresh" not in metrics:
        return options
    return dataclasses.replace(options, null_threshold=metrics["best_f1_thresh"])


def final_texts(examples: Examples, features: SpanFeatures, predictions: list[Prediction]) -> list[str]:
    """Return the answer to every question, "" for no answer."""
    if examples.task == "squad_v1":
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
    if examples.task == "squad_v1":
        return metric.evaluate_v1(guesses, golds)
    odds = [prediction.null_odds for prediction in predictions]
    return metric.evaluate_v2(guesses, odds, golds, features.options.null_threshold)

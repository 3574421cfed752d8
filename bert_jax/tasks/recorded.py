"""The task of a fine-tuned model and the options of its sequences, as its checkpoint records them.

All prediction uses these, so that new inputs are cut, windowed and answered as in the model's evaluation.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from bert_jax.config.finetuning import task_defaults
from bert_jax.config.json_form import from_dict, to_dict
from bert_jax.config.task_options import TaskDataConfig, TaskOptions
from bert_jax.data.sequences.features import Features
from bert_jax.errors import UserError
from bert_jax.tasks.squad import tuned
from bert_jax.tokenization.tokenizer import Tokenizer


def recorded_task(history: dict[str, Any]) -> str:
    """Return the task that the model of `history` (StoredModel.history) was fine-tuned on; "" if not recorded."""
    return _settings(history).get("task", "")


def recorded_data(history: dict[str, Any]) -> TaskDataConfig:
    """Return names of columns and the like, without the files."""
    data = from_dict(TaskDataConfig, _settings(history).get("data", {}), "data.")
    return dataclasses.replace(data, dir="", train="", dev="", test="", tfds="", dev_share=0.0)


def recorded_pairs(history: dict[str, Any]) -> bool | None:
    """Return whether the model was fine-tuned on pairs of texts; None of a task without texts, or if not recorded."""
    return (history.get("config") or {}).get("pairs")


def check_pairs(
    history: dict[str, Any], features: Features, tokenizer: Tokenizer, named: Callable[[int], str], path: str
) -> None:
    """Raise a UserError about a pair for a model that was fine-tuned on single texts, and the reverse.

    Args:
      features: features of texts, or of pairs, which have more than one [SEP].
      tokenizer: the one that made them.
      named: returns how a message names the example of a number, from 0.
      path: path of the model.
    """
    pairs = recorded_pairs(history)
    ends = (np.count_nonzero(ids == tokenizer.sep_id) for ids in features.input_ids)
    wrong = next((number for number, count in enumerate(ends) if (count > 1) != pairs), None)
    if pairs is not None and wrong is not None:
        seen, taught = ("a single text", "pairs of texts") if pairs else ("a pair", "single texts")
        raise UserError(
            f"{named(wrong)} is {seen}, but {path} was fine-tuned on {taught} ({recorded_task(history)}) "
            f"and its answers would mean nothing; give {taught}, or a model that was fine-tuned on what you have"
        )


def recorded_options(history: dict[str, Any], task: str, positions: int) -> TaskOptions:
    """Return the options of its sequences, with the "no answer" threshold that was best on dev unless one was given.

    For a model from elsewhere these are the defaults of `task`. Lengths are within `positions` tokens in either case.
    """
    options = task_defaults(task).options
    if "options" in _settings(history):
        recorded = from_dict(TaskOptions, _settings(history)["options"], "options.")
        options = tuned(recorded, history.get("metrics") or {})
    length, query = min(options.max_length, positions), options.max_query_length
    return dataclasses.replace(
        options, max_length=length, max_query_length=query if query + 3 < length else length // 3
    )


def without_metrics(history: dict[str, Any]) -> dict[str, Any]:
    """Return `history` for parameters that may differ from those evaluated; a threshold tuned on dev is kept."""
    settings = _settings(history)
    if "options" in settings:
        options = tuned(from_dict(TaskOptions, settings["options"], "options."), history.get("metrics") or {})
        history = history | {"config": history["config"] | {"finetune": settings | {"options": to_dict(options)}}}
    return history | {"metrics": None}


def _settings(history: dict[str, Any]) -> dict[str, Any]:
    return (history.get("config") or {}).get("finetune") or {}

"""The module that reads, scores and writes each task."""

import importlib
from collections.abc import Mapping
from typing import Any, Protocol, cast

import numpy as np

from bert_jax.config import HeadConfig
from bert_jax.config.finetuning import task_defaults
from bert_jax.config.task_options import GLUE, TaskDataConfig, TaskOptions
from bert_jax.tokenization.tokenizer import Tokenizer


class Family(Protocol):
    """What a module of tasks has. Its examples are of a type of its own, with `labels`, `has_answers` and a length."""

    @property
    def MAIN_METRIC(self) -> Mapping[str, str]:
        """The metric by which runs are compared, by task."""
        ...

    def splits(self, task: str, data: TaskDataConfig) -> tuple[str, ...]:
        """Return those splits of the task that the data has."""
        ...

    def load(self, task: str, data: TaskDataConfig, split: str, labels: tuple[str, ...] | None = None) -> Any:
        """Return the examples of one split; `labels` are the classes in the order of a model's outputs."""
        ...

    def features(self, examples: Any, tokenizer: Tokenizer, options: TaskOptions) -> Any:
        """Return the sequences of the examples, `Features` or more than those."""
        ...

    def head(self, task: str, labels: tuple[str, ...]) -> HeadConfig:
        """Return the head that a model needs."""
        ...

    def score(self, examples: Any, features: Any, logits: list[np.ndarray]) -> dict[str, float]:
        """Return the metrics of the scores of every sequence."""
        ...

    def prediction_names(self, examples: Any, split: str) -> list[str]:
        """Return the names of the files that `write_predictions` writes, the main one first."""
        ...

    def write_predictions(
        self, examples: Any, features: Any, logits: list[np.ndarray], directory: str, split: str
    ) -> list[str]:
        """Write the predictions into a directory, and return the paths of the files, the main one first."""
        ...


FAMILIES = {
    **dict.fromkeys(GLUE, "bert_jax.tasks.glue"),
    **dict.fromkeys(("squad_v1", "squad_v2"), "bert_jax.tasks.squad"),
    **dict.fromkeys(("swag", "race", "choice"), "bert_jax.tasks.choice"),
    "ner": "bert_jax.tasks.ner",
    "text": "bert_jax.tasks.text",
}


def family(task: str) -> Family:
    """Return the module of a task.

    Raises:
      UserError: there is no such task; the message names the nearest.
    """
    task_defaults(task)
    return cast(Family, importlib.import_module(FAMILIES[task]))


def main_metric(task: str, labels: tuple[str, ...]) -> str:
    """Return the name in `score` that selects among runs; in the task text it is pearson for numbers (no labels)."""
    return "pearson" if task == "text" and not labels else family(task).MAIN_METRIC[task]

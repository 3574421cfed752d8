"""Which module reads, scores and writes which task."""

import importlib
import types

from bert_jax.config.finetuning import GLUE, task_defaults

FAMILIES = {
    **dict.fromkeys(GLUE, "bert_jax.tasks.glue"),
    **dict.fromkeys(("squad_v1", "squad_v2"), "bert_jax.tasks.squad"),
    **dict.fromkeys(("swag", "race", "choice"), "bert_jax.tasks.choice"),
    "ner": "bert_jax.tasks.ner",
    "text": "bert_jax.tasks.text",
}


def family(task: str) -> types.ModuleType:
    """The module with load, features, score, write_predictions, head and MAIN_METRIC of a task.

    Raises:
      UserError: there is no such task; names the nearest.
    """
    task_defaults(task)
    return importlib.import_module(FAMILIES[task])


def main_metric(task: str, labels: tuple[str, ...]) -> str:
    """The name in `score` that selects among runs; the user's own text has another for numbers (no labels) than for classes."""
    return "pearson" if task == "text" and not labels else family(task).MAIN_METRIC[task]

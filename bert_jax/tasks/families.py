"""The module that reads, scores and writes each task."""

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
    """Return the module with load, features, score, write_predictions, head and MAIN_METRIC of a task.

    Raises:
      UserError: there is no such task; the message names the nearest.
    """
    task_defaults(task)
    return importlib.import_module(FAMILIES[task])


def main_metric(task: str, labels: tuple[str, ...]) -> str:
    """Return the name in `score` that selects among runs; in the task text it is pearson for numbers (no labels)."""
    return "pearson" if task == "text" and not labels else family(task).MAIN_METRIC[task]

"""The names by which a run notices that it is resumed, or opened, with another objective or architecture."""

import functools
from typing import Any

from bert_jax.models.architecture import bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.electra import Electra
from bert_jax.objectives.objective import Objective


def own_names(objective: Objective, is_given: bool) -> dict[str, str]:
    """Return the names of an objective, with its terms, and of the architecture of its model, as run.json has them.

    BERT's architecture is left out. Equal names can still be different formulas: one that was edited, or that has other
    arguments.

    Args:
      is_given: whether the objective was given in Python; the name of one that follows from the options is left out.
    """
    names, model = {}, objective.model
    if is_given:
        terms = ", ".join(term.name or term.loss for term in objective.terms)
        names["objective"] = f"{_qualified(type(objective))} ({terms})"
    if type(model) is BertForPreTraining or type(model) is Electra:
        architecture = model.architecture
    else:  # also a class that somebody has derived from ours
        architecture = type(model)
    if architecture is not bert_architecture:
        names["architecture"] = _qualified(architecture)
    return names


def _qualified(named: Any) -> str:
    while isinstance(named, functools.partial):
        named = named.func
    if not hasattr(named, "__qualname__"):
        named = type(named)
    return f"{named.__module__}.{named.__qualname__}"

"""The names by which a run notices that it is resumed, or opened, with another objective or architecture."""

import functools
from typing import Any

from bert_jax.models.architecture import bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.electra import Electra
from bert_jax.objectives.bert_pretraining import PretrainingObjective
from bert_jax.objectives.distillation import DistillationObjective
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.replaced_tokens import ReplacedTokens

UNNAMED = (PretrainingObjective, DistillationObjective, ReplacedTokens)
"""Objectives that run.json does not name, since objective.name of config.json does. It does name the others of ours,
such as the left-to-right one: runs that exist have them there."""


def own_names(objective: Objective) -> dict[str, str]:
    """Return the names of an objective, with its terms, and of the architecture of its model, as run.json has them.

    Objectives in UNNAMED and the architecture of ours are left out. Equal names can still be different formulas: one
    that was edited, or that has other arguments.
    """
    names, model = {}, objective.model
    if type(objective) not in UNNAMED:
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

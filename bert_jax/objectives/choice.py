"""The pre-training objective that the configuration names, and its own name in run.json.

By these names a run notices that it is resumed, or opened, with another objective or architecture.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any, Protocol, cast

from bert_jax.config import Config, MaskedWords
from bert_jax.config.pretraining import SentencePairs
from bert_jax.models.architecture import bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.electra import Electra
from bert_jax.objectives.distillation import DistillationObjective
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
        names["objective"] = f"{qualified(type(objective))} ({terms})"
    if type(model) is BertForPreTraining or type(model) is Electra:
        architecture = model.architecture
    else:  # also a class that somebody has derived from ours
        architecture = type(model)
    if architecture is not bert_architecture:
        names["architecture"] = qualified(architecture)
    return names


def qualified(named: Any) -> str:
    """Return the module and the name of a function or a class, or of the class of anything else."""
    while isinstance(named, functools.partial):
        named = named.func
    if not hasattr(named, "__qualname__"):
        named = type(named)
    return f"{named.__module__}.{named.__qualname__}"


MakeObjective = Callable[[BertForPreTraining, Config], Objective]
"""Makes what is trained for, or measured, from the model and the configuration."""


class Family(Protocol):
    """A module of objectives, which the type of their options names as its `losses`."""

    def objective(
        self, model: BertForPreTraining, options: Any, epsilon: float, sentence_pairs: SentencePairs
    ) -> Objective:
        """Return the objective with these options, which are of one of the types that name the module.

        Args:
          model: with the parts of BERT's pre-training; an objective that needs others replaces them.
          options: its own.
          epsilon: added to the number of masked words, by which their loss is divided.
          sentence_pairs: meaning of the labels of pairs.
        """
        ...


def default_objective(
    model: BertForPreTraining, config: Config, teacher: BertForPreTraining | None = None
) -> Objective:
    """Return the objective of `pretrain`, unless it is given a different one.

    For `model` see `Family`. Without the `teacher` of objective.distillation, what is measured of a model that had one
    is the loss of its labels alone.
    """
    options, epsilon, pairs = config.objective, config.masking.loss_epsilon, config.data.sentence_pairs
    if teacher is not None:
        assert isinstance(options, MaskedWords), "others have no teacher"
        return DistillationObjective(model, teacher, options, epsilon, pairs)
    family = cast(Family, importlib.import_module(f"bert_jax.objectives.{options.losses}"))
    return family.objective(model, options, epsilon, pairs)

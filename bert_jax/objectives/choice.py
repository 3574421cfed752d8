"""The choice of the pre-training objective from the configuration, made here alone, and its name in run.json.

By these names a run notices that it is resumed, or opened, with another objective or architecture.
"""

import functools
from collections.abc import Callable
from typing import Any

from bert_jax.config import Config
from bert_jax.config.objective import (
    GloVe,
    LeftToRight,
    MaskedWords,
    Permutation,
    ReplacedTokens,
    SkipGram,
    TwoDirections,
)
from bert_jax.models.architecture import bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.electra import Electra
from bert_jax.objectives.autoregressive import LeftToRightObjective, PermutationObjective, TwoDirectionsObjective
from bert_jax.objectives.distillation import DistillationObjective
from bert_jax.objectives.masked_words import PretrainingObjective
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.replaced_tokens import replaced_token_detection
from bert_jax.objectives.static_vectors import GloveObjective, SkipGramObjective


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


def default_objective(
    model: BertForPreTraining, config: Config, teacher: BertForPreTraining | None = None
) -> Objective:
    """Return the objective of `pretrain`, unless it is given a different one.

    `model` has the parts of BERT's pre-training; an objective that needs others replaces them. Without the `teacher` of
    objective.distillation, what is measured of a model that had one is the loss of its labels alone.
    """
    match config.objective:
        case MaskedWords() as objective:
            options = objective, config.masking.loss_epsilon, config.data.sentence_pairs
            if teacher is None:
                return PretrainingObjective(model, *options)
            return DistillationObjective(model, teacher, *options)
        case LeftToRight():
            return LeftToRightObjective(model)
        case TwoDirections() as objective:
            return TwoDirectionsObjective(model, objective)
        case ReplacedTokens() as objective:
            return replaced_token_detection(model, objective, config.masking.loss_epsilon)
        case Permutation():
            return PermutationObjective(model)
        case SkipGram() as objective:
            return SkipGramObjective(model, objective.static_vectors.negatives)
        case GloVe() as objective:
            return GloveObjective(model, objective.static_vectors)

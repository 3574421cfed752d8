"""The one place where the objective of pre-training is chosen from the configuration."""

from collections.abc import Callable

from bert_jax.config import Config
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives.bert_pretraining import PretrainingObjective
from bert_jax.objectives.distillation import DistillationObjective
from bert_jax.objectives.glove import GloveObjective
from bert_jax.objectives.left_to_right import LeftToRightObjective
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.permutation_language_model import PermutationObjective
from bert_jax.objectives.replaced_tokens import replaced_token_detection
from bert_jax.objectives.skip_gram import SkipGramObjective
from bert_jax.objectives.two_directions import TwoDirectionsObjective

MakeObjective = Callable[[BertForPreTraining, Config], Objective]
"""Makes what is trained for, or measured, from the model and the configuration."""


def default_objective(
    model: BertForPreTraining, config: Config, teacher: BertForPreTraining | None = None
) -> Objective:
    """Return the objective of `pretrain`, unless it is given a different one.

    `model` has the parts of BERT's pre-training; an objective that needs others replaces them. Without the `teacher` of
    objective.distillation, what is measured of a model that had one is the loss of its labels alone.
    """
    match config.objective.name:
        case "masked_words":
            options = config.objective, config.masking.loss_epsilon, config.data.sentence_pairs
            if teacher is None:
                return PretrainingObjective(model, *options)
            return DistillationObjective(model, teacher, *options)
        case "left_to_right":
            return LeftToRightObjective(model)
        case "two_directions":
            return TwoDirectionsObjective(model, config.objective)
        case "replaced_tokens":
            return replaced_token_detection(model, config)
        case "permutation":
            return PermutationObjective(model)
        case "skip_gram":
            return SkipGramObjective(model, config.objective.static_vectors.negatives)
        case "glove":
            return GloveObjective(model, config.objective.static_vectors)

"""What `bert-jax evaluate` measures of a model: its objective, with the models that it was trained with."""

import dataclasses
import functools
from typing import Any

from absl import logging
from jax.sharding import Mesh

from bert_jax.config import Config
from bert_jax.devices.hosts import decide
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.generator_parameters import GENERATOR
from bert_jax.objectives.distillation import Teacher
from bert_jax.objectives.identity import own_names
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.objective_choice import MakeObjective, default_objective
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.pretrained.teacher import OPTION, open_teacher, teacher_is_there
from bert_jax.training.frozen import Frozen

TEACHER = f"{OPTION}.teacher"


@dataclasses.dataclass(frozen=True)
class MeasuredModel:
    """An objective, and what it reads."""

    objective: Objective
    config: Config
    """Options by which the objective was made."""
    params: dict[str, Any]
    frozen: Frozen = ()
    """Parameters of a teacher."""


def measured_model(
    model: PretrainedModel,
    generator: PretrainedModel | None,
    trained: Config,
    given: Config,
    mesh: Mesh,
    objective: MakeObjective | None,
) -> MeasuredModel:
    """Return what is measured of a model.

    Args:
      model: the model.
      generator: that of a model of replaced tokens; None without one.
      trained: options of its run; those that were given if it was converted.
      given: options of the command, of which the computation and the teacher count.
      mesh: the devices.
      objective: makes the objective; None for that of the options.

    Raises:
      UserError: a head or a generator is missing, the teacher is not that of the run, or the run was trained for an
        objective from outside and a different one would be measured.
    """
    params, teacher, is_given = model.params, None, objective is not None
    if objective is None and trained.objective.name == "replaced_tokens":
        params, trained = _both(model, generator, trained)
    elif objective is None:
        _check_measurable(model, trained.data.has_pair_labels)
        teacher = _teacher(model, _taught(trained, given), mesh)
    if objective is None:
        objective = functools.partial(default_objective, teacher=None if teacher is None else teacher.model)
    made = objective(model.network, trained)
    _check_objective(model, own_names(made, is_given).get("objective"))
    return MeasuredModel(made, trained, params, () if teacher is None else (teacher.params,))


def _taught(trained: Config, given: Config) -> Config:
    """Return the options of a run with the computation and the teacher of those that were given."""
    distillation = dataclasses.replace(trained.objective.distillation, teacher=given.objective.distillation.teacher)
    objective = dataclasses.replace(trained.objective, distillation=distillation)
    return dataclasses.replace(trained, compute=given.compute, objective=objective)


def _teacher(model: PretrainedModel, config: Config, mesh: Mesh) -> Teacher[BertForPreTraining] | None:
    """Return the teacher that the options name; None, and a warning, if it is not where the run had it."""
    path, run = config.objective.distillation.teacher, model.history.get("run")
    recorded = (model.history.get("config") or {}).get("objective", {}).get("distillation", {}).get("teacher")
    if path and path == recorded and not decide(teacher_is_there(path), all):
        logging.warning(
            "the teacher of %s is no longer at %s, so nothing is compared with it; give --%s=DIR, or --%s= to measure "
            "without it",
            *(model.path, path, TEACHER, TEACHER),
        )
        return None
    teacher = open_teacher(config, model.need_tokenizer(), mesh)
    recorded_fingerprint = "none" if run is None else run.get("teacher") or "none"
    if teacher is not None and run is not None and teacher.fingerprint != recorded_fingerprint:
        raise UserError(
            f"--{TEACHER}={path} is not the teacher of {model.path} (the fingerprint of its arrays is "
            f"{teacher.fingerprint:.12}…, that of the run's {recorded_fingerprint:.12}…); give the teacher of the run, "
            f"or --{TEACHER}= to measure without it"
        )
    return teacher


def _both(model: PretrainedModel, generator: PretrainedModel | None, config: Config) -> tuple[dict[str, Any], Config]:
    """Return the parameters of a discriminator and its generator, and options by which each has all of its own."""
    if generator is None:
        raise UserError(
            f"{model.path} is a discriminator without its generator, so nothing replaces tokens for it to find; "
            "evaluate the work directory of its run"
        )
    own = dataclasses.replace(config.objective.generator, embeddings="own")
    config = dataclasses.replace(config, objective=dataclasses.replace(config.objective, generator=own))
    return {**model.params, GENERATOR: generator.params}, config


def _check_measurable(model: PretrainedModel, has_pair_labels: bool) -> None:
    parts = set(model.network.parts)
    if not {"mlm", "contexts"} & parts and not (has_pair_labels and {"pooler", "next_sentence"} <= parts):
        wanted = "masked words or pairs" if has_pair_labels else "masked words"
        raise UserError(
            f"{model.path} has no head for {wanted} "
            f"(besides the encoder: {', '.join(sorted(parts)) or 'nothing'}), so there is nothing to evaluate; "
            "convert the pre-trained model with --parts=all, or fine-tune this one"
        )


def _check_objective(model: PretrainedModel, given: str | None) -> None:
    """Raise a UserError if the run was trained for an objective from outside, and another one would be measured."""
    trained = (model.history.get("run") or {}).get("objective")
    if trained not in (None, given):
        raise UserError(
            f"{model.path} was trained for the objective {trained}, but evaluate was given "
            f"{f'the objective {given}' if given else 'none and would measure that of the options'}; call "
            "bert_jax.evaluate(workdir, config, objective=…) in Python with the one that pretrain was given"
        )

"""Options of pre-training as runs have recorded them, also those of earlier versions.

Those had other names for some options, and took some without an effect that are refused today.
"""

import dataclasses
from typing import Any

from bert_jax.config.json_form import from_dict
from bert_jax.config.objectives import ObjectiveConfig
from bert_jax.config.options import Config, MaskingConfig, OptimizerConfig, ScheduleConfig

RENAMED = {"objective": {"next_sentence_weight": "sentence_pair_weight"}}
"""By group, the names that options had before, and their names of today."""


def recorded_config(values: dict[str, Any]) -> Config:
    """Return the configuration of a run of pre-training whose config.json has these values.

    Raises:
      UserError: they are not those of a run of this version or an earlier one.
    """
    return without_ignored(from_dict(Config, renamed(values)))


def options_recorded(values: dict[str, Any]) -> dict[str, Any]:
    """Return those entries of a work directory's config.json that are options of pre-training.

    The file of a saved or converted model also says how it embeds texts, that of a fine-tuned one also its head and
    task.
    """
    return {
        name: value for name, value in values.items() if name not in ("embedding", "head", "finetune", "pairs", "run")
    }


def renamed(values: dict[str, Any]) -> dict[str, Any]:
    """Return recorded options by their names of today."""
    values = dict(values)
    for group, names in RENAMED.items():
        if isinstance(options := values.get(group), dict):
            values[group] = {names.get(name, name): value for name, value in options.items()}
    return values


def without_ignored(config: Config) -> Config:
    """Return recorded options with what had no effect at its default, so that the run can be resumed and measured."""
    objective, optimizer, schedule = config.objective, config.optimizer, config.schedule
    distillation = objective.distillation
    if not (distillation.hidden_weight or distillation.attention_weight):
        distillation = dataclasses.replace(distillation, layers=())
    permutes = objective.name == "permutation"
    span = objective.longest_span if permutes else ObjectiveConfig.longest_span
    objective = dataclasses.replace(objective, distillation=distillation, longest_span=span)
    if optimizer.name != "muon":
        optimizer = dataclasses.replace(optimizer, momentum=OptimizerConfig.momentum)
    if schedule.name != "polynomial":
        schedule = dataclasses.replace(schedule, power=ScheduleConfig.power)
    masking = config.masking
    if permutes or not objective.masks_words:
        masking = MaskingConfig(
            rate=masking.rate if permutes else MaskingConfig.rate, static_masks=masking.static_masks
        )
    return dataclasses.replace(config, objective=objective, optimizer=optimizer, schedule=schedule, masking=masking)

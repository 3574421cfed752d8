"""Options that earlier versions took without an effect, and that are refused today, in the records of their runs."""

import dataclasses

from bert_jax.config.objectives import ObjectiveConfig
from bert_jax.config.options import Config, MaskingConfig, OptimizerConfig, ScheduleConfig


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

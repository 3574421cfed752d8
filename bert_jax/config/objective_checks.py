"""What the options of the objective must satisfy, before anything heavy is loaded."""

import dataclasses
import math

from bert_jax.config.generator_checks import check_generator
from bert_jax.config.objectives import ObjectiveConfig
from bert_jax.config.options import Config, MaskingConfig
from bert_jax.config.permutation_checks import check_permutation
from bert_jax.config.teachers import check_distillation
from bert_jax.errors import UserError


def check_objective(config: Config) -> None:
    """Raise a UserError if the objective cannot be trained with the other options."""
    values = dataclasses.asdict(config.objective)
    weights = {name: value for name, value in values.items() if name.endswith("_weight")}
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            default = getattr(ObjectiveConfig, name)
            raise UserError(f"objective.{name}={weight} must be 0 or a positive number; the default is {default:g}")
    check_generator(config)
    pairs = config.data.sentence_pairs
    others = weights["span_boundary_weight"] or (config.data.has_pair_labels and weights["sentence_pair_weight"])
    if not weights["mlm_weight"] and not others:
        raise UserError(
            f"objective.mlm_weight=0 leaves nothing to learn: objective.sentence_pair_weight="
            f"{weights['sentence_pair_weight']:g}, data.sentence_pairs={pairs}; the paper's weights are 1"
        )
    if config.objective.distillation.teacher:
        _check_taught(config)
    if config.objective.predicts_all:
        _check_neighbours(config)
    if config.objective.predicts_neighbours:
        _check_alone(config, f"objective.name={config.objective.name} predicts the neighbours of each word")
    _check_directions(config.objective)
    check_permutation(config)
    if config.objective.mask_decoder:
        _check_mask_decoder(config)
    if pairs != "none":
        _check_pairs(config)


def _check_pairs(config: Config) -> None:
    """Raise a UserError if the model cannot read pairs, which its objective allows, or not learn from their labels."""
    model, labelled = config.model, config.data.has_pair_labels
    needed = {"type_vocab_size": max(2, model.type_vocab_size)} | ({"pair_head": True} if labelled else {})
    if wrong := [name for name, value in needed.items() if getattr(model, name) != value]:
        raise UserError(
            f"data.sentence_pairs={config.data.sentence_pairs} needs two segments"
            f"{' and a head for pairs' if labelled else ''}, but "
            f"{' and '.join(f'model.{name}={getattr(model, name)}' for name in wrong)}; set "
            f"{' and '.join(f'model.{name}={needed[name]}' for name in wrong)}, or data.sentence_pairs=none"
        )


def _check_mask_decoder(config: Config) -> None:
    """Raise a UserError if the model has no layer that the enhanced mask decoder could pass through again."""
    model = config.model
    for name, value, fitting in (
        ("model.disentangled.terms", model.disentangled.terms, model.disentangled.terms != "none"),
        ("model.positions", model.positions, model.positions == "none"),
        ("model.norm_position", model.norm_position, model.norm_position == "post"),
        ("model.num_layers", model.num_layers, model.num_layers > 1),
        ("objective.name", config.objective.name, config.objective.masks_words),
    ):
        if not fitting:
            raise UserError(
                f"objective.mask_decoder=True cannot be combined with {name}={value}: masked words are predicted by "
                "further passes of the last of several layers of a DeBERTa (terms=c2p+p2c, positions=none, "
                "norm_position=post), whose input has no absolute positions; leave it out"
            )


def _check_taught(config: Config) -> None:
    """Raise a UserError if what is learned from a teacher cannot go with the objective."""
    objective = config.objective
    check_distillation(objective.distillation)
    if objective.name != "masked_words":
        raise UserError(
            f"objective.distillation.teacher={objective.distillation.teacher} teaches masked words, but "
            f"objective.name={objective.name}; set objective.name=masked_words"
        )


def _check_neighbours(config: Config) -> None:
    """Raise a UserError if a token could see what it has to predict, or an option would be ignored."""
    name, model = config.objective.name, config.model
    why = f"objective.name={name} predicts each token from those on one side of it"
    if name == "left_to_right" and model.direction != "left_to_right":
        raise UserError(
            f"{why}, but with model.direction={model.direction} it would see the answer; set "
            "model.direction=left_to_right"
        )
    if name == "two_directions" and (model.layer, model.direction) != ("lstm", "both"):
        raise UserError(
            f"{why}, but with model.layer={model.layer}, model.direction={model.direction} it would see the answer; "
            "set model.layer=lstm and model.direction=both, whose two directions are kept apart"
        )
    _check_alone(config, why)


def _check_directions(objective: ObjectiveConfig) -> None:
    """Raise a UserError if the weights of the two directions leave nothing to learn, or there is only one loss."""
    weights = {name: getattr(objective, name) for name in ("next_word_weight", "previous_word_weight")}
    if objective.name == "two_directions" and not any(weights.values()):
        raise UserError(
            "objective.next_word_weight=0 and objective.previous_word_weight=0 leave nothing to learn; the paper's "
            "weights are 1"
        )
    for name, weight in weights.items():
        if objective.name != "two_directions" and weight != 1:
            raise UserError(
                f"objective.{name}={weight:g} belongs to objective.name=two_directions, not to {objective.name}; set "
                "that name or leave the option out"
            )


def _check_alone(config: Config, why: str) -> None:
    """Raise a UserError if there are pairs, or options of masked words; `why` begins the message."""
    if config.data.sentence_pairs != "none":
        raise UserError(
            f"{why} and reads single texts, but data.sentence_pairs={config.data.sentence_pairs}; set "
            "data.sentence_pairs=none"
        )
    for weight, alone in (("mlm_weight", 1), ("sentence_pair_weight", 1), ("span_boundary_weight", 0)):
        if getattr(config.objective, weight) != alone:
            raise UserError(
                f"{why} and masks none, so objective.{weight}={getattr(config.objective, weight):g} has no effect; "
                "leave it out"
            )
    for name, value in vars(config.masking).items():
        if name != "static_masks" and value != getattr(MaskingConfig, name):
            raise UserError(f"{why} and masks none, so masking.{name}={value} does not apply; leave it out")
    for index, phase in enumerate(config.phases):
        if phase.max_predictions is not None:
            raise UserError(
                f"{why}, all of them, so phases.{index}.max_predictions={phase.max_predictions} has no effect; leave "
                "it out"
            )

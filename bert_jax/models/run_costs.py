"""What a run trains and what it costs: one encoder, or the two of replaced-token detection.

Nothing outside the standard library is imported, as in `models.costs`.
"""

import dataclasses
from collections.abc import Iterable

from bert_jax.config import Config, ModelConfig
from bert_jax.config.generator import generator_model
from bert_jax.models.bert_parameters import bert_parameters, pretraining_parts
from bert_jax.models.costs import Flops, training_flops
from bert_jax.models.generator_parameters import DISCRIMINATOR_PARTS, generator_parts, joined
from bert_jax.models.layer_loop import read_positions
from bert_jax.models.memory_costs import ActivationBytes, activation_bytes
from bert_jax.models.parameters import ParameterTable


@dataclasses.dataclass(frozen=True)
class TrainedEncoder:
    """An encoder that a run trains, with its heads."""

    config: ModelConfig
    parameters: ParameterTable
    """Its table on its own."""
    predicts_words: bool
    """Whether it computes the logits of words at the masked positions."""


def trained_encoders(config: Config, teacher_size: int | None = None) -> tuple[TrainedEncoder, ...]:
    """Return what a run trains: one encoder, or the discriminator and the generator of replaced-token detection.

    `teacher_size` is the width of the teacher's states that an encoder maps its own to; None: it has no such map.
    """
    model, objective = config.model, config.objective
    if objective.name != "replaced_tokens":
        parts = pretraining_parts(model, objective)
        return (TrainedEncoder(model, bert_parameters(model, parts, teacher_size=teacher_size), True),)
    generator = generator_model(model, objective.generator)
    return (
        TrainedEncoder(model, bert_parameters(model, DISCRIMINATOR_PARTS), False),
        TrainedEncoder(generator, bert_parameters(generator, generator_parts(objective)), True),
    )


def trained_parameters(config: Config, teacher_size: int | None = None) -> ParameterTable:
    """Return the table of parameters of a run, whose arguments are those of `trained_encoders`."""
    first, *others = (encoder.parameters for encoder in trained_encoders(config, teacher_size))
    return joined(first, others[0], config.objective.generator.embeddings) if others else first


def run_flops(config: Config, sequence_length: int, predictions: int) -> Flops:
    """Return `costs.training_flops` of all that a run trains, every layer at every position."""
    parts = [
        training_flops(encoder.config, encoder.parameters, sequence_length, predictions)
        for encoder in trained_encoders(config)
    ]
    return Flops(*_sums(parts))


def computed_flops(config: Config, sequence_length: int, predictions: int) -> Flops:
    """Return what `run_flops` does, without the positions at which the last of unrolled layers is not computed.

    The states of a student are all read.
    """
    if config.objective.distillation.teacher:
        return run_flops(config, sequence_length, predictions)
    parts = []
    for encoder in trained_encoders(config):
        read = read_positions(encoder.config, config.compute, encoder.parameters, predictions)
        parts.append(training_flops(encoder.config, encoder.parameters, sequence_length, predictions, read))
    return Flops(*_sums(parts))


def run_activation_bytes(
    config: Config,
    sequence_length: int,
    predictions: int,
    remat: str,
    value_bytes: int = 2,
) -> ActivationBytes:
    """Return `memory_costs.activation_bytes` of all that a run trains."""
    parts = [
        activation_bytes(
            encoder.config,
            sequence_length,
            predictions if encoder.predicts_words else 0,
            remat,
            value_bytes,
        )
        for encoder in trained_encoders(config)
    ]
    return ActivationBytes(*_sums(parts))


def _sums(parts: Iterable[Flops] | Iterable[ActivationBytes]) -> Iterable[int]:
    """Return the sum of each field."""
    return map(sum, zip(*map(dataclasses.astuple, parts), strict=True))

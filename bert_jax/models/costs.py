"""Costs of a model of any size: parameters, floating-point operations, memory.

Counts follow from the table of parameters, the rest from a ModelConfig in closed form; no array is built, and only the
standard library is imported.
"""

import dataclasses

from bert_jax.config import ModelConfig
from bert_jax.models.parameters import FLOAT32, ParameterTable, total_size


@dataclasses.dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters by part. The word table is counted once: the masked-language-model head shares it."""

    embeddings: int
    block: int
    num_layers: int
    final_norm: int
    pooler: int
    mlm_head: int
    next_sentence: int

    @property
    def encoder_without_pooler(self) -> int:
        return self.embeddings + self.num_layers * self.block + self.final_norm

    @property
    def encoder(self) -> int:
        return self.encoder_without_pooler + self.pooler

    @property
    def pretraining(self) -> int:
        return self.encoder + self.mlm_head + self.next_sentence


def parameter_counts(parameters: ParameterTable) -> ParameterCounts:
    """Count the parameters of a pre-training model, padded vocabulary rows included."""
    sizes = dict.fromkeys((parameter.part for parameter in parameters.values()), 0)
    for parameter in parameters.values():
        sizes[parameter.part] += parameter.size
    num_layers = _num_layers(parameters)
    return ParameterCounts(
        embeddings=sizes["embeddings"],
        block=sizes["encoder"] // num_layers,
        num_layers=num_layers,
        final_norm=sizes.get("final_norm", 0),
        pooler=sizes["pooler"],
        mlm_head=sizes["mlm"],
        next_sentence=sizes["next_sentence"],
    )


@dataclasses.dataclass(frozen=True)
class Flops:
    """Floating-point operations per sequence in a training step: matrix products only, a multiply-add counts as two."""

    kernels: int
    """Products with the blocks' kernels; linear in the length."""
    attention: int
    """Scores and weighted values; quadratic in the length."""
    heads: int
    """Pooler, next-sentence head, and the masked-language-model head at the predicted positions."""

    @property
    def total(self) -> int:
        return self.kernels + self.attention + self.heads


def training_flops(config: ModelConfig, parameters: ParameterTable, sequence_length: int, predictions: int) -> Flops:
    """Count the operations per sequence, forward and backward (twice the forward), with `predictions` masked positions.

    Recomputation under remat is not counted, so that utilization figures are comparable.

    Args:
      config: sizes of the model.
      parameters: table of the model. Where layers share parameters, every layer counts.
      sequence_length: tokens per sequence.
      predictions: masked positions per sequence.
    """
    length = sequence_length
    kernels = 2 * length * _kernel_size(parameters, "encoder") // _num_layers(parameters) * config.num_layers
    attention = config.num_layers * 4 * length * length * config.num_heads * config.head_size
    predicted = 2 * predictions * (_kernel_size(parameters, "mlm") + parameters["embeddings/word/table"].size)
    pair = 2 * (_kernel_size(parameters, "pooler") + _kernel_size(parameters, "next_sentence"))
    return Flops(kernels=3 * kernels, attention=3 * attention, heads=3 * (predicted + pair))


def _num_layers(parameters: ParameterTable) -> int:
    """Return the number of layers with their own parameters."""
    return max(axis.size for parameter in parameters.values() for axis in parameter.axes if axis.name == "layer")


def _kernel_size(parameters: ParameterTable, part: str) -> int:
    """Return the number of values in the kernels of `part`; each enters one multiply-add per position."""
    return sum(each.size for each in parameters.values() if each.part == part and each.path.endswith("/kernel"))


@dataclasses.dataclass(frozen=True)
class StateBytes:
    """Memory of the training state, summed over all devices; everything is float32."""

    parameters: int
    moments: int
    """Adam's m and v."""
    gradients: int

    @property
    def total(self) -> int:
        return self.parameters + self.moments + self.gradients


def state_bytes(parameters: ParameterTable, moments: int) -> StateBytes:
    """Return the bytes of the state of a training run.

    Args:
      parameters: table of the model.
      moments: how many values the optimizer keeps per parameter; `OptimizerConfig.moments`.
    """
    size = FLOAT32 * total_size(parameters)
    return StateBytes(parameters=size, moments=moments * size, gradients=size)


@dataclasses.dataclass(frozen=True)
class ActivationBytes:
    """Memory that the forward pass of one sequence keeps for the backward pass, without the heads; 2 bytes per value.

    Korthikanti et al. 2022 (arXiv 2205.05198), equation 1: (34·S·H + 5·A·S²) per layer if the feed-forward layer is
    4·H wide. An estimate by formula: the compiler fuses some of it away, and float32 activations take twice as much.
    """

    linear: int
    """Linear in the length; all that remains with an attention kernel that stores no probabilities."""
    quadratic: int
    """Attention probabilities, their dropout masks and scores; quadratic in the length."""
    layer_inputs: int
    """All that remains with compute.remat=full."""

    @property
    def total(self) -> int:
        return self.linear + self.quadratic


def activation_bytes(config: ModelConfig, sequence_length: int) -> ActivationBytes:
    """Return the bytes of activations of one sequence."""
    hidden, length = config.hidden_size, sequence_length
    return ActivationBytes(
        linear=config.num_layers * length * (18 * hidden + 4 * config.feed_forward_size),
        quadratic=config.num_layers * 5 * config.num_heads * length * length,
        layer_inputs=config.num_layers * 2 * length * hidden,
    )

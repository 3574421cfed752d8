"""Published sizes, and what a model of any size costs: parameters, floating-point operations, memory.

Everything is in closed form from a ModelConfig; no array is built and only the standard library is imported.
"""

import dataclasses
import difflib

from bert_jax.config import Config, MaskingConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from bert_jax.errors import UserError

HEAD_SIZE = 64  # the same in every published BERT

SIZES = {  # layers, hidden size
    # Turc et al. 2019 (arXiv 1908.08962), table 1: the four miniatures with names
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    # Devlin et al. 2018 (arXiv 1810.04805), section 3
    "base": (12, 768),
    "large": (24, 1024),
}
# All 24 miniatures of Turc et al. by the names of their release; tiny, mini, small, medium and base are among them.
SIZES |= {
    f"L-{layers}_H-{hidden}_A-{hidden // HEAD_SIZE}": (layers, hidden)
    for layers in (2, 4, 6, 8, 10, 12)
    for hidden in (128, 256, 512, 768)
}


def model_config(name: str) -> ModelConfig:
    """Return the ModelConfig of a published size, with vocab_size None.

    Raises:
      UserError: there is no such size; the message lists them.
    """
    if name not in SIZES:
        close = difflib.get_close_matches(name, SIZES, n=1)
        hint = f"perhaps you meant {close[0]!r}; the sizes are" if close else "the sizes are"
        raise UserError(f"there is no model size {name!r}; {hint} {', '.join(SIZES)}")
    num_layers, hidden_size = SIZES[name]
    return ModelConfig(num_layers=num_layers, hidden_size=hidden_size, num_heads=hidden_size // HEAD_SIZE)


def google2018(config: Config) -> Config:
    """Return `config` with every option at the value that the code of 2018 fixes, on one replica.

    docs/google2018.md describes what that changes. Sizes, dropout, phases with their batch sizes and learning rates,
    and locations of files remain as they are: they were arguments there too."""
    return dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model,
            activation="gelu_tanh",
            layer_norm_epsilon=1e-12,
            norm_position="post",
            position_init="random",
            vocab_pad_multiple=1,
        ),
        data=dataclasses.replace(
            config.data, held_out=0.0, sentence_pairs="nsp", short_sequence_probability=0.1, copies=10
        ),
        masking=MaskingConfig(loss_epsilon=1e-5),
        optimizer=OptimizerConfig(name="adamw_bert"),
        schedule=ScheduleConfig(),
        compute=dataclasses.replace(config.compute, dtype="float32"),
        phases=tuple(dataclasses.replace(phase, schedule="continue", moments="keep") for phase in config.phases),
    )


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


def parameter_counts(config: ModelConfig) -> ParameterCounts:
    """Count the parameters of BertForPreTraining(config), padded vocabulary rows included."""
    hidden, wide, vocab = config.hidden_size, config.feed_forward_size, config.padded_vocab_size
    norm, square = 2 * hidden, hidden * hidden + hidden
    return ParameterCounts(
        embeddings=(vocab + config.max_position_embeddings + config.type_vocab_size) * hidden + norm,
        block=4 * square + 2 * hidden * wide + wide + hidden + 2 * norm,
        num_layers=config.num_layers,
        final_norm=norm if config.norm_position == "pre" else 0,
        pooler=square,
        mlm_head=square + norm + vocab,
        next_sentence=2 * hidden + 2,
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


def training_flops(config: ModelConfig, sequence_length: int, predictions: int) -> Flops:
    """Count the operations per sequence, forward and backward (twice the forward), with `predictions` masked positions.

    Recomputation under remat is not counted, so that utilization figures are comparable.
    """
    hidden, length = config.hidden_size, sequence_length
    kernels = config.num_layers * 2 * length * (4 * hidden * hidden + 2 * hidden * config.feed_forward_size)
    attention = config.num_layers * 4 * length * length * hidden
    heads = 2 * predictions * (hidden * hidden + config.padded_vocab_size * hidden) + 2 * hidden * hidden + 4 * hidden
    return Flops(kernels=3 * kernels, attention=3 * attention, heads=3 * heads)


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


def state_bytes(config: ModelConfig) -> StateBytes:
    """Return the bytes of parameters, both moments and gradients of a pre-training run."""
    size = 4 * parameter_counts(config).pretraining
    return StateBytes(parameters=size, moments=2 * size, gradients=size)


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

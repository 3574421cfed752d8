"""Costs of a model of any size: parameters, floating-point operations, memory.

Counts follow from the table of parameters, the rest from a ModelConfig in closed form; no array is built, and only the
standard library is imported.
"""

import dataclasses

from bert_jax.config import ModelConfig
from bert_jax.config.static_vectors import SHARED_NEGATIVES
from bert_jax.models.parameters import FLOAT32, Parameter, ParameterTable, total_size

ONCE_PER_STEP = tuple(f"encoder/attention/{name}/kernel" for name in ("position_key", "position_query", "distance"))
"""Kernels that map a table instead of tokens: their products do not grow with the batch, and are not counted."""
KEYS_AND_VALUES = tuple(f"encoder/attention/{name}/kernel" for name in ("key", "value"))


@dataclasses.dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters by part. The word table is counted once: the masked-language-model head shares it."""

    embeddings: int
    block: int
    """Of one layer, without a table that all use; the first may have less (model.first_attention_norm)."""
    layers: int
    """Of all layers; what they share is counted once, and so is a table of relative positions."""
    final_norm: int
    pooler: int
    mlm_head: int
    next_sentence: int
    span_boundary: int
    replaced_tokens: int
    mask_decoder: int
    contexts: int
    """Of the second table of static word vectors."""

    @property
    def encoder_without_pooler(self) -> int:
        return self.embeddings + self.layers + self.final_norm

    @property
    def encoder(self) -> int:
        return self.encoder_without_pooler + self.pooler

    @property
    def pretraining(self) -> int:
        heads = self.mlm_head + self.next_sentence + self.span_boundary + self.replaced_tokens
        return self.encoder + heads + self.mask_decoder + self.contexts


def parameter_counts(parameters: ParameterTable) -> ParameterCounts:
    """Count the parameters of a pre-training model, padded vocabulary rows included."""
    sizes = dict.fromkeys((parameter.part for parameter in parameters.values()), 0)
    for parameter in parameters.values():
        sizes[parameter.part] += parameter.size
    layers = [parameter for parameter in parameters.values() if parameter.part == "encoder"]
    return ParameterCounts(
        embeddings=sizes["embeddings"],
        block=sum(parameter.size // _sets(parameter) for parameter in layers if parameter.layer_axis is not None),
        layers=sizes.get("encoder", 0),
        final_norm=sizes.get("final_norm", 0),
        pooler=sizes.get("pooler", 0),
        mlm_head=sizes.get("mlm", 0),
        next_sentence=sizes.get("next_sentence", 0),
        span_boundary=sizes.get("span_boundary", 0),
        replaced_tokens=sizes.get("replaced_tokens", 0),
        mask_decoder=sizes.get("mask_decoder", 0),
        contexts=sizes.get("contexts", 0),
    )


@dataclasses.dataclass(frozen=True)
class Flops:
    """Floating-point operations per sequence in a training step: matrix products only, a multiply-add counts as two."""

    kernels: int
    """Products with the kernels of the layers, and of a map of the embeddings; linear in the length."""
    attention: int
    """Scores and weighted values, and the scores of skip-gram's pairs; quadratic in the length. Of disentangled
    attention a score has a product per term; that all distances meet all positions first, twice as many products, is
    not counted."""
    heads: int
    """Pooler, next-sentence head, the masked-language-model or task head at the predicted positions, and that of a
    discriminator at every one."""

    @property
    def total(self) -> int:
        return self.kernels + self.attention + self.heads


def training_flops(config: ModelConfig, parameters: ParameterTable, sequence_length: int, predictions: int) -> Flops:
    """Count the operations per sequence, forward and backward (twice the forward).

    Recomputation under remat is not counted, so that utilization figures are comparable.

    Args:
      config: sizes of the model.
      parameters: table of the model. Where layers share parameters, every layer counts.
      sequence_length: tokens per sequence.
      predictions: positions per sequence at which the head predicts, such as the masked ones.
    """
    length = sequence_length
    work, pairs = _layer_work(config, parameters, length, predictions)
    kernels = 2 * (work + length * _kernel_size(parameters, "embeddings"))
    # Of a pair of positions: the terms of its score, and the value.
    products = 1 + config.disentangled.count + config.is_xlnet
    attention = 2 * products * pairs * config.num_heads * config.head_size
    predicting = sum(_kernel_size(parameters, part) for part in ("mlm", "span_boundary", "head"))
    predicting += sum(parameters["embeddings/word/table"].size for _ in word_heads(parameters))  # which they share
    directions = 2 if config.two_directions else 1  # each predicts every word
    if "contexts/table" in parameters:
        attention += 2 * length * length * config.hidden_size  # every word of the row with every other one
        predicting += SHARED_NEGATIVES * config.hidden_size
    predicted = 2 * predictions * predicting * directions
    pair = 2 * (_kernel_size(parameters, "pooler") + _kernel_size(parameters, "next_sentence"))
    judged = 2 * length * _kernel_size(parameters, "replaced_tokens")
    return Flops(kernels=3 * kernels, attention=3 * attention, heads=3 * (predicted + pair + judged))


def _layer_work(config: ModelConfig, parameters: ParameterTable, length: int, predictions: int) -> tuple[int, int]:
    """Return the multiply-adds with the kernels of all layers for a sequence, and the pairs of a query and a key."""
    layer = {
        each.path: each.size // _sets(each)
        for each in parameters.values()
        if each.part == "encoder" and each.path.endswith(("/kernel", "/recurrent")) and each.path not in ONCE_PER_STEP
    }
    unseen = sum(size for path, size in layer.items() if path not in KEYS_AND_VALUES)  # of states that only see others
    work, pairs = length * sum(layer.values()) * config.num_layers, seen_positions(config, length)
    if has_mask_decoder(parameters):  # the last layer twice, with the same keys and values, not once
        work += length * unseen
        pairs += pairs // config.num_layers
    if config.is_xlnet and word_heads(parameters):  # targets have states of their own in pre-training
        work += predictions * unseen * config.num_layers
        pairs += predictions * length * config.num_layers
    return work, pairs


def seen_positions(config: ModelConfig, length: int) -> int:
    """Return the number of pairs of positions that see each other in a sequence, over all layers."""
    if config.layer == "lstm":
        return 0
    total, first = 0, min(config.global_tokens, length)
    for window in config.windows:
        if window is None or window >= length - 1:
            total += length * length
        else:
            near = length * (2 * window + 1) - window * (window + 1)
            farther = sum(max(0, length - 1 - window - position) for position in range(first))
            total += near + 2 * farther
    return total


def has_mask_decoder(parameters: ParameterTable) -> bool:
    """Return whether words are predicted by two passes of the last layer in place of its own."""
    return "mask_decoder/position/table" in parameters


def word_heads(parameters: ParameterTable) -> tuple[str, ...]:
    """Return the paths of the heads that predict words with the word table."""
    return tuple(path for path in ("mlm", "span_boundary/words") if f"{path}/bias" in parameters)


def _sets(parameter: Parameter) -> int:
    """Return how many layers have their own such array."""
    return 1 if parameter.layer_axis is None else parameter.shape[parameter.layer_axis]


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
    """Memory that the forward pass of one sequence keeps for the backward pass, as automatic differentiation asks.

    A compiler that fuses operations keeps less of it, and needs room for what it computes at the moment.
    """

    linear: int
    """Of the layers, linear in the length."""
    quadratic: int
    """Of the layers, quadratic in the length: attention probabilities, and their copy after dropout."""
    embeddings: int
    heads: int
    """Mostly logits of the predicted words, in float32."""

    @property
    def total(self) -> int:
        return self.linear + self.quadratic + self.embeddings + self.heads


LESS = ("sel", "dots", "full")
"""Policies that keep less than everything."""


def activation_bytes(
    config: ModelConfig, sequence_length: int, predictions: int, remat: str = "none", value_bytes: int = 2
) -> ActivationBytes:
    """Return what is kept of one sequence with dropout.

    Args:
      config: sizes of the model; its vocabulary size is known.
      sequence_length: tokens of the sequence.
      predictions: positions at which words are predicted.
      remat: the policy; "auto" counts as "none".
      value_bytes: of an activation.
    """
    hidden, wide, length = config.hidden_size, config.feed_forward_size, sequence_length
    inner = wide if config.feed_forward == "plain" else 2 * wide  # what is kept between the kernels: with the gate
    word = config.word_size
    # Per token and layer. Norms keep three float32 arrays each, the activation function six of its width.
    everything = value_bytes * (6 * hidden + 5 * wide + inner) + hidden * 2 * 3 * FLOAT32
    linear = {
        "sel": value_bytes * (7 * hidden + inner) + 2 * 2 * FLOAT32,  # mean and variance of both norms
        "dots": value_bytes * (6 * hidden + inner),
        "full": value_bytes * hidden,
    }.get(remat, everything)
    if config.layer == "lstm":  # the input, and in float32 the four gates before and after, both states and the sum
        linear = value_bytes * hidden + (0 if remat in LESS else hidden * 12 * FLOAT32)
    quadratic = 0 if remat in LESS or config.layer == "lstm" else config.num_heads * (FLOAT32 + value_bytes)
    head = predictions * (
        config.padded_vocab_size * (3 * FLOAT32 + 2) + hidden * value_bytes + word * (6 * value_bytes + 3 * FLOAT32)
    )
    states = length + predictions * config.is_xlnet  # targets have states of their own
    if config.layer == "none":  # three arrays of scores, and the vectors that are not those of the row
        head = 3 * FLOAT32 * predictions * (length + SHARED_NEGATIVES) + value_bytes * word * (
            predictions + SHARED_NEGATIVES
        )
    return ActivationBytes(
        linear=config.num_layers * states * linear,
        quadratic=config.num_layers * states * length * quadratic,
        embeddings=length * word * ((0 if remat in LESS else 2) * value_bytes + 3 * FLOAT32),
        heads=head,
    )


def step_bytes(
    config: ModelConfig,
    parameters: ParameterTable,
    *,
    moments: int,
    sequence_length: int,
    predictions: int,
    rows: int,
    split: int,
    remat: str,
    value_bytes: int = 2,
    generator: ModelConfig | None = None,
) -> int:
    """Return the memory of one device during a training step; compilers have taken up to 9 % more (docs/planning.md).

    Args:
      config: sizes of the model.
      parameters: its table.
      moments: how many values the optimizer keeps per parameter.
      sequence_length: tokens of a sequence.
      predictions: positions of a sequence at which words are predicted.
      rows: sequences that the device computes at a time.
      split: number of devices over which parameters, moments and gradients are split.
      remat: the policy.
      value_bytes: of an activation.
      generator: sizes of the model that predicts the words in place of this one, in the same step.
    """
    state = state_bytes(parameters, moments)
    gathered = value_bytes * total_size(parameters)  # the parameters in the type of the products, whole
    predicted = predictions * max(1, len(word_heads(parameters)))
    sizes = (config, sequence_length, 0 if generator else predicted)
    kept = activation_bytes(*sizes, remat, value_bytes).total
    if generator:
        kept += activation_bytes(generator, sequence_length, predicted, remat, value_bytes).total
    everything = activation_bytes(*sizes, "none", value_bytes)
    of_a_layer = 0 if remat == "none" else (everything.linear + everything.quadratic) // max(1, config.num_layers)
    if has_mask_decoder(parameters):  # a pass more of the last layer
        own = activation_bytes(*sizes, remat, value_bytes)
        kept += (own.linear + own.quadratic) // config.num_layers
    return state.total // split + gathered + rows * (kept + of_a_layer + distance_bytes(config, sequence_length))


def distance_bytes(config: ModelConfig, length: int) -> int:
    """Return the memory that disentangled attention takes for a sequence while a layer is computed.

    Of one term at a time: the products of every position with all distances, and their copy along the diagonals.
    """
    return 2 * FLOAT32 * config.num_heads * length * 2 * length if config.disentangled.count > 1 else 0

"""Costs of a model of any size in closed form: parameters, floating-point operations and memory.

Counts and the size of the state follow from the table of parameters, the rest from an EncoderConfig; memory includes
what is kept for the backward pass. The costs of a run are those of one encoder, or of the two of replaced-token
detection. Models also ask here which way of computing a local window, the layers or the last layer is the fastest. No
array is built, and nothing outside the standard library may be imported here, directly or not, so `bert-jax info`
answers without loading jax.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable

from bert_jax.config import ComputeConfig, EncoderConfig, ObjectiveConfig
from bert_jax.config.objective import ReplacedTokens, generator_model
from bert_jax.models.bert_parameters import (
    DISCRIMINATOR_PARTS,
    ENCODER_PARTS,
    LESS,
    MASK_DECODER,
    Layers,
    bert_parameters,
    generator_parts,
    joined,
    layers_of,
    pretraining_parts,
    word_parameters,
)
from bert_jax.parameters import FLOAT32, Parameter, ParameterTable, Use, total_size


@dataclasses.dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters by part. The word table is counted once: the masked-language-model head shares it."""

    embeddings: int
    block: int
    """Parameters of one layer, without a table that all use and without a convolution next to the first, which may also
    have fewer than the others (model.first_attention_norm)."""
    layers: int
    """Parameters of all layers; what they share is counted once, and so are a table of relative positions and a
    convolution."""
    final_norm: int
    pooler: int
    mlm_head: int
    next_sentence: int
    span_boundary: int
    replaced_tokens: int
    mask_decoder: int
    state_projection: int
    """Parameters of the map to the states of a teacher of another width."""
    pretraining: int
    """Parameters of the whole model, with parts that have no field of their own."""

    @property
    def encoder_without_pooler(self) -> int:
        return self.embeddings + self.layers + self.final_norm

    @property
    def encoder(self) -> int:
        return self.encoder_without_pooler + self.pooler


def parameter_counts(parameters: ParameterTable) -> ParameterCounts:
    """Count the parameters of a pre-training model, padded vocabulary rows included."""
    sizes: Counter[str] = Counter()
    for parameter in parameters.values():
        sizes[parameter.part] += parameter.size
    layers = [parameter for parameter in parameters.values() if parameter.part == "encoder"]
    return ParameterCounts(
        embeddings=sizes["embeddings"],
        block=sum(
            parameter.size // _sets(parameter)
            for parameter in layers
            if parameter.layer_axis is not None and parameter.axis("first_layer") is None
        ),
        layers=sizes["encoder"],
        final_norm=sizes["final_norm"],
        pooler=sizes["pooler"],
        mlm_head=sizes["mlm"],
        next_sentence=sizes["next_sentence"],
        span_boundary=sizes["span_boundary"],
        replaced_tokens=sizes["replaced_tokens"],
        mask_decoder=sizes["mask_decoder"],
        state_projection=sizes["state_projection"],
        pretraining=total_size(parameters),
    )


@dataclasses.dataclass(frozen=True)
class Flops:
    """Floating-point operations per sequence in a training step: matrix products only, a multiply-add counts as two."""

    kernels: int
    """Products of every token with the kernels of the layers, a map or a convolution of the embeddings and the head of
    a discriminator; linear in the length."""
    attention: int
    """Scores and weighted values, and the products of the words of a row; quadratic in the length. Of disentangled
    attention a score has a product per term; that all distances meet all positions first, twice as many products, is
    not counted."""
    heads: int
    """Pooler, next-sentence head, and the masked-language-model or task head at the predicted positions."""

    @property
    def total(self) -> int:
        return self.kernels + self.attention + self.heads


def training_flops(
    config: EncoderConfig, parameters: ParameterTable, sequence_length: int, predictions: int, read: int | None = None
) -> Flops:
    """Count the operations per sequence, forward and backward (twice the forward).

    Recomputation under remat is not counted, so that utilization figures are comparable.

    Args:
      config: sizes of the model.
      parameters: table of the model. Where layers share parameters, every layer counts.
      sequence_length: tokens per sequence.
      predictions: positions per sequence at which the head predicts, such as the masked ones.
      read: positions per sequence at which the last layer is computed (`BertForPreTraining.read`). None: all.
    """
    length, others = sequence_length, _multiplied(parameters, in_layers=False)
    work, pairs = _layer_work(config, parameters, length, predictions, read)
    kernels = 2 * (work + length * (others["per_token"] + others["per_key"]))
    # Of a pair of positions: the terms of its score, and the value.
    attention = 2 * (1 + config.score_terms) * pairs * config.hidden_size
    predicting = others["per_prediction"]
    predicting += sum(parameters["embeddings/word/table"].size for _ in word_heads(parameters))  # which they share
    directions = 2 if config.two_directions else 1  # each predicts every word
    predicted = 2 * predictions * predicting * directions
    return Flops(kernels=3 * kernels, attention=3 * attention, heads=3 * (predicted + 2 * others["per_text"]))


def word_flops(config: EncoderConfig, objective: ObjectiveConfig, sequence_length: int, predictions: int) -> Flops:
    """Count the operations per sequence of an objective that multiplies vectors of words, forward and backward."""
    in_row, drawn = objective.word_products(sequence_length, predictions)
    return Flops(kernels=0, attention=6 * in_row * config.hidden_size, heads=6 * drawn * config.hidden_size)


def _layer_work(
    config: EncoderConfig, parameters: ParameterTable, length: int, predictions: int, read: int | None
) -> tuple[int, int]:
    """Return the multiply-adds with the kernels of all layers for a sequence, and the pairs of a query and a key."""
    layer = _multiplied(parameters, in_layers=True)
    unseen = layer["per_token"]  # of states that only see others
    a_layer = length * (unseen + layer["per_key"]) + predictions * layer["per_prediction"] + layer["per_text"]
    work, pairs = a_layer * config.num_layers, seen_positions(config, length)
    if read is not None:
        work -= (length - read) * unseen
        pairs += read * length - _seen_in_layer(config, length, config.windows[-1])
    if has_mask_decoder(parameters):  # the last layer twice, with the same keys and values, not once
        work += length * unseen
        pairs += pairs // config.num_layers
    if config.two_streams and word_heads(parameters):  # targets have states of their own in pre-training
        work += predictions * unseen * config.num_layers
        pairs += predictions * length * config.num_layers
    return work, pairs


def seen_positions(config: EncoderConfig, length: int) -> int:
    """Return the number of pairs of positions that see each other in a sequence, over all layers."""
    return sum(_seen_in_layer(config, length, window) for window in config.windows)


def _seen_in_layer(config: EncoderConfig, length: int, window: int | None) -> int:
    """Return the number of pairs of positions that see each other in a layer with this window."""
    if window is None or window >= length - 1:
        return length * length
    near = length * (2 * window + 1) - window * (window + 1)
    first = min(config.global_tokens, length)
    return near + 2 * sum(max(0, length - 1 - window - position) for position in range(first))


def has_mask_decoder(parameters: ParameterTable) -> bool:
    """Return whether words are predicted by two passes of the last layer in place of its own."""
    return MASK_DECODER in parameters


def word_heads(parameters: ParameterTable) -> tuple[str, ...]:
    """Return the paths of the biases of the heads that predict words with the word table."""
    return tuple(path for path, parameter in parameters.items() if parameter.use == "word_logits")


def _sets(parameter: Parameter) -> int:
    """Return how many layers have their own such array."""
    return 1 if parameter.layer_axis is None else parameter.shape[parameter.layer_axis]


def _multiplied(parameters: ParameterTable, in_layers: bool) -> Counter[Use]:
    """Return the values of all arrays of each use, those of one layer or outside the layers.

    Each enters one multiply-add wherever its array is multiplied. What the first layer alone has is outside, because it
    is multiplied once.
    """
    sizes: Counter[Use] = Counter()
    for each in parameters.values():
        if (each.part == "encoder" and each.axis("first_layer") is None) == in_layers:
            sizes[each.use] += each.size // _sets(each) if in_layers else each.size
    return sizes


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
    """The part of the layers that is linear in the length."""
    quadratic: int
    """The part of the layers that is quadratic in the length, but not in local layers that are computed by blocks:
    attention probabilities, and their copy after dropout."""
    embeddings: int
    """Of the embeddings, of a convolution of them, and of vectors of words that layers add to their values."""
    heads: int
    """Mostly logits of the predicted words, in float32."""

    @property
    def total(self) -> int:
        return self.linear + self.quadratic + self.embeddings + self.heads


def activation_bytes(
    config: EncoderConfig,
    sequence_length: int,
    predictions: int,
    remat: str = "none",
    value_bytes: int = 2,
    probabilities: bool = True,
    local_keys: int | None = None,
    layers: Layers | None = None,
    head_bytes: int | None = None,
) -> ActivationBytes:
    """Return what is kept of one sequence with dropout.

    Args:
      config: sizes of the model; its vocabulary size is known.
      sequence_length: tokens of the sequence.
      predictions: positions at which words are predicted.
      remat: the policy; "auto" counts as "none".
      value_bytes: of an activation.
      probabilities: whether those of attention are kept if everything is, as fused kernels do not.
      local_keys: scores that each position of a local layer has; None for those of compute.attention=auto in a row of
        one text.
      layers: those of the model; None: `layers_of` the sizes.
      head_bytes: what is kept for the losses; None: for the logits of all words at those positions.
    """
    hidden, word, length = config.hidden_size, config.word_size, sequence_length
    linear, scores = (layers or layers_of(config)).kept(remat, value_bytes)
    if remat in LESS or not probabilities:
        scores = 0
    keys = _keys(config, length, local_keys)
    copied = _copied(config, sum(each < length for each in keys)) if scores else 0
    if head_bytes is None:
        head_bytes = predictions * (
            config.padded_vocab_size * (3 * FLOAT32 + 2) + hidden * value_bytes + word * (6 * value_bytes + 3 * FLOAT32)
        )
    states = length + predictions * config.two_streams  # targets have states of their own
    return ActivationBytes(
        linear=states * (config.num_layers * linear + copied * value_bytes),
        quadratic=states * sum(keys) * scores,
        embeddings=length * word * ((0 if remat in LESS else 2) * value_bytes + 3 * FLOAT32)
        + length * (_convolved(config, remat, value_bytes) + _word_values(config, value_bytes)),
        heads=head_bytes,
    )


def _convolved(config: EncoderConfig, remat: str, value_bytes: int) -> int:
    """Return what the convolution next to the first layer keeps of a token."""
    if config.convolution is None:
        return 0
    hidden, width = config.hidden_size, config.convolution.convolution_width
    # What is around the token; three arrays of the activation and, in float32, of the norm.
    everything = hidden * (value_bytes * (width + 3) + 3 * FLOAT32)
    return {
        "sel": value_bytes * hidden + 2 * FLOAT32,  # mean and variance of the norm
        "dots": value_bytes * hidden,
        "full": 0,
    }.get(remat, everything)


def _word_values(config: EncoderConfig, value_bytes: int) -> int:
    """Return what a token keeps of the vector of its word that layers add to their values."""
    return value_bytes * config.value_size if config.valued_layers else 0


def _keys(config: EncoderConfig, length: int, local: int | None) -> tuple[int, ...]:
    """Return the number of scores that each position has, by layer; `local` is that of local layers."""
    if local is None and config.window is not None:
        window, first = config.window.local_window, config.window.global_tokens
        biased = config.disentangled is not None or config.relative_bias is not None
        whole = biased or is_short(length, window, first)
        local = length if whole else scores_by_blocks(window, first)
    return tuple(length if window is None or local is None else local for window in config.windows)


def _copied(config: EncoderConfig, layers: int) -> int:
    """Return how many numbers per position this many layers keep by blocks, in addition to those of the full matrix.

    Keys and values are stored three times; global tokens also read them as they are.
    """
    return layers * (4 + 2 * bool(config.global_tokens)) * config.hidden_size


def step_bytes(
    config: EncoderConfig,
    parameters: ParameterTable,
    *,
    moments: int,
    sequence_length: int,
    predictions: int,
    rows: int,
    split: int,
    remat: str,
    value_bytes: int = 2,
    unrolled: bool = False,
    generator: EncoderConfig | None = None,
    probabilities: bool = True,
    local_keys: int | None = None,
    layers: Layers | None = None,
    head_bytes: int | None = None,
) -> int:
    """Return the memory of one device during a training step; compilers have taken up to 3 % more (docs/planning.md).

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
      unrolled: whether layers are a loop, which the compiler sees as a whole, rather than a scan.
      generator: sizes of the model that predicts the words in place of this one, in the same step.
      probabilities: whether those of attention are kept if everything is; see `activation_bytes`. A generator's count.
      local_keys: see `activation_bytes`; a generator's are None.
      layers: see `activation_bytes`; a generator's are None.
      head_bytes: see `activation_bytes`; a generator's are None.
    """
    layers = layers or layers_of(config)
    state = state_bytes(parameters, moments)
    copies = 1 if unrolled else 2  # whole, in the type of the products: the parameters; a scan's gradients, stacked
    predicted = predictions * max(1, len(word_heads(parameters)))
    sizes = (config, sequence_length, 0 if generator else predicted)
    given = {"remat": remat, "value_bytes": value_bytes, "unrolled": unrolled}
    attention = {"probabilities": probabilities, "local_keys": local_keys}
    kept = _kept(layers, *sizes, **given, **attention, head_bytes=head_bytes).total
    if generator:
        kept += _kept(layers_of(generator), generator, sequence_length, predicted, **given).total
    if has_mask_decoder(parameters):  # a pass more of the last layer
        own = _kept(layers, *sizes, **given)
        kept += (own.linear + own.quadratic) // config.num_layers
    of_a_layer = 0
    if remat in LESS or (unrolled and not layers.keeps_all):
        everything = activation_bytes(*sizes, "none", value_bytes, probabilities, local_keys, layers)
        keys = _keys(config, sequence_length, local_keys)  # of the layer that has most
        scores = everything.quadratic * max(keys, default=0) // max(1, sum(keys))
        of_a_layer = everything.linear // max(1, config.num_layers) + scores
    return (
        state.total // split
        + copies * value_bytes * total_size(parameters)
        + rows * (kept + of_a_layer)
        + distance_bytes(config, sequence_length, rows)
    )


def _kept(
    layers: Layers,
    config: EncoderConfig,
    length: int,
    predictions: int,
    *,
    remat: str,
    value_bytes: int,
    unrolled: bool,
    probabilities: bool = True,
    local_keys: int | None = None,
    head_bytes: int | None = None,
) -> ActivationBytes:
    """Return what a compiled step keeps of one sequence for the backward pass.

    A scan keeps what differentiation asks for. Of unrolled layers the compiler computes again, inside the operations
    that read it, what costs no product: it keeps the probabilities of attention and what `sel` names.
    """
    attention = probabilities, local_keys
    asked = activation_bytes(config, length, predictions, remat, value_bytes, *attention, layers, head_bytes)
    if remat in LESS or not unrolled or layers.keeps_all:
        return asked
    named = activation_bytes(config, length, predictions, "sel", value_bytes, layers=layers)
    return dataclasses.replace(asked, linear=named.linear, embeddings=named.embeddings)


def distance_bytes(config: EncoderConfig, length: int, rows: int) -> int:
    """Return the memory that relative positions take for so many sequences while a layer is computed.

    Of one term of disentangled attention at a time: the products of every position with all distances, and their copy
    along the diagonals. A learned bias has the same once for all sequences.
    """
    times = rows * (config.disentangled is not None) + (config.relative_bias is not None)
    return times * 2 * FLOAT32 * config.attention_heads * length * 2 * length


@dataclasses.dataclass(frozen=True)
class TrainedEncoder:
    """An encoder that a run trains, with its heads."""

    config: EncoderConfig
    parameters: ParameterTable
    """Its table on its own."""
    predicts_words: bool
    """Whether it computes the logits of words at the masked positions."""


def trained_encoders(
    model: EncoderConfig, objective: ObjectiveConfig, teacher_size: int | None = None
) -> tuple[TrainedEncoder, ...]:
    """Return what a run trains: one encoder, or the discriminator and the generator of replaced-token detection.

    `teacher_size` is the width of the teacher's states that an encoder maps its own to; None: it has no such map.
    """
    if not isinstance(objective, ReplacedTokens):
        own = bert_parameters(model, pretraining_parts(model, objective), teacher_size=teacher_size)
        return (TrainedEncoder(model, {**own, **word_parameters(model, objective.word_arrays)}, True),)
    generator = generator_model(model, objective.generator)
    return (
        TrainedEncoder(model, bert_parameters(model, DISCRIMINATOR_PARTS), False),
        TrainedEncoder(generator, bert_parameters(generator, generator_parts(objective)), True),
    )


def trained_parameters(
    model: EncoderConfig, objective: ObjectiveConfig, teacher_size: int | None = None
) -> ParameterTable:
    """Return the table of parameters of a run, whose arguments are those of `trained_encoders`."""
    first, *others = trained_encoders(model, objective, teacher_size)
    if not isinstance(objective, ReplacedTokens):
        return first.parameters
    return joined(first.parameters, others[0].parameters, objective.generator.embeddings)


def run_flops(model: EncoderConfig, objective: ObjectiveConfig, sequence_length: int, predictions: int) -> Flops:
    """Return `costs.training_flops` of all that a run trains, every layer at every position."""
    parts = [
        training_flops(encoder.config, encoder.parameters, sequence_length, predictions)
        for encoder in trained_encoders(model, objective)
    ]
    return Flops(*_sums([*parts, word_flops(model, objective, sequence_length, predictions)]))


def computed_flops(
    model: EncoderConfig, objective: ObjectiveConfig, compute: ComputeConfig, sequence_length: int, predictions: int
) -> Flops:
    """Return what `run_flops` does, without the positions at which the last of unrolled layers is not computed.

    The states of a student are all read.
    """
    if objective.taught is not None:
        return run_flops(model, objective, sequence_length, predictions)
    parts = [word_flops(model, objective, sequence_length, predictions)]
    for encoder in trained_encoders(model, objective):
        read = read_positions(encoder.config, compute, encoder.parameters, predictions)
        parts.append(training_flops(encoder.config, encoder.parameters, sequence_length, predictions, read))
    return Flops(*_sums(parts))


def run_activation_bytes(
    model: EncoderConfig,
    objective: ObjectiveConfig,
    sequence_length: int,
    predictions: int,
    remat: str,
    value_bytes: int = 2,
) -> ActivationBytes:
    """Return `activation_bytes` of all that a run trains."""
    head_bytes = objective.head_bytes(model.word_size, sequence_length, predictions, value_bytes)
    parts = [
        activation_bytes(
            encoder.config,
            sequence_length,
            predictions if encoder.predicts_words else 0,
            remat,
            value_bytes,
            head_bytes=head_bytes,
        )
        for encoder in trained_encoders(model, objective)
    ]
    return ActivationBytes(*_sums(parts))


def _sums(parts: Iterable[Flops] | Iterable[ActivationBytes]) -> Iterable[int]:
    """Return the sum of each field."""
    return map(sum, zip(*map(dataclasses.astuple, parts), strict=True))


NARROWEST = 16  # positions of a block
WORTH = 2  # how many times the scores of the blocks the full matrix must have, to be slower (docs/modern_encoders.md)


def block_size(window: int) -> int:
    """Return the number of queries of a block: at least the window, and a multiple of 8."""
    return max(NARROWEST, -(-window // 8) * 8)


def scores_by_blocks(window: int, global_tokens: int) -> int:
    """Return how many scores there are per position: with three blocks, and with and of the global tokens."""
    return 3 * block_size(window) + 2 * global_tokens


def is_short(length: int, window: int, global_tokens: int) -> bool:
    """Return whether a row is so short that the full matrix is computed faster than its blocks."""
    return length < WORTH * scores_by_blocks(window, global_tokens)


LOOP_LIMIT = 12  # layers; beyond it, compiling an unrolled stack costs more than scan loses
READ_IN_PART = {*ENCODER_PARTS, "pooler", "mlm", "next_sentence"}


def scans(config: EncoderConfig, compute: ComputeConfig) -> bool:
    """Return whether the layers run as one scan."""
    return compute.layers == "scan" or (compute.layers == "auto" and config.num_layers > LOOP_LIMIT)


def reads_alone(config: EncoderConfig, compute: ComputeConfig) -> bool:
    """Return whether the last layer can be computed at some positions alone, which unrolled layers of BERT's can.

    A scan would have to leave its last round out, and so copy the parameters of all others. A local layer would be
    computed with all keys, whose number times that of the positions grows with the square of the length. A convolution
    is computed at all positions, so the layer before it is, too.
    """
    if not config.attention_heads or config.two_streams or config.disentangled is not None or scans(config, compute):
        return False
    return config.windows[-1] is None and (config.convolution is None or config.num_layers > 1)


def read_positions(
    config: EncoderConfig, compute: ComputeConfig, parameters: ParameterTable, predictions: int
) -> int | None:
    """Return how many states of the last layer pre-training with these parameters computes for a text; None: all.

    They are those of `predictions` masked positions, and the one that the pooler reads.
    """
    parts = {parameter.part for parameter in parameters.values()}
    if not reads_alone(config, compute) or "mlm" not in parts or not parts <= READ_IN_PART:
        return None
    return predictions + ("pooler" in parts)

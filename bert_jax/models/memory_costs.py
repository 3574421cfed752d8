"""Memory that training a model of any size takes: its state, what is kept for the backward pass, a whole step.

The sizes of the state follow from the table of parameters, the rest from a ModelConfig in closed form; no array is
built, and only the standard library is imported.
"""

import dataclasses

from bert_jax.config import ModelConfig
from bert_jax.config.static_vectors import SHARED_NEGATIVES
from bert_jax.models.costs import has_mask_decoder, word_heads
from bert_jax.models.parameters import FLOAT32, ParameterTable, total_size
from bert_jax.models.window_blocks import is_short, scores_by_blocks


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
    """Of the embeddings, and of a convolution of them."""
    heads: int
    """Mostly logits of the predicted words, in float32."""

    @property
    def total(self) -> int:
        return self.linear + self.quadratic + self.embeddings + self.heads


LESS = ("sel", "dots", "full")
"""Policies that keep less than everything."""


def activation_bytes(
    config: ModelConfig,
    sequence_length: int,
    predictions: int,
    remat: str = "none",
    value_bytes: int = 2,
    probabilities: bool = True,
    local_keys: int | None = None,
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
    scores = config.num_heads * (FLOAT32 + value_bytes)
    if remat in LESS or config.layer == "lstm" or not probabilities:
        scores = 0
    keys = _keys(config, length, local_keys)
    copied = _copied(config, sum(each < length for each in keys)) if scores else 0
    head = predictions * (
        config.padded_vocab_size * (3 * FLOAT32 + 2) + hidden * value_bytes + word * (6 * value_bytes + 3 * FLOAT32)
    )
    states = length + predictions * config.is_xlnet  # targets have states of their own
    if config.layer == "none":  # three arrays of scores, and the vectors that are not those of the row
        head = 3 * FLOAT32 * predictions * (length + SHARED_NEGATIVES) + value_bytes * word * (
            predictions + SHARED_NEGATIVES
        )
    return ActivationBytes(
        linear=states * (config.num_layers * linear + copied * value_bytes),
        quadratic=states * sum(keys) * scores,
        embeddings=length * word * ((0 if remat in LESS else 2) * value_bytes + 3 * FLOAT32)
        + length * _convolved(config, remat, value_bytes),
        heads=head,
    )


def _convolved(config: ModelConfig, remat: str, value_bytes: int) -> int:
    """Return what the convolution beside the first layer keeps of a token."""
    if not config.convolution_width:
        return 0
    hidden, width = config.hidden_size, config.convolution_width
    # What is around the token; three arrays of the activation and, in float32, of the norm.
    everything = hidden * (value_bytes * (width + 3) + 3 * FLOAT32)
    return {
        "sel": value_bytes * hidden + 2 * FLOAT32,  # mean and variance of the norm
        "dots": value_bytes * hidden,
        "full": 0,
    }.get(remat, everything)


def _keys(config: ModelConfig, length: int, local: int | None) -> tuple[int, ...]:
    """Return the number of scores that each position has, by layer; `local` is that of local layers."""
    if local is None and config.local_window is not None:
        whole = config.disentangled.terms != "none" or is_short(length, config.local_window, config.global_tokens)
        local = length if whole else scores_by_blocks(config.local_window, config.global_tokens)
    return tuple(length if window is None or local is None else local for window in config.windows)


def _copied(config: ModelConfig, layers: int) -> int:
    """Return how many numbers per position this many layers keep by blocks, beside those of the full matrix.

    Keys and values are stored three times; global tokens also read them as they are.
    """
    return layers * (4 + 2 * bool(config.global_tokens)) * config.hidden_size


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
    unrolled: bool = False,
    generator: ModelConfig | None = None,
    probabilities: bool = True,
    local_keys: int | None = None,
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
    """
    state = state_bytes(parameters, moments)
    copies = 1 if unrolled else 2  # whole, in the type of the products: the parameters; a scan's gradients, stacked
    predicted = predictions * max(1, len(word_heads(parameters)))
    sizes = (config, sequence_length, 0 if generator else predicted)
    given = {"remat": remat, "value_bytes": value_bytes, "unrolled": unrolled}
    kept = _kept(*sizes, **given, probabilities=probabilities, local_keys=local_keys).total
    if generator:
        kept += _kept(generator, sequence_length, predicted, **given).total
    if has_mask_decoder(parameters):  # a pass more of the last layer
        own = _kept(*sizes, **given)
        kept += (own.linear + own.quadratic) // config.num_layers
    of_a_layer = 0
    if remat in LESS or _is_fused(config, unrolled):
        everything = activation_bytes(*sizes, "none", value_bytes, probabilities, local_keys)
        keys = _keys(config, sequence_length, local_keys)  # of the layer that has most
        scores = everything.quadratic * max(keys, default=0) // max(1, sum(keys))
        of_a_layer = everything.linear // max(1, config.num_layers) + scores
    return (
        state.total // split
        + copies * value_bytes * total_size(parameters)
        + rows * (kept + of_a_layer + distance_bytes(config, sequence_length))
    )


def _kept(
    config: ModelConfig,
    length: int,
    predictions: int,
    *,
    remat: str,
    value_bytes: int,
    unrolled: bool,
    probabilities: bool = True,
    local_keys: int | None = None,
) -> ActivationBytes:
    """Return what a compiled step keeps of one sequence for the backward pass.

    A scan keeps what differentiation asks for. Of unrolled layers the compiler computes again, inside the operations
    that read it, what costs no product: beside the probabilities of attention it keeps what `sel` names.
    """
    asked = activation_bytes(config, length, predictions, remat, value_bytes, probabilities, local_keys)
    if remat in LESS or not _is_fused(config, unrolled):
        return asked
    named = activation_bytes(config, length, predictions, "sel", value_bytes)
    return dataclasses.replace(asked, linear=named.linear, embeddings=named.embeddings)


def _is_fused(config: ModelConfig, unrolled: bool) -> bool:
    return unrolled and config.layer != "lstm"  # whose scan over time keeps all


def distance_bytes(config: ModelConfig, length: int) -> int:
    """Return the memory that disentangled attention takes for a sequence while a layer is computed.

    Of one term at a time: the products of every position with all distances, and their copy along the diagonals.
    """
    return 2 * FLOAT32 * config.num_heads * length * 2 * length if config.disentangled.count > 1 else 0

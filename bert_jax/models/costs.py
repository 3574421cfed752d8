"""Costs of a model of any size: parameters and floating-point operations; `memory_costs` has its memory.

Counts follow from the table of parameters, the rest from a ModelConfig in closed form; no array is built, and only the
standard library is imported.
"""

import dataclasses
from collections import Counter

from bert_jax.config import ModelConfig
from bert_jax.config.static_vectors import SHARED_NEGATIVES
from bert_jax.models.parameters import Parameter, ParameterTable, Use, total_size


@dataclasses.dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters by part. The word table is counted once: the masked-language-model head shares it."""

    embeddings: int
    block: int
    """Parameters of one layer, without a table that all use and without a convolution beside the first, which may also
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
    contexts: int
    """Parameters of the second table of static word vectors, and the biases of GloVe."""
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
        contexts=sizes["contexts"] + sizes["context_biases"],
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
    """Scores and weighted values, and the scores of skip-gram's pairs; quadratic in the length. Of disentangled
    attention a score has a product per term; that all distances meet all positions first, twice as many products, is
    not counted."""
    heads: int
    """Pooler, next-sentence head, and the masked-language-model or task head at the predicted positions."""

    @property
    def total(self) -> int:
        return self.kernels + self.attention + self.heads


def training_flops(
    config: ModelConfig, parameters: ParameterTable, sequence_length: int, predictions: int, read: int | None = None
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
    products = 1 + config.disentangled.count + config.is_xlnet
    attention = 2 * products * pairs * config.num_heads * config.head_size
    predicting = others["per_prediction"]
    predicting += sum(parameters["embeddings/word/table"].size for _ in word_heads(parameters))  # which they share
    directions = 2 if config.two_directions else 1  # each predicts every word
    if "contexts/table" in parameters:
        attention += 2 * length * length * config.hidden_size  # every word of the row with every other one
        predicting += 0 if "context_biases/center" in parameters else SHARED_NEGATIVES * config.hidden_size
    predicted = 2 * predictions * predicting * directions
    return Flops(kernels=3 * kernels, attention=3 * attention, heads=3 * (predicted + 2 * others["per_text"]))


def _layer_work(
    config: ModelConfig, parameters: ParameterTable, length: int, predictions: int, read: int | None
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
    if config.is_xlnet and word_heads(parameters):  # targets have states of their own in pre-training
        work += predictions * unseen * config.num_layers
        pairs += predictions * length * config.num_layers
    return work, pairs


def seen_positions(config: ModelConfig, length: int) -> int:
    """Return the number of pairs of positions that see each other in a sequence, over all layers."""
    if config.layer == "lstm":
        return 0
    return sum(_seen_in_layer(config, length, window) for window in config.windows)


def _seen_in_layer(config: ModelConfig, length: int, window: int | None) -> int:
    """Return the number of pairs of positions that see each other in a layer with this window."""
    if window is None or window >= length - 1:
        return length * length
    near = length * (2 * window + 1) - window * (window + 1)
    first = min(config.global_tokens, length)
    return near + 2 * sum(max(0, length - 1 - window - position) for position in range(first))


def has_mask_decoder(parameters: ParameterTable) -> bool:
    """Return whether words are predicted by two passes of the last layer in place of its own."""
    return "mask_decoder/position/table" in parameters


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

"""Costs of a model of any size: parameters and floating-point operations; `memory_costs` has its memory.

Counts follow from the table of parameters, the rest from a ModelConfig in closed form; no array is built, and only the
standard library is imported.
"""

import dataclasses

from bert_jax.config import ModelConfig
from bert_jax.config.static_vectors import SHARED_NEGATIVES
from bert_jax.models.parameters import Parameter, ParameterTable

ONCE_PER_STEP = tuple(f"encoder/attention/{name}/kernel" for name in ("position_key", "position_query", "distance"))
"""Kernels that map a table instead of tokens: their products do not grow with the batch, and are not counted."""
KEYS_AND_VALUES = tuple(f"encoder/attention/{name}/kernel" for name in ("key", "value"))


@dataclasses.dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters by part. The word table is counted once: the masked-language-model head shares it."""

    embeddings: int
    block: int
    """Parameters of one layer, without a table that all use; the first may have fewer (model.first_attention_norm)."""
    layers: int
    """Parameters of all layers; what they share is counted once, and so is a table of relative positions."""
    final_norm: int
    pooler: int
    mlm_head: int
    next_sentence: int
    span_boundary: int
    replaced_tokens: int
    mask_decoder: int
    contexts: int
    """Parameters of the second table of static word vectors, and the biases of GloVe."""

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
        contexts=sizes.get("contexts", 0) + sizes.get("context_biases", 0),
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
    length = sequence_length
    work, pairs = _layer_work(config, parameters, length, predictions, read)
    kernels = 2 * (work + length * _kernel_size(parameters, "embeddings"))
    # Of a pair of positions: the terms of its score, and the value.
    products = 1 + config.disentangled.count + config.is_xlnet
    attention = 2 * products * pairs * config.num_heads * config.head_size
    predicting = sum(_kernel_size(parameters, part) for part in ("mlm", "span_boundary", "head"))
    predicting += sum(parameters["embeddings/word/table"].size for _ in word_heads(parameters))  # which they share
    directions = 2 if config.two_directions else 1  # each predicts every word
    if "contexts/table" in parameters:
        attention += 2 * length * length * config.hidden_size  # every word of the row with every other one
        predicting += 0 if "context_biases/center" in parameters else SHARED_NEGATIVES * config.hidden_size
    predicted = 2 * predictions * predicting * directions
    pair = 2 * (_kernel_size(parameters, "pooler") + _kernel_size(parameters, "next_sentence"))
    judged = 2 * length * _kernel_size(parameters, "replaced_tokens")
    return Flops(kernels=3 * kernels, attention=3 * attention, heads=3 * (predicted + pair + judged))


def _layer_work(
    config: ModelConfig, parameters: ParameterTable, length: int, predictions: int, read: int | None
) -> tuple[int, int]:
    """Return the multiply-adds with the kernels of all layers for a sequence, and the pairs of a query and a key."""
    layer = {
        each.path: each.size // _sets(each)
        for each in parameters.values()
        if each.part == "encoder" and each.path.endswith(("/kernel", "/recurrent")) and each.path not in ONCE_PER_STEP
    }
    unseen = sum(size for path, size in layer.items() if path not in KEYS_AND_VALUES)  # of states that only see others
    work, pairs = length * sum(layer.values()) * config.num_layers, seen_positions(config, length)
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
    """Return the paths of the heads that predict words with the word table."""
    return tuple(path for path in ("mlm", "span_boundary/words") if f"{path}/bias" in parameters)


def _sets(parameter: Parameter) -> int:
    """Return how many layers have their own such array."""
    return 1 if parameter.layer_axis is None else parameter.shape[parameter.layer_axis]


def _kernel_size(parameters: ParameterTable, part: str) -> int:
    """Return the number of values in the kernels of `part`; each enters one multiply-add per position."""
    return sum(each.size for each in parameters.values() if each.part == part and each.path.endswith("/kernel"))

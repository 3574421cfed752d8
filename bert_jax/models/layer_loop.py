"""Whether the layers run as one scan or unrolled, and what the last of unrolled layers computes.

Nothing outside the standard library is imported, as in `models.costs`.
"""

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.models.bert_parameters import ENCODER_PARTS
from bert_jax.models.parameters import ParameterTable

LOOP_LIMIT = 12  # layers; beyond it, compiling an unrolled stack costs more than scan loses
READ_IN_PART = {*ENCODER_PARTS, "pooler", "mlm", "next_sentence"}


def scans(config: ModelConfig, compute: ComputeConfig) -> bool:
    """Return whether the layers run as one scan."""
    return compute.layers == "scan" or (compute.layers == "auto" and config.num_layers > LOOP_LIMIT)


def reads_alone(config: ModelConfig, compute: ComputeConfig) -> bool:
    """Return whether the last layer can be computed at some positions alone, which unrolled layers of BERT's can.

    A scan would have to leave its last round out, and so copy the parameters of all others. A local layer would be
    computed with all keys, whose number times that of the positions grows with the square of the length. A convolution
    is computed at all positions, so the layer before it is, too.
    """
    others = config.layer != "transformer" or config.disentangled.terms != "none" or config.is_xlnet
    others = others or config.windows[-1:] not in ((), (None,))
    others = others or (config.convolution_width > 0 and config.num_layers == 1)
    return config.num_layers > 0 and not others and not scans(config, compute)


def read_positions(
    config: ModelConfig, compute: ComputeConfig, parameters: ParameterTable, predictions: int
) -> int | None:
    """Return how many states of the last layer pre-training with these parameters computes for a text; None: all.

    They are those of `predictions` masked positions, and the one that the pooler reads.
    """
    parts = {parameter.part for parameter in parameters.values()}
    if not reads_alone(config, compute) or "mlm" not in parts or not parts <= READ_IN_PART:
        return None
    return predictions + ("pooler" in parts)

"""Plan of how layers are computed, in plain numbers: one scan or unrolled, and blocks of a local window.

Closed forms of costs read it as kernels and stacks do. Nothing outside the standard library is imported.
"""

from bert_jax.config import ComputeConfig, EncoderConfig
from bert_jax.models.bert_parameters import ENCODER_PARTS
from bert_jax.parameters import ParameterTable

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

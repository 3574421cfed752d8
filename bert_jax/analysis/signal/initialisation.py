"""`init`: a model before its first step, measured and against theory."""

import dataclasses

import jax
import numpy as np

from bert_jax.analysis.signal.attention_norm import AttentionNorm, attention_norm
from bert_jax.analysis.signal.depth_growth import DepthGrowth, depth_growth
from bert_jax.analysis.signal.position_similarity import PositionSimilarity, position_similarity
from bert_jax.analysis.signal.step_costs import StepCosts, step_costs
from bert_jax.config import ModelConfig
from bert_jax.console.progress_bar import progress_bar
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel

HEADS = (1, 2, 4, 8, 16)
LENGTHS = (32, 64, 128, 256, 512)


@dataclasses.dataclass(frozen=True)
class Initialisation:
    """What is known of a configuration before its first step."""

    norm: AttentionNorm
    """The norm of multi-head attention, by the number of heads."""
    growth: DepthGrowth
    """States and gradients by depth, for post-norm and pre-norm."""
    positions: PositionSimilarity | None
    """Similarity of positions; None for a model without a table of them."""
    costs: StepCosts
    """Operations and memory of a step, by length."""
    model: str
    """Path or name of the model."""


def init(
    model: PretrainedModel | ModelConfig,
    *,
    heads: tuple[int, ...] = HEADS,
    lengths: tuple[int, ...] = LENGTHS,
    draws: int = 64,
    length: int = 64,
    seed: int = 0,
    name: str = "",
    progress: bool = True,
) -> Initialisation:
    """Return how a model begins: norms of attention, growth by depth, positions, and what a step costs.

    Args:
      model: a configuration, or a model whose configuration is taken, and whose position table is compared with both
        starts. A configuration without a vocabulary size gets that of BERT.
      heads: numbers of heads; those that do not divide the hidden size are left out.
      lengths: tokens of a sequence for the costs; those beyond the positions of the model are left out.
      draws: number of initializations for each number of heads; a 16th of it, and at least 2, for states and gradients.
      length: tokens of a sequence in all other measurements.
      seed: of everything that is drawn.
      name: of the result; by default the path of the model.
      progress: whether to show a bar.

    Raises:
      UserError: the model is not a Transformer with attention by content, or a value cannot work.
    """
    config = model.config if isinstance(model, PretrainedModel) else model
    config = dataclasses.replace(config, vocab_size=config.assumed_vocab_size)
    name = name or (model.path if isinstance(model, PretrainedModel) else "")
    _check_form(config, name)
    possible = _possible(config, heads, lengths, draws, length)
    learned = None
    if isinstance(model, PretrainedModel) and "position" in model.params["embeddings"]:
        learned = np.asarray(jax.device_get(model.params["embeddings"]["position"]["table"]), np.float64)
    with progress_bar("measurements", 3 + len(possible[1]), visible=progress) as move_to:
        norm = attention_norm(config, possible[0], draws=draws, length=length, seed=seed)
        move_to(1)
        growth = depth_growth(config, draws=max(2, draws // 16), length=length, seed=seed)
        move_to(2)
        positions = position_similarity(config, learned, seed) if config.positions == "learned" else None
        moved = iter(range(3, 4 + len(possible[1])))
        move_to(next(moved))
        costs = step_costs(config, possible[1], done=lambda: move_to(next(moved)))
    return Initialisation(norm, growth, positions, costs, name)


def _check_form(config: ModelConfig, name: str) -> None:
    """Raise a UserError if the theory does not describe the attention of this model."""
    kind = ""
    if config.layer != "transformer":
        kind = f"no attention (model.layer={config.layer})"
    elif config.is_xlnet or config.disentangled.terms != "none":
        kind = "attention whose scores depend on relative positions (XLNet, DeBERTa)"
    if kind:
        raise UserError(
            f"{name or 'this model'} has {kind}, whose initialization this theory does not describe; give a BERT"
        )


def _possible(
    config: ModelConfig, heads: tuple[int, ...], lengths: tuple[int, ...], draws: int, length: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of heads that divide the hidden size, and the lengths that the model reads."""
    if draws < 2:
        raise UserError(f"draws={draws} must be at least 2, or there is no sampling error")
    if not 8 <= length <= config.longest_sequence:
        raise UserError(f"length={length} must be from 8 to the {config.longest_sequence} tokens that the model reads")
    for option, values, least in (("heads", heads, 1), ("lengths", lengths, 8)):
        if not values or min(values) < least:
            raise UserError(f"{option}={','.join(map(str, values))} must be numbers from {least} on, at least one")
    dividing = tuple(count for count in heads if config.hidden_size % count == 0)
    readable = tuple(each for each in lengths if each <= config.longest_sequence)
    if not dividing:
        raise UserError(f"heads={','.join(map(str, heads))}: none divides the hidden size of {config.hidden_size}")
    if not readable:
        raise UserError(
            f"lengths={','.join(map(str, lengths))}: the model reads {config.longest_sequence} tokens; give fewer"
        )
    return dividing, readable

"""Operations and memory of a training step by length: what the compiler states, and the closed forms."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.costs import training_flops
from bert_jax.models.memory_costs import activation_bytes
from bert_jax.objectives.masked_language_model import loss_sums

SHARE = 0.15  # of the positions, at which words are predicted


@dataclasses.dataclass(frozen=True)
class StepCosts:
    """Costs per sequence of a forward and backward pass in float32 without dropout, by length."""

    lengths: tuple[int, ...]
    """Tokens of a sequence."""
    flops: np.ndarray
    """float64 [lengths]: operations that XLA states for the compiled program, everything included."""
    closed_flops: np.ndarray
    """float64 [lengths]: matrix products by `models.costs.training_flops`."""
    attention_flops: np.ndarray
    """float64 [lengths]: the part of `closed_flops` that is quadratic in the length."""
    bytes: np.ndarray
    """float64 [lengths]: temporary memory that XLA assigns to the program, beside parameters and gradients."""
    closed_bytes: np.ndarray
    """float64 [lengths]: what `models.memory_costs.activation_bytes` says is kept for the backward pass."""
    sequences: int
    """Sequences of the compiled step, by which its costs are divided."""


def step_costs(
    config: ModelConfig,
    lengths: tuple[int, ...],
    *,
    sequences: int = 4,
    done: Callable[[], None] = lambda: None,
) -> StepCosts:
    """Compile the step for every length, on the devices of this process, and return what it costs; nothing runs.

    `done` is called after every length, for a progress bar.
    """
    plain = dataclasses.replace(config, hidden_dropout=0.0, attention_dropout=0.0)
    # Unrolled, because XLA counts the body of a loop once.
    model = BertForPreTraining(plain, ComputeConfig(dtype="float32", layers="loop", products="plain"), parts=("mlm",))
    rows = []
    for length in lengths:
        predictions = max(1, round(SHARE * length))
        compiled = _compiled(model, length, predictions, sequences)
        closed = training_flops(plain, model.parameters, length, predictions)
        kept = activation_bytes(plain, length, predictions, "none", 4)
        costs: Any = compiled.cost_analysis()
        memory: Any = compiled.memory_analysis()
        stated = costs["flops"] / sequences, memory.temp_size_in_bytes / sequences
        rows.append((stated[0], closed.total, closed.attention, stated[1], kept.total))
        done()
    flops, products, quadratic, temporary, closed_bytes = np.array(rows, np.float64).T
    return StepCosts(tuple(lengths), flops, products, quadratic, temporary, closed_bytes, sequences)


def _compiled(model: BertForPreTraining, length: int, predictions: int, sequences: int) -> jax.stages.Compiled:
    def loss(params: Any, batch: Any) -> jax.Array:
        encoded = model.encode(params, *(batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")))
        weights = jnp.ones((sequences, predictions))
        sums = loss_sums(model.mlm_logits(params, batch, encoded), batch["masked_ids"], weights)
        return jnp.asarray(sums.loss / sums.weight)

    sizes = dict.fromkeys(("input_ids", "token_type_ids", "attention_mask"), length)
    sizes |= dict.fromkeys(("masked_positions", "masked_ids"), predictions)
    batch = {name: jax.ShapeDtypeStruct((sequences, size), jnp.int32) for name, size in sizes.items()}
    params = jax.eval_shape(model.init, jax.random.key(0))
    return jax.jit(jax.value_and_grad(loss)).lower(params, batch).compile()

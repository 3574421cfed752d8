"""Memory of the segments before (Dai et al. 2019): states that the layers of XLNet see beside those of the tokens."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.models.architecture import Architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.xlnet_attention import Relations


def with_memory(network: BertForPreTraining, memory: jax.Array) -> BertForPreTraining:
    """Return an XLNet whose layer n also sees `memory` [N, B, M, H] n, through which no gradient flows.

    As in the published code, all of it is seen, also by what predicts targets, and it is of segment 0. Rows are of one
    text.
    """
    constant = jax.lax.stop_gradient(memory)

    def architecture(config: ModelConfig, compute: ComputeConfig) -> Architecture:
        usual = network.architecture(config, compute)
        inputs = {**usual.stack.layer_inputs, "memory": constant}
        relations = functools.partial(Relations.of, config.hidden_size, remembered=memory.shape[2])
        return dataclasses.replace(
            usual, stack=dataclasses.replace(usual.stack, layer_inputs=inputs), relations=relations
        )

    return dataclasses.replace(network, architecture=architecture)


def extended_memory(
    memory: Sequence[ArrayLike] | None,
    hidden_states: Sequence[ArrayLike],
    memory_length: int | None = None,
    reuse_length: int | None = None,
) -> tuple[jax.Array, ...]:
    """Return what the next segment remembers: for each of N layers, the states [B, M, H] that entered it.

    Args:
      memory: what this segment remembered; None: nothing.
      hidden_states: those of this segment, N + 1 arrays [B, L, H], the embeddings first.
      memory_length: how many states are kept, the latest ones (`mem_len` of transformers); None: all.
      reuse_length: how many states of this segment are kept, the first ones (`reuse_len`), where the next segment
        begins after them; None: all.

    Raises:
      UserError: a length is not positive.
    """
    for name, length in (("memory_length", memory_length), ("reuse_length", reuse_length)):
        if length is not None and length < 1:
            raise UserError(f"{name}={length} must be positive; leave it out to keep all states")
    entered = [jnp.asarray(state)[:, :reuse_length] for state in hidden_states[:-1]]
    if memory is not None:
        entered = [jnp.concatenate([old, new], axis=1) for old, new in zip(memory, entered, strict=True)]
    return tuple(state if memory_length is None else state[:, -memory_length:] for state in entered)

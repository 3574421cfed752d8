"""Which positions of a batch see each other in every layer of a model."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.config import ModelConfig
from bert_jax.errors import UserError
from bert_jax.models.architecture import Architecture
from bert_jax.models.kernels.contract import AttentionMask
from bert_jax.models.packed_texts import PackedTexts


def input_mask(
    config: ModelConfig,
    architecture: Architecture,
    length: int,
    attention_mask: jax.Array | AttentionMask,
    texts: PackedTexts | None,
) -> AttentionMask:
    """Return the mask of rows of `length` tokens: what the caller asks for, and what the model adds to it.

    Raises:
      UserError: the sequences are longer than the table of positions.
    """
    if config.position_limit is not None and length > config.position_limit:
        raise UserError(
            f"a sequence of {length} tokens is longer than model.max_position_embeddings="
            f"{config.max_position_embeddings} allows; cut it to {config.longest_sequence} tokens, or use a model with "
            "more positions"
        )
    mask = attention_mask if isinstance(attention_mask, AttentionMask) else AttentionMask(padding=attention_mask)
    mask = mask if texts is None else dataclasses.replace(mask, segments=texts.ids)
    mask = dataclasses.replace(mask, distance_bias=architecture.distance_bias)
    if config.global_tokens:
        mask = dataclasses.replace(mask, global_positions=_global_positions(config.global_tokens, length, texts))
    return mask


def _global_positions(number: int, length: int, texts: PackedTexts | None) -> jax.Array:
    """Return int32 [B or 1, G]: the first positions of each text, and `length` in place of those that it lacks."""
    place = jnp.arange(number, dtype=jnp.int32)[None]
    if texts is None:
        return place
    positions = jnp.where(place[None] < texts.lengths()[:, :, None], texts.starts[:, :, None] + place[None], length)
    return positions.reshape(len(positions), -1)

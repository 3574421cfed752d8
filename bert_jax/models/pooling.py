"""Pooling of hidden states to one vector per text, and the combinations of layers of Devlin et al. 2018, table 7."""

import math
import typing
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from bert_jax.config.heads import Combination, Pooling, TextState, TokenPooling
from bert_jax.errors import UserError
from bert_jax.models.layers import PackedTexts, gather_positions, last_positions, steady_product

Array = TypeVar("Array", jax.Array, np.ndarray)

LAYERS_READ = {
    "last": 1,
    "second_to_last": 2,
    "sum_last_four": 4,
    "concat_last_four": 4,
    "weighted_last_four": 4,
    "weighted_all": 0,
}
"""Number of the last layers that a combination looks at; 0 = every layer, without the embeddings."""


def combine(
    hidden_states: Sequence[jax.Array], combination: Combination, weights: ArrayLike | None = None
) -> jax.Array:
    """Return features of every token from several layers: Devlin et al. 2018, section 5.3 and table 7.

    Args:
      hidden_states: N + 1 arrays [..., H]: the embeddings, then each of N layers.
      combination: last · second_to_last · sum_last_four · concat_last_four (the best in the paper) · weighted_last_four
        and weighted_all, Σ wᵢ·hᵢ over the last four or all N layers, lowest first.
      weights: [4] or [N], for the weighted ones: given, or learned, since the result is differentiable in them.

    Returns:
      [..., H]; [..., 4·H] for concat_last_four.

    Raises:
      UserError: the combination is unknown, there are too few layers, or the number of weights is wrong.
    """
    count = layers_read(combination, len(hidden_states) - 1, weights)
    states = list(hidden_states[-count:])
    if combination in ("last", "second_to_last"):
        return states[0]
    if combination == "concat_last_four":
        return jnp.concatenate(states, axis=-1)
    weights = jnp.ones(count) if weights is None else jnp.asarray(weights, jnp.float32)
    return jnp.asarray(sum(weight * state for weight, state in zip(weights, states, strict=True)))


def layers_read(combination: str, num_layers: int, weights: Any = None) -> int:
    """Return how many of the last layers `combination` needs in a model of `num_layers`."""
    if not isinstance(combination, str) or combination not in LAYERS_READ:
        raise UserError(f"unknown combination of layers {combination!r}; known are {', '.join(LAYERS_READ)}")
    if not num_layers and combination != "last":
        raise UserError(f"{combination} reads layers, but this model has only its embeddings; use last")
    count = LAYERS_READ[combination] or num_layers
    if count > max(1, num_layers):
        raise UserError(f"{combination} needs {count} layers and the model has {num_layers}; use last or weighted_all")
    given = None if weights is None else np.shape(weights)
    if given != ((count,) if combination.startswith("weighted") else None):
        wanted = f"{count} numbers" if combination.startswith("weighted") else "None"
        seen = (
            "None"
            if given is None
            else f"{given[0]} numbers"
            if len(given) == 1
            else f"an array of shape {list(given)}"
        )
        raise UserError(f"weights={seen}, but {combination} takes {wanted}")
    return count


def pool(
    states: jax.Array, attention_mask: jax.Array, pooling: TokenPooling, texts: PackedTexts | None = None
) -> jax.Array:
    """Return one vector per text, [B, H], or [B, T, H] of rows of T texts, from states [B, L, H] and mask [B, L].

    It is the state of the first position, or the mean or maximum over all tokens where the mask is 1; mean_sqrt_len is
    their sum divided by the square root of their number. A text without such tokens has zeros, or the first state of
    the row.
    """
    if texts is not None:
        own = jnp.where(attention_mask > 0, texts.ids, 0)
        return _pool_texts(states, PackedTexts(own, texts.starts), pooling)
    if pooling == "cls":
        return states[:, 0]
    real = (attention_mask > 0)[:, :, None]
    if pooling == "max":
        return jnp.where(jnp.any(real, axis=1), jnp.max(jnp.where(real, states, -math.inf), axis=1), 0.0)
    total = jnp.sum(jnp.where(real, states, 0.0), axis=1)
    count = jnp.maximum(jnp.sum(real, axis=1), 1).astype(states.dtype)
    return total / (jnp.sqrt(count) if pooling == "mean_sqrt_len" else count)


LEAST_NORM = 1e-12  # by which vectors are divided at least, as in torch


def unit_vectors(vectors: jax.Array) -> jax.Array:
    """Return vectors [..., H] divided by their Euclidean norms; zeros stay zeros, in the backward pass too."""
    square = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    norm = jnp.sqrt(jnp.where(square > 0, square, 1.0))
    return vectors / jnp.where(square > 0, jnp.maximum(norm, LEAST_NORM), 1.0)


def token_vectors(states: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return the vectors of norm 1 of tokens, float32 [B, L, D], of their states [B, L, H] by a linear map [H, D]."""
    return unit_vectors(steady_product(states.astype(jnp.float32), kernel, 1))


def _pool_texts(states: jax.Array, texts: PackedTexts, pooling: TokenPooling) -> jax.Array:
    """Return what `pool` does, [B, T, H], without an array of the states of every text."""
    if pooling == "cls":
        return gather_positions(states, texts.starts)
    count = texts.lengths()[:, :, None]
    if pooling == "max":
        numbers = texts.starts.shape[1] + 1  # 0 is that of padding
        largest = jax.vmap(lambda own, ids: jax.ops.segment_max(own, ids, numbers))(states, texts.ids)
        return jnp.where(count > 0, largest[:, 1:], 0.0)
    belongs, exact = texts.belongs().astype(states.dtype), jax.lax.Precision.HIGHEST
    total = jnp.einsum("blt,blh->bth", belongs, states, precision=exact)
    count = jnp.maximum(count, 1).astype(states.dtype)
    return total / (jnp.sqrt(count) if pooling == "mean_sqrt_len" else count)


def text_states(states: jax.Array, mask: jax.Array, read: TextState, texts: PackedTexts | None = None) -> jax.Array:
    """Return what poolers and classifiers read of each text, [B, H], or [B, T, H] of rows of T texts.

    Args:
      states: [B, L, H].
      mask: [B, L], 1 for real tokens.
    """
    if read == "mean":
        return pool(states, mask, "mean", texts)
    if read == "first" and texts is None:
        return states[:, 0]
    found = gather_positions(states, text_positions(mask, read, texts))
    if read == "ends":  # the half of each direction that has seen the whole text
        begins = jnp.argmax(mask > 0, axis=1)[:, None] if texts is None else texts.starts
        half = states.shape[-1] // 2
        found = jnp.concatenate([found[..., :half], gather_positions(states, begins)[..., half:]], axis=-1)
    return found[:, 0] if texts is None else found


def text_positions(mask: jax.Array, read: TextState, texts: PackedTexts | None) -> jax.Array:
    """Return int32 [B, T]: the position of the first token of each text, or of the last unless `read` is "first".

    T is 1 where rows are single texts. Arguments are those of `text_states`.
    """
    if texts is not None:
        return texts.starts if read == "first" else texts.ends()
    last = last_positions(mask)[:, None]
    return jnp.zeros_like(last) if read == "first" else last


def read_mask(input_ids: Array, attention_mask: Array, unread: tuple[int, ...]) -> Array:
    """Return the mask without the places of the ids that the vector of a text leaves out; NumPy's or JAX's."""
    mask: Any = attention_mask
    for each in unread:
        mask = mask * (input_ids != each)
    return mask


def check_pooling(pooling: str | None, has_pooler: bool, trains_specials: bool, option: str = "pooling") -> None:
    if pooling not in (None, *typing.get_args(Pooling)):
        raise UserError(f"pooling={pooling!r} must be {', '.join(typing.get_args(Pooling))} or None")
    if pooling == "pooler" and not has_pooler:
        raise UserError("pooling='pooler', but this model has no pooler; use cls, mean or max")
    if pooling == "cls" and not trains_specials:
        raise UserError(
            f"{option}='cls' reads the vector of [CLS], which this model has never trained; use mean, of the words"
        )


def layer_indices(layers: str | int | Sequence[int], num_layers: int) -> tuple[int, ...] | None:
    """Return the places in the list of N + 1 hidden states that `layers` names, 0 = embeddings; None for "last".

    Raises:
      UserError: `layers` is neither "last", "all" nor numbers from -(N + 1) to N.
    """
    count = num_layers + 1
    if isinstance(layers, str):
        if layers not in ("last", "all"):
            raise UserError(f"layers={layers!r} must be 'last', 'all' or numbers: 0 (embeddings) to {num_layers}")
        return None if layers == "last" else tuple(range(count))
    numbers = tuple(layers) if isinstance(layers, Iterable) else (layers,)
    for number in numbers:
        if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or not -count <= number < count:
            above = f"1 to {num_layers} the layers, negative ones count from the last"
            there = f"0 is the embeddings, {above}" if num_layers else "this model has only 0, the embeddings"
            raise UserError(f"layers={layers!r}: there is no {number!r}; {there}")
    return tuple(int(number) % count for number in numbers)

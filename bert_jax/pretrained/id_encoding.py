"""States of rows of ids, as other code has made them: `PretrainedModel.encode_ids`."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from bert_jax.errors import UserError
from bert_jax.models.pooling import layer_indices
from bert_jax.models.protocol import EncoderOutput
from bert_jax.pretrained.runner import Runner


def encode_ids(
    model: Any,
    runner: Runner,
    input_ids: ArrayLike,
    attention_mask: ArrayLike | None,
    token_type_ids: ArrayLike | None,
    layers: str | int | Sequence[int],
    attentions: bool,
    memory: Sequence[ArrayLike] | None,
) -> EncoderOutput:
    """Return the output of a PretrainedModel for ids [B, L], in NumPy; see its `encode_ids`."""
    chosen = layer_indices(layers, model.config.num_layers)
    ids = _integers("input_ids", input_ids, model.config.need_vocab_size(), None)
    limit = model.config.position_limit
    if ids.ndim != 2 or not ids.size or (limit is not None and ids.shape[1] > limit):
        tokens = "at least 1 token" if limit is None else f"1 to {limit} tokens"
        raise UserError(f"input_ids has shape {list(ids.shape)}; expected [texts, tokens], with {tokens}")
    mask = np.ones_like(ids) if attention_mask is None else _integers("attention_mask", attention_mask, 2, ids.shape)
    types = np.zeros_like(ids)
    if token_type_ids is not None:
        # A model without segments ignores what its tokenizer says of them, as in transformers.
        given = _integers("token_type_ids", token_type_ids, model.config.type_vocab_size or 2**31, ids.shape)
        types = given if model.config.type_vocab_size else types
    batch = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    if memory is not None:
        batch["memory"] = _memory(model, memory, len(ids))
    found = jax.tree.map(np.array, runner.encode(batch, layers=chosen, attentions=attentions, pooling=None))
    number, last = model.config.num_layers, found["last"]
    states = (
        [last]
        if chosen is None
        else [last if index == number else state for index, state in zip(chosen, found["layers"], strict=True)]
    )
    return EncoderOutput(last, found["pooled"], tuple(states), tuple(found["attentions"]) if attentions else None)


def _memory(model: Any, memory: Sequence[ArrayLike], rows: int) -> np.ndarray:
    """Return a memory as float32 [B, N, M, H]; raise a UserError if the model has none, or one of another shape."""
    if not model.config.is_xlnet:
        raise UserError(f"{model.path} is no XLNet, and only XLNet has a memory of earlier segments; leave memory out")
    states = [np.asarray(state, np.float32) for state in memory]
    shapes, number, size = {state.shape for state in states}, model.config.num_layers, model.config.hidden_size
    fits = len(states) == number and len(shapes) == 1 and [len(each) for each in shapes] == [3]
    if not fits or (states[0].shape[0], states[0].shape[2]) != (rows, size):
        seen = ", ".join(str(list(state.shape)) for state in states[:3]) or "nothing"
        raise UserError(
            f"memory has {len(states)} arrays ({seen}{', …' if len(states) > 3 else ''}); expected one for each of "
            f"{number} layers, all [{rows}, states, {size}], as extended_memory of bert_jax.models.segment_memory "
            "returns them"
        )
    return np.stack(states, axis=1)


def _integers(name: str, given: ArrayLike, bound: int, shape: tuple[int, ...] | None) -> np.ndarray:
    """Return an array as int32; raise a UserError unless it has this shape and all of it is from 0 to `bound` - 1."""
    try:
        values = np.asarray(given)
    except ValueError:
        raise UserError(
            f"{name} has rows of different lengths; pad them to one length, and say so in attention_mask"
        ) from None
    if values.dtype.kind == "f" and np.array_equal(values, np.round(values)):  # masks of torch are often floats
        values = values.astype(np.int64)
    if values.dtype.kind not in "iub":
        raise UserError(f"{name} is an array of {values.dtype}; expected integers from 0 to {bound - 1:,}")
    if shape is not None and values.shape != shape:
        raise UserError(f"{name} has shape {list(values.shape)}, but input_ids has {list(shape)}; give one per token")
    if values.size and not 0 <= values.min() <= values.max() < bound:
        wrong = values.min() if values.min() < 0 else values.max()
        raise UserError(f"{name} has the value {wrong}; this model knows 0 to {bound - 1:,}")
    return values.astype(np.int32)

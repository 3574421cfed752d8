"""Some layers of a stored model, which a model with fewer layers starts from (Sanh et al. 2019, section 2)."""

import dataclasses

import numpy as np

from bert_jax.config import ModelConfig
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel


def with_layers(stored: StoredModel, layers: tuple[int, ...], student: ModelConfig) -> StoredModel:
    """Return `stored` with some of its layers, in this order, and without what a student of its kind has not.

    A student without token types or without a head for pairs gets no such arrays; they are among `ignored`.

    Raises:
      UserError: there are no such layers, or they have parameters in common.
    """
    model, option = stored.model, f"init_from_layers={','.join(map(str, layers))}"
    if model.sharing != "none" or not model.first_attention_norm or model.convolution_width:
        raise UserError(
            f"{option} needs layers with parameters of their own, all of one form, but {stored.path} has model.sharing="
            f"{model.sharing}, model.first_attention_norm={model.first_attention_norm}, model.convolution_width="
            f"{model.convolution_width}; take none, with --init_from_layers="
        )
    stored = of_layers(stored, layers, option)
    left_out = tuple(
        f"{part}/"
        for part, needed in (
            ("embeddings/token_type", student.type_vocab_size),
            ("pooler", student.pair_head),
            ("next_sentence", student.pair_head),
        )
        if not needed
    )
    arrays = {path: array for path, array in stored.arrays.items() if not path.startswith(left_out)}
    model = dataclasses.replace(
        stored.model,
        type_vocab_size=model.type_vocab_size if student.type_vocab_size else 0,
        pooler=model.pooler if student.pair_head else student.pooler,
    )
    ignored = (*stored.ignored, *sorted(path for path in stored.arrays if path not in arrays))
    return dataclasses.replace(stored, model=model, arrays=arrays, ignored=ignored)


def of_layers(stored: StoredModel, layers: tuple[int, ...], option: str) -> StoredModel:
    """Return `stored` with these layers, whose parameters are their own and of one form, in this order.

    Raises:
      UserError: there are no such layers; the message begins with `option`.
    """
    model, parameters = stored.model, stored.parameters
    if wrong := [layer for layer in layers if not 0 <= layer < model.num_layers]:
        raise UserError(f"{option}: {stored.path} has the layers 0 to {model.num_layers - 1}, and no layer {wrong[0]}")
    arrays = {
        path: array if parameters[path].layer_axis is None else _chosen(array, layers)
        for path, array in stored.arrays.items()
    }
    return dataclasses.replace(stored, model=dataclasses.replace(model, num_layers=len(layers)), arrays=arrays)


def _chosen(array: StoredArray, layers: tuple[int, ...]) -> StoredArray:
    """Return an array of all layers, its first axis, with these alone."""

    def read(index: tuple[slice, ...]) -> np.ndarray:
        return np.concatenate([array.read((slice(layer, layer + 1), *index[1:])) for layer in layers[index[0]]])

    return StoredArray((len(layers), *array.shape[1:]), array.dtype, read)

"""A larger model from a smaller one: more layers, more features, heads and units (init_from_depth, init_from_width).

Every array of the larger model is made of entries of the smaller one's as it is read. ModernBERT-large begins from
base with layers that are spread (Gopher: Rae et al. 2021, G.3.3) and weights tiled around the middle. Two ways change
nothing that the model computes: new blocks of a pre-norm model whose outputs are zero, and copies of features, heads
and units that share what goes out of them (Net2Net: Chen et al. 2016). Copies that shared it equally would learn the
same for ever, so their shares differ from output to output.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np

from bert_jax.config import Alibi, EncoderConfig, ModelConfig
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel
from bert_jax.models.bert_parameters import BRANCH_ENDS, MODEL_PARTS, WIDE, WORD_NORMS, bert_parameters
from bert_jax.parameters import Parameter

Depth = Literal["same", "stack", "spread", "identity"]
Width = Literal["same", "tile", "duplicate"]
VALUE_FACTORS = "embeddings/value/scale"
"""Factors of the vectors of words that layers add to their values, one for each of these layers."""
Grids = list[np.ndarray]
"""The places of a part of an array along each axis, as open grids that broadcast to its shape."""


def grown(stored: StoredModel, model: EncoderConfig, depth: Depth, width: Width) -> StoredModel:
    """Return `stored` as a model with the sizes of `model`, without arrays that cannot grow, which will be fresh.

    Args:
      stored: the smaller model.
      model: what starts from it.
      depth: how layers are added; see `Config.init_from_depth`.
      width: how features, heads and units are; see `Config.init_from_width`.

    Raises:
      UserError: it cannot grow in this way; the message says what is possible.
    """
    if depth != "same":
        stored = deeper(stored, model, depth)
    return wider(stored, model, width) if width != "same" else stored


def deeper(stored: StoredModel, model: EncoderConfig, how: Depth) -> StoredModel:
    """Return `stored` with as many layers as `model` has, each a copy of one of its own."""
    small, option = stored.model, f"init_from_depth={how}"
    if not (isinstance(small, ModelConfig) and isinstance(model, ModelConfig)) or small.sharing != "none":
        raise UserError(
            f"{option} is for Transformer layers with parameters of their own, and {stored.path} has others; start "
            "with as many layers as it has"
        )
    old, new = small.num_layers, model.num_layers
    if new <= old:
        raise UserError(
            f"{option} adds layers, but {stored.path} has {old} and model.num_layers={new}; choose among them with "
            "--init_from_layers, or leave the option out"
        )
    if how == "identity" and small.norm_position != "pre":
        raise UserError(
            f"{option} keeps what the model computes only where norms precede the branches (model.norm_position=pre): "
            f"a norm behind a new layer of {stored.path} would change it. init_from_depth=stack or spread start close"
        )
    large = dataclasses.replace(small, num_layers=new)
    if how == "identity" and (lost := set(small.valued_layers) - set(large.valued_layers)):
        raise UserError(
            f"{option} cannot keep what {stored.path} computes: layer {max(lost)} adds vectors of words to its values "
            f"(model.value_embeddings={small.value_embeddings}) and would not, with {new} layers. "
            "init_from_depth=stack or spread start close"
        )
    sources = np.arange(new) % old
    if how == "spread":
        sources = np.minimum(np.round(np.arange(new) * old / new).astype(int), old - 1)
    shown = "layers " + ",".join(map(str, sources)) + (f", outputs of {old} to {new - 1} zero" * (how == "identity"))
    arrays = {
        path: _deeper(stored.parameters[path], array, sources, old if how == "identity" else new, shown)
        for path, array in stored.arrays.items()
    }
    if (factors := arrays.get(VALUE_FACTORS)) is not None:  # of the layers that have them
        known = small.valued_layers
        places = [known.index(layer) if layer in known else len(known) - 1 for layer in sources[[*large.valued_layers]]]
        arrays[VALUE_FACTORS] = spread(factors, {0: np.array(places)}, remark=shown)
    return dataclasses.replace(stored, model=large, arrays=arrays)


def _deeper(parameter: Parameter, array: StoredArray, sources: np.ndarray, silent: int, remark: str) -> StoredArray:
    """Return an array with an entry for each layer, of which those from `silent` on add nothing to their branch.

    A first layer without a norm of attention gives its copies one that changes nothing but the scale of its input.
    """
    place = parameter.layer_axis
    if place is None or parameter.axes[place].name == "first_layer":
        return array
    if parameter.axes[place].name == "later_layer":
        sources = sources[1:] - 1
        missing, value = sources < 0, float(parameter.path.endswith("scale"))
        made = spread(array, {place: np.maximum(sources, 0)}, remark=remark)
        return replaced(made, place, missing, value) if missing.any() else made
    made = spread(array, {place: sources}, remark=remark)
    if not parameter.path.startswith(BRANCH_ENDS) or silent == len(sources):
        return made
    return replaced(made, place, np.arange(len(sources)) >= silent, 0.0)


def wider(stored: StoredModel, model: EncoderConfig, how: Width) -> StoredModel:
    """Return `stored` with the width of `model`, made of its own features, heads and units."""
    small = stored.model
    if not isinstance(small, ModelConfig) or not isinstance(model, ModelConfig):
        raise UserError(
            f"init_from_width={how} is for Transformer layers as BERT has them, and {stored.path} has others; start "
            "with its own sizes"
        )
    _check_width(stored.path, small, model, how)
    sizes = {
        name: getattr(model, name)
        for name in ("hidden_size", "num_heads", "key_value_heads", "intermediate_size", "embedding_size")
    }
    large = dataclasses.replace(small, **sizes)
    wanted = bert_parameters(large, tuple(part for part in stored.parts if part in MODEL_PARTS))
    group = small.num_heads // small.key_heads
    arrays = {}
    for path, array in stored.arrays.items():
        parameter = stored.parameters[path]
        shape = wanted[path].shape if path in wanted else ()
        if _can_grow(parameter, shape):
            arrays[path] = _wider(parameter, array, shape, how, group)
    lost = tuple(sorted(stored.arrays.keys() - arrays.keys()))
    return dataclasses.replace(stored, model=large, arrays=arrays, beside={}, ignored=(*stored.ignored, *lost))


def _check_width(path: str, small: ModelConfig, large: ModelConfig, how: Width) -> None:
    """Raise a UserError unless a model can be made wider in this way."""
    option = f"init_from_width={how}"
    if (small.embedding_size is None) != (large.embedding_size is None):
        raise UserError(
            f"{option}: model.embedding_size of {path} is {small.embedding_size} and of this configuration "
            f"{large.embedding_size}: a map of embeddings cannot come or go; give --model.embedding_size="
            f"{small.embedding_size}"
        )
    sizes = ("hidden_size", "num_heads", "key_heads", "feed_forward_size", "word_size")
    smaller = [name for name in sizes if getattr(large, name) < getattr(small, name)]
    if smaller or all(getattr(large, name) == getattr(small, name) for name in sizes):
        name = smaller[0] if smaller else "hidden_size"
        raise UserError(
            f"{option} makes a model wider, but {name} of {path} is {getattr(small, name)} and of this configuration "
            f"{getattr(large, name)}; give a larger --model.hidden_size, or leave the option out"
        )
    if large.head_size != small.head_size:
        heads = large.hidden_size / small.head_size
        fits = f"--model.num_heads={heads:.0f}" if heads.is_integer() else f"a multiple of {small.head_size} features"
        raise UserError(
            f"{option} keeps heads as they are, but those of {path} have {small.head_size} features and those of this "
            f"configuration {large.head_size}; give {fits}"
        )
    if large.num_heads * small.key_heads != small.num_heads * large.key_heads:
        raise UserError(
            f"{option}: {path} has {small.num_heads // small.key_heads} heads of queries for each of keys, and "
            f"this configuration {large.num_heads // large.key_heads}; change --model.key_value_heads in proportion"
        )
    if how == "duplicate":
        _check_exact(path, small, large)


def _check_exact(path: str, small: ModelConfig, large: ModelConfig) -> None:
    """Raise a UserError where a model with copies would compute something else."""
    for name in ("hidden_size", "word_size"):
        old, new = getattr(small, name), getattr(large, name)
        if new % old:
            raise UserError(
                f"init_from_width=duplicate keeps what norms compute only if every feature has as many copies, but "
                f"{name} of {path} is {old}, of which {new} is no multiple; give {new // old * old or old} or "
                f"{(new // old + 1) * old}, or init_from_width=tile, which starts close"
            )
    if isinstance(small.positions, Alibi):
        raise UserError(
            f"init_from_width=duplicate cannot keep what {path} computes: the slopes of model.positions=alibi follow "
            "from the number of heads; init_from_width=tile starts close"
        )


def _can_grow(parameter: Parameter, shape: tuple[int, ...]) -> bool:
    """Return whether all axes in which the larger array differs are those that grow with the width."""
    sizes = zip(parameter.axes, shape, strict=False)
    return len(shape) == len(parameter.axes) and all(axis.size == size or axis.name in WIDE for axis, size in sizes)


def _wider(parameter: Parameter, array: StoredArray, shape: tuple[int, ...], how: Width, group: int) -> StoredArray:
    """Return an array of this shape, which may be larger along the axes that are WIDE."""
    sources, old = {}, array.shape
    for place, axis in enumerate(parameter.axes):
        # Rows of a padded or cut table of words stay as they are; what grows is told by name.
        if axis.name in WIDE and shape[place] != old[place]:
            queries = axis.name == "heads" and not parameter.path.startswith(
                ("encoder/attention/key", "encoder/attention/value")
            )
            step = group if queries else 1
            offset = 0 if how == "duplicate" else (shape[place] // step - old[place] // step) // 2 * step
            sources[place] = (np.arange(shape[place]) - offset) % old[place]
    if not sources:
        return array
    shown = " × ".join(f"{parameter.axes[place].name} {old[place]:,} → {shape[place]:,}" for place in sources)
    inputs = _input(parameter)
    if how == "tile" or inputs is None or inputs not in sources:
        return spread(array, sources, remark=f"{shown}: {'tiled' if how == 'tile' else 'duplicated'}")
    shares = _shares(sources[inputs], old[inputs], inputs, parameter.layer_axis)
    return spread(array, sources, shares, f"{shown}: duplicated, inputs in shares")


def _input(parameter: Parameter) -> int | None:
    """Return the axis whose entries are what the array is multiplied with; None: it is not multiplied with any."""
    wide = [place for place, axis in enumerate(parameter.axes) if axis.name in WIDE]
    # The word table has one row for reading a word and for predicting it, so its norms have the shares of copies.
    is_read = (
        parameter.path.endswith("/kernel") or parameter.path.startswith(WORD_NORMS) or parameter.path == "mlm/table"
    )
    return wide[0] if wide and is_read else None


def _shares(sources: np.ndarray, old: int, place: int, layers: int | None) -> Callable[[Grids], np.ndarray]:
    """Return what gives each copy of an input its share: of n copies, those of 1 to n, in turns from output to output.

    The shares of the copies add up to 1 for each output.
    """
    count = np.bincount(sources, minlength=old)[sources]
    copy = np.arange(len(sources)) // old  # the sources repeat from the first on

    def shares(places: Grids) -> np.ndarray:
        outputs = sum(
            (grid for axis, grid in enumerate(places) if axis not in (place, layers)), start=np.zeros((), np.int64)
        )
        own, number = places[place], count[places[place]]
        return ((copy[own] + outputs) % number + 1) / (number * (number + 1) / 2)

    return shares


def spread(
    array: StoredArray,
    sources: dict[int, np.ndarray],
    factor: Callable[[Grids], np.ndarray] | None = None,
    remark: str = "",
) -> StoredArray:
    """Return an array whose entries along some axes are those of `array` that `sources` names, times the factor."""
    shape = tuple(len(sources[axis]) if axis in sources else size for axis, size in enumerate(array.shape))

    def read(index: tuple[slice, ...]) -> np.ndarray:
        places = [np.arange(size)[part] for size, part in zip(shape, index, strict=True)]
        wanted = [sources[axis][place] if axis in sources else place for axis, place in enumerate(places)]
        if any(not len(each) for each in wanted):
            return np.zeros(tuple(map(len, wanted)), np.float32)
        values = array.read(tuple(slice(int(each.min()), int(each.max()) + 1) for each in wanted))
        values = np.asarray(values, np.float32)[np.ix_(*(each - each.min() for each in wanted))]
        return values if factor is None else (values * factor(list(np.ix_(*places)))).astype(np.float32)

    notes = "; ".join(filter(None, [array.remark, remark]))
    return StoredArray(shape, np.dtype(np.float32), read, notes)


def replaced(array: StoredArray, axis: int, where: np.ndarray, value: float) -> StoredArray:
    """Return an array whose entries at some places of one axis have a value instead."""

    def read(index: tuple[slice, ...]) -> np.ndarray:
        values = np.array(array.read(index), np.float32)
        values[(slice(None),) * axis + (where[index[axis]],)] = value
        return values

    return dataclasses.replace(array, read=read)

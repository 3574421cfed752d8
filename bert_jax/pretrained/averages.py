"""`bert-jax average`: one model from several of one form, such as the last steps of a run or the decays of a trunk.

Every value of the result follows from the values at its place in the models: a weighted sum (mean, and the moving
average over steps), the point between two on a sphere (Shoemake 1985), or TIES (arXiv:2306.01708), which adds to a
common ancestor what its descendants have learned and most of them agree on. Arrays are read in blocks, model by model,
so that only the result is in memory as a whole.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.config import EmbeddingConfig
from bert_jax.config.commands import AverageConfig, AverageMethod, Mean, MovingAverage, Slerp, Ties
from bert_jax.config.options import to_dict
from bert_jax.data.mixtures import recorded_stores
from bert_jax.devices.placement import StoredArray, empty
from bert_jax.errors import UserError, first_lines
from bert_jax.formats.conversion import check_destination, new_directory, write_bert_jax
from bert_jax.formats.opening import open_stored
from bert_jax.formats.stored import StoredModel, check_fit
from bert_jax.pretrained.initialization import function_differences

Index = tuple[slice, ...]
BLOCK = 1 << 24
"""Values of an array that are read of each model at once."""
NEARLY_PARALLEL = 1e-6
"""Sine of an angle below which the arc between two arrays is their straight line to the precision of float32."""


def average(
    models: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    method: AverageMethod = Mean(),
    last: int = 0,
) -> None:
    """Write the average of several models to the new directory `output`, which `load` and all commands open.

    Args:
      models: what `load` opens.
      output: directory for the result, whose run.json says what it is made of.
      method: Mean(), MovingAverage(), Slerp() or Ties(), with their options.
      last: number of the newest steps of a single run to take.

    Raises:
      UserError: the models do not have the same parameters of the same function and vocabulary, the method is for
        another number of models, or a value is not finite; nothing has been written.
    """
    _write(models, AverageConfig(output=os.fspath(output), method=method, last=last))


def _write(models: Sequence[str | os.PathLike[str]], options: AverageConfig) -> StoredModel:
    """Write the average and return what was written."""
    options.check(models)
    check_destination(options.output)
    result = averaged(open_sources(models, options.last), options.method)
    with new_directory(options.output) as directory:
        write_bert_jax(result, directory, by="average")
    return result


def run_average(models: Sequence[str], options: AverageConfig) -> None:
    """Write the average and print what it is made of."""
    result = _write(models, options)
    made_of = result.history["made_of"]
    values = sum(math.prod(array.shape) for array in result.arrays.values())
    for source in made_of["models"]:
        share = f", share {source['share']:.4g}" if "share" in source else ""
        print(f"read: {source['path']}, step {source['step']}{share}")
    print(f"{options.output}: {result.path}, {len(result.arrays)} arrays, {values:,} parameters")


def open_sources(models: Sequence[str | os.PathLike[str]], last: int = 0) -> list[StoredModel]:
    """Return the models that are named, in their order; with `last`, that many of the newest steps of the only one.

    Raises:
      UserError: one of them cannot be opened, or the run has fewer steps.
    """
    if not last:
        return [_checked(open_stored(model)) for model in models]
    (run,) = models
    steps = Checkpoints(os.path.join(os.path.expanduser(run), "checkpoints"), read_only=True).directories()
    if not steps:
        raise UserError(f"last={last}, but there are no checkpoints in {run}; name the work directory of a run")
    if len(steps) < last:
        raise UserError(
            f"last={last}, but {run} has {len(steps)} checkpoints; a run keeps as many as its checkpoint.keep_last and "
            "keep_every_steps say"
        )
    return [_checked(open_stored(step)) for step in steps[-last:]]


def _checked(stored: StoredModel) -> StoredModel:
    check_fit(stored)
    if stored.tokenizer is None and (stored.history.get("run") or {}).get("tokenizer_fingerprint"):
        raise UserError(
            f"{stored.path} has lost its vocabulary, so nobody could tell whether others have the same; restore "
            "tokenizer/ there from a copy, or from the token store that it was trained on"
        )
    return stored


def averaged(sources: list[StoredModel], method: AverageMethod) -> StoredModel:
    """Return the average of models, whose arrays are made as they are read, with a record of what it is made of.

    Settings, head and vocabulary are those of all of them; the step is that of the last one.

    Raises:
      UserError: their parameters, functions, vocabularies or heads differ, or a value that decides on others is not
        finite; reading may also raise the latter.
    """
    first, *others = sources
    ancestor = _checked(open_stored(method.ancestor)) if isinstance(method, Ties) else None
    for other in [*others, *([] if ancestor is None else [ancestor])]:
        _check_alike(first, other)
    shares: list[float] = []
    if isinstance(method, Mean | MovingAverage):
        shares = method.of(len(sources))
        arrays = {path: _mixed(path, sources, shares) for path in first.arrays}
    elif isinstance(method, Slerp):
        arrays = {path: _between(path, first, others[0], method.share) for path in first.arrays}
    else:
        assert ancestor is not None
        arrays = _agreed(sources, ancestor, method)
    made_of = {"method": to_dict(method) | dict(method.chosen_by), "models": [_origin(each) for each in sources]}
    for source, share in zip(made_of["models"], shares, strict=False):
        source["share"] = share
    if ancestor is not None:
        made_of["ancestor"] = _origin(ancestor)
    return dataclasses.replace(
        sources[-1],
        path=f"{method.chosen_by['method']} of {len(sources)} models",
        arrays=arrays,
        beside={},
        ignored=(),
        embedding=first.embedding if all(each.embedding == first.embedding for each in others) else EmbeddingConfig(),
        postprocesses={},  # which were fitted on the vectors of one of them
        history=_history(sources if ancestor is None else [ancestor, *sources]) | {"made_of": made_of},
    )


def _history(models: list[StoredModel]) -> dict[str, Any]:
    """Return that of the last model, with the stores that any of them has read, and the documents that all hold out.

    Of what one of them was trained on, `evaluate` then measures nothing as held out. The documents of the smallest
    share are among those of every other.
    """
    last = models[-1].history
    known = {name: last[name] for name in ("step", "config", "run", "source") if name in last}
    runs = [each.history.get("run") or {} for each in models]
    if len({run.get("store_fingerprint") for run in runs}) > 1:
        stores = dict.fromkeys(store for run in runs for store in recorded_stores(run))
        known["run"] = {**runs[-1], "store_fingerprint": None, "store_fingerprints": [*stores]}
    read = [data for each in models if (data := (each.history.get("config") or {}).get("data"))]
    if read and "data" in (config := known.get("config") or {}):
        held_out = min(0.0 if data.get("eval_path") else data.get("held_out", 0.0) for data in read)
        known["config"] = config | {"data": config["data"] | {"held_out": held_out}}
    return known


def _origin(stored: StoredModel) -> dict[str, Any]:
    run = stored.history.get("run") or {}
    return {"path": stored.path, "step": stored.history.get("step"), "run_id": run.get("run_id")}


def _check_alike(first: StoredModel, other: StoredModel) -> None:
    """Raise a UserError unless values at the same place mean the same in both models."""
    differing = function_differences(first.model, other.model)
    lines = [f"model.{name} is {one} and {two}" for name, (one, two) in differing.items()]
    fingerprints = [each.tokenizer and each.tokenizer.fingerprint for each in (first, other)]
    if fingerprints[0] != fingerprints[1]:
        lines.append("their vocabularies differ")
    if first.head != other.head:
        lines.append("their heads are of different tasks or classes")
    shapes = [{path: array.shape for path, array in each.arrays.items()} for each in (first, other)]
    for path in sorted({**shapes[0], **shapes[1]}):
        one, two = ("absent" if path not in found else str(list(found[path])) for found in shapes)
        if one != two:
            lines.append(f"{path} is {one} and {two}")
    if lines:
        raise UserError(
            f"{first.path} and {other.path} cannot be averaged: {first_lines(lines)}; take models of one configuration "
            "and vocabulary, such as steps of a run or branches of one trunk"
        )


def _read(stored: StoredModel, path: str, index: Index) -> np.ndarray:
    values = np.asarray(stored.arrays[path].read(index), np.float32)
    if not np.isfinite(values).all():
        raise UserError(
            f"{path} of {stored.path} has values that are not finite, which no average "
            "survives; leave that model out, or take an earlier step of its run (RUN:STEP)"
        )
    return values


def _blocks(shape: tuple[int, ...], index: Index) -> Iterator[Index]:
    """Yield parts of an index, as positive spans, that hold at most `BLOCK` values each, or a row of the first axis."""
    spans = [slice(*part.indices(size)) for part, size in zip(index, shape, strict=True)]
    if not spans:
        yield ()
        return
    row = math.prod(max(0, part.stop - part.start) for part in spans[1:])
    rows = max(1, BLOCK // max(1, row))
    for start in range(spans[0].start, spans[0].stop, rows):
        yield (slice(start, min(start + rows, spans[0].stop)), *spans[1:])


def _made(shape: tuple[int, ...], combine: Callable[[Index], np.ndarray]) -> StoredArray:
    """Return an array whose parts `combine` makes, block by block."""

    def read(index: Index) -> np.ndarray:
        spans = [slice(*part.indices(size)) for part, size in zip(index, shape, strict=True)]
        values = empty(tuple(part.stop - part.start for part in spans))
        for block in _blocks(shape, index):
            place = () if not block else slice(block[0].start - spans[0].start, block[0].stop - spans[0].start)
            values[place] = combine(block)
        return values

    return StoredArray(shape, np.dtype(np.float32), read)


def _mixed(path: str, sources: list[StoredModel], shares: list[float]) -> StoredArray:
    """Return the sum of an array over the models, each with its share, added up in float64."""

    def combine(block: Index) -> np.ndarray:
        total = np.float64(0.0)
        for share, stored in zip(shares, sources, strict=True):
            total = total + share * _read(stored, path, block).astype(np.float64)
        return np.asarray(total, np.float32)

    return _made(sources[0].arrays[path].shape, combine)


def _between(path: str, first: StoredModel, second: StoredModel, share: float) -> StoredArray:
    """Return the point between two arrays on the arc from one to the other; of an array of layers, for each of them."""
    shape, layered = first.arrays[path].shape, first.parameters[path].layer_axis == 0
    products = np.zeros((3, shape[0] if layered else 1))  # of first and second, and of each with itself
    for block in _blocks(shape, (slice(None),) * len(shape)):
        one, two = (_read(each, path, block).astype(np.float64) for each in (first, second))
        rows, axes = (block[0], tuple(range(1, one.ndim))) if layered else (slice(None), None)
        pairs = ((one, two), (one, one), (two, two))
        products[:, rows] += np.stack([np.atleast_1d((a * b).sum(axes)) for a, b in pairs])
    norms = np.sqrt(products[1] * products[2])
    angles = np.arccos(np.clip(np.divide(products[0], norms, out=np.ones_like(norms), where=norms > 0), -1, 1))
    sines = np.sin(angles)
    is_line = sines < NEARLY_PARALLEL
    sines[is_line] = 1.0
    weights = np.stack([np.sin((1 - share) * angles) / sines, np.sin(share * angles) / sines])
    weights[:, is_line] = np.array([[1 - share], [share]])

    def combine(block: Index) -> np.ndarray:
        one, two = (_read(each, path, block).astype(np.float64) for each in (first, second))
        if layered:
            own = weights[:, block[0]].reshape(2, -1, *(1,) * (one.ndim - 1))
        else:
            own = weights[:, 0]
        return (own[0] * one + own[1] * two).astype(np.float32)

    return _made(shape, combine)


def _agreed(sources: list[StoredModel], ancestor: StoredModel, method: Ties) -> dict[str, StoredArray]:
    """Return the arrays of TIES: the ancestor's, and what of the largest changes most of the models agree on."""
    least = [_least_kept(stored, ancestor, method.kept) for stored in sources]

    def agreed(path: str) -> StoredArray:
        def trimmed(block: Index, base: np.ndarray) -> Iterator[np.ndarray]:
            for stored, limit in zip(sources, least, strict=True):
                change = _read(stored, path, block) - base
                yield np.where(np.abs(change) >= limit, change, np.float32(0)).astype(np.float64)

        def combine(block: Index) -> np.ndarray:
            base = _read(ancestor, path, block)
            sign = np.sign(sum(trimmed(block, base)))
            total, count = np.zeros(base.shape), np.zeros(base.shape, np.int64)
            for change in trimmed(block, base):
                agrees = (np.sign(change) == sign) & (change != 0)
                total += np.where(agrees, change, 0.0)
                count += agrees
            return (base + method.scale * total / np.maximum(count, 1)).astype(np.float32)

        return _made(ancestor.arrays[path].shape, combine)

    return {path: agreed(path) for path in ancestor.arrays}


def _least_kept(stored: StoredModel, ancestor: StoredModel, share: float) -> float:
    """Return the smallest size of the `share` of the largest changes of a model since its ancestor, over all arrays.

    The bits of a float32 that is not negative are ordered as it is. So two passes count them: by their upper half, and
    by the lower half of those whose upper half decides.
    """

    def bits() -> Iterator[np.ndarray]:
        for path, array in ancestor.arrays.items():
            for block in _blocks(array.shape, (slice(None),) * len(array.shape)):
                change = np.abs(_read(stored, path, block) - _read(ancestor, path, block))
                yield np.atleast_1d(change).reshape(-1).view(np.uint32)

    total = sum(math.prod(array.shape) for array in ancestor.arrays.values())
    left = max(1, int(share * total))
    upper = np.zeros(1 << 16, np.int64)
    for each in bits():
        upper += np.bincount(each >> 16, minlength=1 << 16)
    high, left = _bin_of(upper, left)
    lower = np.zeros(1 << 16, np.int64)
    for each in bits():
        lower += np.bincount(each[each >> 16 == high] & 0xFFFF, minlength=1 << 16)
    low, _ = _bin_of(lower, left)
    return float(np.array([high << 16 | low], np.uint32).view(np.float32)[0])


def _bin_of(counts: np.ndarray, rank: int) -> tuple[int, int]:
    """Return the bin that has the `rank`-th of the largest values, and the rank among those of the bin."""
    above = np.cumsum(counts[::-1])
    place = int(np.searchsorted(above, rank))
    return len(counts) - 1 - place, rank - int(above[place] - counts[::-1][place])

"""The counterpart of one of our parameters in another format: its name, and the order of its axes."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from bert_jax.devices.placement import empty
from bert_jax.models.parameters import Parameter

ReadPart = Callable[[str, tuple[slice, ...]], np.ndarray]
"""Reads (name of one of their arrays, a slice for each of its axes) → float32 values."""


@dataclasses.dataclass(frozen=True)
class Place:
    """The counterpart of one of our parameters, with separate arrays for every layer.

    Their array, reshaped to `split` (its axes in their order, heads separate), has our axes in the order `axes`.
    """

    path: str
    """Path in our tree."""
    name: str
    """Their name, with {} for the layer if `layers` is not None."""
    split: tuple[int, ...]
    groups: tuple[int, ...]
    """Number of axes of `split` that each of their axes has become."""
    axes: tuple[int, ...]
    layers: int | None
    first: int = 0
    """Number of the first layer that has one."""

    @property
    def names(self) -> list[str]:
        return [self.name] if self.layers is None else [self._named(row) for row in range(self.layers)]

    @property
    def part(self) -> str:
        """First key of our path."""
        return self.path.split("/")[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in our layout."""
        one = tuple(self.split[axis] for axis in self.axes)
        return one if self.layers is None else (self.layers, *one)

    @property
    def their_shape(self) -> tuple[int, ...]:
        """Shape of each of their arrays."""
        return tuple(math.prod(self.split[start:end]) for start, end in self._bounds())

    def read(self, read_part: ReadPart, index: tuple[slice, ...]) -> np.ndarray:
        """Return the part of our array that `index` names; only the necessary layers and rows are read."""
        bounds = [slice(*part.indices(size)) for part, size in zip(index, self.shape, strict=True)]
        if self.layers is None:
            return np.ascontiguousarray(self._read_one(read_part, self.name, bounds))
        layers = range(self.layers)[bounds[0]]
        values = empty(tuple(len(range(size)[part]) for part, size in zip(bounds, self.shape, strict=True)))
        for row, layer in enumerate(layers):
            values[row] = self._read_one(read_part, self._named(layer), bounds[1:])
        return values

    def split_up(self, values: np.ndarray) -> np.ndarray:
        """Return one of their arrays from ours (of one layer)."""
        return np.ascontiguousarray(values.transpose(np.argsort(self.axes))).reshape(self.their_shape)

    def _named(self, row: int) -> str:
        return self.name.format(self.first + row)

    def _read_one(self, read_part: ReadPart, name: str, bounds: list[slice]) -> np.ndarray:
        wanted: list[slice] = [slice(None)] * len(self.split)
        for part, axis in zip(bounds, self.axes, strict=True):
            wanted[axis] = part
        outer, inner, shape = [], [], []
        for start, end in self._bounds():
            # Heads and head size share one axis of theirs: whole heads are read, and the rest is cut afterwards.
            head, inside = wanted[start], self.split[start + 1 : end]
            outer.append(slice(head.start * math.prod(inside), head.stop * math.prod(inside)))
            shape += [max(0, head.stop - head.start), *inside]
            inner += [slice(None, None, head.step), *wanted[start + 1 : end]]
        return read_part(name, tuple(outer)).reshape(shape)[tuple(inner)].transpose(self.axes)

    def _bounds(self) -> list[tuple[int, int]]:
        """Return where each of their axes begins and ends in `split`."""
        ends = [sum(self.groups[:count]) for count in range(len(self.groups) + 1)]
        return list(zip(ends, ends[1:], strict=False))


def place(parameter: Parameter, name: str, outputs_first: bool = False, heads_apart: bool = False) -> Place:
    """Return the place of `parameter` under `name`, with heads and head size in one axis and separate layers.

    Args:
      outputs_first: whether they store the kernel as [outputs, inputs].
      heads_apart: whether they keep heads and head size in two axes, after that of the hidden features.
    """
    stacked = parameter.layer_axis == 0
    axes = parameter.axes[1:] if stacked else parameter.axes
    groups: list[list[int]] = []
    for number, axis in enumerate(axes):
        inside = axis.name == "head_size" and not heads_apart
        if inside or (number and axes[number - 1].name == "every_layer"):
            groups[-1].append(number)
        else:
            groups.append([number])
    if outputs_first:
        groups.reverse()
    if heads_apart and any(axis.name == "heads" for axis in axes):
        groups.sort(key=lambda group: axes[group[0]].name != "hidden")
    order = [number for group in groups for number in group]
    return Place(
        path=parameter.path,
        name=name,
        split=tuple(axes[number].size for number in order),
        groups=tuple(map(len, groups)),
        axes=tuple(order.index(number) for number in range(len(axes))),
        layers=parameter.axes[0].size if stacked else None,
        first=parameter.lowest_layer,
    )

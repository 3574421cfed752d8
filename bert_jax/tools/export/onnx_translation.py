"""The translation of a program to a graph, and what all of its rules need.

An array that JAX broadcasts stays as small as it is: ONNX's arithmetic broadcasts by itself. So a `Tensor` may have
size 1 along an axis where the value that it stands for is longer, until something needs all of it.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.tools.export.equations import Equation, Program, Size, Value
from bert_jax.tools.export.onnx_graph import Graph, type_of

Permutation = tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Tensor:
    """A result in the graph."""

    name: str
    dims: tuple[Size, ...]
    """Its sizes: those of the value, or 1 along axes that are broadcast."""
    transposed: "tuple[Tensor, Permutation] | None" = None
    """What it is a transpose of."""
    flat: "Tensor | None" = None
    """The same numbers with the last axes as one."""
    reduced: "tuple[str, Tensor, tuple[int, ...]] | None" = None
    """The reduction that it comes from, the operand, and the axes that are gone."""


class Translation:
    """Adds to a graph what a program computes.

    Raises UserError if it uses a primitive that this file does not know.
    """

    def __init__(
        self, graph: Graph, known: dict[Value, Tensor], subject: str, rules: "Mapping[str, Rule]", fuse: "Fusion"
    ):
        self.graph: Graph = graph
        self.known: dict[Value, Tensor] = known
        self.subject: str = subject
        self.rules: Mapping[str, Rule] = rules
        self.fuse: Fusion = fuse

    def run(self, program: Program) -> None:
        """Add every equation of a program, whose inputs are known."""
        for equation in program.equations:
            fused = self.fuse(self, equation)
            if fused is None and equation.primitive not in self.rules:
                raise UserError(
                    f"{self.subject} computes {equation.primitive}, which the ONNX export does not translate; export "
                    "it as StableHLO (--to=stablehlo), or report the model type"
                )
            found = self.rules[equation.primitive](self, equation) if fused is None else fused
            found = [found] if isinstance(found, Tensor) else found
            self.known.update(zip(equation.outputs, found, strict=True))

    def tensor(self, value: Value) -> Tensor:
        """Return the result that stands for a value."""
        if value not in self.known:
            assert value.array is not None, "an equation comes before those that read it"
            array = value.array.astype(type_of(value.dtype))
            self.known[value] = Tensor(self.graph.constant(array, value.name), array.shape)
        return self.known[value]

    def tensors(self, equation: Equation) -> list[Tensor]:
        """Return what stands for the inputs of an equation."""
        return [self.tensor(value) for value in equation.inputs]

    def operands(self, equation: Equation) -> list[Tensor]:
        """Return `tensors` for arithmetic: constants have no leading axes of size 1, where another operand has them.

        A bias is [H] then, as runtimes look for it.
        """
        found = self.tensors(equation)
        rank = len(equation.outputs[0].shape)
        if not any(value.array is None and len(value.shape) == rank for value in equation.inputs):
            return found
        return [
            tensor if value.array is None else self._short(value)
            for value, tensor in zip(equation.inputs, found, strict=True)
        ]

    def _short(self, value: Value) -> Tensor:
        array = np.asarray(value.array, type_of(value.dtype))
        first = next((axis for axis, size in enumerate(array.shape) if size != 1), array.ndim)
        array = array.reshape(array.shape[first:])
        return Tensor(self.graph.constant(array, value.name), array.shape)

    def whole(self, value: Value, axes: Sequence[int] | None = None) -> Tensor:
        """Return the result with every size of the value, along the axes or everywhere."""
        tensor = self.tensor(value)
        kept = range(len(value.shape)) if axes is None else axes
        dims = tuple(size if axis in kept else tensor.dims[axis] for axis, size in enumerate(value.shape))
        if same(dims, tensor.dims):
            return tensor
        return Tensor(self.graph.node("Expand", tensor.name, self.graph.sizes(dims)), dims)

    def reshape(self, tensor: Tensor, dims: Sequence[Size]) -> Tensor:
        """Return the result with other axes and as many elements."""
        dims = tuple(dims)
        if same(dims, tensor.dims):
            return tensor
        kept = [
            size if isinstance(size, int) else 0 if same((size,), tensor.dims[axis : axis + 1]) else -1
            for axis, size in enumerate(dims)
        ]
        shape = self.graph.integers(*kept) if kept.count(-1) < 2 else self.graph.sizes(dims)
        return Tensor(self.graph.node("Reshape", tensor.name, shape), dims)

    def with_ones(self, tensor: Tensor, axes: Sequence[int]) -> Tensor:
        """Return the result with axes of size 1 at these places."""
        if not axes:
            return tensor
        rest = iter(tensor.dims)
        dims = tuple(1 if axis in axes else next(rest) for axis in range(len(tensor.dims) + len(axes)))
        return Tensor(self.graph.node("Unsqueeze", tensor.name, self.graph.integers(*axes)), dims)

    def without(self, tensor: Tensor, axes: Sequence[int]) -> Tensor:
        """Return the result without these axes, of size 1."""
        if not axes:
            return tensor
        dims = tuple(size for axis, size in enumerate(tensor.dims) if axis not in axes)
        return Tensor(self.graph.node("Squeeze", tensor.name, self.graph.integers(*axes)), dims)

    def transpose(self, tensor: Tensor, permutation: Sequence[int]) -> Tensor:
        """Return the result with its axes in another order; two such changes are one."""
        if tensor.transposed is not None:
            tensor, before = tensor.transposed
            permutation = [before[axis] for axis in permutation]
        permutation = tuple(permutation)
        if permutation == tuple(range(len(permutation))):
            return tensor
        dims = tuple(tensor.dims[axis] for axis in permutation)
        name = self.graph.node("Transpose", tensor.name, perm=list(permutation))
        return Tensor(name, dims, transposed=(tensor, permutation))

    def number(self, value: float, like: Value) -> str:
        """Return the name of a constant [] of the type of a value."""
        return self.graph.constant(np.asarray(value, type_of(like.dtype)))

    def sliced(
        self, tensor: Tensor, axes: Sequence[int], starts: str, ends: str, sizes: Sequence[Size], step: int = 1
    ) -> Tensor:
        """Return part of the result: from starts to ends, int64 [n], along n axes, of these sizes."""
        dims = list(tensor.dims)
        for axis, size in zip(axes, sizes, strict=True):
            dims[axis] = size
        steps = () if step == 1 else (self.graph.integers(*[step] * len(axes)),)
        name = self.graph.node("Slice", tensor.name, starts, ends, self.graph.integers(*axes), *steps)
        return Tensor(name, tuple(dims))


Fusion = Callable[[Translation, Equation], "Tensor | None"]
"""Returns the last result of several equations that ONNX has one operation for, or None."""
Rule = Callable[[Translation, Equation], "Tensor | list[Tensor]"]


def same(one: Sequence[Size], other: Sequence[Size]) -> bool:
    return len(one) == len(other) and all(a is b or bool(a == b) for a, b in zip(one, other, strict=True))


def broadcast_dims(tensors: Sequence[Tensor]) -> tuple[Size, ...]:
    columns = itertools.zip_longest(*(reversed(each.dims) for each in tensors), fillvalue=1)
    return tuple(next((size for size in column if not same((size,), (1,))), 1) for column in columns)[::-1]


def arithmetic(t: Translation, operation: str, *tensors: Tensor, **attributes: Any) -> Tensor:
    """Add an operation on elements, which broadcasts."""
    name = t.graph.node(operation, *(each.name for each in tensors), **attributes)
    return Tensor(name, broadcast_dims(tensors))


def cast(t: Translation, tensor: Tensor, dtype: Any) -> Tensor:
    """Return the result in another type."""
    return arithmetic(t, "Cast", tensor, to=np.dtype(dtype).name)

"""An ONNX graph while it is built, and the translation of a program to it.

In a graph nodes are there once, constants by content, sizes as expressions. Nodes that nothing reads are left out at
the end, so whoever adds nodes may add a better form of what is already there.

An array that JAX broadcasts stays as small as it is: ONNX's arithmetic broadcasts by itself. So a `Tensor` may have
size 1 along an axis where the value that it stands for is longer, until something needs all of it.
"""

import ast
import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.tools.export.equations import Equation, Program, Size, Value

OPSET = 20  # the first with Gelu; LayerNormalization is older


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """One operation; what is not given is ''."""

    operation: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    body: "Graph | None" = None


def type_of(dtype: Any) -> np.dtype[Any]:
    """Return the type that stands for one of JAX: integers are those of ONNX's indices and sizes."""
    dtype = np.dtype(dtype)
    return np.dtype(np.int64) if dtype.kind in "iu" else dtype


class Graph:
    """Nodes in an order in which they can be computed. The body of a loop is a graph with that around it as `outer`."""

    def __init__(self, inputs: Sequence[Value], outer: "Graph | None" = None):
        self.outer: Graph | None = outer
        self.root: Graph = self if outer is None else outer.root
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        self.inputs: dict[str, Value] = {value.name: value for value in inputs}
        self.outputs: tuple[str, ...] = ()  # names of the results, of a body
        self.values: tuple[Value, ...] = ()  # and what they stand for
        self._made: dict[Any, tuple[str, ...]] = {}
        self._of_content: dict[Any, str] = {}
        self._numbers: dict[str, Any] = {}

    def node(self, operation: str, *inputs: str, **attributes: Any) -> str:
        """Add an operation with one result, unless there is such a node, and return the name of the result."""
        return self.nodes_of(operation, inputs, 1, attributes)[0]

    def nodes_of(
        self, operation: str, inputs: Iterable[str], results: int, attributes: Mapping[str, Any] = {}
    ) -> tuple[str, ...]:
        """Add an operation, unless there is such a node, and return the names of its results."""
        inputs = tuple(inputs)
        key = operation, inputs, results, repr(sorted(attributes.items()))
        found = self._already(key)
        if found is None:
            found = tuple(self.fresh(operation) for _ in range(results))
            self.nodes.append(Node(operation, inputs, found, dict(attributes)))
            self._made[key] = found
        return found

    def fresh(self, operation: str) -> str:
        """Return a name that no other result has."""
        numbers = self.root._numbers.setdefault(operation, itertools.count())
        return f"{operation}_{next(numbers)}"

    def _already(self, key: Any) -> tuple[str, ...] | None:
        found = self._made.get(key)
        return found if found is not None or self.outer is None else self.outer._already(key)

    def constant(self, array: Any, name: str = "", dtype: Any = None) -> str:
        """Return the name of an initializer with these values; equal arrays are one."""
        array = np.ascontiguousarray(np.asarray(array, dtype)).reshape(np.shape(array))
        root = self.root
        key = array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest()
        if key not in root._of_content:
            name = name if name and name not in root.constants else root.fresh(name or "constant")
            root.constants[name] = array
            root._of_content[key] = name
        return root._of_content[key]

    def integers(self, *values: int) -> str:
        """Return the name of a constant int64 [n]."""
        return self.constant(np.asarray(values, np.int64))

    def size(self, size: Size) -> str:
        """Return the name of an int64 [1] with a size of an axis."""
        if isinstance(size, (int, np.integer)):
            return self.integers(int(size))
        # In the printed form of an expression, a power is written ^, floordiv(a, b), mod(a, b), max and min as calls.
        return self.root._number(ast.parse(str(size).replace("^", "**"), mode="eval").body)

    def sizes(self, shape: Sequence[Size]) -> str:
        """Return the name of an int64 [n] with a shape."""
        if all(isinstance(size, (int, np.integer)) for size in shape):
            return self.integers(*map(int, shape))
        return self.node("Concat", *map(self.size, shape), axis=0)

    def scalar(self, size: Size) -> str:
        """Return the name of an int64 [] with a size of an axis."""
        if isinstance(size, (int, np.integer)):
            return self.constant(np.asarray(size, np.int64))
        return self.root.node("Squeeze", self.size(size), self.integers(0))

    def _number(self, tree: Any) -> str:
        match tree:
            case ast.Constant(value=int(number)):
                return self.integers(number)
            case ast.Name(id=symbol):
                return self._symbol(symbol)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.node("Neg", self._number(operand))
            case ast.BinOp(op=ast.Pow(), left=base, right=ast.Constant(value=int(power))):
                return self._chain("Mul", [self._number(base)] * power)
            case ast.BinOp(op=operation, left=left, right=right):
                name = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul"}[type(operation)]
                return self.node(name, self._number(left), self._number(right))
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self._called(name, [self._number(each) for each in arguments])
            case _:
                raise AssertionError(f"a size that JAX writes as {ast.dump(tree)}")

    def _called(self, name: str, arguments: list[str]) -> str:
        if name in ("max", "min"):
            return self._chain(name.capitalize(), arguments)
        above, below = arguments
        rest = self.node("Mod", above, below)  # whose sign is that of the divisor
        return rest if name == "mod" else self.node("Div", self.node("Sub", above, rest), below)

    def _chain(self, operation: str, terms: list[str]) -> str:
        found = terms[0]
        for term in terms[1:]:
            found = self.node(operation, found, term)
        return found

    def _symbol(self, symbol: str) -> str:
        for name, value in self.inputs.items():
            for axis, size in enumerate(value.shape):
                if str(size) == symbol:
                    return self.node("Shape", name, start=axis, end=axis + 1)
        raise AssertionError(f"no input has an axis of size {symbol}")

    def copy(self, name: str) -> str:
        """Return a name of its own for a result."""
        found = self.fresh("Identity")
        self.nodes.append(Node("Identity", (name,), (found,), {}))
        return found

    def loop(self, body: "Graph", inputs: Sequence[str], results: int, **attributes: Any) -> tuple[str, ...]:
        """Add a Scan, which runs `body`, and return the names of its results."""
        found = tuple(self.fresh("Scan") for _ in range(results))
        self.nodes.append(Node("Scan", tuple(inputs), found, dict(attributes), body))
        return found

    def read(self, outputs: Iterable[str]) -> tuple[list[Node], set[str]]:
        """Return the nodes that the outputs need, and all the names that those and their bodies read."""
        needed, kept = set(outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                kept.append(node)
                needed.update(node.inputs)
                if node.body is not None:
                    needed |= node.body.read(node.body.outputs)[1]
        return kept[::-1], needed


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
    """Adds to a graph what a program computes; raises a UserError for a primitive that has no rule.

    Args:
      graph: what is added to.
      known: results that are there already, such as the inputs.
      subject: what is exported, for messages.
      rules: how each primitive is computed, by its name.
      fuse: what several equations have one operation for, before the rules.
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

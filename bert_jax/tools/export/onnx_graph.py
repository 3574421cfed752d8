"""An ONNX graph while it is built: nodes that are there once, constants by content, sizes as expressions.

Nodes that nothing reads are left out at the end, so whoever adds nodes may add a better form of what is already there.
"""

import ast
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.tools.export.equations import Size, Value

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

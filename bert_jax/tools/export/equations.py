"""A traced function as one flat list of equations, with everything computed that depends on constants alone.

The function of a model is traced for rows whose number and length are symbols. What it calls is written out in place of
the call, a scan over a known number of steps too, and names of values to keep, layouts and barriers are left out. What
remains is what another runtime has to compute from the inputs.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from bert_jax.tools.export.function import ModelFunction

Size = Any
"""A size of an axis: an int, or an expression of symbols."""


@dataclasses.dataclass(eq=False)
class Value:
    """An array of the program."""

    shape: tuple[Size, ...]
    dtype: np.dtype[Any]
    array: np.ndarray[Any, Any] | None = None
    """Of a constant. An axis of size 1 stands for one of any size, as in broadcasting."""
    of: "Equation | None" = None
    """What computes it; None for inputs and constants."""
    name: str = ""
    """Of an input, or of the parameter that a constant comes from."""

    def scalar(self) -> float | None:
        """Return the number that every element of a constant is, or None."""
        if self.array is None or self.array.size != 1:
            return None
        return self.array.reshape(()).item()


@dataclasses.dataclass(eq=False)
class Equation:
    """outputs = primitive(inputs)."""

    primitive: str
    params: dict[str, Any]
    inputs: list[Value]
    outputs: list[Value]
    body: "Program | None" = None
    """One step of a scan: its inputs are the carried values and one entry of each scanned array."""


@dataclasses.dataclass(eq=False)
class Program:
    """Equations in an order in which they can be computed."""

    inputs: list[Value]
    equations: list[Equation]
    outputs: list[Value]


def traced(function: ModelFunction) -> Program:
    """Return the function of a model as a program, whose outputs are in the order of `function.outputs`."""
    arguments = dict(zip(function.inputs, function.arguments(), strict=True))
    params, structure = jax.tree_util.tree_flatten_with_path(function.params)
    shapes = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for _, leaf in params])
    closed, found = jax.make_jaxpr(function.of_params, return_shape=True)(shapes, arguments)
    inputs = {name: Value(tuple(each.shape), np.dtype(each.dtype), name=name) for name, each in arguments.items()}
    constants = [dataclasses.replace(_constant(leaf), name=_path(path)) for path, leaf in params]
    flat = _Flat()
    # JAX orders the entries of a dict by name.
    given = [*constants, *(inputs[name] for name in sorted(inputs))]
    results = dict(zip(sorted(found), flat.run(closed.jaxpr, map(_constant, closed.consts), given), strict=True))
    return Program(list(inputs.values()), flat.equations, [results[name] for name in function.outputs])


def _path(path: Any) -> str:
    return ".".join(str(getattr(key, "key", key)) for key in path)


SAME = {  # primitives whose results are their inputs
    *("name", "stop_gradient", "copy", "copy_p", "sharding_constraint", "layout_constraint", "mesh_cast", "pvary"),
    "optimization_barrier",
}
CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # names of the parameter that holds what is called
MOST_STEPS = 256  # of a scan that is written out


class _Flat:
    """Writes equations out, one after the other."""

    def __init__(self) -> None:
        self.equations: list[Equation] = []

    def run(self, jaxpr: Any, consts: Iterable[Value], arguments: Iterable[Value]) -> list[Value]:
        """Write out the equations of a jaxpr and return its results."""
        known: dict[Any, Value] = {}
        known.update(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, arguments, strict=True))

        def value(atom: Any) -> Value:
            return _constant(atom.val, atom.aval.dtype) if hasattr(atom, "val") else known[atom]

        for equation in jaxpr.eqns:
            results = self._results(equation, [value(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def _results(self, equation: Any, inputs: list[Value]) -> list[Value]:
        name, params = equation.primitive.name, equation.params
        if name in SAME:
            return inputs
        if name == "scan":
            return self._scan(equation, inputs)
        inner = next((params[key] for key in CALLS if key in params), None)
        if inner is not None and name != "while":
            return self.run(getattr(inner, "jaxpr", inner), map(_constant, getattr(inner, "consts", ())), inputs)
        if all(each.array is not None for each in inputs):
            known = _computed(equation, inputs)
            if known is not None:
                return known
        if name == "convert_element_type" and inputs[0].dtype == params["new_dtype"]:
            return inputs
        return self._added(name, params, inputs, equation.outvars)

    def _added(self, name: str, params: dict[str, Any], inputs: list[Value], outvars: Any) -> list[Value]:
        added = Equation(name, params, inputs, [])
        added.outputs = [Value(tuple(var.aval.shape), np.dtype(var.aval.dtype), of=added) for var in outvars]
        self.equations.append(added)
        return added.outputs

    def _scan(self, equation: Any, inputs: list[Value]) -> list[Value]:
        params, closed, length = equation.params, equation.params["jaxpr"], equation.params["length"]
        consts, carried = params["num_consts"], params["num_consts"] + params["num_carry"]
        if isinstance(length, int) and length <= MOST_STEPS:
            return self._written_out(params, closed, inputs)
        body, flat = Program([], [], []), _Flat()
        body.inputs = [Value(tuple(var.aval.shape), np.dtype(var.aval.dtype)) for var in closed.jaxpr.invars[consts:]]
        body.outputs = flat.run(closed.jaxpr, map(_constant, closed.consts), [*inputs[:consts], *body.inputs])
        body.equations = flat.equations
        results = self._added("scan", params, inputs[consts:], equation.outvars)
        self.equations[-1].body = body
        self.equations[-1].params = {"carried": carried - consts, "reverse": params["reverse"], "length": length}
        return results

    def _written_out(self, params: dict[str, Any], closed: Any, inputs: list[Value]) -> list[Value]:
        consts, carried = params["num_consts"], params["num_consts"] + params["num_carry"]
        fixed, state, scanned = inputs[:consts], inputs[consts:carried], inputs[carried:]
        steps, collected = range(params["length"]), {}
        for step in reversed(steps) if params["reverse"] else steps:
            entries = [self._entry(each, step) for each in scanned]
            found = self.run(closed.jaxpr, map(_constant, closed.consts), [*fixed, *state, *entries])
            state, collected[step] = found[: len(state)], found[len(state) :]
        columns = zip(*(collected[step] for step in steps), strict=True)
        return [*state, *(self._stacked(list(column)) for column in columns)]

    def _entry(self, values: Value, place: int) -> Value:
        """Return one entry along the first axis."""
        shape = values.shape[1:]
        if values.array is not None:
            array = values.array[place if len(values.array) > 1 else 0]
            return Value(shape, values.dtype, array, name=f"{values.name}.{place}" if values.name else "")
        return self._one("entry", {"place": place}, [values], shape, values.dtype)

    def _stacked(self, entries: list[Value]) -> Value:
        first = entries[0]
        shape = (len(entries), *first.shape)
        arrays = [each.array for each in entries if each.array is not None]
        if len(arrays) == len(entries):
            return Value(shape, first.dtype, np.stack(np.broadcast_arrays(*arrays)))
        return self._one("stack", {"axis": 0}, entries, shape, first.dtype)

    def _one(self, name: str, params: dict[str, Any], inputs: list[Value], shape: Any, dtype: Any) -> Value:
        added = Equation(name, params, inputs, [])
        added.outputs = [Value(tuple(shape), np.dtype(dtype), of=added)]
        self.equations.append(added)
        return added.outputs[0]


def _constant(array: Any, dtype: Any = None) -> Value:
    found = np.asarray(array) if dtype is None else np.asarray(array, dtype)
    return Value(found.shape, found.dtype, found)


VIEWS = ("split", "squeeze", "reshape", "transpose", "broadcast_in_dim", "convert_element_type")


def _computed(equation: Any, inputs: list[Value]) -> list[Value] | None:
    """Return the results of an equation of constants, or None if they depend on symbols."""
    name, outvars = equation.primitive.name, equation.outvars
    shapes = [tuple(var.aval.shape) for var in outvars]
    arrays = [each.array for each in inputs if each.array is not None]
    label = inputs[0].name if inputs else ""
    labels = [f"{label}.{index}" if label and len(outvars) > 1 else label for index in range(len(outvars))]
    found: Any = None
    if name == "broadcast_in_dim":
        places = dict(zip(equation.params["broadcast_dimensions"], arrays[0].shape, strict=True))
        found = [arrays[0].reshape([places.get(axis, 1) for axis in range(len(shapes[0]))])]
    elif all(map(_known, shapes)) and all(_known(each.shape) for each in inputs) and _known(_sizes(equation.params)):
        whole = [np.broadcast_to(array, each.shape) for array, each in zip(arrays, inputs, strict=True)]
        found = _of_views(name, equation.params, whole) if name in VIEWS else None
        if found is None:
            with jax.ensure_compile_time_eval():
                found = equation.primitive.bind(*whole, **equation.params)
            found = found if equation.primitive.multiple_results else [found]
    elif name in ELEMENTWISE:
        found = [ELEMENTWISE[name](*arrays)]
    elif name == "convert_element_type":
        found = [arrays[0]]
    elif name == "select_n" and len(arrays) == 3:
        found = [np.where(arrays[0], arrays[2], arrays[1])]
    if found is None:
        return None
    return [
        Value(shape, np.dtype(var.aval.dtype), np.asarray(array, var.aval.dtype), name=text)
        for shape, var, array, text in zip(shapes, outvars, found, labels, strict=True)
    ]


# What constants may go through though their size is a symbol, such as the types of tokens that are all 0.
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "neg": np.negative},
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater},
    **{"ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or, "abs": np.abs},
}


def _of_views(name: str, params: dict[str, Any], arrays: list[Any]) -> list[Any] | None:
    array = arrays[0]
    if name == "split":
        return np.split(array, np.cumsum(params["sizes"])[:-1], params["axis"])
    if name == "squeeze":
        return [np.squeeze(array, tuple(params["dimensions"]))]
    if name == "reshape":
        return [array.reshape(params["new_sizes"])]
    if name == "transpose":
        return [array.transpose(params["permutation"])]
    return [array.astype(params["new_dtype"])] if name == "convert_element_type" else None


def _known(sizes: Iterable[Size]) -> bool:
    return all(isinstance(size, (int, np.integer)) for size in sizes)


def _sizes(params: dict[str, Any]) -> list[Size]:
    found = [params["dim"]] if "dim" in params else []
    return [*found, *params.get("slice_sizes", ()), *params.get("shape", ())]


def count(sizes: Iterable[Size]) -> Size:
    """Return the number of elements of an array of such sizes."""
    return math.prod(sizes, start=1)

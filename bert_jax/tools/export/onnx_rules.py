"""Primitives of JAX that work on elements, or sum them, in ONNX."""

import dataclasses
from typing import Any

import numpy as np

from bert_jax.tools.export.equations import Equation, count
from bert_jax.tools.export.onnx_graph import type_of
from bert_jax.tools.export.onnx_translation import Rule, Tensor, Translation, arithmetic, cast


def _elementwise(operation: str) -> Rule:
    def rule(t: Translation, equation: Equation) -> Tensor:
        tensors = t.tensors(equation)
        if len(tensors) == 2:
            for value, other, flipped in ((0, 1, False), (1, 0, True)):
                flat, constant = tensors[value].flat, equation.inputs[other].array
                if flat is not None and constant is not None:
                    merged = _of_last_axes(constant, tensors[value], flat)
                    if merged is not None:
                        pair = [flat, Tensor(t.graph.constant(merged), merged.shape)]
                        found = arithmetic(t, operation, *(pair[::-1] if flipped else pair))
                        return dataclasses.replace(t.reshape(found, tensors[value].dims), flat=found)
        return arithmetic(t, operation, *t.operands(equation))

    return rule


def _of_last_axes(constant: Any, tensor: Tensor, flat: Tensor) -> Any:
    """Return a constant that broadcasts to `tensor` in the form that broadcasts to `flat`, or None."""
    last = tensor.dims[len(flat.dims) - 1 :]
    if constant.size == 1:
        return constant.reshape(())
    array = constant.reshape((1,) * (len(tensor.dims) - constant.ndim) + constant.shape)
    fits = array.shape[-len(last) :] == tuple(last) and count(array.shape) == count(last)
    return array.reshape(-1) if fits else None


def _comparison(operation: str, negated: bool = False) -> Rule:
    def rule(t: Translation, equation: Equation) -> Tensor:
        tensors = t.operands(equation)
        if equation.inputs[0].dtype == bool:
            assert operation == "Equal", "truth values have no order"
        found = arithmetic(t, operation, *tensors)
        return arithmetic(t, "Not", found) if negated else found

    return rule


def _logical(operation: str) -> Rule:
    def rule(t: Translation, equation: Equation) -> Tensor:
        bits = equation.inputs[0].dtype != bool
        name = {"Not": "BitwiseNot"}.get(operation, f"Bitwise{operation}") if bits else operation
        return arithmetic(t, name, *t.tensors(equation))

    return rule


def _maximum(operation: str, of_truth: str) -> Rule:
    elementwise = _elementwise(operation)

    def rule(t: Translation, equation: Equation) -> "Tensor | list[Tensor]":
        if equation.inputs[0].dtype == bool:
            return arithmetic(t, of_truth, *t.tensors(equation))
        return elementwise(t, equation)

    return rule


def _with_number(first: str, second: str, number: float, number_first: bool = False, last: str = "") -> Rule:
    """last(second(number, first(x))), or last(second(first(x), number)); an operation without a name does nothing."""

    def rule(t: Translation, equation: Equation) -> Tensor:
        x = t.tensor(equation.inputs[0])
        x = arithmetic(t, first, x) if first else x
        constant = Tensor(t.number(number, equation.outputs[0]), ())
        found = arithmetic(t, second, *((constant, x) if number_first else (x, constant)))
        return arithmetic(t, last, found) if last else found

    return rule


def _chained(*operations: str) -> Rule:
    def rule(t: Translation, equation: Equation) -> Tensor:
        found = t.tensor(equation.inputs[0])
        for operation in operations:
            found = arithmetic(t, operation, found)
        return found

    return rule


def _integer_pow(t: Translation, equation: Equation) -> Tensor:
    x, power = t.tensor(equation.inputs[0]), equation.params.get("y", 2)
    if 0 < power < 4:
        found = x
        for _ in range(power - 1):
            found = arithmetic(t, "Mul", found, x)
        return found
    return arithmetic(t, "Pow", x, Tensor(t.number(power, equation.outputs[0]), ()))


def _select(t: Translation, equation: Equation) -> Tensor:
    condition, otherwise, chosen = t.operands(equation)
    if equation.outputs[0].dtype != bool:
        return arithmetic(t, "Where", condition, chosen, otherwise)
    kept = arithmetic(t, "And", arithmetic(t, "Not", condition), otherwise)
    return arithmetic(t, "Or", arithmetic(t, "And", condition, chosen), kept)


def _clamp(t: Translation, equation: Equation) -> Tensor:
    least, x, most = t.tensors(equation)
    return arithmetic(t, "Min", arithmetic(t, "Max", x, least), most)


def _remainder(t: Translation, equation: Equation) -> Tensor:
    return arithmetic(t, "Mod", *t.tensors(equation), fmod=1)  # the sign is that of the dividend


def _shift_right(t: Translation, equation: Equation) -> Tensor:
    """A number that is shifted is at least -1, as labels are; what is left is rounded down."""
    x, (places,) = t.tensor(equation.inputs[0]), [equation.inputs[1].scalar()]
    assert places is not None, "the number of places is known"
    divisor = Tensor(t.number(2 ** int(places), equation.inputs[0]), ())
    rest = arithmetic(t, "Mod", x, divisor)
    return arithmetic(t, "Div", arithmetic(t, "Sub", x, rest), divisor)


def _convert(t: Translation, equation: Equation) -> Tensor:
    before, after = type_of(equation.inputs[0].dtype), type_of(equation.outputs[0].dtype)
    tensor = t.tensor(equation.inputs[0])
    return tensor if before == after else cast(t, tensor, after)


def _reduction(operation: str, of_truth: bool = False) -> Rule:
    def rule(t: Translation, equation: Equation) -> Tensor:
        value, axes = equation.inputs[0], tuple(equation.params["axes"])
        summed = t.whole(value, axes) if operation in ("ReduceSum", "ReduceProd") else t.tensor(value)
        summed = cast(t, summed, np.int64) if of_truth else summed
        name = t.graph.node(operation, summed.name, t.graph.integers(*axes), keepdims=0)
        dims = tuple(size for axis, size in enumerate(summed.dims) if axis not in axes)
        if of_truth:
            return cast(t, Tensor(name, dims), bool)
        return Tensor(name, dims, reduced=(operation, summed, axes))

    return rule


def _argument(operation: str) -> Rule:
    def rule(t: Translation, equation: Equation) -> Tensor:
        value, (axis,) = equation.inputs[0], equation.params["axes"]
        tensor = t.whole(value, [axis])
        tensor = cast(t, tensor, np.float32) if value.dtype.kind != "f" else tensor  # small numbers, or truth
        dims = tuple(size for place, size in enumerate(tensor.dims) if place != axis)
        return Tensor(t.graph.node(operation, tensor.name, axis=axis, keepdims=0), dims)

    return rule


def _cumulative_sum(t: Translation, equation: Equation) -> Tensor:
    axis, reverse = equation.params["axis"], int(equation.params["reverse"])
    tensor = t.whole(equation.inputs[0], [axis])
    place = t.graph.constant(np.asarray(axis, np.int64))
    return Tensor(t.graph.node("CumSum", tensor.name, place, reverse=reverse), tensor.dims)


_PAIRS = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "add_any": "Add"}
_SINGLE = {
    **{"neg": "Neg", "exp": "Exp", "log": "Log", "tanh": "Tanh", "erf": "Erf", "sqrt": "Sqrt", "abs": "Abs"},
    **{"logistic": "Sigmoid", "sin": "Sin", "cos": "Cos", "sign": "Sign", "floor": "Floor", "ceil": "Ceil"},
}
_COMPARED = {"gt": "Greater", "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual", "eq": "Equal"}

ARITHMETIC: dict[str, Rule] = {
    **{name: _elementwise(operation) for name, operation in _PAIRS.items()},
    **{name: _chained(operation) for name, operation in _SINGLE.items()},
    **{name: _comparison(operation) for name, operation in _COMPARED.items()},
    "ne": _comparison("Equal", negated=True),
    "max": _maximum("Max", "Or"),
    "min": _maximum("Min", "And"),
    "and": _logical("And"),
    "or": _logical("Or"),
    "xor": _logical("Xor"),
    "not": _logical("Not"),
    "rsqrt": _chained("Sqrt", "Reciprocal"),
    "erfc": _with_number("Erf", "Sub", 1, number_first=True),
    "expm1": _with_number("Exp", "Sub", 1),
    "log1p": _with_number("", "Add", 1, last="Log"),
    "integer_pow": _integer_pow,
    "square": _integer_pow,
    "select_n": _select,
    "clamp": _clamp,
    "rem": _remainder,
    "shift_right_arithmetic": _shift_right,
    "convert_element_type": _convert,
    "reduce_sum": _reduction("ReduceSum"),
    "reduce_max": _reduction("ReduceMax"),
    "reduce_min": _reduction("ReduceMin"),
    "reduce_prod": _reduction("ReduceProd"),
    "reduce_or": _reduction("ReduceMax", of_truth=True),
    "reduce_and": _reduction("ReduceMin", of_truth=True),
    "argmax": _argument("ArgMax"),
    "argmin": _argument("ArgMin"),
    "cumsum": _cumulative_sum,
}

"""Several equations of JAX that are one operation of ONNX: norms, softmax, GELU, and look-ups written as products.

Each function gets the last equation. The results of the others are left out of the file if nothing else reads them.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from bert_jax.tools.export.equations import Equation, Value
from bert_jax.tools.export.onnx_graph import Tensor, Translation, arithmetic


def fused(t: Translation, equation: Equation) -> Tensor | None:
    """Return the result of the equation by one operation for it and some before it; None: there is none."""
    for fusion in _FUSIONS.get(equation.primitive, ()):
        found = fusion(t, equation)
        if found is not None:
            return found
    return None


def _inputs(value: Value, *primitives: str) -> list[Value] | None:
    """Return what a value was computed from, if by one of these primitives."""
    return value.of.inputs if value.of is not None and value.of.primitive in primitives else None


def _orders(value: Value, primitive: str) -> Iterator[tuple[Value, Value]]:
    """Yield both orders of the operands of a sum or a product; nothing if the value is none."""
    found = _inputs(value, primitive)
    if found is not None:
        yield found[0], found[1]
        yield found[1], found[0]


def _with_number(value: Value, primitive: str, number: float) -> Value | None:
    """Return x of x + number or x · number."""
    for x, constant in _orders(value, primitive):
        if _is(constant, number):
            return x
    return None


def _is(value: Value, number: float) -> bool:
    found = value.scalar()
    return found is not None and math.isclose(found, number, rel_tol=1e-6)


def _reduced(value: Value, primitive: str) -> tuple[Value, int] | None:
    """Return x and the axis of a reduction along one axis, which is still there with size 1."""
    found = _inputs(value, "broadcast_in_dim", "reshape")
    reduction = found[0].of if found is not None else None
    if reduction is None or reduction.primitive != primitive or len(reduction.params["axes"]) != 1:
        return None
    (axis,) = reduction.params["axes"]
    shape = reduction.inputs[0].shape
    kept = (*shape[:axis], 1, *shape[axis + 1 :])
    return (reduction.inputs[0], axis) if value.shape == kept else None


def _mean(value: Value) -> Value | None:
    """Return x of the mean of x [..., H] over the last axis."""
    found = _inputs(value, "div")
    if found is None:
        return None
    summed = _reduced(found[0], "reduce_sum")
    if summed is None or summed[1] != len(summed[0].shape) - 1 or not _is(found[1], summed[0].shape[-1]):
        return None
    return summed[0]


def _square(value: Value) -> Value | None:
    power = value.of is not None and (value.of.primitive == "square" or value.of.params.get("y") == 2)
    found = _inputs(value, "square", "integer_pow") if power else _inputs(value, "mul")
    if found is None or (len(found) == 2 and found[0] is not found[1]):
        return None
    return found[0]


def _normed(value: Value) -> tuple[Value, float] | None:
    """Return x and epsilon of x / √(mean(x²) + epsilon)."""
    for x, inverse in _orders(value, "mul"):
        root = _inputs(inverse, "rsqrt")
        if root is None:
            continue
        for variance, epsilon in _orders(root[0], "add"):
            squares = _mean(variance)
            number = epsilon.scalar()
            if squares is not None and number is not None and _square(squares) is x:
                return x, number
    return None


def _centred(value: Value) -> Value | None:
    """Return x of x - mean(x)."""
    found = _inputs(value, "sub")
    return found[0] if found is not None and _mean(found[1]) is found[0] else None


def _row(value: Value) -> np.ndarray | None:
    """Return a constant [H] that is broadcast along the last axis."""
    array = value.array
    return array.reshape(-1) if array is not None and array.ndim and array.shape[-1] == array.size > 1 else None


def _scaled_norm(value: Value) -> tuple[Value, Value, float] | None:
    """Return x - mean or x, the scale [H] and epsilon of a norm."""
    for normed, scale in _orders(value, "mul"):
        found = _normed(normed)
        if found is not None and _row(scale) is not None:
            return found[0], scale, found[1]
    return None


def _norm(t: Translation, equation: Equation) -> Tensor | None:
    """Layer normalization without a bias, or the norm by the root mean square."""
    found = _scaled_norm(equation.outputs[0])
    if found is None:
        return None
    x, scale, epsilon = found
    whole = _centred(x)
    if whole is not None:
        return _layer_norm(t, whole, scale, None, epsilon)
    tensor = t.whole(x)
    power = t.graph.node("Pow", tensor.name, t.number(2, x))
    mean = t.graph.node("ReduceMean", power, t.graph.integers(-1), keepdims=1)
    root = t.graph.node("Sqrt", t.graph.node("Add", mean, t.number(epsilon, x)))
    return Tensor(
        t.graph.node("Mul", t.graph.node("Div", tensor.name, root), t.graph.constant(_row(scale), scale.name)),
        tensor.dims,
    )


def _layer_norm(t: Translation, x: Value, scale: Value, bias: Value | None, epsilon: float) -> Tensor:
    tensor, rows = t.whole(x), [scale] if bias is None else [scale, bias]
    constants = [t.graph.constant(_row(row), row.name) for row in rows]
    name = t.graph.node("LayerNormalization", tensor.name, *constants, axis=-1, epsilon=epsilon)
    return Tensor(name, tensor.dims)


def _norm_with_bias(t: Translation, equation: Equation) -> Tensor | None:
    for scaled, bias in _orders(equation.outputs[0], "add"):
        found = _scaled_norm(scaled)
        if found is not None and _row(bias) is not None:
            x = _centred(found[0])
            return None if x is None else _layer_norm(t, x, found[1], bias, found[2])
    return None


def _softmax(t: Translation, equation: Equation) -> Tensor | None:
    above, below = equation.inputs
    exponent, summed = _inputs(above, "exp"), _reduced(below, "reduce_sum")
    if exponent is None or summed is None or summed[0] is not above:
        return None
    shifted = _inputs(exponent[0], "sub")
    if shifted is None:
        return None
    x, largest = shifted
    found = _inputs(largest, "broadcast_in_dim", "reshape")
    reduction = found[0] if found is not None else largest
    for least, other in _orders(reduction, "max"):
        if least.scalar() == -math.inf:
            reduction = other
    kept = _inputs(reduction, "reduce_max")
    if kept is None or kept[0] is not x or reduction.of is None or reduction.of.params["axes"] != (summed[1],):
        return None
    tensor = t.whole(x, [summed[1]])
    return Tensor(t.graph.node("Softmax", tensor.name, axis=summed[1]), tensor.dims)


def _gelu(t: Translation, equation: Equation) -> Tensor | None:
    """0.5 · x · erfc(-x / √2)."""
    for half, other in _orders(equation.outputs[0], "mul"):
        x, error = _with_number(half, "mul", 0.5), _inputs(other, "erfc")
        scaled = None if error is None else _with_number(error[0], "mul", math.sqrt(0.5))
        negative = None if scaled is None else _inputs(scaled, "neg")
        if x is not None and negative is not None and negative[0] is x:
            return arithmetic(t, "Gelu", t.tensor(x), approximate="none")  # runtimes look for the word
    return None


def _gelu_tanh(t: Translation, equation: Equation) -> Tensor | None:
    """x · 0.5 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))."""
    for x, other in _orders(equation.outputs[0], "mul"):
        one_and = _with_number(other, "mul", 0.5)
        curve = None if one_and is None else _with_number(one_and, "add", 1.0)
        inside = None if curve is None else _inputs(curve, "tanh")
        sum_ = None if inside is None else _with_number(inside[0], "mul", math.sqrt(2 / math.pi))
        for own, cubic in [] if sum_ is None else _orders(sum_, "add"):
            cube = _with_number(cubic, "mul", 0.044715)
            power = None if cube is None else _inputs(cube, "integer_pow")
            if own is x and power is not None and power[0] is x:
                return arithmetic(t, "Gelu", t.tensor(x), approximate="tanh")
    return None


def _look_up(t: Translation, equation: Equation) -> Tensor | None:
    """The product of one_hot(ids) with a table."""
    ids, table = equation.inputs
    (left, right), batch = equation.params["dimension_numbers"]
    array = table.array
    if array is None or any(batch) or tuple(right) != (0,) or tuple(left) != (len(ids.shape) - 1,):
        return None
    truth = _inputs(ids, "convert_element_type")
    for places, numbers in [] if truth is None else _orders(truth[0], "eq"):
        counted = numbers.array is not None and numbers.array.ravel().tolist() == list(range(len(array)))
        found = _inputs(places, "broadcast_in_dim", "reshape")
        if counted and found is not None and places.shape[-1] == 1:
            index = t.tensor(found[0])
            name = t.graph.node("Gather", t.graph.constant(array, table.name), index.name, axis=0)
            return Tensor(name, (*index.dims, *array.shape[1:]))
    return None


_FUSIONS: dict[str, tuple[Callable[[Translation, Equation], Tensor | None], ...]] = {
    "add": (_norm_with_bias,),
    "mul": (_norm, _gelu, _gelu_tanh),
    "div": (_softmax,),
    "dot_general": (_look_up,),
}

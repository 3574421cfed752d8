"""The primitives of JAX in ONNX: one rule for each, by its name.

Rules for elements and their sums come first, then those that move elements or repeat a program, then matrix products
and look-ups.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.tools.export.equations import Equation, Size, Value, count
from bert_jax.tools.export.onnx_graph import Graph, Rule, Tensor, Translation, arithmetic, cast, same, type_of


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


def _broadcast_in_dim(t: Translation, equation: Equation) -> Tensor:
    tensor, places = t.tensor(equation.inputs[0]), equation.params["broadcast_dimensions"]
    new = [axis for axis in range(len(equation.outputs[0].shape)) if axis not in places]
    if tensor.reduced is not None and tuple(new) == tuple(sorted(tensor.reduced[2])):
        operation, operand, axes = tensor.reduced
        name = t.graph.node(operation, operand.name, t.graph.integers(*axes), keepdims=1)
        return Tensor(name, tuple(1 if axis in axes else size for axis, size in enumerate(operand.dims)))
    return t.with_ones(tensor, new)


def _reshape(t: Translation, equation: Equation) -> Tensor:
    value, shape = equation.inputs[0], equation.outputs[0].shape
    tensor = t.tensor(value)
    if same([size for size in value.shape if size != 1], [size for size in shape if size != 1]):
        sizes = (own for own, size in zip(tensor.dims, value.shape, strict=True) if size != 1)
        return t.reshape(tensor, [1 if isinstance(size, int) and size == 1 else next(sizes) for size in shape])
    return t.reshape(t.whole(value), shape)


def _transpose(t: Translation, equation: Equation) -> Tensor:
    return t.transpose(t.tensor(equation.inputs[0]), equation.params["permutation"])


def _squeeze(t: Translation, equation: Equation) -> Tensor:
    return t.without(t.tensor(equation.inputs[0]), tuple(equation.params["dimensions"]))


def _concatenate(t: Translation, equation: Equation) -> Tensor:
    shape, axis = equation.outputs[0].shape, equation.params["dimension"]
    parts = [t.whole(value) for value in equation.inputs if not same(value.shape[axis : axis + 1], (0,))]
    return Tensor(t.graph.node("Concat", *(part.name for part in parts), axis=axis), shape)


def _stack(t: Translation, equation: Equation) -> Tensor:
    axis = equation.params["axis"]
    parts = [t.with_ones(t.whole(value), [axis]) for value in equation.inputs]
    return Tensor(t.graph.node("Concat", *(part.name for part in parts), axis=axis), equation.outputs[0].shape)


def _entry(t: Translation, equation: Equation) -> Tensor:
    tensor = t.whole(equation.inputs[0], [0])
    place = t.graph.constant(np.asarray(equation.params["place"], np.int64))
    return Tensor(t.graph.node("Gather", tensor.name, place, axis=0), tensor.dims[1:])


def _split(t: Translation, equation: Equation) -> list[Tensor]:
    sizes, axis = equation.params["sizes"], equation.params["axis"]
    tensor = t.whole(equation.inputs[0], [axis])
    names = t.graph.nodes_of("Split", (tensor.name, t.graph.sizes(sizes)), len(sizes), {"axis": axis})
    return [
        Tensor(name, tuple(size if place == axis else own for place, own in enumerate(tensor.dims)))
        for name, size in zip(names, sizes, strict=True)
    ]


def _iota(t: Translation, equation: Equation) -> Tensor:
    shape, axis, dtype = equation.outputs[0].shape, equation.params["dimension"], equation.outputs[0].dtype
    zero, one = (t.graph.constant(np.asarray(number, np.int64)) for number in (0, 1))
    numbers = Tensor(t.graph.root.node("Range", zero, t.graph.scalar(shape[axis]), one), (shape[axis],))
    numbers = cast(t, numbers, dtype) if dtype.kind == "f" else numbers
    return t.with_ones(numbers, [place for place in range(len(shape)) if place != axis])


def _size(t: Translation, equation: Equation) -> Tensor:
    return Tensor(t.graph.scalar(equation.params["dim"]), ())


def _reverse(t: Translation, equation: Equation) -> Tensor:
    axes = equation.params["dimensions"]
    tensor = t.whole(equation.inputs[0], axes)
    starts, ends = t.graph.integers(*[-1] * len(axes)), t.graph.integers(*[np.iinfo(np.int64).min] * len(axes))
    return t.sliced(tensor, axes, starts, ends, [tensor.dims[axis] for axis in axes], -1)


def _slice(t: Translation, equation: Equation) -> Tensor:
    value, params = equation.inputs[0], equation.params
    starts, ends, steps = params["start_indices"], params["limit_indices"], params["strides"]
    axes = [
        axis
        for axis, size in enumerate(value.shape)
        if not same((starts[axis], ends[axis]), (0, size)) or (steps is not None and steps[axis] != 1)
    ]
    found, graph = t.whole(value, axes), t.graph
    for axis in axes:
        size, step = equation.outputs[0].shape[axis], 1 if steps is None else steps[axis]
        found = t.sliced(found, [axis], graph.size(starts[axis]), graph.size(ends[axis]), [size], step)
    return found


def _dynamic_slice(t: Translation, equation: Equation) -> Tensor:
    value, starts = equation.inputs[0], equation.inputs[1:]
    sizes = equation.outputs[0].shape
    axes = [axis for axis, size in enumerate(sizes) if not same((size,), value.shape[axis : axis + 1])]
    found = t.whole(value, axes)
    for axis in axes:
        start = t.reshape(t.tensor(starts[axis]), (1,))
        last = t.graph.node("Sub", t.graph.size(value.shape[axis]), t.graph.size(sizes[axis]))
        first = t.graph.node("Max", t.graph.node("Min", start.name, last), t.graph.integers(0))
        end = t.graph.node("Add", first, t.graph.size(sizes[axis]))
        found = t.sliced(found, [axis], first, end, [sizes[axis]])
    return found


def _pad(t: Translation, equation: Equation) -> Tensor:
    value, (filling,) = equation.inputs[0], equation.inputs[1:]
    edges, shape = equation.params["padding_config"], equation.outputs[0].shape
    axes = [axis for axis, edge in enumerate(edges) if not same(edge[:2], (0, 0))]
    assert all(same(edge[2:], (0,)) for edge in edges), "nothing is put between elements"
    tensor = t.whole(value, axes)
    dims = tuple(shape[axis] if axis in axes else size for axis, size in enumerate(tensor.dims))
    widths = t.graph.sizes([edges[axis][end] for end in (0, 1) for axis in axes])
    truth = value.dtype == bool
    given = cast(t, tensor, np.int64) if truth else tensor
    constant = cast(t, t.tensor(filling), np.int64) if truth else t.tensor(filling)
    name = t.graph.node("Pad", given.name, widths, constant.name, t.graph.integers(*axes), mode="constant")
    return cast(t, Tensor(name, dims), bool) if truth else Tensor(name, dims)


def _sort(t: Translation, equation: Equation) -> list[Tensor]:
    """TopK takes equal keys in their order, so it is stable."""
    axis, graph = equation.params["dimension"], t.graph
    assert equation.params["num_keys"] == 1, "one key"
    key, *others = (t.whole(value) for value in equation.inputs)
    number = graph.size(equation.inputs[0].shape[axis])
    truth = equation.inputs[0].dtype == bool
    given = cast(t, key, np.int64) if truth else key
    values, places = graph.nodes_of("TopK", (given.name, number), 2, {"axis": axis, "largest": 0, "sorted": 1})
    ordered = cast(t, Tensor(values, key.dims), bool) if truth else Tensor(values, key.dims)
    return [
        ordered,
        *(Tensor(graph.node("GatherElements", each.name, places, axis=axis), each.dims) for each in others),
    ]


def _scan(t: Translation, equation: Equation) -> list[Tensor]:
    body, carried = equation.body, equation.params["carried"]
    assert body is not None, "a scan has a body"
    inside = Graph((), t.graph)
    inner = Translation(inside, dict(t.known), t.subject, t.rules, t.fuse)
    names = []
    for value in body.inputs:
        value.name = t.graph.fresh("step")
        names.append(value.name)
        inside.inputs[value.name] = value
        inner.known[value] = Tensor(value.name, value.shape)
    inner.run(body)
    # Results of a body are its own, and each is another one.
    inside.outputs = tuple(inside.copy(inner.whole(value).name) for value in body.outputs)
    inside.values = tuple(body.outputs)
    given = [t.whole(value) for value in equation.inputs]
    scanned, collected = len(body.inputs) - carried, len(body.outputs) - carried
    back = int(equation.params["reverse"])
    attributes = {
        "num_scan_inputs": scanned,
        "scan_input_directions": [back] * scanned,
        "scan_output_directions": [back] * collected,
    }
    results = t.graph.loop(inside, [each.name for each in given], len(body.outputs), **attributes)
    return [Tensor(name, value.shape) for name, value in zip(results, equation.outputs, strict=True)]


def _dot_general(t: Translation, equation: Equation) -> Tensor:
    (left, right), (left_batch, right_batch) = equation.params["dimension_numbers"]
    first, second = equation.inputs
    if not left_batch and second.array is not None:
        return _by_weights(t, first, second, tuple(left), tuple(right))
    if not left_batch and first.array is not None:
        found = _by_weights(t, second, first, tuple(right), tuple(left))
        own = len(second.shape) - len(right)
        return t.transpose(found, [*range(own, len(found.dims)), *range(own)])
    one = _Operand(first, tuple(left_batch), tuple(left))
    other = _Operand(second, tuple(right_batch), tuple(right))
    axes = [*_batch(one), *one.axes("first"), *other.axes("second")]
    return min((_product(t, one, other, axes, swapped) for swapped in (False, True)), key=lambda found: found[0])[1]


def _by_weights(t: Translation, value: Value, weights: Value, contracted: Sequence[int], rows: Sequence[int]) -> Tensor:
    """Return the product of states and a constant: the axes of the states that are left, then those of the constant."""
    array = weights.array
    assert array is not None, "weights are known"
    x, kept = t.whole(value, contracted), [axis for axis in range(len(value.shape)) if axis not in contracted]
    outputs = [axis for axis in range(array.ndim) if axis not in rows]
    array = np.broadcast_to(array, weights.shape)
    x = t.transpose(x, [*kept, *contracted])
    sizes = count(array.shape[axis] for axis in rows), tuple(array.shape[axis] for axis in outputs)
    free = x.dims[: len(kept)]
    if len(contracted) != 1:
        x = t.reshape(x, (*free, sizes[0]))
    wide = count(sizes[1])
    if list(rows) == list(range(len(outputs), array.ndim)) and outputs and len(kept) > 1:
        # The rows of a table, such as that of the words, which is in the file once.
        matrix = t.graph.constant(array.reshape(wide, sizes[0]), weights.name)
        rows_of_x = t.reshape(x, (count(free), sizes[0]))
        name = t.graph.node("Gemm", rows_of_x.name, matrix, transB=1)
        flat = t.reshape(Tensor(name, (count(free), wide)), (*free, wide))
    else:
        matrix = t.graph.constant(array.transpose(*rows, *outputs).reshape(sizes[0], wide), weights.name)
        flat = Tensor(t.graph.node("MatMul", x.name, matrix), (*free, wide))
    found = t.reshape(flat, (*free, *sizes[1]))
    return dataclasses.replace(found, flat=flat) if len(sizes[1]) > 1 else found


@dataclasses.dataclass(frozen=True)
class _Operand:
    value: Value
    batch: tuple[int, ...]
    contracted: tuple[int, ...]

    @property
    def kept(self) -> list[int]:
        return [axis for axis in range(len(self.value.shape)) if axis not in (*self.batch, *self.contracted)]

    def axes(self, kind: str) -> list[tuple[str, int]]:
        """Names for the axes of its own, in their order."""
        return [(kind, place) for place in range(len(self.kept))]


def _batch(operand: _Operand) -> list[tuple[str, int]]:
    return [("batch", place) for place in range(len(operand.batch))]


def _product(
    t: Translation, one: _Operand, other: _Operand, axes: list[tuple[str, int]], swapped: bool
) -> tuple[int, Tensor]:
    """Return the cost of the changes of axes, and the product with these axes: one · other, or other · one."""
    left, right, kinds = (other, one, ("second", "first")) if swapped else (one, other, ("first", "second"))
    rows, columns = left.axes(kinds[0]), right.axes(kinds[1])
    # What an operand has beyond one axis of rows or columns counts as a batch that the other one broadcasts to.
    extra_rows, extra_columns = rows[:-1], columns[:-1]
    if extra_rows and extra_columns:
        raise UserError(f"{t.subject} multiplies arrays of {len(rows)} and {len(columns)} axes of their own")
    a, cost_a = _matrices(t, left, [*left.kept[:-1], *left.batch], left.kept[-1:], left.contracted)
    b, cost_b = _matrices(t, right, [*right.kept[:-1], *right.batch], right.contracted, right.kept[-1:])
    name = t.graph.node("MatMul", a.name, b.name)
    found_axes = [*extra_rows, *extra_columns, *_batch(left), *rows[-1:], *columns[-1:]]
    shape = _product_shape(a.dims, b.dims)
    found = Tensor(name, shape)
    if not rows:
        found = t.without(found, [len(shape) - 2])
    if not columns:
        found = t.without(found, [len(found.dims) - 1])
    ordered = t.transpose(found, [found_axes.index(axis) for axis in axes])
    return 2 * cost_a + 2 * cost_b + (ordered is not found), ordered


def _product_shape(a: tuple[Size, ...], b: tuple[Size, ...]) -> tuple[Size, ...]:
    longer, shorter = (a[:-2], b[:-2]) if len(a) >= len(b) else (b[:-2], a[:-2])
    shorter = (1,) * (len(longer) - len(shorter)) + tuple(shorter)
    batch = [own if not same((own,), (1,)) else other for own, other in zip(longer, shorter, strict=True)]
    return (*batch, a[-2], b[-1])


def _matrices(
    t: Translation, operand: _Operand, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]
) -> tuple[Tensor, int]:
    """Return the operand as matrices [batch …, rows, columns], of which each may be several axes or none; the cost."""
    whole = t.whole(operand.value, operand.contracted)
    tensor = t.transpose(whole, [*batch, *rows, *columns])
    sizes = [tensor.dims[: len(batch)], tensor.dims[len(batch) : len(batch) + len(rows)]]
    last = tensor.dims[len(batch) + len(rows) :]
    if len(rows) != 1 or len(columns) != 1:
        tensor = t.reshape(tensor, (*sizes[0], count(sizes[1]), count(last)))
    return tensor, int((*batch, *rows, *columns) != tuple(range(len(operand.value.shape))))


def _gather(t: Translation, equation: Equation) -> Tensor:
    value, indices = equation.inputs
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    starts, batch = tuple(numbers.start_index_map), tuple(numbers.operand_batching_dims)
    cut = [axis for axis, size in enumerate(sizes) if not same((size,), value.shape[axis : axis + 1])]
    if not batch and same(indices.shape[:-1], ()):
        return _one_slice(t, equation, cut)
    collapsed = tuple(numbers.collapsed_slice_dims)
    if any(axis not in (*collapsed, *batch) for axis in cut) or set(starts) != set(collapsed):
        raise UserError(f"{t.subject} looks up parts of rows, which the ONNX export does not translate")
    rest = [axis for axis in range(len(value.shape)) if axis not in (*batch, *starts)]
    if not batch and len(starts) == 1:
        operand = t.transpose(t.whole(value), [*starts, *rest])
        index = _places(t, indices, indices.shape[:-1])
        found = Tensor(t.graph.node("Gather", operand.name, index.name, axis=0), (*index.dims, *operand.dims[1:]))
    else:
        operand = t.transpose(t.whole(value), [*batch, *starts, *rest])
        places = _places(t, indices, indices.shape) if len(starts) == 1 else t.whole(indices)
        leading = tuple(numbers.start_indices_batching_dims)
        others = [axis for axis in range(len(places.dims)) if axis not in leading]
        index = t.transpose(places, [*leading, *others])
        name = t.graph.node("GatherND", operand.name, index.name, batch_dims=len(batch))
        found = Tensor(name, (*index.dims[:-1], *operand.dims[len(batch) + len(starts) :]))
    # The axes of rows are now last; the results have them at offset_dims.
    number, offsets = len(found.dims), tuple(numbers.offset_dims)
    own = iter(range(number - len(offsets)))
    rows = dict(zip(offsets, range(number - len(offsets), number), strict=True))
    return t.transpose(found, [rows[axis] if axis in rows else next(own) for axis in range(number)])


def _one_slice(t: Translation, equation: Equation, cut: list[int]) -> Tensor:
    """Return the part of an array that begins at one place, without the axes of size 1 that are asked away."""
    value, indices = equation.inputs
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    found = t.whole(value, cut)
    places = t.tensor(indices)
    for number, axis in enumerate(numbers.start_index_map):
        if axis not in cut:
            continue
        if indices.array is not None:
            start = t.graph.integers(int(np.broadcast_to(indices.array, indices.shape)[number]))
        else:
            start = t.graph.node("Slice", places.name, t.graph.integers(number), t.graph.integers(number + 1))
        if same((sizes[axis],), (1,)) and axis in numbers.collapsed_slice_dims and len(cut) == 1:
            place = t.graph.node("Squeeze", start, t.graph.integers(0))
            dims = tuple(size for other, size in enumerate(found.dims) if other != axis)
            return Tensor(t.graph.node("Gather", found.name, place, axis=axis), dims)
        end = t.graph.node("Add", start, t.graph.size(sizes[axis]))
        found = t.sliced(found, [axis], start, end, [sizes[axis]])
    return t.without(found, tuple(numbers.collapsed_slice_dims))


def _places(t: Translation, indices: Value, shape: Sequence[Size]) -> Tensor:
    """Return the indices as they were before JAX has counted negative ones from the end, which ONNX does itself."""
    found = indices
    while found.of is not None and found.of.primitive in ("broadcast_in_dim", "reshape"):
        found = found.of.inputs[0]
    as_is = _before_wrap(found)
    return t.reshape(t.whole(indices if as_is is None else as_is), shape)


def _before_wrap(value: Value) -> Value | None:
    """Return x of where(x < 0, x + length, x)."""
    made = value.of
    if made is None or made.primitive != "select_n":
        return None
    negative, as_is, wrapped = made.inputs
    compared, added = negative.of, wrapped.of
    if compared is None or compared.primitive != "lt" or compared.inputs[0] is not as_is:
        return None
    if compared.inputs[1].scalar() != 0 or added is None or added.primitive != "add" or as_is not in added.inputs:
        return None
    return as_is


def _scatter(t: Translation, equation: Equation) -> Tensor:
    operand, indices, updates = (t.whole(value) for value in equation.inputs)
    numbers = equation.params["dimension_numbers"]
    whole = tuple(range(len(operand.dims)))
    if numbers.update_window_dims or tuple(numbers.scatter_dims_to_operand_dims) != whole:
        raise UserError(f"{t.subject} writes parts of rows, which the ONNX export does not translate")
    return Tensor(t.graph.node("ScatterND", operand.name, indices.name, updates.name), operand.dims)


_PAIRS = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "add_any": "Add"}
_SINGLE = {
    **{"neg": "Neg", "exp": "Exp", "log": "Log", "tanh": "Tanh", "erf": "Erf", "sqrt": "Sqrt", "abs": "Abs"},
    **{"logistic": "Sigmoid", "sin": "Sin", "cos": "Cos", "sign": "Sign", "floor": "Floor", "ceil": "Ceil"},
}
_COMPARED = {"gt": "Greater", "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual", "eq": "Equal"}

RULES: dict[str, Rule] = {
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
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "concatenate": _concatenate,
    "stack": _stack,
    "entry": _entry,
    "split": _split,
    "iota": _iota,
    "dim_as_value": _size,
    "rev": _reverse,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "pad": _pad,
    "sort": _sort,
    "scan": _scan,
    "dot_general": _dot_general,
    "gather": _gather,
    "scatter": _scatter,
}

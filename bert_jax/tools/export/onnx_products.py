"""Matrix products and look-ups of JAX in ONNX."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax.errors import UserError
from bert_jax.tools.export.equations import Equation, Size, Value, count
from bert_jax.tools.export.onnx_translation import Rule, Tensor, Translation, same


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


PRODUCTS: dict[str, Rule] = {"dot_general": _dot_general, "gather": _gather, "scatter": _scatter}

"""Primitives of JAX that move elements, or repeat a program, in ONNX."""

import numpy as np

from bert_jax.tools.export.equations import Equation
from bert_jax.tools.export.onnx_graph import Graph
from bert_jax.tools.export.onnx_translation import Rule, Tensor, Translation, cast, same


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


SHAPES: dict[str, Rule] = {
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
}

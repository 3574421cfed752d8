"""Models as ONNX files, which onnxruntime and others run without JAX.

There is no second description of a model: its function is traced with symbols for the number of texts and their
length (`equations.py`), and each equation becomes the operations of ONNX that compute it. What depends on parameters
alone is computed at once, and forms that runtimes have one fast operation for are put together (`onnx_fusions.py`).
The same function and parameters give the same bytes.
"""

import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.config.commands import Precision
from bert_jax.errors import need_extra
from bert_jax.tools.export.equations import Value, traced
from bert_jax.tools.export.function import ModelFunction
from bert_jax.tools.export.onnx_fusions import fused
from bert_jax.tools.export.onnx_graph import OPSET, Graph, Node, Tensor, Translation, type_of
from bert_jax.tools.export.onnx_rules import RULES

IR_VERSION = 9  # of the format, which the oldest runtime with the operations has
LARGEST_FILE = 2**31 - 2**26
"""Bytes of constants up to which they are in the file itself; protocol buffers end at 2 GiB."""
SMALL = 1024  # bytes of a constant that stays in the file


def onnx_model(function: ModelFunction, subject: str) -> Any:
    """Return the function of a model as an onnx.ModelProto, whose inputs are int64 and outputs float32.

    Args:
      function: from `model_function`.
      subject: what is exported, for messages and as the description in the file.

    Raises:
      UserError: onnx is not installed, or the function computes something that is not translated.
    """
    need_extra("onnx", "onnx", "the export to ONNX")
    program = traced(function)
    graph = Graph(program.inputs)
    known = {value: Tensor(value.name, value.shape) for value in program.inputs}
    translation = Translation(graph, known, subject, RULES, fused)
    translation.run(program)
    results = [translation.whole(value).name for value in program.outputs]
    return _Writer(graph).model(dict(zip(function.outputs, results, strict=True)), program.outputs, subject)


class _Writer:
    """Writes a graph as messages of ONNX."""

    def __init__(self, graph: Graph):
        import onnx

        self.onnx: Any = onnx
        self.graph: Graph = graph

    def model(self, results: Mapping[str, str], outputs: list[Value], subject: str) -> Any:
        """Return the model whose outputs are the results, by name."""
        helper = self.onnx.helper
        for name, result in results.items():
            self.graph.nodes.append(Node("Identity", (result,), (name,), {}))
        nodes, read = self.graph.read(results)
        nodes = _named(nodes, results)
        constants = [
            self.onnx.numpy_helper.from_array(array, name)
            for name, array in self.graph.constants.items()
            if name in read
        ]
        graph = helper.make_graph(
            [self._node(node) for node in nodes],
            "bert_jax",
            [self._described(value.name, value) for value in self.graph.inputs.values()],
            [self._described(name, value) for name, value in zip(results, outputs, strict=True)],
            constants,
            doc_string=subject,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="bert_jax")

    def _described(self, name: str, value: Value) -> Any:
        # Inputs and results alone: where onnxruntime knows that the sizes of all sums are equal, it joins each sum with
        # the norm after it, which takes longer on a CPU (docs/export.md).
        helper = self.onnx.helper
        dims = [size if isinstance(size, int) else str(size) for size in value.shape]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(type_of(value.dtype)), dims)

    def _node(self, node: Node) -> Any:
        helper = self.onnx.helper
        attributes = dict(node.attributes)
        if node.operation == "Cast":
            attributes["to"] = helper.np_dtype_to_tensor_dtype(np.dtype(attributes["to"]))
        if node.body is not None:
            attributes["body"] = self._body(node.body)
        return helper.make_node(node.operation, node.inputs, node.outputs, name=node.outputs[0], **attributes)

    def _body(self, graph: Graph) -> Any:
        nodes, _ = graph.read(graph.outputs)
        types = [self._described(value.name, value) for value in graph.inputs.values()]
        results = [self._described(name, value) for name, value in zip(graph.outputs, graph.values, strict=True)]
        return self.onnx.helper.make_graph([self._node(node) for node in nodes], "body", types, results)


def _named(nodes: list[Node], results: Mapping[str, str]) -> list[Node]:
    """Return the nodes such that those of the results have the names of the outputs, without copies where possible."""
    made = {name for node in nodes if node.operation != "Identity" for name in node.outputs}
    for node in nodes:
        made -= set() if node.body is None else node.body.read(node.body.outputs)[1]
    names = {result: name for name, result in reversed(list(results.items())) if result in made}
    kept = [node for node in nodes if not (node.operation == "Identity" and names.get(node.inputs[0]) in node.outputs)]
    return [
        Node(
            node.operation,
            tuple(names.get(name, name) for name in node.inputs),
            tuple(names.get(name, name) for name in node.outputs),
            node.attributes,
            node.body,
        )
        for node in kept
    ]


READ_ME = """\
```python
import numpy as np, onnxruntime

session = onnxruntime.InferenceSession("{name}")
outputs = session.run(None, {{{inputs}}})  # each int64 [batch, length]
```"""


def write_onnx(
    function: ModelFunction, path: str | os.PathLike[str], subject: str, precision: Precision = "float32"
) -> str:
    """Write the function of a model to a new file, and return how it is opened, in Markdown.

    With int8, kernels, and the table of words where no head reads it, are integers with a scale for each output, and
    onnxruntime multiplies them with states that it rounds to integers too.
    """
    path, model = pathlib.Path(path), onnx_model(function, subject)
    if precision == "int8":
        with tempfile.TemporaryDirectory() as place:
            _quantize(model, pathlib.Path(place) / "whole.onnx", path)
    else:
        save(model, path)
    return READ_ME.format(name=path.name, inputs=", ".join(f'"{name}": {name}' for name in function.inputs))


def save(model: Any, path: pathlib.Path, largest_file: int = LARGEST_FILE) -> None:
    """Write an onnx.ModelProto; more constants than `largest_file` bytes are in a second file, path + ".data"."""
    import onnx

    large = sum(len(each.raw_data) for each in model.graph.initializer) > largest_file
    place = f"{path.name}.data"
    onnx.save_model(model, path, save_as_external_data=large, location=place, size_threshold=SMALL)


def _quantize(model: Any, whole: pathlib.Path, path: pathlib.Path) -> None:
    need_extra("onnxruntime", "onnx", "precision=int8")
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Operations are put together in the file already, which onnxruntime would otherwise ask for.
    model.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    save(model, whole)
    tables = {node.input[0] for node in model.graph.node if node.op_type == "Gather"}
    tied = any(node.op_type == "Gemm" and node.input[1] in tables for node in model.graph.node)
    quantize_dynamic(
        whole,
        path,
        op_types_to_quantize=["MatMul"] if tied else ["MatMul", "Gather"],
        per_channel=True,
        reduce_range=True,  # without it, processors that lack VNNI cut sums of two products off
        weight_type=QuantType.QInt8,
        use_external_data_format=whole.with_name(f"{whole.name}.data").exists(),
    )

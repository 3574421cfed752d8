"""`bert-jax convert` to a program: written with its tokenizer and a description, compared with the model, and kept.

A directory that is not equal to its model is removed. What cannot be exported is refused before anything is computed.
"""

import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from etils import epath
from rich.console import Console

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import ComputeConfig
from bert_jax.config.commands import ConvertConfig, ExportFormat, ModelFormat, PartsWritten, Precision, Weights
from bert_jax.config.options import from_dict, to_dict
from bert_jax.errors import UserError, need_extra
from bert_jax.files import is_remote, write_atomically
from bert_jax.formats import conversion
from bert_jax.formats.huggingface_export import write_tokenizer
from bert_jax.formats.opening import one_device, place
from bert_jax.formats.stored import check_fit
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.tools.export.comparison import Comparison, compare
from bert_jax.tools.export.function import ModelFunction, model_function

PROGRAMS: tuple[ExportFormat, ...] = ("onnx", "stablehlo", "saved_model")
DESCRIPTION = "export.json"
TOLERANCE = 1e-4
"""Largest difference, in proportion to the largest value of an output, of a program in float32 that is kept."""
Run = Callable[..., Mapping[str, np.ndarray]]


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    to: ModelFormat | ExportFormat,
    parts: PartsWritten = "all",
    weights: Weights = "last",
    push: str = "",
    private: bool = False,
    precision: Precision = "float32",
) -> None:
    """Convert the model in `source`, of any known kind, to the new directory `destination`, and print a summary.

    Args:
      to: bert_jax, huggingface or tf1; or onnx, stablehlo or saved_model, a program that runs without bert_jax.
      parts: all, mlm, encoder or generator; see ConvertConfig.
      weights: last or ema; see ConvertConfig.
      push: repository of the Hugging Face hub that gets a copy; see ConvertConfig.
      private: whether a repository that is made for it is private.
      precision: float32, or int8 for smaller weights; see ConvertConfig.

    Raises:
      UserError: the source is unreadable, the destination is not empty, or the other format cannot represent the model;
        the hub does not take it, which is asked for before anything is written; or a program differs from the model.
    """
    options = {"to": to, "parts": parts, "weights": weights, "precision": precision}
    from_dict(ConvertConfig, options)  # raises a UserError for any other word
    if to not in PROGRAMS:
        if precision != "float32":
            raise UserError(f"precision={precision} is for programs ({', '.join(PROGRAMS)}); to={to} keeps every bit")
        given: Any = {"to": to, "parts": parts, "weights": weights}
        return conversion.convert(source, destination, push=push, private=private, **given)
    if push or private:
        raise UserError(f"push and private are for to=huggingface, but to={to}; leave them out")
    _check_destination(destination, to)
    stored = conversion.opened(source, weights)
    check_fit(stored)
    chosen, mesh = conversion.select(stored, parts), one_device()
    model = PretrainedModel(chosen, place(chosen, mesh), mesh, ComputeConfig(dtype="float32"))
    export_model(model, destination, to=to, precision=precision)


def _check_destination(destination: str | os.PathLike[str], to: str) -> None:
    if is_remote(destination):
        raise UserError(f"to={to} writes to a local directory, not to {destination}; copy it there afterwards")
    conversion.check_destination(destination)


def export_model(
    model: PretrainedModel,
    destination: str | os.PathLike[str],
    *,
    to: ExportFormat = "onnx",
    precision: Precision = "float32",
) -> Comparison:
    """Write a loaded model with its present parameters as a program, compare it with the model, and print how it went.

    Args:
      model: from `bert_jax.load`.
      destination: a new directory.
      to: onnx, stablehlo or saved_model.
      precision: float32, or int8 for kernels and tables as integers.

    Returns:
      The comparison. With float32 its difference is rounding alone; with int8 it says what the integers cost.

    Raises:
      UserError: the model cannot be exported, a library is missing, or the program differs from the model. Then nothing
        is left at `destination`.
    """
    if not isinstance(model, PretrainedModel):
        raise UserError(f"model is {type(model).__name__} {model!r:.80}; give what bert_jax.load returns")
    if to not in PROGRAMS:
        raise UserError(f"to={to!r:.40} must be {', '.join(PROGRAMS)}")
    from_dict(ConvertConfig, {"to": to, "precision": precision})  # raises a UserError for any other word
    _check_destination(destination, to)
    _need_libraries(to)
    model.need_tokenizer()
    function = model_function(model)
    _say(
        f"from {model.path} ({model.kind}): inputs {', '.join(function.inputs)}",
        *(f"output: {name} [{', '.join(map(str, axes))}]" for name, axes in function.outputs.items()),
        "writing the program and comparing it with the model …",
    )
    with conversion.new_directory(destination) as directory:
        opening = _write(function, directory, to, precision, str(model.path))
        compared = compare(model, function, _opened(function, directory, to))
        if not compared.relative <= TOLERANCE and (precision == "float32" or not math.isfinite(compared.relative)):
            raise UserError(
                f"the program that was written does not compute what {model.path} does: {compared.describe()}; "
                "nothing was kept, please report it with the options of the model"
            )
        _describe(model, function, directory, to, precision, compared, opening)
        size = sum(file.stat().st_size for file in _files(directory))
    _say(compared.describe(), f"{destination}: {size / 1e6:,.1f} MB")
    return compared


def _say(*lines: str) -> None:
    Console(highlight=False).print("\n".join(lines), markup=False, soft_wrap=True)


def _files(directory: epath.Path) -> list[pathlib.Path]:
    return [pathlib.Path(folder, name) for folder, _, names in os.walk(directory) for name in names]


def _need_libraries(to: ExportFormat) -> None:
    """Raise a UserError if what writes a format, or runs it for the comparison, is not installed."""
    if to == "onnx":
        need_extra("onnx", "onnx", "to=onnx")
        need_extra("onnxruntime", "onnx", "to=onnx, which compares what it writes,")
    if to == "saved_model":
        from bert_jax.tools.export.saved_model import need_tensorflow

        need_tensorflow()


def _write(function: ModelFunction, directory: epath.Path, to: ExportFormat, precision: Precision, subject: str) -> str:
    """Write the program, and return how it is opened, in Markdown."""
    if to == "stablehlo":
        from bert_jax.tools.export.stablehlo import write_stablehlo

        return write_stablehlo(function, directory, precision)
    if to == "saved_model":
        from bert_jax.tools.export.saved_model import write_saved_model

        return write_saved_model(function, directory, precision)
    from bert_jax.tools.export.onnx import write_onnx

    return write_onnx(function, directory / "model.onnx", subject, precision)


def _opened(function: ModelFunction, directory: epath.Path, to: ExportFormat) -> Run:
    """Return the program as somebody else would run it."""
    if to == "stablehlo":
        from bert_jax.tools.export.stablehlo import open_stablehlo

        return open_stablehlo(directory)
    if to == "saved_model":
        from bert_jax.tools.export.saved_model import open_saved_model

        return open_saved_model(directory, function.inputs)
    import onnxruntime

    session = onnxruntime.InferenceSession(str(directory / "model.onnx"), providers=["CPUExecutionProvider"])
    names = list(function.outputs)

    def run(*inputs: np.ndarray) -> Mapping[str, np.ndarray]:
        named = {name: np.asarray(values, np.int64) for name, values in zip(function.inputs, inputs, strict=True)}
        results: Any = session.run(names, named)
        return dict(zip(names, results, strict=True))

    return run


def _describe(
    model: PretrainedModel,
    function: ModelFunction,
    directory: epath.Path,
    to: ExportFormat,
    precision: str,
    compared: Comparison,
    opening: str,
) -> None:
    """Write the tokenizer, export.json and README.md."""
    longest = min(model.config.longest_sequence, model.embedding.max_length or model.config.longest_sequence)
    write_tokenizer(model.need_tokenizer(), directory, longest, "token_type_ids" in function.inputs)
    head = {} if model.head is None else {"head": model.head.kind, "labels": list(model.head.labels)}
    embedding = {} if model.head is not None else {"embedding": to_dict(model.embedding)}
    described = {
        "format": to,
        "precision": precision,
        "inputs": list(function.inputs),
        "outputs": {name: list(axes) for name, axes in function.outputs.items()},
        "max_length": longest,
        **head,
        **embedding,
        "parameters": sum(values.size for values in leaf_paths(function.params).values()),
        "largest_difference": float(f"{compared.difference:.2g}"),
    }
    write_atomically(directory / DESCRIPTION, (json.dumps(described, indent=2, ensure_ascii=False) + "\n").encode())
    rows = "\n".join(f"- `{name}` [{', '.join(map(str, axes))}]" for name, axes in function.outputs.items())
    text = f"{to} of an encoder, written by bert_jax\n\n{opening}\n\nOutputs, float32:\n\n{rows}\n\nInputs are made by "
    text += f"tokenizer.json, from at most {longest} tokens; `{DESCRIPTION}` has the rest.\n"
    write_atomically(directory / "README.md", f"# {text}".encode())

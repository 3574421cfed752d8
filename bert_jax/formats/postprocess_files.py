"""The postprocesses that are saved with a model: postprocess/NAME.safetensors, two arrays and what they belong to."""

import json
import os
import re
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
from etils import epath

from bert_jax.config.encoder_heads import Pooling
from bert_jax.errors import UserError
from bert_jax.files import parse_object, write_atomically
from bert_jax.formats.safetensors_files import open_file
from bert_jax.models.pooling import LAYERS_READ
from bert_jax.models.postprocessing import KINDS, Postprocess

DIRECTORY, SUFFIX = "postprocess", ".safetensors"


def write_postprocesses(directory: str | os.PathLike[str], found: Mapping[str, Postprocess]) -> None:
    """Write each of them to its file below the directory of a model.

    Raises:
      UserError: a name that cannot be that of a file.
    """
    for name in found:
        if not re.fullmatch(r"\w[\w.-]{0,80}", name):
            raise UserError(f"a postprocess cannot be named {name!r:.100}; use letters, digits, _, - and .")
    for name, each in found.items():
        folder = epath.Path(directory) / DIRECTORY
        folder.mkdir(parents=True, exist_ok=True)
        # safetensors has strings beside its arrays, so all that belongs together is in one file.
        about = {"postprocess": json.dumps({"kind": each.kind, "layers": each.layers, "pooling": each.pooling})}
        arrays = {"mean": each.mean, "matrix": np.ascontiguousarray(each.matrix)}
        write_atomically(folder / f"{name}{SUFFIX}", safetensors.numpy.save(arrays, metadata=about))


def read_postprocesses(directory: str | os.PathLike[str]) -> dict[str, Postprocess]:
    """Return those that `write_postprocesses` wrote below the directory of a model, by name.

    Raises:
      UserError: a file is damaged, or none of ours.
    """
    folder = epath.Path(directory) / DIRECTORY
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return {file.name.removesuffix(SUFFIX): _read(file) for file in files if file.name.endswith(SUFFIX)}


def _read(file: epath.Path) -> Postprocess:
    tensors, about = open_file(file), _about(file)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    mean, matrix = shapes.get("mean", ()), shapes.get("matrix", ())
    known = about.get("kind") in KINDS and about.get("layers") in LAYERS_READ
    if not known or about.get("pooling") not in typing.get_args(Pooling):
        raise UserError(f"{file} is not a postprocess of bert_jax: it says {about!r:.120}; remove it")
    if len(mean) != 1 or len(matrix) != 2 or mean[0] != matrix[0] or any(t.dtype != "F32" for t in tensors.values()):
        raise UserError(f"{file} is not a postprocess of bert_jax: its arrays are {shapes!r:.120}; remove it")
    arrays = (tensors[name].read((slice(None),) * len(shapes[name])) for name in ("mean", "matrix"))
    return Postprocess(about["kind"], about["layers"], about["pooling"], *arrays)


def _about(file: epath.Path) -> dict[str, Any]:
    """Return the object in the header of a file that `open_file` has checked."""
    contents = file.read_bytes()
    header = json.loads(contents[8 : 8 + int.from_bytes(contents[:8], "little")])
    try:
        about = parse_object(header.get("__metadata__", {}).get("postprocess", "").encode())
    except ValueError as error:
        raise UserError(f"{file} is not a postprocess of bert_jax: its description {error}; remove it") from None
    return {name: about.get(name) for name in ("kind", "layers", "pooling")}

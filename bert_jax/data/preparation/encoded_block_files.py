"""Blocks as files, one per block, which workers that share no memory leave for each other."""

import dataclasses
import io
import json
import uuid
import zipfile
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from etils import epath

from bert_jax.config.json_form import from_dict, to_dict
from bert_jax.data.cleaning.step_record import StepRecord
from bert_jax.data.preparation.encoding import EncodedBlock
from bert_jax.errors import UserError

Result = TypeVar("Result")


def block_file(directory: epath.Path, source: int, offset: int) -> epath.Path:
    """Return the file of the block of a source, by its number, that begins at `offset`."""
    return directory / f"{source:06d}" / f"{offset:015d}.npz"


def write_arrays(file: epath.Path, arrays: dict[str, Any]) -> None:
    """Write arrays by name such that no reader sees half of them, even if several processes write the same file."""
    contents = io.BytesIO()
    np.savez(contents, **arrays)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.parent / f"{file.name}.{uuid.uuid4().hex}.partial"
    partial.write_bytes(contents.getvalue())
    partial.replace(file)


def read_arrays(file: epath.Path) -> dict[str, np.ndarray]:
    """Return the arrays that `write_arrays` wrote."""
    with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as contents:
        return {name: contents[name] for name in contents.files}


def write_block(file: epath.Path, block: EncodedBlock) -> None:
    """Write a block as `write_arrays` does."""
    values = {field.name: getattr(block, field.name) for field in dataclasses.fields(block)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    others = {name: value for name, value in values.items() if name not in arrays}
    others["cleaning"] = [to_dict(each) for each in block.cleaning]
    write_arrays(file, {"others": np.frombuffer(json.dumps(others).encode(), np.uint8), **arrays})


def read_block(file: epath.Path) -> EncodedBlock:
    """Return the block that `write_block` wrote."""
    arrays: dict[str, Any] = read_arrays(file)
    others = json.loads(arrays.pop("others").tobytes())
    others["cleaning"] = tuple(from_dict(StepRecord, each) for each in others["cleaning"])
    return EncodedBlock(**others, **arrays)


def read_if_whole(file: epath.Path, read: Callable[[epath.Path], Result]) -> Result | None:
    """Return what `read` reads; None if there is no such file, or a crash of the machine has damaged it."""
    if not file.exists():
        return None
    try:
        return read(file)
    except (OSError, ValueError, KeyError, TypeError, UserError, zipfile.BadZipFile):
        return None

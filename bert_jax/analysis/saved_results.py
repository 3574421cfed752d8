"""The JSON files of an analysis: its result, and the key of what it was computed from, by which it is found again."""

import dataclasses
import json
import os
import types
import typing
from typing import Any

import numpy as np
from etils import epath

from bert_jax.checkpoints.fingerprint import fingerprint
from bert_jax.config.json_form import to_dict
from bert_jax.errors import UserError
from bert_jax.files import checksum, read_object, sealed, unsealed, write_atomically
from bert_jax.pretrained.model import PretrainedModel

Result = typing.TypeVar("Result")


def model_fingerprint(model: PretrainedModel) -> str:
    """Return a checksum of everything that the answers of a model follow from: sizes, parameters and tokenizer."""
    return checksum(
        {
            "config": to_dict(model.config),
            "compute": to_dict(model.network.compute),
            "params": fingerprint(model.params),
            "tokenizer": model.need_tokenizer().fingerprint,
        }
    )


def output_directory(path: str | os.PathLike[str]) -> epath.Path:
    """Return the directory, which is made if it is not there.

    Raises:
      UserError: it is a file, or cannot be made.
    """
    directory = epath.Path(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"output={os.fspath(path)} cannot be made: {error.strerror or error}; choose another directory"
        ) from None
    return directory


def save_result(file: epath.Path, key: dict[str, Any], result: Any) -> None:
    """Write a dataclass with arrays, and the key, of JSON types, of what it was computed from."""
    values = sealed({"key": key, "result": _plain(result)})
    write_atomically(file, (json.dumps(values, indent=1, allow_nan=False) + "\n").encode())


def saved_result(file: epath.Path, key: dict[str, Any], kind: type[Result]) -> Result | None:
    """Return the result with this key, a dataclass `kind`, that `save_result` wrote; None if there is none.

    Raises:
      UserError: the file is damaged, or no result of ours.
    """
    if not file.exists():
        return None
    remedy = "remove it, and the result is computed again"
    try:
        values = unsealed(read_object(file, remedy))
    except UserError as error:
        raise UserError(str(error) if remedy in str(error) else f"{file}: {error}; {remedy}") from None
    return _built(kind, values["result"]) if values.get("key") == json.loads(json.dumps(key)) else None


def _plain(value: Any) -> Any:
    """Return dataclasses as objects, arrays as nested lists, and numbers that are not finite as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _built(kind: Any, value: Any) -> Any:
    """Return what `_plain` made of a value of type `kind`; null in an array of floats is NaN."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _built(hints[name], each) for name, each in value.items()})
    if kind is np.ndarray:
        return np.array(value, np.float64)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # of something and None
        return None if value is None else _built(next(part for part in parts if part is not type(None)), value)
    if origin is tuple:
        kinds = [parts[0]] * len(value) if parts[-1] is ... else parts
        return tuple(_built(*pair) for pair in zip(kinds, value, strict=True))
    if origin is dict:
        return {name: _built(parts[1], each) for name, each in value.items()}
    return value

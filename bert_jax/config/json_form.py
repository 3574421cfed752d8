"""Conversion between configurations and the plain dicts of JSON files, and the differences between two of those."""

import dataclasses
import difflib
import types
import typing
from typing import Any, Literal

from bert_jax.errors import UserError


def to_dict(config: Any) -> dict[str, Any]:
    """Return the nested plain dict (JSON types) of a configuration; `from_dict` is the inverse."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def _plain(value: Any):
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def from_dict(cls: Any, values: dict[str, Any], path: str = "", complete: bool = False) -> Any:
    """Return the instance of dataclass `cls` that a nested dict describes.

    Args:
      path: how messages name the dict, with a dot at the end.
      complete: whether every field must be there, as `to_dict` writes them, also one that has a default.

    Raises:
      UserError: an unknown or missing key, or a value of the wrong type; the message names the key.
    """
    if not isinstance(values, dict):
        raise UserError(
            f"{path.removesuffix('.') or 'the configuration'} must be an object with the fields of {cls.__name__}, "
            f"not {values!r:.80}"
        )
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in hints:
            close = difflib.get_close_matches(key[:60], hints, n=1)
            hint = f"; perhaps you meant {path}{close[0]}" if close else f"; {cls.__name__} has {', '.join(hints)}"
            raise UserError(f"unknown option {path}{_shown(key)}{hint}")
    required = [
        field.name
        for field in dataclasses.fields(cls)
        if complete or field.default is field.default_factory is dataclasses.MISSING
    ]
    if missing := [path + name for name in required if name not in values]:
        raise UserError(f"missing: {', '.join(missing)}")
    return cls(**{key: _typed(hints[key], value, f"{path}{key}", complete) for key, value in values.items()})


def from_record(cls: Any, values: dict[str, Any], where: str, path: str = "") -> Any:
    """Return the instance of `cls` that `to_dict` wrote to `where`, a file of a run or of a model.

    Raises:
      UserError: as `from_dict`, or a field is missing.
    """
    try:
        return from_dict(cls, values, path, complete=True)
    except UserError as error:
        raise UserError(f"{where} is damaged, or another version of bert_jax wrote it: {error}") from None


def options_recorded(values: dict[str, Any]) -> dict[str, Any]:
    """Return those entries of a work directory's config.json that are options of pre-training.

    The file of a saved or converted model also says how it embeds texts, that of a fine-tuned one also its head and
    task.
    """
    return {
        name: value for name, value in values.items() if name not in ("embedding", "head", "finetune", "pairs", "run")
    }


def _typed(hint: Any, value: Any, path: str, complete: bool):
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, path + ".", complete)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise UserError(f"{path}={value!r:.80} must be a list")
        return tuple(_typed(args[0], v, f"{path}.{i}", complete) for i, v in enumerate(value))
    if origin is Literal:
        if value in args:
            return value
        raise UserError(f"{path}={value!r:.80} must be one of {', '.join(args)}")
    if origin is types.UnionType:
        if value is None:
            return None
        hint = args[0]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise UserError(f"{path}={value!r:.80} must be of type {hint.__name__}")
    return value


def differences(old: dict[str, Any], new: dict[str, Any], path: str = "") -> list[str]:
    """Return a line `key: old → new` for every leaf in which two nested dicts differ."""
    lines = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, list) and isinstance(b, list):
            a, b = dict(enumerate(a)), dict(enumerate(b))
        if isinstance(a, dict) and isinstance(b, dict):
            lines += differences({str(k): v for k, v in a.items()}, {str(k): v for k, v in b.items()}, f"{path}{key}.")
        elif a != b:
            lines.append(f"{path}{_shown(key)}: {_shown(a)} → {_shown(b)}")
    return lines


def flattened(values: dict[str, Any]) -> dict[str, Any]:
    """Return the leaves of a nested dict by their dotted names; those of lists have the index as a name."""
    leaves = {}
    for key, value in values.items():
        value = {str(index): each for index, each in enumerate(value)} if isinstance(value, (list, tuple)) else value
        if isinstance(value, dict):
            leaves |= {f"{key}.{name}": leaf for name, leaf in flattened(value).items()}
        else:
            leaves[str(key)] = value
    return leaves


def first_lines(lines: list[str], most: int = 8) -> str:
    """Return the first few of many short texts and the number of the others, in one line."""
    return "; ".join(lines[:most]) + (f"; and {len(lines) - most} more" if len(lines) > most else "")


def is_among(key: str, names: tuple[str, ...]) -> bool:
    """Return whether a dotted option is one of `names`, or below one of those that end in a dot."""
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in names)


def _shown(value: Any) -> str:
    """Return the text of a value, or its beginning if it would not fit into a line."""
    text = str(value)
    return text if text.isprintable() and len(text) <= 200 else f"{text[:200]!r}…"

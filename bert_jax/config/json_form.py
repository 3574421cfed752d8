"""Configurations as the plain dicts of JSON files, and the options that may change between starts of a run.

Also here: options that may differ between the hosts of a run, and how a metric is shown. A field says both in its
metadata (`option`). Any option without a rule determines what is learned from which batches: a start with a different
value is an error. Standard library only.
"""

import dataclasses
import difflib
import types
import typing
from typing import Any, Literal, TypeVar

from bert_jax.errors import UserError

Resume = Literal["free", "moved", "elastic", "last"]
"""What a resumed run may change. free: the option says where results go and how they are computed, logged and kept.
moved: where something is, but not whether there is something. elastic: only with `elastic_batch`. last: only in the
last phase."""
T = TypeVar("T")


def option(default: T, *, resume: Resume | None = None, hosts_differ: bool = False) -> T:
    """Return a field of a configuration with a default.

    Args:
      default: its value unless another one is given.
      resume: what a resumed run may do with it, and with everything below it; None: it must keep the value.
      hosts_differ: whether it says where copies of the same data and model are, or how they are read, and so may differ
        between hosts.
    """
    field: Any = dataclasses.field(default=default, metadata={"resume": resume, "hosts_differ": hosts_differ})
    return field


def field_values(kind: type, options: object) -> dict[str, Any]:
    """Return the values in `options` of the fields of the dataclass `kind`, by their names."""
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(kind)}


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


def resume_rule(kind: Any, key: str) -> Resume | None:
    """Return what a resumed run may do with a dotted option of the dataclass `kind`; None: it must keep the value.

    The rule of a field that holds options, or several values, is that of all below it.
    """
    name, _, rest = key.partition(".")
    field = next((field for field in dataclasses.fields(kind) if field.name == name), None)
    if field is None:
        return None
    rule, inner = field.metadata.get("resume"), typing.get_type_hints(kind)[name]
    several = typing.get_origin(inner) is tuple
    if not (several or dataclasses.is_dataclass(inner)):
        return None if rest else rule
    if not rest:
        return None
    if rule is not None:
        return rule
    if several:
        inner, rest = typing.get_args(inner)[0], rest.partition(".")[2]
    return resume_rule(inner, rest) if dataclasses.is_dataclass(inner) else None


def differing_options(kind: Any, path: str = "") -> tuple[str, ...]:
    """Return the dotted options of the dataclass `kind` that may differ between hosts, with `path` before each."""
    hints, names = typing.get_type_hints(kind), []
    for field in dataclasses.fields(kind):
        if field.metadata.get("hosts_differ"):
            names.append(path + field.name)
        elif dataclasses.is_dataclass(hints[field.name]):
            names += differing_options(hints[field.name], f"{path}{field.name}.")
    return tuple(names)


def is_harmless(kind: Any, line: str) -> bool:
    """Return whether a line of `differences` between two configurations `kind` does not prevent resuming."""
    key, change = line.split(": ", 1)
    rule = resume_rule(kind, key)
    return rule == "free" or (rule == "moved" and "" not in change.split(" → "))


def is_elastic(kind: Any, line: str) -> bool:
    """Return whether a line changes what a run may resume with if it says `elastic_batch`."""
    return resume_rule(kind, line.split(": ", 1)[0]) == "elastic"


def lengthens(kind: Any, line: str, phases: int) -> bool:
    """Return whether a line changes the steps of the last of `phases` phases: people extend runs, or cut them short."""
    key, change = line.split(": ", 1)
    return resume_rule(kind, key) == "last" and f".{phases - 1}." in key and "None" not in change


def metric_scale(metric: str) -> int:
    """Return the factor for display: shares are shown in percent; losses, perplexities and thresholds as they are."""
    return 1 if metric.endswith(("loss", "perplexity", "_thresh")) else 100

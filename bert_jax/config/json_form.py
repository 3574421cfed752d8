"""Configurations as the plain dicts of JSON files, and the options that may change between starts of a run.

Also here: options that may differ between the hosts of a run, names of metrics in the files of earlier versions, and
how a metric is shown. Any option that is in none of these lists determines what is learned from which batches: a
start with a different value is an error. Names are dotted; one that ends in a dot includes everything below it
(`is_among`). Standard library only.
"""

import dataclasses
import difflib
import re
import types
import typing
from typing import Any, Literal

from bert_jax.errors import UserError


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


_HARMLESS = re.compile(r"phases\.\d+\.(micro_batches|mixture)")  # stores and shares are compared by fingerprint
_ELASTIC = re.compile(r"phases\.\d+\.(batch_size|learning_rate)")


@dataclasses.dataclass(frozen=True)
class Changes:
    """Options of one command that may vary, by what they determine."""

    where: tuple[str, ...]
    """Where copies of the same data and model are, and how they are read: may differ between hosts."""
    how: tuple[str, ...]
    """Where results go and how they are computed, logged and kept: may change between two starts."""

    def below(self, group: str) -> "Changes":
        """Return the same options as they are named in a dict in which they are under `group`."""
        return Changes(*(tuple(f"{group}.{name}" for name in names) for names in (self.where, self.how)))


_READING = ("data.path", "data.mixture", "data.cache", "data.loader", "data.prefetch")
PRETRAINING = Changes(
    where=(*_READING, "data.eval_path", "init_from", "objective.distillation.teacher", "checkpoint.local_path"),
    how=(
        *_READING,
        "workdir",
        "log_every_steps",
        "elastic_batch",
        "objective.distillation.teacher",
        "checkpoint.",
        "evaluation.",
        "mesh.",
        "compute.",
        "faults.",
        "profile.",
        "sinks.",
    ),
)
"""`init_from` is not in `how`, because a resumed run ignores it. A teacher is known by its arrays, wherever it is."""

_COPIES = tuple(f"data.{name}" for name in ("dir", "train", "dev", "test", "tfds", "tfds_dir"))
_RUN = ("seed", "seeds", "grid", "grid_batch_sizes.", "grid_learning_rates.", "grid_epochs.")
# But not the data type.
_COMPUTED = tuple(f"compute.{name}" for name in ("attention", "layers", "overlap", "products", "remat"))
FINETUNING = Changes(
    where=("init_from", "distillation.teacher", *_COPIES),
    how=(
        *("init_from", "distillation.teacher", "data.", "workdir", "mesh.", *_COMPUTED),
        *(*_RUN, "batch_size", "micro_batches", "packing", "learning_rate", "epochs"),
        *("keep", "eval_batch_size", "save_every_steps", "log_every_steps", "faults.", "profile.", "sinks."),
    ),
)
"""`how` includes the options that are part of a run's name, since each of their values is a separate run; data and
parameters are compared by their content."""

_FINETUNING_RECORD = (
    *FINETUNING.below("finetune").how,
    *_COMPUTED,
    "pairs",
)
"""The same in config.json of a work directory, which has the options of computation outside "finetune" too, and what
follows from the data."""


def is_harmless(line: str) -> bool:
    """Return whether a line of `differences` between two pre-training configurations does not prevent resuming."""
    key, change = line.split(": ", 1)
    if key == "data.eval_path":  # from or to "" moves the held-out documents into or out of the training data
        return "" not in change.split(" → ")
    return bool(_HARMLESS.fullmatch(key)) or is_among(key, PRETRAINING.how)


def is_harmless_to_finetuning(line: str) -> bool:
    """Return whether a line of `differences` between two config.json of fine-tuning does not prevent resuming."""
    return is_among(line.split(": ", 1)[0], _FINETUNING_RECORD)


def is_elastic(line: str) -> bool:
    """Return whether a line changes what a run may resume with if it says `elastic_batch`."""
    return bool(_ELASTIC.fullmatch(line.split(": ", 1)[0]))


def lengthens(line: str, phases: int) -> bool:
    """Return whether a line changes the steps of the last of `phases` phases: people extend runs, or cut them short."""
    key, change = line.split(": ", 1)
    return key == f"phases.{phases - 1}.steps" and "None" not in change


def metric_scale(metric: str) -> int:
    """Return the factor for display: shares are shown in percent; losses, perplexities and thresholds as they are."""
    return 1 if metric.endswith(("loss", "perplexity", "_thresh")) else 100

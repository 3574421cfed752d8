"""From the arguments of `bert_jax.finetune` to a configuration and the examples that the caller has in memory."""

import dataclasses
import difflib
import os
import pathlib
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bert_jax.config.finetuning import FinetuneConfig, task_defaults
from bert_jax.config.json_form import from_dict, to_dict
from bert_jax.errors import UserError

IN_MEMORY = "(in memory)"  # what the configuration has in place of a file


def from_arguments(
    task: FinetuneConfig | str, splits: Mapping[str, object], options: Mapping[str, object]
) -> tuple[FinetuneConfig, dict[str, list[Any]]]:
    """Return the configuration and, for each split given in memory, its rows.

    Args:
      task: a task, with its defaults, or a configuration to change.
      splits: train, dev and test, each a file, any iterable of examples, or None.
      options: values by name, see `finetune`. Without `workdir`, a task gets a new temporary directory.

    Raises:
      UserError: an option is unknown or ambiguous, or its value has the wrong type; examples are given for a task that
        reads only files, or together with options for files; there are no dev examples to choose by.
    """
    if not isinstance(task, FinetuneConfig | str):
        raise UserError(f"finetune takes a task or a FinetuneConfig first, not {task!r:.60}")
    values = to_dict(task if isinstance(task, FinetuneConfig) else task_defaults(task))
    if not isinstance(options.get("init_from", ""), str | os.PathLike):
        raise UserError(
            f"init_from takes the path of a model, not a {type(options['init_from']).__name__}; model.save(path) "
            "writes one that was edited, and then init_from=path"
        )
    for name, value in options.items():
        _set(values, name, _plain(value))
    given = {}
    for split, source in splits.items():
        if isinstance(source, str | os.PathLike):
            values["data"][split] = os.fspath(source)
        elif source is not None:
            values["data"][split], given[split] = IN_MEMORY, _rows(split, source)
    if given and values["task"] != "text":
        raise UserError(
            f"{', '.join(given)} in memory: examples in memory can only be given to the task text, as "
            f"[(text, label), …] or [((text, text_b), label), …]; {values['task']} reads files: "
            "train=FILE and dev=FILE, or dir=DIRECTORY"
        )
    data = values["data"]
    if given:
        _check_in_memory(data, given)
    if "train" in given and not (data["dev"] or data["dev_share"] or data["dir"]):
        raise UserError(
            "train is given and dev, by which runs are compared and chosen, is missing: give dev=[(text, label), …], "
            "or dev_share=0.1 to hold out a tenth of train"
        )
    if isinstance(task, str) and not values["workdir"]:
        values["workdir"] = str(pathlib.Path(tempfile.gettempdir()) / f"bert_jax_{uuid.uuid4().hex[:12]}")
    return from_dict(FinetuneConfig, values), given


def _check_in_memory(data: Mapping[str, object], given: Mapping[str, list[Any]]) -> None:
    """Raise UserError if an option refers to data other than the rows of `given`, and would be ignored."""
    if data["tfds"]:
        raise UserError(
            f"tfds={data['tfds']!r} has all splits, but {' and '.join(given)} are given in memory too; leave one of "
            "the two out"
        )
    columns = [name for name in ("text_column", "pair_column", "label_column") if data[name]]
    read = data["dir"] or any(data[split] not in ("", IN_MEMORY) for split in ("train", "dev", "test"))
    if columns and not read:
        raise UserError(
            f"{columns[0]}={data[columns[0]]!r} names a column of a file, but all examples are in "
            "memory, as (text, label) or ((text, text_b), label); leave it out"
        )


def _set(values: dict[str, Any], name: str, value: Any) -> None:
    """Put an option in its place: a field, a group of fields, or a field of a group by its dotted or its own name."""
    if name in values:
        if isinstance(values[name], dict) and not isinstance(value, dict):
            raise UserError(f"{name} takes a dict of its options ({', '.join(values[name])}), not {value!r:.60}")
        values[name] = values[name] | value if isinstance(value, dict) else value
        return
    known = _leaves(values)
    found = [name] if name in known else [full for full in known if full.endswith(f".{name}")]
    if len(found) != 1:
        raise UserError(_unclear(name, found, known))
    *groups, last = found[0].split(".")
    for group in groups:
        values = values[group]
    values[last] = value


def _unclear(name: str, found: list[str], known: list[str]) -> str:
    if found:
        group, last = found[0].split(".")
        return f"{name} is ambiguous: {' or '.join(found)}; write {group}={{{last!r}: …}}"
    close = difflib.get_close_matches(name, [*known, *(full.split(".")[-1] for full in known)], n=1)
    hint = f"perhaps you meant {close[0]}" if close else "`bert-jax finetune TASK --help` lists them"
    return f"unknown option {name!r}; {hint}"


def _leaves(values: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted names of all options below `values`."""
    return [
        full
        for name, value in values.items()
        for full in (_leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name])
    ]


def _rows(split: str, source: Any) -> list[Any]:
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        raise UserError(f"{split} is {type(source).__name__}; expected a file, or examples: [(text, label), …]")
    return list(source)


def _plain(value: Any):
    """Return an option's value as JSON: dataclasses as dicts, NumPy numbers as Python numbers, paths as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return os.fspath(value) if isinstance(value, os.PathLike) else value

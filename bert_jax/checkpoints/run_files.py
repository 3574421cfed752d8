"""run.json and config.json of a work directory: what a run is, its settings, and what may change between starts."""

import datetime
import json
import os
import shlex
import socket
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from absl import logging
from etils import epath

from bert_jax.config.json_form import differences
from bert_jax.devices import sharding
from bert_jax.devices.software import versions
from bert_jax.errors import UserError
from bert_jax.files import read_object, write_atomically

Value = TypeVar("Value")


def read_json(file: epath.Path) -> dict[str, Any]:
    """Return the JSON object in a file that bert_jax wrote; raise a UserError if there is none."""
    return read_object(file, "restore it from a copy, or give another --workdir")


def write_json(file: epath.Path, values: dict[str, Any]) -> None:
    """Replace the file as a whole."""
    write_atomically(file, (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode())


def read_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the contents of config.json in work directory `path`, a `Config` or that of a fine-tuned model."""
    file = epath.Path(path) / "config.json"
    if not file.exists():
        raise UserError(f"{path} is not the work directory of a run: it has no config.json")
    return read_json(file)


def saved_run(file: epath.Path) -> dict[str, Any]:
    """Return the run.json of a run that is resumed, with its id and a list of its starts."""
    saved = read_json(file)
    for name, kind in (("run_id", str), ("starts", list)):
        need(saved, name, kind, file)
    return saved


def need(values: dict[str, Any], name: str, kind: type[Value], file: epath.Path) -> Value:
    """Return an entry of a file that bert_jax wrote; raise a UserError if it is missing or not of this kind."""
    if isinstance(value := values.get(name), kind):
        return value
    raise UserError(
        f"{file} has {name}={value!r:.60} where a {kind.__name__} is expected: it is damaged, or another version of "
        "bert_jax wrote it; restore it from a copy"
    )


def this_start(devices: sharding.Devices) -> dict[str, Any]:
    """Return what run.json keeps of one start: when, where, on what, with which command and versions."""
    devices = jax.devices() if devices is None else devices
    return {
        "time": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "hosts": jax.process_count(),
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "command": shlex.join(sys.argv),
        "versions": versions(),
    }


def refused_changes(
    path: epath.Path,
    identity: dict[str, Any],
    before: dict[str, Any],
    settings: dict[str, Any],
    is_harmless: Callable[[str], bool],
) -> list[str]:
    """Return the differences that prevent resuming a run: in its identity, and in its settings unless harmless.

    Args:
      before: settings of the run in `path`; harmless changes since then are logged.
      is_harmless: returns whether a line of `differences` is harmless.
    """
    saved = read_json(path / "run.json")
    lines = differences({name: saved.get(name) for name in identity}, identity)
    for line in differences(before, settings):
        if is_harmless(line):
            logging.info("setting changed since the last start: %s", line)
        else:
            lines.append(line)
    return lines


def id_below(run_id: str, name: str) -> str:
    """Return the id of run `name` in a directory of several, so that checkpoints of one are not taken for another's."""
    return f"{run_id}/{name}"

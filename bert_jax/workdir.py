"""The work directory of a run: who may write to it, which run it holds, and whether new settings may go on with that run."""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import shlex
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable

import jax
from absl import logging
from etils import epath

from bert_jax.checkpoint import Checkpoints
from bert_jax.config import Config
from bert_jax.config_dict import differences, first_lines, from_dict, to_dict
from bert_jax.errors import UserError
from bert_jax.files import read_object, write_atomically
from bert_jax.owner import Owner
from bert_jax.tokenization import Tokenizer

HARMLESS = ("workdir", "log_every_steps", "checkpoint.", "evaluation.", "mesh.", "compute.",
            "data.path", "data.loader", "data.prefetch", "data.cache")
"""Options that may change between two starts of a run: they decide where and how, not what is learned from which batches."""
PACKAGES = ("bert_jax", "jax", "flax", "optax", "orbax-checkpoint", "numpy")


@dataclasses.dataclass(frozen=True)
class WorkDirectory:
    """Paths of a run. `resumed` says that an earlier start left checkpoints; `owner` is None on all hosts but the first."""

    path: epath.Path
    resumed: bool
    owner: Owner | None

    @property
    def checkpoints(self) -> epath.Path:
        return self.path / "checkpoints"

    @property
    def tokenizer(self) -> epath.Path:
        return self.path / "tokenizer"

    def release(self) -> None:
        """Lets another process write to the directory."""
        if self.owner is not None:
            self.owner.release()

    def __enter__(self) -> "WorkDirectory":
        return self

    def __exit__(self, *unused) -> None:
        self.release()


def open_workdir(path: str | os.PathLike, config: Config, *, store_fingerprint: str, tokenizer: Tokenizer) -> WorkDirectory:
    """Takes `path` (local or gs://) for this run: writes config.json, run.json and tokenizer/, or goes on with the run there.

    A run that has saved nothing yet may be started anew with any settings. Only the first host writes.

    Raises:
      UserError: not writable; another process writes to it; it holds something else, or a run with other settings.
    """
    identity = {"store_fingerprint": store_fingerprint, "tokenizer_fingerprint": tokenizer.fingerprint}
    return take(path, identity, to_dict(config), tokenizer, resumed=has_checkpoint(path),
                check=lambda place: _check_continues(place, config, identity))


def take(path: str | os.PathLike, identity: dict, settings: dict, tokenizer: Tokenizer, *, resumed: bool,
         check: Callable[[epath.Path], None]) -> WorkDirectory:
    """What `open_workdir` does, for a run of any kind.

    Args:
      identity: what the run must have in common with what is there; goes into run.json.
      settings: content of config.json.
      resumed: whether there is something to go on with; then `check` is called, to refuse it.
    """
    path = epath.Path(path if "://" in os.fspath(path) else os.path.abspath(path))
    if jax.process_index() != 0:
        return WorkDirectory(path, resumed, None)
    _check_not_foreign(path)
    _check_writable(path)
    owner = Owner(path)
    try:
        if resumed:
            check(path)
        starts = _earlier_starts(path / "run.json") if resumed else []
        write_json(path / "run.json", {**identity, "starts": [*starts, _start()]})
        write_json(path / "config.json", settings)
        tokenizer.save(path / "tokenizer")
    except BaseException:
        owner.release()
        raise
    return WorkDirectory(path, resumed, owner)


def has_checkpoint(path: str | os.PathLike) -> bool:
    """Whether a run in work directory `path` has saved anything; the directory need not exist."""
    return bool(Checkpoints(epath.Path(path) / "checkpoints", read_only=True).steps())


def read_config(path: str | os.PathLike) -> Config:
    """The configuration that the run in work directory `path` was last started with."""
    file = epath.Path(path) / "config.json"
    if not file.exists():
        raise UserError(f"{path} is not the work directory of a run: it has no config.json")
    return from_dict(Config, read_json(file))


def _check_not_foreign(path: epath.Path) -> None:
    for name, ours in (("checkpoints", "config.json"), ("metrics.jsonl", "config.json"), ("manifest.json", "config.json"),
                       ("config.json", "run.json")):  # run.json is written first: config.json alone is another program's
        if (path / name).exists() and not (path / ours).exists():
            raise UserError(f"{path} already holds {name} but no {ours}, so it is not the work directory of one of our runs; "
                            "give another --workdir")


def _check_writable(path: epath.Path) -> None:
    probe = path / f".probe-{uuid.uuid4().hex}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.write_text("probe")
        probe.unlink()
    except OSError as error:
        raise UserError(f"cannot write to the work directory {path}: {error.strerror or error}; "
                        "give a writable directory with --workdir") from error


def _check_continues(path: epath.Path, config: Config, identity: dict) -> None:
    """UserError if `config` and the data would not carry on the run in `path`; harmless changes are logged."""
    saved = read_json(path / "run.json")
    if "source" in saved:
        raise UserError(f"{path} holds a model that convert or model.save wrote, without the state of a run; give it as "
                        "--init_from, and another --workdir")
    lines = differences({name: saved.get(name) for name in identity}, identity)
    for line in differences(to_dict(read_config(path)), to_dict(config)):
        if _lengthens(line, config):
            logging.warning("%s: from here on the learning rate (its decay, and a warm-up that is not given) follows a "
                            "schedule of the new length", line)
        elif _harmless(line):
            logging.info("setting changed since the last start: %s", line)
        else:
            lines.append(line)
    if lines:
        raise UserError(f"{path} holds a run with other settings ({first_lines(lines)}). Go on with that run's own settings "
                        f"({path / 'config.json'}), or start this one in another --workdir")


def _harmless(line: str) -> bool:
    key, change = line.split(": ", 1)
    if key == "data.eval_path":  # from or to "" moves the held-out documents into or out of the training data
        return "" not in change.split(" → ")
    if key.startswith("phases.") and key.endswith(".micro_batches"):
        return True
    return is_among(key, HARMLESS)


def is_among(key: str, names: tuple[str, ...]) -> bool:
    """Whether a dotted option is one of `names`, or below one of those that end in a dot."""
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in names)


def _lengthens(line: str, config: Config) -> bool:
    """True for the number of steps of the last phase: people extend runs, or cut them short."""
    key, change = line.split(": ", 1)
    return key == f"phases.{len(config.phases) - 1}.steps" and "None" not in change


def versions() -> dict[str, str | None]:
    """Of Python and of the packages that numbers depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # used from a source tree
            found[package] = None
    return found


def commit() -> str | None:
    """Commit of the source tree that this code runs from, "-dirty" where files differ from it; None if it is installed."""
    root = pathlib.Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    try:
        return subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
                              capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _earlier_starts(file: epath.Path) -> list:
    starts = read_json(file).get("starts", [])
    if not isinstance(starts, list):
        raise UserError(f"{file} has starts={starts!r:.60} where a list is expected; bring it back from a copy")
    return starts


def _start() -> dict:
    return {"time": datetime.datetime.now().astimezone().isoformat(timespec="seconds"), "host": socket.gethostname(),
            "hosts": jax.process_count(), "devices": jax.device_count(), "device_kind": jax.devices()[0].device_kind,
            "command": shlex.join(sys.argv), "versions": versions()}


def read_json(file: epath.Path) -> dict:
    """Return the JSON object in a file of ours; UserError where there is none."""
    return read_object(file, "bring it back from a copy, or give another --workdir")


def write_json(file: epath.Path, values: dict) -> None:
    """Replaces the file at once, never by halves."""
    write_atomically(file, (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode())

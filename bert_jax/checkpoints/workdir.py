"""The work directory of a run: its owner, run.json and config.json, and the settings it may resume with.

run.json tells which run the directory holds, config.json its settings; both lie next to checkpoints/ and tokenizer/.
Opening a directory refuses another writer, another run, and changes of settings that would not continue the run.
`open_workdir` serves any run; pre-training and fine-tuning each give it `Rules` by which their runs continue.
"""

import dataclasses
import datetime
import json
import os
import shlex
import socket
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
from absl import logging
from etils import epath

from bert_jax import hub
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.local_tier import has_copies
from bert_jax.checkpoints.steps import need_plain_path
from bert_jax.config.options import differences, flattened, is_harmless, to_dict, with_options
from bert_jax.devices import sharding
from bert_jax.devices.hosts import any_failure, decide, from_first, versions
from bert_jax.errors import UserError
from bert_jax.files import is_remote, read_object, write_atomically
from bert_jax.ownership import Owner, live_owner, written_by
from bert_jax.tokenization.tokenizer import Tokenizer

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


def with_commits(options: Value, models: Sequence[str], dataset: str = "", below: str = "") -> Value:
    """Return the options of a run with the commits of the names of the hub in them, so that they stay what they are.

    Args:
      options: what was given; the work directory may have records of an earlier start, see `hub.recorded_name`.
      models: options, by their dotted names, that may name a model.
      dataset: one that may name a data set.
      below: where config.json has these options.

    Raises:
      UserError: see `hub.recorded_name`.
    """
    given = flattened(to_dict(options))
    named = [name for name in models if given.get(name) and hub.model_name(given[name])]
    named += [name for name in (dataset,) if given.get(name)]
    if not named:
        return options
    file = epath.Path(given["workdir"]) / "config.json"
    before = flattened(read_json(file)) if file.exists() else {}
    found = {name: str(before.get(below + name) or "") for name in named}
    kinds: dict[str, hub.Kind] = {name: "dataset" if name == dataset else "model" for name in named}
    return with_options(options, {name: hub.recorded_name(given[name], found[name], kinds[name]) for name in named})


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
    kind: Any,
) -> list[str]:
    """Return the differences that prevent resuming a run: in its identity, and in its settings unless harmless.

    Args:
      before: settings of the run in `path`; harmless changes since then are logged.
      kind: the dataclass of the settings, whose fields say what may change.
    """
    saved = read_json(path / "run.json")
    lines = differences({name: saved.get(name) for name in identity}, identity)
    for line in differences(before, settings):
        if is_harmless(kind, line):
            logging.info("setting changed since the last start: %s", line)
        else:
            lines.append(line)
    return lines


def id_below(run_id: str, name: str) -> str:
    """Return the id of run `name` in a directory of several, so that checkpoints of one are not taken for another's."""
    return f"{run_id}/{name}"


SHARED_SECONDS = 90
"""A network file system may take a minute to show one host what another has written."""


@dataclasses.dataclass(frozen=True)
class WorkDirectory:
    """The directory of a run, as `open_workdir` returns it."""

    path: epath.Path
    resumed: bool
    """Whether an earlier start left checkpoints."""
    owner: Owner | None
    """None on all hosts but the first."""
    files: dict[str, dict[str, Any]]
    """Contents of run.json and config.json."""
    vocabulary: Tokenizer

    @property
    def run_id(self) -> str:
        """Id in run.json and in every checkpoint of the run."""
        return self.files["run.json"]["run_id"]

    @property
    def checkpoints(self) -> epath.Path:
        return self.path / "checkpoints"

    @property
    def tokenizer(self) -> epath.Path:
        return self.path / "tokenizer"

    def is_ours(self) -> bool:
        """Return whether this is the first host and the directory is still the one that the run took."""
        return self.owner is not None and self.owner.holds()

    def is_lost(self) -> bool:
        """Return whether the directory was deleted, renamed or replaced, and no other host waits for a save."""
        return jax.process_count() == 1 and self.owner is not None and not self.owner.holds()

    def secure(self) -> bool:
        """Write the directory's files again if they or it were deleted, renamed or replaced; return whether it was.

        Every host calls this before a save, which would otherwise create a directory that no later start accepts.

        Raises:
          UserError: another run or process has the directory now, which is left alone.
        """
        return from_first(self.owner is not None and self._secure())

    def _secure(self) -> bool:
        if self.is_ours():
            if missing := [name for name in (*self.files, "tokenizer") if not (self.path / name).exists()]:
                self.write()
                logging.warning("%s lacked %s, which this run has written again", self.path, ", ".join(missing))
            return False
        assert self.owner is not None  # `secure` has asked
        self._check_vacant()
        self.path.mkdir(parents=True, exist_ok=True)
        self.owner.take()
        self.write()
        logging.warning(
            "%s was deleted, renamed or replaced during this run. Its run.json, config.json and tokenizer/ have "
            "been written again, and the run continues there without its earlier checkpoints and metrics",
            self.path,
        )
        return True

    def _check_vacant(self) -> None:
        """Raise a UserError if the directory holds another run, or the config.json of another program."""
        for name, content in self.files.items():
            if (self.path / name).exists():
                there = read_json(self.path / name)
                if {**there, "starts": None} == {**content, "starts": None}:
                    return
                raise UserError(
                    f"{self.path} was deleted or renamed during this run and holds something else now, which has "
                    "been left alone. This run can no longer save there: start it again with another --workdir"
                )

    def write(self) -> None:
        """Write run.json, config.json and tokenizer/."""
        for name, content in self.files.items():
            write_json(self.path / name, content)
        self.vocabulary.save(self.tokenizer)

    def release(self) -> None:
        """Let another process write to the directory."""
        if self.owner is not None:
            self.owner.release()

    def __enter__(self) -> "WorkDirectory":
        return self

    def __exit__(self, *unused: object) -> None:
        self.release()


class Rules(NamedTuple):
    """Rules by which the runs of a command continue what a work directory has of them."""

    has_saved: Callable[[epath.Path], bool]
    """Returns whether the runs in a directory, which need not exist, have saved anything."""
    check: Callable[[epath.Path, dict[str, Any], dict[str, Any]], None]
    """Given a directory, an identity and settings, raises a UserError if these would not continue what is there."""


def open_workdir(
    path: str | os.PathLike[str],
    rules: Rules,
    identity: dict[str, Any],
    settings: dict[str, Any],
    tokenizer: Tokenizer,
    *,
    local_path: str = "",
    devices: sharding.Devices = None,
) -> WorkDirectory:
    """Take `path` (local or gs://) for a run: begin there, or resume what has saved something there.

    The first host writes run.json, config.json and tokenizer/. A run that has saved nothing yet may be started again
    with any settings.

    Args:
      rules: of the command.
      identity: what the run must have in common with the existing one; written to run.json. Equal names of objectives
        or architectures can still be different formulas.
      settings: contents of config.json.
      local_path: where each host keeps saves of its own; "" if it does not.
      devices: that the run computes on; None for those of all processes.

    Raises:
      UserError: `path` is not writable, another process writes to it, or it holds something else or a run with another
        identity or other settings.
    """
    path = epath.Path(path if is_remote(path) else os.path.abspath(path))
    need_plain_path(path)
    # The local disk of the first host may be a new one.
    resumed = decide(rules.has_saved(path) or _has_local_saves(path, local_path), any)
    if jax.process_index() != 0:
        workdir = WorkDirectory(path, resumed, None, {"run.json": from_first(None) or {}}, tokenizer)
        _check_shared(workdir)
        return workdir
    _check_not_foreign(path)
    _check_writable(path)
    owner = Owner(path)
    try:
        if resumed:
            rules.check(path, identity, settings)
        saved = saved_run(path / "run.json") if resumed else {"run_id": uuid.uuid4().hex, "starts": []}
        run = {"run_id": saved["run_id"], **identity, "starts": [*saved["starts"], this_start(devices)]}
        workdir = WorkDirectory(path, resumed, owner, {"run.json": run, "config.json": settings}, tokenizer)
        workdir.write()
        from_first(run)
        _check_shared(workdir)
    except BaseException:
        owner.release()
        raise
    return workdir


def resumable(
    path: str | os.PathLike[str],
    rules: Rules,
    identity: dict[str, Any],
    settings: dict[str, Any],
    *,
    local_path: str = "",
) -> str | None:
    """Return the id of the run in `path` that `open_workdir` would resume from what is there; change nothing.

    None if there is no such run, or if this machine has local saves of it as well.

    Raises:
      UserError: `open_workdir` would refuse the settings, or another process writes there.
    """
    path, run_id = epath.Path(path), None
    if decide(not rules.has_saved(path) or _has_local_saves(path, local_path), any):
        return None
    if jax.process_index() == 0:
        _check_not_foreign(path)
        if (facts := live_owner(path)) is not None:
            raise written_by(path, facts)
        rules.check(path, identity, settings)
        run_id = saved_run(path / "run.json")["run_id"]
    return from_first(run_id)


def _check_shared(workdir: WorkDirectory) -> None:
    """Raise a UserError on all hosts if one does not see the first host's files: each would save its part elsewhere."""
    if jax.process_count() == 1:
        return
    deadline = time.monotonic() + SHARED_SECONDS
    while not (seen := _sees(workdir)) and time.monotonic() < deadline:
        time.sleep(1)
    if problem := any_failure(
        None if seen else "its run.json is not there, or not the one that the first host has written"
    ):
        raise UserError(
            f"the work directory {workdir.path} is not the same on all hosts ({problem}); give a --workdir on a "
            "file system that all of them share, or on gs://"
        )


def _sees(workdir: WorkDirectory) -> bool:
    try:
        return read_json(workdir.path / "run.json") == workdir.files["run.json"]
    except UserError:
        return False


def _check_not_foreign(path: epath.Path) -> None:
    for name, ours in (
        ("checkpoints", "config.json"),
        ("metrics.jsonl", "config.json"),
        ("manifest.json", "config.json"),
        ("config.json", "run.json"),
    ):  # run.json is written first: config.json alone is another program's
        if (path / name).exists() and not (path / ours).exists():
            raise UserError(
                f"{path} already holds {name} but no {ours}, so it is not the work directory of a bert_jax run; "
                "give another --workdir"
            )


def _check_writable(path: epath.Path) -> None:
    probe = path / f".probe-{uuid.uuid4().hex}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.write_text("probe")
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"cannot write to the work directory {path}: {error.strerror or error}; "
            "give a writable directory with --workdir"
        ) from error


def has_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Return whether a run in work directory `path` has saved anything; the directory need not exist."""
    return bool(Checkpoints(epath.Path(path) / "checkpoints", read_only=True).steps())


def _has_local_saves(path: epath.Path, local_path: str) -> bool:
    """Return whether this machine has local saves of the run in work directory `path`."""
    run = path / "run.json"
    if not local_path or not run.exists():
        return False
    run_id = read_json(run).get("run_id")
    return isinstance(run_id, str) and has_copies(local_path, run_id)

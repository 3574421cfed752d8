"""The work directory of any run: who may write to it, which run it holds, and its files beside the checkpoints."""

import dataclasses
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

import jax
from absl import logging
from etils import epath

from bert_jax.checkpoints.owner import Owner
from bert_jax.checkpoints.run_files import read_json, saved_run, this_start, write_json
from bert_jax.devices import sharding
from bert_jax.devices.hosts import any_failure, from_first
from bert_jax.errors import UserError
from bert_jax.files import is_remote
from bert_jax.tokenization.tokenizer import Tokenizer

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


def open_workdir(
    path: str | os.PathLike[str],
    identity: dict[str, Any],
    settings: dict[str, Any],
    tokenizer: Tokenizer,
    *,
    resumed: bool,
    check: Callable[[epath.Path, dict[str, Any], dict[str, Any]], None],
    devices: sharding.Devices = None,
) -> WorkDirectory:
    """Take `path` (local or gs://) for any run; the first host writes run.json, config.json and tokenizer/.

    Args:
      identity: what the run must have in common with the existing one; written to run.json.
      settings: contents of config.json.
      resumed: whether there is something to resume. A run that has saved nothing yet may be started again with any
        settings.
      check: called with the directory, `identity` and `settings` if there is; raises a UserError to prevent resuming.
      devices: that the run computes on; None for those of all processes.

    Raises:
      UserError: `path` is not writable, another process writes to it, it holds something else, or `check` raises it.
    """
    path = epath.Path(path if is_remote(path) else os.path.abspath(path))
    if jax.process_index() != 0:
        workdir = WorkDirectory(path, resumed, None, {"run.json": from_first(None) or {}}, tokenizer)
        _check_shared(workdir)
        return workdir
    _check_not_foreign(path)
    _check_writable(path)
    owner = Owner(path)
    try:
        if resumed:
            check(path, identity, settings)
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

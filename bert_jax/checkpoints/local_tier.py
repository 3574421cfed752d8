"""Frequent saves to the local disks of the hosts, beside the rarer ones of `Checkpoints`, and restoring from them.

Every host writes what its devices hold into a directory of its own, in the background and without waiting for others:
`local_path/RUN_ID/host_0/step_000000100`. When a run is resumed, the hosts compare what they find. A step can be used
if the good copies have every part of every array, whatever number of hosts they come from: a host that lacks what its
devices need, because its disk is empty or damaged or the mesh has changed, gets it from one that has it. Otherwise an
older local step is used, or the newest step of `Checkpoints`. Where arrays are replicated over hosts, one surviving
copy is enough; where they are split (fsdp), each part has to survive.

Orbax has managers for this (orbax.checkpoint.experimental.emergency, in 0.12.8), which do not serve here: they need at
least two data-parallel replicas of whole hosts, or a service of GKE, save the state alone, and read it back on the mesh
that wrote it, each device its own part. Changed bytes go unnoticed there, and a damaged copy gives way to no other.
"""

import contextlib
import os
import pathlib
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
from absl import logging
from etils import epath

from bert_jax.checkpoints.assembly import Assembly
from bert_jax.checkpoints.fingerprint import leaf_paths
from bert_jax.checkpoints.local_copy import PARTIAL, LocalCopy, open_copy, write_copy
from bert_jax.checkpoints.manager import STEP_NAMES
from bert_jax.checkpoints.owner import Owner
from bert_jax.checkpoints.parts import held, layout
from bert_jax.checkpoints.record import check_fit, check_unchanged, make_record
from bert_jax.checkpoints.walk_back import Restored, reason
from bert_jax.devices.hosts import decide
from bert_jax.errors import UserError

KEPT = 2
"""Steps that every host keeps. When a host has written one, all have written the one before: that one is complete."""
HOST_NAME = re.compile(r"host_(\d{1,9})")


class LocalTier:
    """The local saves of one run on this host, and what the hosts make of theirs together.

    All hosts make one, and call `steps`, `read` and `save` together.

    Args:
      path: directory of this machine; several processes of a machine may share it.
      run_id: id in every record of the run.
      committed: called with the step and the seconds of each copy that has been written, by `poll` or `wait`.

    Raises:
      UserError: the directory cannot be written, or another process of the run still writes there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run_id: str,
        committed: Callable[[int, float], None] = lambda step, seconds: None,
    ):
        self.run_id: str = run_id
        self._home = pathlib.Path(os.path.abspath(path)) / run_id
        self._own = self._home / f"host_{jax.process_index()}"
        self._committed = committed
        self._writing: threading.Thread | None = None
        self._written: tuple[int, float] | None = None
        self._failure: str | None = None
        self._owners: list[Owner] = []
        try:
            self._own.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._directories = self._dealt()
            for directory in self._directories:
                self._owners.append(Owner(epath.Path(directory), refusal=_still_written))
                for partial in directory.glob(f"{PARTIAL}*"):
                    shutil.rmtree(partial)
        except OSError as error:
            self.close()
            raise UserError(
                f"cannot save below {path}: {error.strerror or error}; give another --checkpoint.local_path, a "
                "directory of each host's own disk"
            ) from error
        except UserError:
            self.close()
            raise

    def _dealt(self) -> list[pathlib.Path]:
        """Return the directories of this process: its own, and its share of those that no process writes any longer."""
        names = sorted(found.name for found in self._home.iterdir() if HOST_NAME.fullmatch(found.name))
        machine = f"{socket.gethostname()}:{os.path.realpath(self._home)}"
        machines = decide(machine, lambda values: values)
        here = [host for host, other in enumerate(machines) if other == machine]
        mine = []
        for name in names:
            host = int(name.removeprefix("host_"))
            if (host if host in here else here[host % len(here)]) == jax.process_index():
                mine.append(self._home / name)
        return mine

    def newest(self) -> int | None:
        """Return the newest step of which this host has a part; hosts do not meet."""
        return max((step for step, _ in self._found()), default=None)

    def steps(self) -> list[int]:
        """Return the steps of which any host has a part."""
        mine = sorted({step for step, _ in self._found()})
        return decide(mine, lambda values: sorted({step for found in values for step in found}))

    def _found(self) -> list[tuple[int, pathlib.Path]]:
        return _copies(self._directories)

    def save(self, step: int, state: Any, *, position: dict[str, Any], config: dict[str, Any]) -> None:
        """Copy what this host's devices hold of `state`, and write it in the background.

        A copy that cannot be written is reported as a warning: the run has its other saves.
        """
        self.wait()
        record = make_record(step, state, position, config, None, self.run_id)
        leaves = leaf_paths(state)
        boxes = {path: layout(leaf) for path, leaf in leaves.items()}
        self._writing = threading.Thread(
            target=self._write, args=(step, record, boxes, held(leaves), time.monotonic()), name="local_tier"
        )
        self._writing.start()

    def _write(
        self, step: int, record: dict[str, Any], boxes: dict[str, Any], parts: dict[str, Any], begun: float
    ) -> None:
        directory = self._own / STEP_NAMES.build_name(step)
        try:
            if directory.exists():  # of an earlier start that came this far
                shutil.rmtree(directory)
            write_copy(directory, record, boxes, parts)
            kept = sorted({found for found, _ in self._found()})[-KEPT:]
            self._remove(lambda found: found not in kept)
            self._written = step, time.monotonic() - begun
        except OSError as error:
            self._failure = f"step {step} was not saved to {self._own}: {error.strerror or error}"

    def poll(self) -> None:
        """Report a copy that has been written; cheap enough to call at every step."""
        if self._writing is not None and not self._writing.is_alive():
            self.wait()

    def wait(self) -> None:
        """Block until the copy that is being written is complete, or has failed, and report it."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        if self._written is not None:
            written, self._written = self._written, None
            self._committed(*written)
        if self._failure is not None:
            logging.warning(
                "%s; the run continues, and the saves in the work directory are not affected", self._failure
            )
            self._failure = None

    def read(self, step: int, abstract: Any) -> Restored:
        """Return one step in the shape of `abstract`, whose leaves have shardings; see `walk_back.Tier`."""
        copies, problems = self._open(step)
        assembly = Assembly.of(copies, problems)
        content = assembly.content
        check_fit(content, abstract, f"the local save of step {step}")
        state = assembly.arrays(abstract)
        check_unchanged(content, state)
        return Restored(step, state, content["position"], content["config"], None)

    def _open(self, step: int) -> tuple[list[LocalCopy], list[str]]:
        copies, problems = [], []
        for found, directory in self._found():
            if found == step:
                try:
                    copies.append(open_copy(directory, step, self.run_id))
                except Exception as error:  # a damaged record provokes anything; the other hosts are told
                    problems.append(reason(error))
        return copies, problems

    def settle(self, refused: dict[int, str], restored: Restored | None) -> None:
        """Report the steps that could not be used, and remove them and all that a run from `restored` makes again."""
        start = 0 if restored is None else restored.step
        for step, problem in refused.items():
            logging.warning("the local copies of step %d cannot be used (%s); step %d is used", step, problem, start)
        self._remove(lambda step: step > start or step in refused)

    def discard_after(self, step: int) -> None:
        """Delete the later steps of this host."""
        self.wait()
        self._remove(lambda later: later > step)

    def _remove(self, unwanted: Any) -> None:
        for step, directory in self._found():
            if unwanted(step):
                shutil.rmtree(directory, ignore_errors=True)

    def clear(self) -> None:
        """Remove the saves of this host, which a finished run no longer needs."""
        self.wait()
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # other processes of this machine may not have come this far
            self._home.rmdir()

    def close(self) -> None:
        """Wait for the copy that is being written, and let another process write here."""
        self.wait()
        while self._owners:
            self._owners.pop().release()


def has_copies(path: str | os.PathLike[str], run_id: str) -> bool:
    """Return whether this machine has local saves of a run; hosts do not meet."""
    home = pathlib.Path(path) / run_id
    return home.is_dir() and bool(_copies(sorted(home.glob("host_*"))))


def _copies(directories: list[pathlib.Path]) -> list[tuple[int, pathlib.Path]]:
    """Return the steps in some directories of hosts, with the directory of each."""
    found = []
    for directory in directories:
        for entry in sorted(directory.glob("step_*")):
            if re.fullmatch(r"step_[0-9]{9,18}", entry.name):
                found.append((int(entry.name.removeprefix("step_")), entry))
    return found


def _still_written(directory: epath.Path, facts: dict[str, Any]) -> UserError:
    return UserError(
        f"{directory} is being written by process {facts.get('pid', '?')} on {facts.get('host', '?')} since "
        f"{facts.get('since', '?')}, which belongs to an earlier start of this run; wait for it, or stop it"
    )

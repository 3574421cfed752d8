"""One live writer per directory: a file in it names that process, and is released however the process ends.

On a file system the kernel holds a lock on that file and frees it even after kill -9. An object store (gs://) has no
locks: there the owner renews a time stamp, and counts as dead if it has not done so for STALE_SECONDS.
"""

import datetime
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import is_remote, parse_object, read_bytes, write_atomically

RENEW_SECONDS = 60
STALE_SECONDS = 300
KINDS = {"pid": int, "host": str, "id": str, "since": str, "renewed": (int, float)}


def need_run(path: str | os.PathLike[str]) -> None:
    """Raise a UserError unless a directory has a file that a run writes first."""
    directory = epath.Path(path).expanduser()
    if not any((directory / name).exists() for name in ("run.json", "config.json", "metrics.jsonl")):
        reason = "it has none of run.json, config.json and metrics.jsonl"
        if not directory.is_dir():
            reason = "it is a file" if directory.exists() else "there is no such directory"
        raise UserError(f"{path} is not the work directory of a run: {reason}")


def written_by(directory: epath.Path, facts: dict[str, Any]) -> UserError:
    """Return the error of a directory that another process owns, by the facts that its file has."""
    return UserError(
        f"{directory} is being written by process {facts.get('pid', '?')} on {facts.get('host', '?')} "
        f"since {facts.get('since', '?')}; wait for it, stop it, or give another --workdir"
    )


class Owner:
    """Ownership of the existing `directory` by the process that writes to it; release() ends it.

    Args:
      name: name of the file. Commands that may meet in a directory have to use the same one.
      refusal: returns the error for a directory that another process owns, whose facts (pid, host, since) may be
        missing.
      lasting: whether the file stays after release if the kernel holds the lock.

    Raises:
      UserError: another live process owns it; by default the message names its host and process id.
    """

    def __init__(
        self,
        directory: epath.Path,
        name: str = "owner.json",
        refusal: Callable[[epath.Path, dict[str, Any]], UserError] = written_by,
        lasting: bool = True,
    ):
        self._path, self._refusal, self._lasting = directory / name, refusal, lasting
        self._facts = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "id": uuid.uuid4().hex,
            "since": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        }
        self._file, self._thread = None, None
        self._released = threading.Event()
        self.renewing: threading.Lock = threading.Lock()
        if is_remote(directory):
            self._claim()
        else:
            self._lock()

    def holds(self) -> bool:
        """Return whether the file is still this process's own and was not deleted or replaced."""
        try:
            if self._file is not None:
                return os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path))
            return self._path.exists() and _parsed(read_bytes(self._path)).get("id") == self._facts["id"]
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # temporarily out of reach, not lost
            return True

    def take(self) -> None:
        """Take the directory again after `holds` has returned False.

        Raises:
          UserError: another live process has taken it.
        """
        if self._file is not None:
            self._file.close()
            self._file = None
            self._lock()
        else:
            with self.renewing:
                self._claim()

    def release(self) -> None:
        if self._file is not None:
            # Without the file two processes could lock two files of that name: the later one has to check `holds`.
            if not self._lasting and self.holds():
                self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None
        if self._thread is not None:
            self._released.set()
            self._thread.join()
            if self.holds():
                self._path.unlink(missing_ok=True)
            self._thread = None

    def _lock(self) -> None:
        file = open(self._path, "a+b")
        try:
            _flock(file)
        except BlockingIOError:
            file.seek(0)
            facts = _parsed(file.read())
            file.close()
            raise self._refusal(self._path.parent, facts) from None
        except OSError:  # a mounted file system without locks
            file.close()
            self._claim()
            return
        file.truncate(0)
        file.write(json.dumps(self._facts).encode())
        file.flush()
        self._file = file

    def _claim(self) -> None:
        facts = _parsed(read_bytes(self._path)) if self._path.exists() else {}
        if facts.get("id") != self._facts["id"] and not _abandoned(facts):
            raise self._refusal(self._path.parent, facts)
        self._renew()
        if (facts := _parsed(read_bytes(self._path))).get("id") != self._facts["id"]:
            raise self._refusal(self._path.parent, facts)
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_renewing, daemon=True, name="owner")
            self._thread.start()

    def _keep_renewing(self) -> None:
        while not self._released.wait(RENEW_SECONDS):
            try:
                with self.renewing:
                    if self.holds():
                        self._renew()
            except OSError:  # the store is temporarily out of reach; the next renewal counts
                continue

    def _renew(self) -> None:
        # To another process, half of a file would look abandoned.
        write_atomically(self._path, json.dumps({**self._facts, "renewed": time.time()}).encode())


def _flock(file: Any) -> None:
    """Lock `file`; the first refusal may come from `live_owner` of another process, which holds the lock no longer."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(0.05)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def live_owner(directory: epath.Path) -> dict[str, Any] | None:
    """Return the facts (pid, host, since) of the live process that owns `directory`; None if there is none."""
    path, facts = directory / "owner.json", {}
    try:
        facts = _parsed(read_bytes(path))
        if "renewed" in facts or is_remote(path):
            return None if _abandoned(facts) else facts
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return facts
    except OSError:  # there is no such file
        pass
    return None


def _abandoned(facts: dict[str, Any]) -> bool:
    """Return whether a time-stamped owner is gone: silent for long, or a process of this host that no longer runs."""
    if time.time() - facts.get("renewed", 0) > STALE_SECONDS:
        return True
    if facts.get("host") != socket.gethostname() or "pid" not in facts:
        return False
    try:
        os.kill(facts["pid"], 0)  # signal 0 only tests for existence
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:  # it runs as a different user
        pass
    return False


def _parsed(text: bytes) -> dict[str, Any]:
    """Return the plausible facts of an owner file; none if a crash has truncated it."""
    try:
        facts = parse_object(text)
    except ValueError:
        return {}
    return {
        name: value
        for name, value in facts.items()
        if isinstance(value, KINDS.get(name, ()))
        and (not isinstance(value, str) or len(value) <= 255 and value.isprintable())
    }

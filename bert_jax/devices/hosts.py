"""Agreement between the hosts of one job, detection of dead hosts, and the software of each.

With a single process, nothing happens. Hosts agree on values, settings and failures through JAX's coordination
service and not through the devices: if hosts have different meshes, versions or numbers of devices, which is to be
detected here, a collective hangs or computes something different on each of them. The software of a process is the
versions of its libraries and the code of bert_jax that it runs.

Every host writes a heartbeat to the coordination service every few seconds, from a thread of its own, and the first
host checks that they advance. JAX has heartbeats of its own, but answers a missing one by aborting with a page of C++
stack, and a host that crashes leaves the others in a collective operation until its heartbeat is missed. Here a host
that crashes or gives up says so, and the others end within seconds, each with the stacks of its threads, so that all
start again. When the first host, which runs the service, is silent, each of the others ends by itself. JAX's own
heartbeats time out later than all this.
"""

import atexit
import contextlib
import faulthandler
import functools
import hashlib
import importlib.metadata
import itertools
import json
import os
import pathlib
import platform
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

import jax
from absl import logging
from jax._src.distributed import global_state  # it has no public name; Orbax takes it from here too

from bert_jax.config.options import differences, is_among
from bert_jax.errors import UserError, is_of_cloud_storage

EXIT_CODE = 75
"""EX_TEMPFAIL of sysexits.h: nothing is wrong with the command, and it should be started again."""
LOOK_SECONDS = 2.0
LINGER_SECONDS = 5.0
"""Longest time that the first host, which ends the service with itself, waits for the others to read why they end."""
HEARTBEATS, END = "bert_jax/heartbeats", "bert_jax/end"

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_watching: "Peers | None" = None


class Peers:
    """The hosts of a job as this one sees them.

    Args:
      client: that of JAX's coordination service.
      me: number of this host.
      timeout_seconds: seconds without a heartbeat after which a host counts as dead.
      clock: in seconds.
    """

    def __init__(self, client: Any, me: int, timeout_seconds: float, clock: Callable[[], float] = time.monotonic):
        self._client, self._me, self._timeout, self._clock = client, me, timeout_seconds, clock
        self._facts: dict[str, Any] = {"name": socket.gethostname()}
        self._beats, self._due = 0, -float("inf")
        self.heartbeats: dict[int, dict[str, Any]] = {}
        """The last heartbeat of each host; on the first host only."""
        self._heard: dict[int, tuple[int, float]] = {}  # number of the last heartbeat, and when it was new
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peers", daemon=True)
        self._unanswered = 0.0  # seconds since the service last answered

    def start(self) -> None:
        self._thread.start()
        threading.Thread(target=self._watch_service, name="service", daemon=True).start()
        atexit.register(self.stop)  # before JAX leaves, for which it waits for the others

    def stop(self) -> None:
        """Say that this host leaves in good order, and watch no more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(LINGER_SECONDS + LOOK_SECONDS)
        if self._thread.is_alive():
            return  # in a call to the service, which the network does not answer
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the service has left before
            self._beat(left=True)

    def publish(self, **facts: Any) -> None:
        """Give values that JSON can represent to the first host, with the next heartbeat."""
        self._facts = {**self._facts, **facts}

    def look(self) -> str | None:
        """Send a heartbeat and check those of the others if it is time; return why this process should end."""
        if (told := self._told()) is not None:
            return told
        if self._clock() >= self._due:
            self._due = self._clock() + self._timeout / 8
            self._beat()
            return self._missing() if self._me == 0 else None
        return None

    def tell(self, reason: str) -> None:
        """Make every host end for `reason`; the first reason counts."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # another host was first, or the service is gone
            self._client.key_value_set(END, json.dumps({"host": self._me, "reason": reason}))

    def farewell(self) -> None:
        """Say that this host ends; on the first host, wait until the others, but for dead ones, have said it too."""
        deadline = self._clock() + LINGER_SECONDS
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the service is gone
            self._beat(left=True)
            while self._me == 0 and self._clock() < deadline and self._alive():
                time.sleep(0.1)

    def _alive(self) -> bool:
        """Return whether a host whose heartbeats came until recently has not said that it ends."""
        self._missing()
        silent = {host for host, (_, since) in self._heard.items() if self._clock() - since > 0.75 * self._timeout}
        return any(not beat["left"] for host, beat in self.heartbeats.items() if host not in silent)

    def _watch(self) -> None:
        failures = 0  # in a row
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                reason, failures = self.look(), 0
                self._unanswered = 0.0
            except jax.errors.JaxRuntimeError as error:  # for a moment, or until `_watch_service` has had enough
                failures += 1
                if failures == 1:
                    logging.warning("the first host cannot be reached: %s", str(error).partition("\n")[0])
                continue
            if reason is not None:
                end_process(reason)

    def _watch_service(self) -> None:
        """End the process when the first host, which has the service, is silent: a call to it may never return.

        Ticks are counted, because there are none while the whole process is suspended.
        """
        while not self._stopping.wait(LOOK_SECONDS):
            self._unanswered += LOOK_SECONDS
            if self._unanswered > self._timeout:
                end_process(f"the first host has not answered for {self._unanswered:.0f} s")

    def _beat(self, left: bool = False) -> None:
        self._beats += 1
        beat = {**self._facts, "beat": self._beats, "left": left, "place": where(threading.main_thread())}
        self._client.key_value_set(f"{HEARTBEATS}/{self._me}", json.dumps(beat), allow_overwrite=True)

    def _told(self) -> str | None:
        try:
            said = json.loads(self._client.key_value_try_get(END))
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" in str(error):
                return None
            raise
        return f"host {said['host']}: {said['reason']}"

    def _missing(self) -> str | None:
        """Return which host has sent no heartbeat for too long, if any; one that never sent one is still starting."""
        now = self._clock()
        for key, value in self._client.key_value_dir_get(HEARTBEATS):
            host, beat = int(key.rpartition("/")[2]), json.loads(value)
            self.heartbeats[host] = beat
            if host not in self._heard or self._heard[host][0] != beat["beat"]:
                self._heard[host] = beat["beat"], now
            silent = now - self._heard[host][1]
            if silent > 0.75 * self._timeout and not beat["left"]:  # seen an eighth late, which makes it 0.875 to 1
                reason = f"host {host} ({beat['name']}) has sent no heartbeat for {silent:.0f} s"
                self.tell(reason)
                return reason
        return None


def watch(timeout_seconds: float) -> None:
    """Watch the other hosts, if there are any, until the process ends; do nothing when called again."""
    global _watching
    if _watching is None and global_state.client is not None and global_state.num_processes > 1:
        _watching = Peers(global_state.client, global_state.process_id, timeout_seconds)
        _watching.start()


def publish(**facts: Any) -> None:
    """Give values to the first host, if the hosts watch each other (`Peers.publish`)."""
    if _watching is not None:
        _watching.publish(**facts)


def heartbeats() -> dict[int, dict[str, Any]]:
    """Return the last heartbeat of each host, on the first host; {} on others, and if there is only one."""
    return {} if _watching is None else dict(_watching.heartbeats)


def is_watching() -> bool:
    """Return whether the hosts watch each other."""
    return _watching is not None


def end_all(reason: str, is_effect: bool = False, stacks: bool = True) -> NoReturn:
    """End this process and those of all other hosts, with exit code 75.

    Args:
      reason: what has happened.
      is_effect: whether another host is probably the cause; then that one may say why for a few seconds.
      stacks: whether this process also prints the stacks of its threads.
    """
    if is_effect:
        time.sleep(3 * LOOK_SECONDS)  # within which the thread ends this process if there is something to read
    if _watching is not None:
        _briefly(lambda peers: peers.tell(reason), _watching)
    end_process(reason, stacks)


def _briefly(call: Callable[[Peers], None], peers: Peers) -> None:
    """Call in a thread, and do not wait for ever: where the network is cut, the service does not answer."""
    thread = threading.Thread(target=call, args=(peers,), daemon=True)
    thread.start()
    thread.join(LINGER_SECONDS + LOOK_SECONDS)


def end_process(reason: str, stacks: bool = True) -> NoReturn:
    """End this process: nothing can be saved while a host is missing, and Python cannot interrupt what it waits for."""
    stream = sys.__stderr__
    if stream is not None:
        print(f"error: {reason}. Start the job again; it resumes from its newest checkpoint", file=stream, flush=True)
        if stacks:
            for host, beat in sorted(heartbeats().items()):
                print(f"host {host} ({beat['name']}) was in {beat['place']}", file=stream, flush=True)
            faulthandler.dump_traceback(stream, all_threads=True)
    if _watching is not None:
        _briefly(Peers.farewell, _watching)
    os._exit(EXIT_CODE)


def where(thread: threading.Thread) -> str:
    """Return the innermost line of bert_jax that a thread is in, such as "bert_jax/training/metrics.py:12 in write"."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE + os.sep):
        frame = frame.f_back
    if frame is None:
        return "code outside bert_jax"
    file = os.path.relpath(frame.f_code.co_filename, os.path.dirname(PACKAGE))
    return f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"


PACKAGES = ("bert_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
PACKAGE_DIRECTORY = pathlib.Path(__file__).resolve().parents[1]


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that affect numbers."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # used from a source tree
            found[package] = None
    return found


def sources(directory: pathlib.Path = PACKAGE_DIRECTORY) -> dict[str, str]:
    """Return {name: SHA-256} of the Python files below `directory`, whether under version control or not."""
    return {
        file.relative_to(directory).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(directory.rglob("*.py"))
    }


@functools.cache  # the code that a process has loaded stays what it is, and so does the answer
def commit() -> str | None:
    """Return the commit of the source tree that this code runs from, "-dirty" if files differ; None if installed."""
    root = PACKAGE_DIRECTORY.parent
    if not (root / ".git").exists():
        return None
    try:
        return subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


PATIENCE_SECONDS = 3600
"""One host may copy a large store while the others wait; one that has died is noticed sooner (`watch`)."""
WARNING_SECONDS = 30
FLAGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable")
"""Settings of JAX that change numbers, and that the environment of a single host may set."""

P = ParamSpec("P")
R = TypeVar("R")

_meetings = itertools.count()  # all hosts take part in all meetings, in the same order


class Ended(UserError):
    """Raised on every host: the hosts differ, or one of them has failed."""


def from_first(value: R) -> R:
    """Return `value` of the first host, on every host; it may be anything that JSON can represent.

    Use it for what is read from a file that the first host writes: on a network file system the other hosts may still
    see the past, and hosts that decide differently wait for each other forever.

    Raises:
      Ended: another host has failed; see `ending_together`.
    """
    return value if global_state.num_processes == 1 else _meet("from_first", value, lambda values: values[0])


def any_failure(problem: str | None) -> str | None:
    """Return the same verdict on every host: this host's own problem, or else that of the first host that has one."""
    if global_state.num_processes == 1:
        return problem
    found = _meet(
        "any_failure",
        problem,
        lambda values: next((f"host {host}: {value}" for host, value in enumerate(values) if value is not None), None),
    )
    return found if problem is None else problem


def decide(value: Any, choose: Callable[[list[Any]], R]) -> R:
    """Return `choose` of the values of all hosts, in their order, on every host; JSON represents them and the result.

    Raises:
      Ended: another host has failed.
    """
    return choose([value]) if global_state.num_processes == 1 else _meet("decide", value, choose)


def check_alike(facts: Callable[[], dict[str, Any]], own: tuple[str, ...] = ()) -> None:
    """Raise on every host unless all of them run the same thing: `facts()`, code, versions and JAX's number formats.

    Args:
      facts: returns a nested dict of JSON types (resolved options, fingerprints); only called if there are several
        hosts.
      own: dotted names of facts in which hosts may differ; a name that ends in a dot includes everything below it.

    Raises:
      Ended: hosts differ (the message names the first difference, both values and the host), or another host has
        failed.
    """
    if global_state.num_processes == 1:
        return
    flags = {name: getattr(jax.config, name) for name in FLAGS}
    software = {"jax": flags, "versions": versions(), "code": sources()}
    _meet("check_alike", {**facts(), **software}, lambda values: refuse_differences(values, own))


def refuse_differences(facts: list[dict[str, Any]], own: tuple[str, ...] = ()) -> None:
    """Raise `Ended` for the first fact, not among `own`, in which a host (an index of the list) differs from host 0."""
    for host, other in enumerate(facts):
        for line in differences(facts[0], other):
            name, change = line.split(": ", 1)
            if not is_among(name, own):
                first, second = change.split(" → ", 1)
                raise Ended(
                    f"the hosts do not run the same thing: {name} is {first} on host 0 and {second} on host {host}. "
                    "Start the same command on every host, with the same data, code and library versions"
                )


def ending_together(run: Callable[P, R]) -> Callable[P, R]:
    """Decorate a run so that an exception that ends it on one host is raised on the others at their next meeting.

    They meet in the functions above: before anything is written, when the work directory is taken, and at every save.
    An exception that is nobody's mistake (a collective operation that failed, a bug) ends the processes of all hosts at
    once, wherever they are, if they watch each other: those in a collective operation would never come to a meeting.
    """

    @functools.wraps(run)
    def wrapped(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return run(*arguments, **options)
        except Ended:
            raise
        except BaseException as error:
            if is_watching() and isinstance(error, Exception) and not isinstance(error, UserError | OSError):
                _end_all(error)
            if global_state.num_processes > 1:
                _tell(f"host {global_state.process_id} has stopped: {str(error) or type(error).__name__}")
            raise

    return wrapped


def _end_all(error: Exception) -> NoReturn:
    """End all hosts because of `error`, with a traceback unless another host or the network is the cause."""
    line = f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.300}"
    if re.search("Gloo|NCCL|UNAVAILABLE|ABORTED|CANCELLED|Connection|Socket closed", str(error)):
        end_all(f"a collective operation has failed, probably because a host has died ({line})", is_effect=True)
    if is_of_cloud_storage(error):
        found = " ".join(str(error).split())[:300]
        remedy = "check the name of the bucket, the network and the credentials of every host"
        end_all(f"Google Cloud Storage: {found}; {remedy}", stacks=False)
    traceback.print_exception(error)
    end_all(line)


def _meet(kind: str, value: Any, conclude: Callable[[list[Any]], Any]) -> Any:
    """Return, on every host, the result of `conclude` on the values of all hosts, which the first host calls.

    Waits for all hosts.

    Raises:
      Ended: `conclude` raised it, or a host has failed on its way here, or is in a different meeting.
    """
    meeting, me = next(_meetings), global_state.process_id
    _put(meeting, me, {"kind": kind, "value": value})
    if me == 0:
        try:
            verdict = {"value": conclude([_entry(meeting, host, kind) for host in range(global_state.num_processes)])}
        except Ended as error:
            verdict = {"error": str(error)}
        _put(meeting, "verdict", verdict)
    verdict = _get(meeting, "verdict", 0)
    if "error" in verdict:
        raise Ended(verdict["error"])
    return verdict["value"]


def _entry(meeting: int, host: int, kind: str):
    """Return the value that `host` has brought to a meeting."""
    entry = _get(meeting, host, host)
    if "error" in entry:
        raise Ended(entry["error"])
    if entry["kind"] != kind:
        raise Ended(
            f"the hosts do not run the same thing: host 0 is in {kind}, host {host} in {entry['kind']}. Start the same "
            "command on every host, with the same kinds of files"
        )
    return entry["value"]


def _tell(error: str) -> None:
    """Leave `error` for the next meeting, which this host will not attend."""
    meeting = next(_meetings)
    try:
        _put(meeting, global_state.process_id, {"error": error})
        if global_state.process_id == 0:
            _put(meeting, "verdict", {"error": error})
    except Ended as failure:  # the service has ended, and with it the other hosts
        logging.warning("the other hosts could not be told: %s", failure)


def _client():
    assert global_state.client is not None  # these are several processes
    return global_state.client


def _put(meeting: int, name: int | str, entry: dict[str, Any]) -> None:
    try:
        _client().key_value_set(f"bert_jax/{meeting}/{name}", json.dumps(entry))
    except jax.errors.JaxRuntimeError as error:
        raise Ended(f"the first host cannot be reached: {str(error).splitlines()[0]}") from None


def _get(meeting: int, name: int | str, host: int) -> dict[str, Any]:
    """Wait for the entry of `host`."""
    for waited in range(WARNING_SECONDS, PATIENCE_SECONDS + 1, WARNING_SECONDS):
        try:
            return json.loads(_client().blocking_key_value_get(f"bert_jax/{meeting}/{name}", WARNING_SECONDS * 1000))
        except jax.errors.JaxRuntimeError as error:
            if not str(error).startswith("DEADLINE_EXCEEDED"):
                raise Ended(f"host {host} cannot be reached: {str(error).splitlines()[0]}") from None
            logging.warning("waiting for host %d, %d s so far", host, waited)
    raise Ended(f"host {host} was not ready after {PATIENCE_SECONDS // 60} minutes; see what it printed")

"""Notices that another host of the job is dead, stuck or has crashed, and ends this process so that all start again.

Every host writes a heartbeat to JAX's coordination service every few seconds, from a thread of its own, and the first
host checks that they advance. JAX has heartbeats of its own, but answers a missing one by aborting with a page of C++
stack, and a host that crashes leaves the others in a collective operation until its heartbeat is missed. Here a host
that crashes or gives up says so, and the others end within seconds, each with the stacks of its threads. When the first
host, which runs the service, is silent, each of the others ends by itself. JAX's own heartbeats time out later than all
this.
"""

import atexit
import contextlib
import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import jax
from absl import logging
from jax._src.distributed import global_state  # it has no public name; Orbax takes it from here too

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

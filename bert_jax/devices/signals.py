"""Requests to stop a run (SIGTERM, Ctrl-C), and a watchdog that ends a run without progress.

SIGTERM comes from a scheduler, Ctrl-C from a person. The watchdog catches a main thread that makes no progress: a
collective that never returns, a file system that hangs.
"""

import concurrent.futures
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Literal, TypeVar

import jax
from jax.experimental import multihost_utils
from rich.console import Console

from bert_jax.devices.hosts import end_all, where

BEYOND_SLOWEST_SECONDS = 300.0
PATIENCE_SECONDS = 3600.0
"""Limit for compiling, for the first steps and for the first save, when it is not yet known how long they take."""
FIRST_STEPS = 3
TICK_SECONDS = 1.0
REPORT_SECONDS = 5.0
"""For which the end waits for the report, whose file system may be what hangs."""

Work = Literal["step", "save", "compilation"]


class Progress:
    """How long a run has made no progress, and how long it may: bounds for steps, saves and compilations.

    Time is what ticks say: while the whole process is stopped (Ctrl-Z, a suspended job) there are none.

    `timeout_seconds`: the bound for a step; None for `BEYOND_SLOWEST_SECONDS` more than the slowest so far.
    """

    def __init__(self, timeout_seconds: float | None):
        self._timeout, self._work = timeout_seconds, "step"
        self._slowest, self._done = {"step": 0.0, "save": 0.0}, {"step": 0, "save": 0}
        self.waited: float = 0.0
        """Seconds since the last progress."""

    @property
    def limit(self) -> float:
        """Seconds after which the run is stuck."""
        if self._work == "compilation" or not self._done[self._work]:
            return PATIENCE_SECONDS
        if self._work == "step" and self._timeout is not None:
            return self._timeout
        if self._work == "step" and self._done["step"] < FIRST_STEPS:
            return PATIENCE_SECONDS
        return self._slowest[self._work] + BEYOND_SLOWEST_SECONDS

    def step(self) -> None:
        """Take note that a step, or a batch of an evaluation, is done, and what it included."""
        if self._work in self._done:
            self._slowest[self._work] = max(self._slowest[self._work], self.waited)
            self._done[self._work] += 1
        self.waited, self._work = 0.0, "step"

    def begin(self, work: Work) -> None:
        """Take note that the step under way includes a save or a compilation."""
        self.waited, self._work = 0.0, work

    def tick(self, seconds: float) -> bool:
        """Let time pass; return whether the run is stuck."""
        self.waited += seconds
        return self.waited > self.limit


class Watchdog:
    """Ends all hosts with exit code 75, and the stacks of their threads, if this one makes no progress.

    It watches from the first `step` to the end of the `with` block, from a thread.

    Args:
      timeout_seconds: see `Progress`; 0 for never.

    Attributes:
      report: told of it first, with the seconds and the place, such as "bert_jax/training/metrics.py:12 in write"; it
        may fail or never return.
    """

    def __init__(self, timeout_seconds: float | None = 0):
        self.report: Callable[[float, str], None] = lambda seconds, place: None
        self._progress, self._watches = Progress(timeout_seconds), timeout_seconds != 0
        self._main, self._stopping = threading.current_thread(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        return self

    def __exit__(self, *unused: object) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def step(self) -> None:
        """Take note that a step, or a batch of an evaluation, is done."""
        self._progress.step()
        if self._watches and not self._thread.is_alive():
            self._thread.start()

    def begin(self, work: Work) -> None:
        """Take note that the step under way includes a save or a compilation."""
        self._progress.begin(work)

    def _watch(self) -> None:
        while not self._stopping.wait(TICK_SECONDS):
            if self._progress.tick(TICK_SECONDS):
                seconds, place = self._progress.waited, where(self._main)
                report = threading.Thread(target=self.report, args=(seconds, place), daemon=True)
                report.start()
                report.join(REPORT_SECONDS)
                end_all(f"no progress for {seconds:.0f} s in {place}")


Value = TypeVar("Value")
COMPILING = "compiling"  # start of the name of a thread that works for `StopSignals.wait`
QUIT_SECONDS = 10.0  # maximum time for saying what is lost
LOOK_SECONDS = 0.1  # between two checks for a signal while waiting


class Stopped(BaseException):
    """The command was told to stop. Not an Exception, which code that reads damaged files would take for damage."""


class StopSignals:
    """Turns the first SIGTERM or SIGINT into `Stopped` where nothing is lost; a second one ends the process at once.

    `Stopped` ends the `with` block and is not propagated; `exit_code` then says why the block ended. Until the first
    call of `check` nothing needs to be saved, and a signal raises `Stopped` wherever the program is; afterwards only
    `check` and `wait` raise it. Where Python drops every exception (a destructor, a callback of the garbage collector),
    the next `check` or `wait` raises it again.

    With several hosts only `check` raises it. All hosts stop at the same call: the one after the highest number
    (initially 0) that any of them has passed to JAX's preemption service so far. Nothing else may call that service:
    see `checkpoints.steps.Manager`.

    Args:
      watchdog: told of the progress that calls of `check` and `wait` are.

    Attributes:
      saving: step that the loop would save on a signal now; None if nothing needs to be saved.
      newest: returns the step of the newest checkpoint, or None.
    """

    def __init__(self, watchdog: Watchdog | None = None):
        self.watchdog: Watchdog = watchdog or Watchdog()
        self.saving: int | None = None
        self.newest: Callable[[], int | None] = lambda: None
        self._received: int | None = None  # by this process
        self._announced = self._checked = self._stopped = False
        self._asked = 0

    def __enter__(self) -> "StopSignals":
        watched = (signal.SIGINT,) if jax.process_count() > 1 else (signal.SIGINT, signal.SIGTERM)
        self._unraisable, sys.unraisablehook = sys.unraisablehook, self._drop
        self._handlers = {number: signal.signal(number, self._handle) for number in watched}
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._wakeup = signal.set_wakeup_fd(self._writing)
        self._listener = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._listener.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *unused: object) -> bool:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._unraisable
        os.close(self._writing)  # which ends the thread after its last message
        self._listener.join()
        return kind is Stopped

    def check(self) -> None:
        """Raise `Stopped` if the command has been told to stop.

        Call it between steps and between batches of an evaluation, equally often on every host.
        """
        self._checked = True
        self.watchdog.step()
        if self._told():
            self._stop()

    def wait(self, work: Callable[[], Value]) -> Value:
        """Return `work()`, which runs in a thread so that a signal on a single host need not wait for it.

        For compilation: XLA spends minutes in C++, and Python runs signal handlers only between two of its own
        instructions.
        """
        self.watchdog.begin("compilation")
        executor = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix=COMPILING)
        future = executor.submit(work)
        executor.shutdown(wait=False)
        while not concurrent.futures.wait([future], LOOK_SECONDS).done:
            if self._received is not None and jax.process_count() == 1:
                self._stop()
        return future.result()

    def saved(self, step: int) -> None:
        """Report that stopping has lost nothing."""
        _say(f"saved step {step:,}; the same command resumes")

    @property
    def exit_code(self) -> int:
        """0 unless stopped; then as shells report a process ended by the signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self._received or signal.SIGTERM) if self._stopped else 0

    def _told(self) -> bool:
        if jax.process_count() == 1:
            return self._received is not None
        self._asked += 1
        return multihost_utils.reached_preemption_sync_point(self._asked)

    def _stop(self) -> None:
        self._stopped = True
        if not self._announced and jax.process_count() > 1:  # another host received the signal
            self._announce(signal.SIGTERM)
        raise Stopped

    def _handle(self, number: int, frame: object) -> None:
        """Record the first signal; runs in the main thread, as soon as that executes Python again."""
        if self._received is not None:
            return
        self._received = number
        if jax.process_count() > 1:
            signal.raise_signal(signal.SIGTERM)  # which JAX's service forwards to the other hosts
        elif not self._checked:
            self._stop()

    def _drop(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Keep the traceback of a dropped `Stopped` from people: nothing went wrong."""
        if not isinstance(unraisable.exc_value, Stopped):
            self._unraisable(unraisable)

    def _listen(self) -> None:
        """Answer signals at once, from a separate thread, whatever the main thread is busy with."""
        while numbers := os.read(self._reading, 64):  # one byte per signal that has a Python handler
            for number in numbers:
                if number in self._handlers:
                    self._quit(number) if self._announced else self._announce(number)
        os.close(self._reading)

    def _announce(self, number: int) -> None:
        self._announced = True
        again = " (press Ctrl-C again to quit without saving)" if number == signal.SIGINT else ""
        if jax.process_count() > 1 and not self._stopped:
            _say(f"stopping at the step that all hosts agree on, and saving it{again}")
        elif self.saving is None:
            _say("stopping: nothing needs to be saved")
        else:
            _say(f"stopping after this step, saving step {self.saving:,}{again}")

    def _quit(self, number: int) -> None:
        # The file system may hang, which the watchdog ends too.
        watchdog = threading.Timer(QUIT_SECONDS, os._exit, (128 + number,))
        watchdog.daemon = True
        watchdog.start()
        try:
            newest = None if self.saving is None else self.newest()
            lost = (
                "nothing needed to be saved"
                if self.saving is None
                else ("all steps are lost" if newest is None else f"the steps after step {newest:,} are lost")
            )
            _say(f"quitting without saving: {lost}")
            Console(file=sys.__stdout__).show_cursor()  # which a live bar hides
        finally:
            os._exit(128 + number)


def _say(text: str) -> None:
    if jax.process_index() == 0:
        # A full disk may be behind it; the run stops all the same, and is saved. On a terminal a live bar has replaced
        # sys.stderr, and stays below the text.
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)

"""Ends a run whose main thread makes no progress: a collective that never returns, a file system that hangs."""

import threading
from collections.abc import Callable
from typing import Literal

from bert_jax.devices.peers import end_all, where

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

    Args:
      timeout_seconds: the bound for a step; None for `BEYOND_SLOWEST_SECONDS` more than the slowest so far.
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

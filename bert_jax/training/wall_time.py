"""What the wall time of a run is spent on, as rows of metrics.jsonl that a resumed run continues."""

import contextlib
import time
from collections.abc import Callable, Iterator

CATEGORIES: tuple[str, ...] = ("steps", "input", "evaluation", "checkpoint", "compile", "setup")
"""steps: training; input: waiting for a batch with nothing left to compute; setup: everything before the first batch of
a start (or of a phase) but compiling."""


class WallTime:
    """A stopwatch that always runs for exactly one category, so that the seconds of all add up to the time elapsed.

    What is lost to a restart is found later (`monitoring.goodput`): it is the time between two rows of which neither
    start knows anything.

    Args:
      clock: returns seconds since any moment.
      now: returns the time of day in seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, now: Callable[[], float] = time.time):
        self._clock, self._now = clock, now
        self._category, self._since = "setup", clock()
        self._seconds = dict.fromkeys(CATEGORIES, 0.0)

    def switch(self, category: str) -> str:
        """Let the watch run for `category` from now on; return the previous one."""
        now, before = self._clock(), self._category
        self._seconds[before] += now - self._since
        self._category, self._since = category, now
        return before

    @contextlib.contextmanager
    def spent_on(self, category: str) -> Iterator[None]:
        before = self.switch(category)
        try:
            yield
        finally:
            self.switch(before)

    @contextlib.contextmanager
    def awaiting(self, busy: Callable[[], bool]) -> Iterator[None]:
        """Count the block as waiting for input, unless the device is still `busy` at its end and so has lost nothing.

        A wait that outlasts the device counts as a whole, because nobody knows when the device became idle.
        """
        before = self.switch("input")
        spent = self._seconds["input"]
        try:
            yield
        finally:
            self.switch(before)
            if busy():
                self._seconds[before] += self._seconds["input"] - spent
                self._seconds["input"] = spent

    def take(self) -> dict[str, float]:
        """Return the seconds of each category since the last call, and `time`, the seconds since 1970."""
        self.switch(self._category)
        seconds, self._seconds = self._seconds, dict.fromkeys(CATEGORIES, 0.0)
        return {"time": self._now(), **seconds}

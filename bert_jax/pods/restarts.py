"""When a run that has ended is started again, and how long to wait before."""

import time
from collections.abc import Callable

FINAL = (0, 2, 130)
"""Exit codes that end a launch: finished, bad input, Ctrl-C. Every other end (preemption, a crash, a host that hung)
is followed by a restart, which resumes."""
PREEMPTED = 143
"""Exit code of a run that SIGTERM has stopped, after it saved."""
FIRST_SECONDS = 10.0
"""Wait before the first restart; each further one doubles it."""
LONGEST_SECONDS = 300.0
HEALTHY_SECONDS = 3600.0
"""A start that has lived this long clears the count: a spot slice may be preempted any number of times in weeks."""


def exit_code(returned: int) -> int:
    """Return what a shell reports for `subprocess`'s return code: 128 + N for a process that signal N has ended."""
    return 128 - returned if returned < 0 else returned


def meaning(code: int) -> str:
    """Return what an exit code of `bert-jax pretrain` says, for a message."""
    known = {0: "finished", 2: "bad input", 75: "a host died or hung", 130: "interrupted", 137: "killed"}
    known[PREEMPTED] = "stopped by SIGTERM, saved"
    return f"exit code {code} ({known[code]})" if code in known else f"exit code {code}"


class Restarts:
    """Counts the restarts in a row, up to a bound, and waits longer before each.

    Args:
      most: maximum number of restarts after which none has lived for HEALTHY_SECONDS.
      say: prints a line.
    """

    def __init__(self, most: int, say: Callable[[str], None]):
        self._most, self._say = most, say
        self._count = 0
        self._started: float | None = None

    def begin(self) -> None:
        """Note that the run has started now; the wait for machines before that is no part of its life."""
        self._started = time.monotonic()

    def wait(self, why: str) -> bool:
        """Wait, then return True if the run may be started again; return False at once if the bound is reached."""
        if self._started is not None and time.monotonic() - self._started >= HEALTHY_SECONDS:
            self._count = 0
        self._started = None
        if self._count >= self._most:
            self._say(f"{why}; not started again, after {self._count} restarts in a row (--max_restarts={self._most})")
            return False
        seconds = min(FIRST_SECONDS * 2**self._count, LONGEST_SECONDS)
        self._count += 1
        self._say(f"{why}; restart {self._count} of at most {self._most} in {seconds:.0f} s")
        time.sleep(seconds)
        return True

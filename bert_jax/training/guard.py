"""Watches the loss of each step for trouble: updates that are not finite, and spikes."""

import collections
import statistics
from typing import Any

from bert_jax.config import FaultsConfig

WINDOW = 128
"""Losses that a spike is measured against."""
FEWEST = 32
"""Losses before which nothing counts as a spike: their spread is not known yet."""
ROBUST_SIGMA = 1.4826
"""Standard deviation of a normal distribution in units of its median absolute deviation."""
LEAST_SPREAD = 1e-3
"""Least standard deviation as a share of the median: equal losses have none, and the next would be a spike."""


class Trouble(Exception):
    """The steps from `first` to `last` (numbered by the state after them) have gone wrong; the message says how."""

    def __init__(self, first: int, last: int, reason: str):
        super().__init__(reason)
        self.first: int = first
        self.last: int = last


class Guard:
    """Raises `Trouble` after too many skipped updates in a row, or at a spike of the loss.

    It decides from the losses of one phase alone, which all hosts have alike, and `memory` is saved with every state:
    a run that resumes decides as one that was not interrupted.

    Args:
      faults: the bounds.
      memory: that of the guard that saw the steps before.
    """

    def __init__(self, faults: FaultsConfig, memory: dict[str, Any]):
        self._faults = faults
        self._skipped = int(memory.get("skipped", 0))  # in a row
        self._losses = collections.deque(map(float, memory.get("losses", ())), WINDOW)

    @property
    def skipped(self) -> int:
        """Number of updates in a row, up to the newest, that were skipped."""
        return self._skipped

    def memory(self) -> dict[str, Any]:
        """Return what a later guard of the phase needs to know, as JSON can represent it; {} if nothing."""
        memory = {"skipped": self._skipped, "losses": list(self._losses)}
        return {name: value for name, value in memory.items() if value}

    def observe(self, step: int, loss: float, skipped: bool) -> None:
        """Take in the loss of the update to `step`, the one after that of the last call.

        Raises:
          Trouble: the state is no longer one to continue from.
        """
        self._skipped = self._skipped + 1 if skipped else 0
        if self._skipped >= self._faults.max_skipped_steps:
            first = step - self._skipped + 1
            raise Trouble(first, step, f"loss or gradient has not been finite for {self._skipped} steps up to {step}")
        if skipped or not self._faults.spike_threshold:
            return
        bound = self._bound()
        if bound is not None and loss > bound:
            raise Trouble(
                step, step, f"the loss of step {step}, {loss:.4f}, is a spike: above {bound:.4f}, from the steps before"
            )
        self._losses.append(loss)

    def _bound(self) -> float | None:
        """Return the highest loss that is no spike; None before that is known."""
        if len(self._losses) < FEWEST:
            return None
        median = statistics.median(self._losses)
        deviation = ROBUST_SIGMA * statistics.median(abs(loss - median) for loss in self._losses)
        return median + self._faults.spike_threshold * max(deviation, LEAST_SPREAD * abs(median))

"""Goodput: what share of the wall time of a run went into training, over all its starts."""

import dataclasses
import itertools
import math
from typing import Any

from bert_jax.training.wall_time import CATEGORIES

LOST = "lost to restarts"
PAUSE_SECONDS = 0.1  # a longer hole between two rows is a restart; clocks that disagree leave shorter ones


@dataclasses.dataclass(frozen=True)
class Goodput:
    """Seconds from the first start of a run to its last row, by what they were spent on."""

    seconds: dict[str, float]
    """By category of `training.wall_time`, and `LOST`."""
    restarts: int
    """Number of starts, or returns to an earlier checkpoint, that steps of the run follow."""

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def share(self) -> float:
        """Share of training steps that count."""
        return self.seconds["steps"] / self.total if self.total else math.nan


def goodput(rows: list[dict[str, Any]]) -> Goodput | None:
    """Return what the rows of kind "time" add up to; None if there is none yet.

    A resumed run has dropped the rows of steps that it takes again. So the hole between the last row that counts and
    the moment at which the next start began to measure is all that the restart has cost: the steps to be taken
    again, the time without a process, and the start of Python and JAX. Loading what was saved is in `setup`.
    """
    rows = [row for row in rows if row["kind"] == "time" and {"time", *CATEGORIES} <= row.keys()]
    rows = [row for row in rows if all(math.isfinite(row[name]) for name in ("time", *CATEGORIES))]
    if not rows:
        return None
    seconds = {name: math.fsum(row[name] for row in rows) for name in CATEGORIES}
    holes = [
        row["time"] - math.fsum(row[name] for name in CATEGORIES) - before["time"]
        for before, row in itertools.pairwise(rows)
    ]
    holes = [hole for hole in holes if hole > PAUSE_SECONDS]
    return Goodput({**seconds, LOST: math.fsum(holes)}, len(holes))

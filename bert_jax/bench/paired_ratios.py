"""Medians, and ratios of neighbouring turns: what a benchmark says about its contestants."""

import dataclasses
import statistics
from collections.abc import Sequence

from bert_jax.bench.contestants import Turn


@dataclasses.dataclass(frozen=True)
class Spread:
    """Where several figures lie."""

    median: float
    lower_quartile: float
    upper_quartile: float
    least: float
    most: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Spread":
        """Return the spread of at least one figure; quartiles are interpolated between the figures, ends included."""
        if len(figures) == 1:
            return cls(*[figures[0]] * 5)
        lower, median, upper = statistics.quantiles(figures, n=4, method="inclusive")
        return cls(median, lower, upper, min(figures), max(figures))


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How many times as fast one contestant is as another, by the clock and by processor time."""

    wall: Spread
    """Of the pairs of neighbouring turns."""
    cpu: Spread
    """The same, in processor time."""
    total_cpu: float
    """Processor time of all turns taken together; it tells more where turns differ in length on one side."""


def seconds(turns: Sequence[Turn]) -> tuple[Spread, Spread]:
    """Return the wall and CPU seconds of one unit of work."""
    return Spread.of([turn.wall / turn.units for turn in turns]), Spread.of([turn.cpu / turn.units for turn in turns])


def total_cpu_seconds(turns: Sequence[Turn]) -> float:
    """Return the CPU seconds of one unit of work, over all turns taken together."""
    return sum(turn.cpu for turn in turns) / sum(turn.units for turn in turns)


def ratio(ours: Sequence[Turn], theirs: Sequence[Turn], our_unit: float = 1.0, their_unit: float = 1.0) -> Ratio:
    """Return how many times as fast ours are as theirs; turn i of ours is compared with turn i of theirs.

    Args:
      ours: turns of one contestant.
      theirs: those of the other, as many.
      our_unit: how much a unit of ours achieves, such as useful tokens of a step.
      their_unit: how much one of theirs achieves.
    """

    def of(clock: str) -> Spread:
        each = lambda turn, unit: getattr(turn, clock) / turn.units / unit
        pairs = zip(ours, theirs, strict=True)
        return Spread.of([each(theirs, their_unit) / each(ours, our_unit) for ours, theirs in pairs])

    total = (total_cpu_seconds(theirs) / their_unit) / (total_cpu_seconds(ours) / our_unit)
    return Ratio(of("wall"), of("cpu"), total)

"""Where a pre-training run is in its data, as every checkpoint keeps it."""

import dataclasses
from typing import Any, NamedTuple


class Span(NamedTuple):
    """Positions of a phase that a run has skipped after a rollback."""

    phase: int
    begin: int
    end: int
    """The first position behind the span."""


@dataclasses.dataclass(frozen=True)
class Position:
    """The phase of a run, its place in the examples of that phase, and what it has skipped."""

    phase: int = 0
    examples_seen: int = 0
    """Position of the next example of the phase; those of skipped spans before it count."""
    skipped: tuple[Span, ...] = ()
    """One span per rollback, in the order of the rollbacks."""
    guard: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the guard of the phase remembers of the steps before, see `Guard.memory`."""

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "Position":
        """Return what `to_dict` saved."""
        skipped = tuple(Span(*map(int, span)) for span in saved.get("skipped", ()))
        return cls(saved["phase"], saved["examples_seen"], skipped, saved.get("guard", {}))

    def to_dict(self) -> dict[str, Any]:
        """Return the position as JSON can represent it, without what is empty."""
        optional = {"skipped": [list(span) for span in self.skipped], "guard": self.guard}
        return {"phase": self.phase, "examples_seen": self.examples_seen} | {
            name: value for name, value in optional.items() if value
        }

    def seen_in(self, phase: int) -> int:
        """Return the position of the next example of `phase`, this one or a later one: behind spans that begin there.

        A span begins where a checkpoint was restored. So only a start can come to its beginning, and no batch within a
        phase has a gap.
        """
        seen = self.examples_seen if phase == self.phase else 0
        for span in sorted(self.skipped):
            if span.phase == phase and span.begin <= seen < span.end:
                seen = span.end
        return seen

    def guard_of(self, phase: int) -> dict[str, Any]:
        """Return what the guard of `phase` remembers: nothing, if that phase has not begun."""
        return self.guard if phase == self.phase else {}

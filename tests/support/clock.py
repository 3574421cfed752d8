"""A clock in the hand of a test."""

import dataclasses


@dataclasses.dataclass
class Clock:
    """Returns `now`, in seconds, which the test moves."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

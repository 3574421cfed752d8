"""Being told to stop: SIGTERM from a scheduler, Ctrl-C from a person."""

import os
import signal

import jax


class StopSignals:
    """Notes the first SIGTERM or SIGINT so that the loop can save and leave; the second one ends the process at once."""

    def __init__(self):
        self.received: int | None = None
        self._asked = 0

    def __enter__(self) -> "StopSignals":
        # With several hosts JAX's own service listens to SIGTERM and agrees on one step for all; taking it away would break that.
        self._watched = (signal.SIGINT,) if jax.process_count() > 1 else (signal.SIGINT, signal.SIGTERM)
        self._previous = {number: signal.signal(number, self._note) for number in self._watched}
        return self

    def __exit__(self, *unused) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = number

    def must_stop(self) -> bool:
        """Whether training must end after this step; every host asks once a step, and all get the same answer.

        Hosts agree on a number of this count, which, unlike the step, does not begin again with another run of a command.
        """
        if jax.process_count() == 1:
            return self.received is not None
        from jax.experimental import multihost_utils

        self._asked += 1
        if multihost_utils.reached_preemption_sync_point(self._asked):
            self.received = signal.SIGTERM
        return self.received == signal.SIGTERM

    @property
    def exit_code(self) -> int:
        """0, or the shell's convention for a process ended by the signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 0 if self.received is None else 128 + self.received

"""Being told to stop: SIGTERM from a scheduler, Ctrl-C from a person."""

import os
import signal

import jax
from jax.experimental import multihost_utils


class StopSignals:
    """Notes the first SIGTERM or SIGINT so that the loop can save and leave; the second one ends the process at once.

    With several hosts JAX's service listens to SIGTERM on each of them and agrees on one call of `must_stop` for all: that
    after the last number, 0 at first, with which any host has asked it. So nobody else may ask: see `checkpoint_manager.Manager`.
    """

    def __init__(self):
        self._received: int | None = None  # by this process
        self._agreed = False  # by all hosts, one of which has received something
        self._asked = 0

    def __enter__(self) -> "StopSignals":
        watched = (signal.SIGINT,) if jax.process_count() > 1 else (signal.SIGINT, signal.SIGTERM)
        self._previous = {number: signal.signal(number, self._note) for number in watched}
        return self

    def __exit__(self, *unused) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame) -> None:
        if self._received is not None:
            os._exit(128 + number)
        self._received = number
        if jax.process_count() > 1:
            signal.raise_signal(signal.SIGTERM)  # which JAX's service brings to the other hosts

    def must_stop(self) -> bool:
        """Whether training must end after this step; every host asks once a step, and all get the same answer.

        Counted from 1 through all runs of a command: a step begins again with the next one, and leaps when a run is resumed.
        """
        if jax.process_count() == 1:
            return self._received is not None
        self._asked += 1
        self._agreed |= multihost_utils.reached_preemption_sync_point(self._asked)
        return self._agreed

    @property
    def exit_code(self) -> int:
        """0, or the shell's convention for a process ended by the signal: 130 for Ctrl-C, 143 for SIGTERM."""
        if self._received is None:
            return 128 + signal.SIGTERM if self._agreed else 0
        return 128 + self._received

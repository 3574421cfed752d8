"""How long each host needs for its own part of a step, by which a slow one is known; the others only wait for it."""

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

from bert_jax.devices import peers
from bert_jax.training.events import Events

SLOWER = 2.0
"""A host is slow that needs so many times the median of all hosts, and"""
SHARE_OF_STEP = 0.1
"""so much of a step, because a multiple of nothing slows nobody down."""


class HostTimes:
    """Measures how long this host waits for its own batches and brings them to its devices, and compares the hosts.

    That is what a host does without the others: once a step is dispatched, all of them wait for the slowest device.

    Args:
      events: where a slow host is named, once until it is no longer slow.
    """

    def __init__(self, events: Events):
        self._events, self._seconds, self._steps = events, 0.0, 0
        self._begun = time.perf_counter()
        self._slow: set[int] = set()

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Count a block as this host's own part of a step."""
        begun = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - begun
        self._steps += 1

    def row(self, step: int) -> dict[str, float]:
        """Return quantiles over the hosts of the mean seconds per step since the last call; {} if there is one host.

        It is what every host said with its last heartbeat, a few seconds ago, and {} on all hosts but the first.
        """
        if not self._steps:
            return {}
        mean, whole = self._seconds / self._steps, (time.perf_counter() - self._begun) / self._steps
        self._seconds, self._steps, self._begun = 0.0, 0, time.perf_counter()
        peers.publish(input_seconds=mean)
        said = {host: beat for host, beat in peers.heartbeats().items() if "input_seconds" in beat}
        if len(said) < 2:
            return {}
        self._name_slow(step, said, whole)
        times = sorted(float(beat["input_seconds"]) for beat in said.values())
        return {
            "host_input_seconds_median": statistics.median(times),
            "host_input_seconds_p90": times[int(0.9 * (len(times) - 1) + 0.5)],
            "host_input_seconds_max": times[-1],
        }

    def _name_slow(self, step: int, said: dict[int, dict[str, Any]], whole: float) -> None:
        median = statistics.median(beat["input_seconds"] for beat in said.values())
        bound = max(SLOWER * median, SHARE_OF_STEP * whole)
        slow = {host for host, beat in said.items() if beat["input_seconds"] > bound}
        for host in sorted(slow - self._slow):
            seconds, name = said[host]["input_seconds"], said[host]["name"]
            self._events.write("slow_host", step, host=host, name=name, input_seconds=seconds, median_seconds=median)
        self._slow = slow

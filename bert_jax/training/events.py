"""The history of a run in `workdir`/events.jsonl: starts, compilations, saves, faults, ends; and slow hosts.

One JSON object per line: {"time": …, "event": …, "step": …, details}. Unlike metrics, no row is dropped when a run
resumes: this is the history of all its starts, and a step can occur in it several times. EVENTS lists the kinds. A
slow host shows by the time that each host needs for its own part of a step; the others only wait for it.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import signal
import statistics
import time
from collections.abc import Iterator
from typing import Any

import jax
from etils import epath

from bert_jax.devices import hosts
from bert_jax.devices.hosts import versions
from bert_jax.devices.signals import StopSignals
from bert_jax.files import LONGEST_LOG, finite_json, is_remote, parse_object, read_bytes
from bert_jax.training.trackers import CLOSE_SECONDS, Aside, Lines

EVENTS_FILE = "events.jsonl"
UPLOAD_SECONDS = 5  # an object store cannot append, so the whole file is written again, at most this often


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """Meaning of an event for readers of a run."""

    is_told: bool = False
    """Whether it appears in the table of events of `bert-jax report`."""
    mark: str = ""
    """Label of its line on a curve; empty if there is no line."""
    alarm: str = ""
    """Text of `bert-jax status` after the number of recent events; empty if it reports none."""
    ending: str = ""
    """Text of `bert-jax status` about the end of a run whose last row it is, with its details in braces; empty if it
    does not end a run."""


EVENTS = {
    # hosts, devices, device_kind, versions, resumed, of pre-training the terms of the objective, of fine-tuning the
    # run; training starts at `step`
    "start": Kind(is_told=True, mark="restart"),
    # metrics of predicting words from their frequencies alone, on the held-out documents
    "baseline": Kind(),
    # samples: the masked words of some held-out sequences, and what the model would fill in
    "sampled": Kind(),
    # seconds
    "compiled": Kind(),
    # seconds, and the held-out metrics
    "evaluated": Kind(),
    # phase, begin, objective, changes (option → value), afresh, terms: a phase of several trains from here on
    "phase": Kind(is_told=True, mark="phase"),
    # seconds from the call until the checkpoint was committed
    "saved": Kind(),
    # seconds from the call until the first host's copy on its own disk was complete
    "saved_locally": Kind(),
    # loss, grad_norm, in_a_row: an update that was not finite
    "skipped": Kind(is_told=True, alarm="updates were skipped because loss or gradient was not finite"),
    # from_step, to_step, span (phase, first position and the one behind the last), reason
    "rollback": Kind(is_told=True, mark="rollback", alarm="rollbacks to an earlier checkpoint"),
    # devices: by name, the paths of up to five arrays that differ from the other copies
    "replica_mismatch": Kind(is_told=True, alarm="checks found replicas that differ"),
    # host, name, input_seconds, median_seconds: mean seconds per step for its own batches, and of most
    "slow_host": Kind(is_told=True, alarm="reports of a slow host"),
    # seconds, place: the start ends because its first host makes no progress
    "hung": Kind(is_told=True, mark="hung", ending="because it made no progress for {seconds}, at {place}"),
    # signal, exit_code: a signal ended the start
    "stopped": Kind(is_told=True, mark="stopped", ending="by {signal:.20}"),
    # error: an exception ended the start
    "failed": Kind(is_told=True, mark="failed", ending="with an error: {error}"),
    # nothing is left to do
    "finished": Kind(is_told=True),
}
"""Every event, with its details in the comment above it."""


class Events:
    """Adds rows to events.jsonl of a work directory, local or gs://; on the first host only.

    What an earlier start wrote stays, without a last line that a crash has torn. The end of the `with` block writes the
    last row: `stopped`, `failed` or `finished`.

    Args:
      workdir: directory of the run.
      signals: say whether a signal has ended the block.

    Attributes:
      step: the last step that has begun, for the last row.
    """

    def __init__(self, workdir: str | os.PathLike[str], signals: StopSignals):
        self.step: int = 0
        self._signals, self._file = signals, epath.Path(workdir) / EVENTS_FILE
        self._aside: Aside | None = None
        if jax.process_index() == 0:
            self._aside = Aside(f"{self._file} is not complete")
            try:
                old = read_bytes(self._file, LONGEST_LOG) if self._file.exists() else b""
            except OSError as error:  # it grows nevertheless
                self._aside.warn(f"{error.strerror or error}")
                old = b""
            self._text = old[: old.rfind(b"\n") + 1]
            is_new = is_remote(workdir) or self._text != old
            self._lines = Lines(self._file, self._text if is_new else None, UPLOAD_SECONDS)

    def write(self, event: str, step: int, **details: Any) -> None:
        """Add one row.

        Args:
          event: what happened; one of EVENTS.
          step: the step that it happened at, or after.
          **details: values that JSON can represent; floats that are not finite are written as their names.
        """
        assert event in EVENTS, f"{event!r} is not in EVENTS, so that no reader of a run would know it"
        if self._aside is None:
            return
        row = {"time": time.time(), "event": event, "step": int(step), **finite_json(details)}
        line = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()
        self._text += line
        self._aside.do(self._lines.add, line)
        if not is_remote(self._file):
            self._aside.settle()  # a row is in the file before the next thing happens

    def start(self, step: int, devices: list[Any], resumed: bool, **details: Any) -> None:
        """Add the row of a start that resumes from `step` on these devices."""
        self.step = step
        hosts = len({device.process_index for device in devices})
        self.write(
            "start",
            step,
            hosts=hosts,
            devices=len(devices),
            device_kind=devices[0].device_kind,
            versions=versions(),
            resumed=resumed,
            **details,
        )

    @contextlib.contextmanager
    def timed(self, event: str, step: int) -> Iterator[dict[str, Any]]:
        """Add a row with the seconds that the block took, and what it puts into the dict; none if it raises."""
        details, begun = {}, time.perf_counter()
        yield details
        self.write(event, step, seconds=time.perf_counter() - begun, **details)

    def reload(self) -> None:
        """Write the whole history again after the directory was deleted or renamed (`WorkDirectory.secure`)."""
        if self._aside is not None:
            self._aside.do(self._lines.close)
            self._aside.do(functools.partial(self._file.parent.mkdir, parents=True, exist_ok=True))
            self._lines = Lines(self._file, self._text, UPLOAD_SECONDS)
            self._aside.do(self._lines.flush)

    def close(self) -> None:
        if self._aside is not None:
            self._aside.do(self._lines.close)
            self._aside.close(CLOSE_SECONDS / 2)

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if code := self._signals.exit_code:
            self.write("stopped", self.step, signal=signal.Signals(code - 128).name, exit_code=code)
        elif error is not None:
            self.write("failed", self.step, error=str(error).partition("\n")[0] or type(error).__name__)
        else:
            self.write("finished", self.step)
        self.close()


def read_events(file: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the rows of an events.jsonl in order, without torn and foreign lines.

    Every row has "time" (seconds since 1970, float), "event" (str) and "step" (int).
    """
    path = epath.Path(file)
    lines = read_bytes(path, LONGEST_LOG).splitlines() if path.exists() else []
    return [row for line in lines if (row := _row(line)) is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_object(line)
    except ValueError:
        return None
    timed = type(row.get("time")) in (int, float) and math.isfinite(row["time"])
    known = timed and isinstance(row.get("event"), str) and type(row.get("step")) is int
    return {**row, "time": float(row["time"])} if known else None


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

        Each host reports its seconds with its heartbeat, every few seconds; all hosts but the first return {}.
        """
        if not self._steps:
            return {}
        mean, whole = self._seconds / self._steps, (time.perf_counter() - self._begun) / self._steps
        self._seconds, self._steps, self._begun = 0.0, 0, time.perf_counter()
        hosts.publish(input_seconds=mean)
        said = {host: beat for host, beat in hosts.heartbeats().items() if "input_seconds" in beat}
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

"""Metrics of a run: rates from the clock, and `Metrics`, which hands every row to console, files and trackers."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from etils import epath

from bert_jax.objectives.objective import Term
from bert_jax.training import sinks
from bert_jax.training.trackers import Tracker
from bert_jax.training.wall_time import WallTime


class Rates:
    """Throughput between two reports. Time spent inside `paused()` (evaluating, compiling, saving) does not count.

    Nor does the time before a pause while no step has been counted: parameters are still being created or placed.

    Args:
      peak_flops: FLOP/s of all devices together; None if unknown, which leaves out `mfu`.
      clock: returns seconds since any moment.
      wall_time: is told what each pause is for; None for one of its own.
    """

    def __init__(
        self,
        peak_flops: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        wall_time: WallTime | None = None,
    ):
        self._peak_flops, self._clock = peak_flops, clock
        self.wall_time: WallTime = wall_time or WallTime(clock)
        self._places_per_second: float | None = None
        self._is_paused = False
        self._restart()

    def count(self, sequences: int, tokens: float, flops: float = 0.0, places: int | None = None) -> None:
        """Add one step: sequences, tokens, model FLOPs and places (sequences × length) of its global batch.

        With `places`, tokens are those that are not padding, and reports have their share of the positions.
        """
        self._steps += 1
        self._places += tokens if places is None else places
        self._has_share = places is not None
        self._sequences += sequences
        self._tokens += tokens
        self._flops += flops

    @contextlib.contextmanager
    def paused(self, category: str) -> Iterator[None]:
        """Leave the block out of the rates, and count it as `category` of `wall_time.CATEGORIES`; blocks may nest."""
        start, outermost, self._is_paused = self._clock(), not self._is_paused, True
        try:
            with self.wall_time.spent_on(category):
                yield
        finally:
            if outermost:
                self._is_paused = False
                self._start = self._start + self._clock() - start if self._steps else self._clock()

    def report(self, places_left: float = 0) -> dict[str, float]:
        """Return rates since the last report, `mfu` (fraction of the peak) and `seconds_left` for `places_left`."""
        seconds = self._clock() - self._start
        if not self._steps or seconds <= 0:
            return {}
        rates = {
            name: amount / seconds
            for name, amount in (
                ("steps_per_second", self._steps),
                ("sequences_per_second", self._sequences),
                ("tokens_per_second", self._tokens),
            )
        }
        if self._has_share:
            rates["token_share"] = self._tokens / self._places
        if self._peak_flops:
            rates["mfu"] = self._flops / seconds / self._peak_flops
        # The estimate follows a mean over about ten reports, so that it does not jump.
        now, before = self._places / seconds, self._places_per_second
        self._places_per_second = mean = now if before is None else 0.9 * before + 0.1 * now
        rates["seconds_left"] = places_left / mean
        self._restart()
        return rates

    def _restart(self) -> None:
        self._start, self._steps, self._sequences, self._tokens, self._flops = self._clock(), 0, 0, 0.0, 0.0
        self._places, self._has_share = 0.0, False


class Metrics:
    """Writes rows to the console, `workdir`/metrics.jsonl and `workdir`/tensorboard; on the first host only.

    Args:
      workdir: directory of the run, local or gs://.
      total_steps: last step of the run.
      start_step: the step the run resumes from; rows of later steps from an earlier start are dropped.
      evaluated: whether the evaluation of that step has been made; otherwise its row is dropped as well.
      terms: terms of the objective, whose figures the console shows.
      wall_time: of which a row of kind "time" follows each row of a training step, and the end; None for no such rows.
      trackers: makes the services that get the rows as well.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        *,
        total_steps: int,
        start_step: int = 0,
        evaluated: bool = True,
        terms: tuple[Term, ...] = (),
        wall_time: WallTime | None = None,
        trackers: Callable[[], list[Tracker]] = list,
    ):
        self.file: epath.Path = epath.Path(workdir) / "metrics.jsonl"
        self._console, self._sinks, self._step, self._wall_time = None, [], start_step, wall_time
        self._trackers: list[Tracker] = []
        if jax.process_index() == 0:
            files = self._files(evaluated)
            # Last, because a bar that has started must be stopped even if a signal arrives.
            self._console = sinks.ConsoleLines(total_steps, start_step, terms=terms)
            self._sinks = [self._console, *files]
            self._trackers = trackers()

    def _files(self, evaluated: bool = True) -> list[Any]:
        return [
            sinks.JsonLines(self.file, self._step, evaluated),
            *sinks.tensorboard(self.file.parent / "tensorboard", self._step),
        ]

    def reload(self) -> None:
        """Open the files again after the directory was deleted or renamed (`WorkDirectory.secure`)."""
        if self._console is not None:
            for sink in self._sinks[1:]:
                sink.close()
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._sinks[1:] = self._files()

    def rewind(self, step: int) -> None:
        """Drop the rows of later steps, which will be taken again."""
        self._step = step
        if self._wall_time is not None:
            self._wall_time.take()  # what the newest of them took is lost as well
        self.reload()
        self.advance(step)

    def advance(self, step: int) -> None:
        """Move the live bar; cheap enough for every step."""
        if self._console is not None:
            self._console.advance(step)

    def write(self, step: int, metrics: dict[str, float], kind: str = "train") -> None:
        """Write one row; `kind` is "train" or "evaluation"."""
        self._step = step
        for sink in [*self._sinks, *self._trackers]:
            sink.write(step, kind, metrics)
        if kind == "train":
            self._write_time()

    def _write_time(self) -> None:
        if self._wall_time is not None and self._console is not None:
            self._sinks[1].write(self._step, "time", self._wall_time.take())  # the file alone

    def close(self) -> None:
        self._write_time()
        for sink in [*self._sinks, *self._trackers]:
            sink.close()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

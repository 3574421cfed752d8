"""The metrics of the steps of a fine-tuning run: rows of metrics.jsonl, and the sums that its record needs."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from bert_jax.objectives.taught_task import LABELS
from bert_jax.training.host_times import HostTimes
from bert_jax.training.metrics import Metrics, Rates


class TaskReporter:
    """Writes rows of means over the steps since the last row, fetched once per row so that the device never waits.

    `PhaseReporter` stays a class of its own, because the two have in common only that they fetch, advance `Metrics` and
    write a row. That one fetches the step before at every step, because `Guard` must see its loss before a state may be
    saved; steps of fine-tuning can be too short for that, and what guards them is the skipped update. Its row has the
    values of one step, with useful work and host times; this one has means over steps whose batches differ in length,
    and keeps sums that the record of the run needs. One class would take four functions, for when to fetch and for what
    is counted, observed and written, and leave nothing but their calls.

    Args:
      metrics: where the rows go.
      rates: what they say of the throughput.
      host_times: what they say of how fast each host reads.
      every: steps between two rows.
      total: last step of the run.
      flops_of: returns the operations of a step on texts of some lengths.
      tail: number of last steps whose losses are averaged.
      totals: sums over the steps before an interruption, from the state's checkpoint; a log in a bucket may lag behind.
    """

    def __init__(
        self,
        metrics: Metrics,
        rates: Rates,
        host_times: HostTimes,
        every: int,
        total: int,
        tail: int,
        flops_of: Callable[[np.ndarray], float],
        totals: dict[str, Any] | None = None,
    ):
        self.rates: Rates = rates
        self._host_times, self._flops_of = host_times, flops_of
        self.totals: dict[str, Any] = {"loss": 0.0, "steps": 0, "skipped": 0} | (totals or {})
        self._metrics, self._every, self._total, self._tail, self._pending = metrics, every, total, tail, []
        self._steps = self._places = 0

    @property
    def tail_loss(self) -> float:
        """Mean over the steps of the tail whose loss is finite; NaN if there are none.

        With a teacher it is that of the labels alone.
        """
        return self.totals["loss"] / self.totals["steps"] if self.totals["steps"] else math.nan

    def dispatched(
        self, step: int, values: dict[str, jax.Array], sequences: int, places: int, lengths: np.ndarray
    ) -> None:
        """Note the metrics of the step up to `step`, with the size of its batch; they are fetched later.

        Args:
          step: number of steps, this one included.
          values: metrics, on the devices.
          sequences: in the batch.
          places: positions of the batch, padding included.
          lengths: int64 [T], tokens of each of its texts.
        """
        self.rates.wall_time.switch("steps")  # at the first one, setting up is over
        self._pending.append(values)
        self._step, self._steps, self._places = step, self._steps + 1, self._places + places
        self.rates.count(sequences, float(lengths.sum()), self._flops_of(lengths), places)
        self._metrics.advance(step)
        if step % self._every == 0 or step == self._total:
            self.finish()

    @contextlib.contextmanager
    def awaiting_input(self) -> Iterator[None]:
        """Count the block as this host's waiting for a batch."""
        with self.rates.wall_time.awaiting(self._is_busy), self._host_times.measured():
            yield

    def finish(self) -> None:
        """Fetch and write the metrics that are still pending."""
        if not self._pending:
            return
        fetched, self._pending = jax.device_get(self._pending), []
        self._add(fetched)
        row = {name: float(np.mean([values[name] for values in fetched])) for name in fetched[0] if name != "skipped"}
        row["learning_rate"] = float(fetched[-1]["learning_rate"])
        row["skipped_steps"] = float(sum(values["skipped"] for values in fetched))
        places_left = self._places / self._steps * (self._total - self._step)  # batches differ in length
        self._metrics.write(self._step, row | self.rates.report(places_left) | self._host_times.row(self._step))

    def _is_busy(self) -> bool:
        """Return whether the devices still compute the newest step."""
        return bool(self._pending) and not self._pending[-1]["loss"].is_ready()

    def _add(self, fetched: list[dict[str, Any]]) -> None:
        for step, values in enumerate(fetched, start=self._step - len(fetched) + 1):
            self.totals["skipped"] += int(values["skipped"])
            loss = values.get(LABELS.loss, values["loss"])
            if step > self._total - self._tail and math.isfinite(loss):
                self.totals["loss"] += float(loss)
                self.totals["steps"] += 1

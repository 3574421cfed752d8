"""Console lines before a run trains, the metrics of its steps, and the guard that watches the loss of each step.

Lines are printed on the first host only. The guard looks for updates that are not finite, and for spikes. A row of
pre-training has the values of one step; a row of fine-tuning has means over steps whose batches differ in length, and
sums are kept for the record of the run.
"""

import collections
import contextlib
import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

from bert_jax.config import Config, FaultsConfig, Phase, resolve_stages
from bert_jax.data.examples import Examples
from bert_jax.data.mixtures import Corpus, Mixture
from bert_jax.devices import hardware, sharding
from bert_jax.models.protocol import Model
from bert_jax.objectives.distillation import LABELS
from bert_jax.parameters import total_size
from bert_jax.training.events import Events, HostTimes
from bert_jax.training.learner import Learner, attention_of
from bert_jax.training.metrics import Metrics, Rates
from bert_jax.training.step import COUNTS, useful_flops


def say(text: str) -> None:
    """Print one line, however long it is and whatever is in brackets."""
    if jax.process_index() == 0:
        Console(highlight=False).print(text, markup=False, soft_wrap=True)


def say_hardware(mesh: Mesh) -> None:
    """Print the hardware in use, and any accelerator that is present but cannot be used."""
    say(
        f"{hardware.hardware(list(mesh.devices.flat))}" + (f"; {note}" if (note := hardware.idle_accelerator()) else "")
    )


def show(table: Table) -> None:
    """Print a table; 200 columns wide in a pipe or a log file, for which rich would assume 80."""
    if jax.process_index() == 0:
        console = Console(highlight=False)
        (console if console.is_terminal else Console(highlight=False, width=200)).print(table)


def announce(learner: Learner, corpus: Corpus, origins: Table | None, step: int) -> None:
    """Print every derived quantity of a pre-training run that people check before leaving it alone.

    Args:
      learner: what is trained.
      corpus: what it is trained on.
      origins: what became of each array of init_from.
      step: where the run resumes; 0 for a fresh one.
    """
    config, mesh, parameters = learner.config, learner.mesh, learner.objective.model.parameters
    say_hardware(mesh)
    say(
        f"model: {total_size(parameters):,} parameters, {config.model.num_layers} layers, hidden size "
        f"{config.model.hidden_size}, vocabulary {config.model.vocab_size:,}"
    )
    if learner.teacher is not None:
        teacher = learner.teacher.model
        say(
            f"teacher: {total_size(teacher.parameters):,} parameters, {teacher.config.num_layers} layers, hidden size "
            f"{teacher.config.hidden_size}"
        )
    for name, store in corpus.stores.items():
        training = next(found for each in corpus.training if (found := _of_store(each, name)) is not None)
        say(
            f"data: {f'{name}: ' if len(corpus.stores) > 1 else ''}{store.num_tokens:,} tokens in "
            f"{store.num_documents:,} documents, {len(training.documents):,} of them to train on"
        )
    for phase in resolve_stages(config):
        say(
            f"phase {phase.index}: {phase.steps:,} steps of {phase.batch_size:,} sequences of length "
            f"{phase.sequence_length} ({phase.tokens_per_step:,} tokens per step), "
            f"{_epochs(corpus.training[phase.index], phase.steps * phase.batch_size)}; remat: {learner.remat(phase)}"
        )
        rows = phase.batch_size // phase.micro_batches
        if phase.packed:
            say(f"phase {phase.index}: packing up to {phase.max_texts} texts into a sequence")
        else:
            say(f"phase {phase.index}: no packing; a sequence is one text or pair")
        if config.model.layer == "transformer":
            path = attention_of(config.model, config.compute, mesh, rows, phase.sequence_length, phase.max_texts)
            say(f"phase {phase.index}: attention by {path}")
    if mesh.size > 1:
        show(sharding.table(mesh, parameters))
    if origins is not None:
        show(origins)
    _announce_resumption(config, step)


def _of_store(training: Examples | Mixture, name: str) -> Examples | None:
    """Return the training examples of one of the stores, by its name; None if the phase does not read it."""
    return training.sources.get(name) if isinstance(training, Mixture) else training


def _epochs(training: Examples | Mixture, sequences: int) -> str:
    """Return how often a phase of so many sequences reads its text."""
    if isinstance(training, Examples):
        epoch = training.num_examples(0)
        return f"{sequences / epoch:.3g} epochs of {epoch:,} sequences"
    epochs = {
        name: training.shares[name] * sequences / examples.num_examples(0)
        for name, examples in training.sources.items()
    }
    return ", ".join(f"{training.shares[name]:.2%} {name} ({epochs[name]:.3g} epochs)" for name in epochs)


def _announce_resumption(config: Config, step: int) -> None:
    """Print where a run resumes, or that there is nothing left to do; nothing for a fresh one."""
    if step:
        say(
            f"resuming from step {step:,} of {config.workdir}"
            if step < config.total_steps
            else f"{config.workdir} has reached its last step, {step:,}; raise the steps of its last phase to continue"
        )


WINDOW = 128
"""Losses that a spike is measured against."""
FEWEST = 32
"""Losses before which nothing counts as a spike: their spread is not known yet."""
ROBUST_SIGMA = 1.4826
"""Standard deviation of a normal distribution in units of its median absolute deviation."""
LEAST_SPREAD = 1e-3
"""Least standard deviation as a share of the median: equal losses have none, and the next would be a spike."""


class Trouble(Exception):
    """The steps from `first` to `last` (numbered by the state after them) have gone wrong; the message says how."""

    def __init__(self, first: int, last: int, reason: str):
        super().__init__(reason)
        self.first: int = first
        self.last: int = last


class Guard:
    """Raises `Trouble` after too many skipped updates in a row, or at a spike of the loss.

    It decides from the losses of one phase alone, which all hosts have alike, and `memory` is saved with every state:
    a run that resumes decides as one that was not interrupted.

    Args:
      faults: the bounds.
      memory: that of the guard that saw the steps before.
    """

    def __init__(self, faults: FaultsConfig, memory: dict[str, Any]):
        self._faults = faults
        self._skipped = int(memory.get("skipped", 0))  # in a row
        self._losses = collections.deque(map(float, memory.get("losses", ())), WINDOW)

    @property
    def skipped(self) -> int:
        """Number of updates in a row, up to the newest, that were skipped."""
        return self._skipped

    def memory(self) -> dict[str, Any]:
        """Return what a later guard of the phase needs to know, as JSON can represent it; {} if nothing."""
        memory = {"skipped": self._skipped, "losses": list(self._losses)}
        return {name: value for name, value in memory.items() if value}

    def observe(self, step: int, loss: float, skipped: bool) -> None:
        """Take in the loss of the update to `step`, the one after that of the last call.

        Raises:
          Trouble: the state is no longer one to continue from.
        """
        self._skipped = self._skipped + 1 if skipped else 0
        if self._skipped >= self._faults.max_skipped_steps:
            first = step - self._skipped + 1
            raise Trouble(first, step, f"loss or gradient has not been finite for {self._skipped} steps up to {step}")
        if skipped or not self._faults.spike_threshold:
            return
        bound = self._bound()
        if bound is not None and loss > bound:
            raise Trouble(
                step, step, f"the loss of step {step}, {loss:.4f}, is a spike: above {bound:.4f}, from the steps before"
            )
        self._losses.append(loss)

    def _bound(self) -> float | None:
        """Return the highest loss that is no spike; None before that is known."""
        if len(self._losses) < FEWEST:
            return None
        median = statistics.median(self._losses)
        deviation = ROBUST_SIGMA * statistics.median(abs(loss - median) for loss in self._losses)
        return median + self._faults.spike_threshold * max(deviation, LEAST_SPREAD * abs(median))


class PhaseReporter:
    """Writes the metrics of a step once the next one is under way, so that the device never waits for Python.

    Every method but the first raises the `Trouble` that `guard` finds in a step.
    """

    def __init__(
        self,
        metrics: Metrics,
        rates: Rates,
        config: Config,
        phase: Phase,
        model: Model,
        events: Events,
        guard: Guard,
        host_times: HostTimes,
    ):
        self._pending: tuple[int, dict[str, jax.Array]] | None = None
        self._metrics, self._rates, self._config, self._events = metrics, rates, config, events
        self._sequences, self._places = phase.batch_size, phase.tokens_per_step
        self._model, self._length = model, phase.sequence_length
        self._phase_end = phase.end
        later = [each for each in resolve_stages(config) if each.begin >= phase.end]
        self._places_after = sum(each.steps * each.tokens_per_step for each in later)
        self._guard, self._host_times = guard, host_times

    def dispatched(self, step: int, values: dict[str, jax.Array]) -> None:
        self._rates.wall_time.switch("steps")  # at the first one, setting up is over
        self.finish()
        self._pending = step, values

    def finish(self) -> None:
        """Fetch and write the metrics that are still pending."""
        if self._pending is None:
            return
        (step, values), self._pending = self._pending, None
        values = {name: float(value) for name, value in jax.device_get(values).items()}
        useful = {name: values.pop(name) for name in COUNTS}
        flops = useful_flops(self._model, self._length, useful)
        self._rates.count(self._sequences, useful["useful_tokens"], flops, self._places)
        self._judge(step, values)
        self._metrics.advance(step)
        if due(step, self._config.log_every_steps) or step == self._config.total_steps:
            left = (self._phase_end - step) * self._places + self._places_after
            self._metrics.write(step, values | self._rates.report(left) | self._host_times.row(step))

    def is_busy(self) -> bool:
        """Return whether the devices still compute the newest step."""
        if self._pending is None:
            return False
        return not self._pending[1]["loss"].is_ready()  # pyright: ignore[reportAttributeAccessIssue]

    def is_finite(self) -> bool:
        """Return whether loss and gradient of the newest step were finite, after waiting for that step."""
        self.finish()
        return not self._guard.skipped

    def _judge(self, step: int, values: dict[str, float]) -> None:
        try:
            self._guard.observe(step, values["loss"], bool(values["skipped"]))
        finally:
            if values["skipped"]:
                loss, norm, in_a_row = values["loss"], values["grad_norm"], self._guard.skipped
                self._events.write("skipped", step, loss=loss, grad_norm=norm, in_a_row=in_a_row)
                logging.warning("step %d: loss %s, gradient norm %s; the update was skipped", step, loss, norm)


def due(step: int, every: int) -> bool:
    """Return whether something done every `every` steps (0: never) is due after `step`."""
    return every > 0 and step % every == 0


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

"""Lines on the console, the metrics of the steps of a run, and the guard that watches the loss of each step.

Lines are printed on the first host only. The guard looks for updates that are not finite, and for spikes. A row has
the values of one step where a guard has to see each of them, and otherwise means over the steps since the last row.
"""

import collections
import contextlib
import math
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Mesh
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bert_jax.checkpoints.record import Position
from bert_jax.config import AttentionConfig, ComputeConfig, FaultsConfig
from bert_jax.data.examples import StoreExamples
from bert_jax.data.mixtures import Corpus, Mixture
from bert_jax.devices import hardware, sharding
from bert_jax.devices.process import multiplies_bfloat16
from bert_jax.objectives.objective import Term
from bert_jax.parameters import total_size
from bert_jax.training.events import HostTimes
from bert_jax.training.learner import Learner, attention_of, own_names
from bert_jax.training.metrics import Metrics, Rates
from bert_jax.training.trackers import screen


def say(text: str) -> None:
    """Print one line, however long it is and whatever is in brackets."""
    if jax.process_index() == 0:
        screen(highlight=False).print(text, markup=False, soft_wrap=True)


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """Print what the block does, on the first host; on a terminal also, until it is done, for how long it has."""
    say(what)
    console = screen(highlight=False)
    if jax.process_index() != 0 or not console.is_terminal:
        yield
        return
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(what, total=None)
        yield


def say_hardware(mesh: Mesh, compute: ComputeConfig) -> None:
    """Print the hardware in use, and what is left idle: an accelerator, or a processor's products in bfloat16."""
    found = hardware.hardware(list(mesh.devices.flat))
    say(f"{found}" + (f"; {note}" if (note := hardware.idle_accelerator()) else ""))
    if found.platform == "cpu" and compute.dtype == "auto" and multiplies_bfloat16():
        say("in float32; this processor multiplies bfloat16 too: a new run is faster with --compute.dtype=bfloat16")


def show(table: Table) -> None:
    """Print a table; 200 columns wide in a pipe or a log file, for which rich would assume 80."""
    if jax.process_index() == 0:
        console = screen(highlight=False)
        (console if console.is_terminal else screen(highlight=False, width=200)).print(table)


def announce(
    learner: Learner, corpus: Corpus, origins: Table | None, workdir: str, step: int, position: Position
) -> None:
    """Print every derived quantity of a pre-training run that people check before leaving it alone.

    Args:
      learner: what is trained.
      corpus: what it is trained on.
      origins: what became of each array of init_from.
      workdir: the run of that step: this one, or the one that it branches off from.
      step: where the run resumes; 0 for a fresh one.
      position: where it is in its data after that step.
    """
    model, mesh, parameters = learner.network.config, learner.mesh, learner.objective.model.parameters
    say_hardware(mesh, learner.network.compute)
    say(
        f"model: {total_size(parameters):,} parameters, {model.num_layers} layers, hidden size "
        f"{model.hidden_size}, vocabulary {model.vocab_size:,}"
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
    for phase in learner.stages:
        if phase.end <= step:
            continue
        steps, more = (phase.end - step, "more ") if phase.begin < step else (phase.steps, "")
        say(
            f"phase {phase.index}: {steps:,} {more}steps of {phase.batch_size:,} sequences of length "
            f"{phase.sequence_length} ({phase.tokens_per_step:,} tokens per step), "
            f"{_epochs(corpus.training[phase.index], steps * phase.batch_size)}; remat: {learner.remat(phase)}"
        )
        rows = phase.batch_size // phase.micro_batches
        if phase.packed:
            say(f"phase {phase.index}: packing up to {phase.max_texts} texts into a sequence")
        else:
            say(f"phase {phase.index}: no packing; a sequence is one text or pair")
        if told := ", ".join(learner.notes[phase.index]):
            say(f"phase {phase.index}: {told}")
        if architecture := own_names(learner.objective, is_given=False).get("architecture"):
            say(f"phase {phase.index}: layers and attention as {architecture} has them")
        elif isinstance(model := learner.networks[phase.index].config, AttentionConfig):
            path = attention_of(model, learner.network.compute, mesh, rows, phase.sequence_length, phase.max_texts)
            say(f"phase {phase.index}: attention by {path}")
    if mesh.size > 1:
        show(sharding.table(mesh, parameters))
    if origins is not None:
        show(origins)
    if step:
        read = _epochs(corpus.training[position.phase], position.trained)
        say(
            f"resuming from step {step:,} of {workdir}, after {read} in phase {position.phase}"
            if step < learner.stages[-1].end
            else f"{workdir} has reached its last step, {step:,}; raise the steps of its last phase to continue"
        )


def _of_store(training: StoreExamples | Mixture, name: str) -> StoreExamples | None:
    """Return the training examples of one of the stores, by its name; None if the phase does not read it."""
    return training.sources.get(name) if isinstance(training, Mixture) else training


def _epochs(training: StoreExamples | Mixture, sequences: int) -> str:
    """Return how often a phase of so many sequences reads its text."""
    if isinstance(training, StoreExamples):
        epoch = training.num_examples(0)
        return f"{sequences / epoch:.3g} epochs of {epoch:,} sequences"
    epochs = {
        name: training.shares[name] * sequences / examples.num_examples(0)
        for name, examples in training.sources.items()
    }
    return ", ".join(f"{training.shares[name]:.2%} {name} ({epochs[name]:.3g} epochs)" for name in epochs)


def too_little(
    step: int, terms: tuple[Term, ...], evaluated: dict[str, float], unigram: dict[str, float], vocab_size: int
) -> list[str]:
    """Return a line for each loss of words that is no better than word frequencies alone at the end of a run.

    How many steps those take is extrapolated from the way that the loss has come from that of equal chances, ln of the
    size of the vocabulary; it falls fast until there, and then more slowly.
    """
    lines = []
    for term in terms:
        loss, alone = evaluated.get(term.loss, math.nan), unigram.get(term.loss, math.nan)
        if not loss >= alone:  # also where one of them is unknown
            continue
        start = math.log(vocab_size)
        way, whole = start - loss, start - alone
        steps = f"about {float(f'{step * whole / way:.1g}'):,.0f}" if way > 0.02 * whole else "very many"
        lines.append(
            f"the model has seen too little: {term.loss} {loss:.2f} is worse than {alone:.2f}, which word frequencies "
            f"alone reach. At this pace it takes {steps} steps to get there, and several times as many to learn "
            "from the context: raise --steps"
        )
    return lines


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
        if skipped or not loss or not self._faults.spike_threshold:  # 0: nothing was predicted, so nothing is known
            return
        bound = self._bound()
        if bound is not None and loss > bound:
            raise Trouble(
                step, step, f"the loss of step {step}, {loss:.4f}, is a spike: above {bound:.4f}, from the steps before"
            )
        self._losses.append(loss)

    def _bound(self) -> float | None:
        """Return the highest loss that is not a spike; None before that is known."""
        if len(self._losses) < FEWEST:
            return None
        median = statistics.median(self._losses)
        deviation = ROBUST_SIGMA * statistics.median(abs(loss - median) for loss in self._losses)
        return median + self._faults.spike_threshold * max(deviation, LEAST_SPREAD * abs(median))


def due(step: int, every: int) -> bool:
    """Return whether something done every `every` steps (0: never) is due after `step`."""
    return every > 0 and step % every == 0


class Work(NamedTuple):
    """Work of a step; see `Rates.count`."""

    sequences: int
    tokens: float
    flops: float
    places: int


class Tally(Protocol):
    """Processing of the metrics of single steps."""

    def observe(self, step: int, values: dict[str, Any]) -> None:
        """Take in the metrics of the update to `step`; every step once, in order.

        What is taken out of `values` is left out of the row.

        Raises:
          Trouble: the state is no longer one to continue from.
        """

    def left(self, step: int) -> float:
        """Return how many places (sequences × length) the run still computes after `step`."""
        ...


class Reporter:
    """Writes the metrics of steps while a later one is under way, so that the devices never wait for Python.

    Every method passes on the `Trouble` that `tally` finds in a step.

    Args:
      metrics: where the rows go.
      rates: what they say of the throughput.
      host_times: what they say of how fast each host reads.
      tally: sees the metrics of every step.
      every: steps between two rows.
      total: last step of the run.
      every_step: whether a step is fetched once the next one is under way, because a guard must see its loss before a
        state may be saved, and a row has the values of one step. Otherwise, for steps that are too short for that, the
        steps of a row are fetched together, and it has their means.
    """

    def __init__(
        self,
        metrics: Metrics,
        rates: Rates,
        host_times: HostTimes,
        tally: Tally,
        *,
        every: int,
        total: int,
        every_step: bool,
    ):
        self.rates: Rates = rates
        self._metrics, self._host_times, self._tally = metrics, host_times, tally
        self._every, self._total, self._every_step = every, total, every_step
        self._pending: list[tuple[int, dict[str, jax.Array]]] = []
        self._is_first = True

    def dispatched(self, step: int, values: dict[str, jax.Array], work: Work | None = None) -> None:
        """Note the metrics of the update to `step`, on the devices; they are fetched later.

        Args:
          step: number of steps, this one included.
          values: metrics.
          work: of the step; None if `tally` counts it from the metrics.
        """
        self.rates.wall_time.switch("steps")  # at the first one, setting up is over
        if work is not None:
            self.rates.count(*work)
        if self._every_step:
            self.finish()
        elif self._pending and self._is_first:  # its values are computed while this step is under way
            self._show_first(self._pending[0][0], jax.device_get(self._pending[0][1]))
        self._pending.append((step, values))
        self._metrics.advance(step)
        if not self._every_step and self._is_due(step):
            self.finish()

    @contextlib.contextmanager
    def awaiting_input(self) -> Iterator[None]:
        """Count the block as this host's waiting for a batch."""
        with self.rates.wall_time.awaiting(self._is_busy), self._host_times.measured():
            yield

    def finish(self) -> None:
        """Fetch the metrics that are still pending, and write a row if it is time for one."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        fetched, last = jax.device_get([values for _, values in pending]), pending[-1][0]
        for (step, _), values in zip(pending, fetched, strict=True):
            self._tally.observe(step, values)
        self._show_first(pending[0][0], fetched[0])
        if not self._every_step or self._is_due(last):
            rates = self.rates.report(self._tally.left(last))
            self._metrics.write(last, self._row(fetched) | rates | self._host_times.row(last))

    def _show_first(self, step: int, values: dict[str, Any]) -> None:
        """Show the first step of a start, where no row does; on the console alone, as a resumed run has it already."""
        if self._is_first and not self._is_due(step):
            self._metrics.show(step, {name: float(value) for name, value in values.items()})
        self._is_first = False

    def _is_due(self, step: int) -> bool:
        return due(step, self._every) or step == self._total

    def _is_busy(self) -> bool:
        """Return whether the devices still compute the newest step."""
        if not self._pending:
            return False
        return not self._pending[-1][1]["loss"].is_ready()  # pyright: ignore[reportAttributeAccessIssue]

    def _row(self, fetched: list[dict[str, Any]]) -> dict[str, float]:
        if self._every_step:
            return {name: float(value) for name, value in fetched[-1].items()}
        row = {name: float(np.mean([values[name] for values in fetched])) for name in fetched[0] if name != "skipped"}
        row["learning_rate"] = float(fetched[-1]["learning_rate"])
        row["skipped_steps"] = float(sum(values["skipped"] for values in fetched))
        return row

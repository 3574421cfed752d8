"""What a phase of pre-training does between two steps: evaluate, save, compare copies, measure."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator

from etils import epath

from bert_jax.config import Config, Phase
from bert_jax.config.json_form import to_dict
from bert_jax.data.examples.corpus import Corpus
from bert_jax.devices.hosts import from_first
from bert_jax.optim.averaging import average_of
from bert_jax.training import useful_work
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.guard import Guard
from bert_jax.training.host_times import HostTimes
from bert_jax.training.metrics import Rates
from bert_jax.training.position import Position
from bert_jax.training.pretraining_reporter import PhaseReporter, due
from bert_jax.training.pretraining_run import PretrainingRun
from bert_jax.training.replicas import Replicas
from bert_jax.training.samples import make_samples
from bert_jax.training.saver import Saver
from bert_jax.training.sinks import read_rows
from bert_jax.training.state import TrainState

PICTURE_SECONDS = 60
"""Time between two pictures of a phase, at least: training waits for half a second while one is drawn."""


class PhaseDuties:
    """The duties of one phase, from step `begin` on.

    Args:
      run: what the phases share.
      phase: the phase.
      begin: step of the state that it resumes from.
      position: where the run is in its data after that step.
    """

    def __init__(self, run: PretrainingRun, phase: Phase, begin: int, position: Position):
        config, learner = run.config, run.learner
        self._run, self._phase, self._begin, self._skipped = run, phase, begin, position.skipped
        self.seen: int = position.seen_in(phase.index)
        """Position of the first example to train on."""
        self._evaluation = _evaluation(run, phase)
        self._unigram = self._baseline()
        self._samples = None
        if self._evaluation is not None:
            self._samples = make_samples(learner, config, self._evaluation, run.corpus.store)
        self.rates: Rates = Rates(useful_work.peak_flops(learner.mesh), wall_time=run.wall_time)
        guard, self._host_times = Guard(config.faults, position.guard_of(phase.index)), HostTimes(run.events)
        self.reporter: PhaseReporter = PhaseReporter(
            run.metrics, self.rates, config, phase, learner.objective.model, run.events, guard, self._host_times
        )
        self._replicas = Replicas(learner.shardings, learner.mesh, run.events)
        self._saver = Saver(
            run.workdir,
            run.checkpoints,
            (run.metrics, run.events),
            self.reporter,
            self.rates,
            run.signals.watchdog,
            config=to_dict(config),
            position=lambda step: dataclasses.replace(self.position(step), guard=guard.memory()).to_dict(),
        )
        self._owes_save, self._drawn = False, time.monotonic()

    def position(self, step: int) -> Position:
        """Return where the run is in its data after `step`, without what the guard remembers."""
        seen = self.seen + (step - self._begin) * self._phase.batch_size
        return Position(self._phase.index, seen, self._skipped)

    def compare_copies(self, step: int, state: TrainState) -> None:
        """Compare what the devices hold, if that is due after `step`.

        Raises:
          UserError: a device holds something else than the others.
        """
        if due(step, self._run.config.faults.check_replicas_every):
            with self.rates.paused("setup"):
                self._replicas.check(step, state)

    def evaluate(self, step: int, state: TrainState) -> dict[str, float]:
        """Return the held-out metrics of the state after `step`, and write them; {} if that is not due.

        Raises:
          Stopped: a signal ended the evaluation.
        """
        run = self._run
        if self._evaluation is None or not evaluates(run.config, step):
            return {}
        self.reporter.finish()
        with self.rates.paused("evaluation"):
            with run.events.timed("evaluated", step) as details:
                evaluated = self._evaluation.run(state.params, run.signals, self.rates)
                if (average := average_of(state.optimizer_state)) is not None:
                    of_average = self._evaluation.run(average, run.signals, self.rates)
                    evaluated |= {f"ema_{name}": value for name, value in of_average.items()}
                details |= evaluated
            if self._samples is not None:
                sampled = self._samples.run(state.params, run.signals, self.rates)
                run.events.write("sampled", step, samples=sampled)
            run.metrics.write(step, evaluated, kind="evaluation")
            if time.monotonic() - self._drawn > PICTURE_SECONDS:
                self.draw()
        return evaluated

    def save(self, step: int, state: TrainState, evaluated: dict[str, float]) -> None:
        """Save the state after `step` where that is due.

        A state whose loss is not finite would displace a good one; the next finite one is saved instead.
        """
        options = self._run.config.checkpoint
        if due(step, options.every_steps) or evaluated and options.keep_best:
            self._owes_save = True
        main = evaluated.get(self._run.learner.main, 0.0)
        if self._owes_save and self.reporter.is_finite() and math.isfinite(main):
            self._saver.save(step, state, evaluated or None)
            self._owes_save = False
        if self._run.checkpoints.local and due(step, options.local_every_steps) and self.reporter.is_finite():
            self._saver.save_locally(step, state)

    def save_for_good(self, step: int, state: TrainState, evaluated: dict[str, float]) -> None:
        """Save the state after `step`, if this start has made that step, and wait until it is written."""
        if step > self._begin:
            self._saver.save_for_good(step, state, evaluated or None)

    @contextlib.contextmanager
    def awaiting_input(self, step: int) -> Iterator[None]:
        """Count the block as waiting for the batch after `step`; the first one starts the pipeline."""
        if step == self._begin:
            with self.rates.paused("setup"):
                yield
        else:
            with self._run.wall_time.awaiting(self.reporter.is_busy), self._host_times.measured():
                yield

    def draw(self) -> None:
        self._run.draw(self._unigram)
        self._drawn = time.monotonic()

    def _baseline(self) -> dict[str, float] | None:
        """Return the metrics of word frequencies alone, and note them; None if nothing is held out."""
        if self._evaluation is None:
            return None
        unigram = self._evaluation.unigram(self._run.corpus.training[self._phase.index])
        if unigram:
            self._run.events.write("baseline", self._begin, **unigram)
        return unigram


def evaluates(config: Config, step: int) -> bool:
    """Return whether the held-out documents, if there are any, are evaluated after `step`."""
    return step == config.total_steps or due(step, config.evaluation.every_steps)


def lacks_evaluation(config: Config, corpus: Corpus, step: int) -> bool:
    """Return whether the evaluation after `step`, which the run has reached before, is missing from its log."""
    if not corpus.held_out or not evaluates(config, step):
        return False
    rows = read_rows(epath.Path(config.workdir) / "metrics.jsonl")
    return from_first(step not in [row["step"] for row in rows if row["kind"] == "evaluation"])


def _evaluation(run: PretrainingRun, phase: Phase) -> Evaluation | None:
    """Return the evaluation on the held-out documents at the length of the phase; None if none are held out."""
    corpus, learner = run.corpus, run.learner
    if not corpus.held_out:
        return None
    shares, shardings = corpus.shares(phase), learner.shardings.params
    return Evaluation(
        learner.objective, run.config, phase, corpus.held_out, shares, learner.mesh, shardings, learner.frozen
    )

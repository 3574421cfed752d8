"""Parts of a pre-training run around its steps: opening, position, evaluation, saving, rollback, fault report.

Between two steps a phase may evaluate, save, compare copies and measure. Every checkpoint keeps the position of the
run in its data. A save works even if the work directory was deleted or renamed since the last one. A rollback returns
to the last good checkpoint; the run then continues after the batches that it had read. A run that gives up leaves one
JSON file with steps, positions, texts, and norms layer by layer.
"""

import contextlib
import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from etils import epath

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.local_tier import LocalTier
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.checkpoints.workdir import WorkDirectory, open_pretraining
from bert_jax.config import Config, Phase, resolve_stages
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.json_form import to_dict
from bert_jax.config.pretraining import traced_steps
from bert_jax.data.examples import Batch, Examples
from bert_jax.data.mixtures import Corpus, Mixture
from bert_jax.devices import hardware, hosts, sharding
from bert_jax.devices.compilation import step_options, use_compilation_cache
from bert_jax.devices.hosts import check_alike, from_first
from bert_jax.devices.signals import StopSignals, Watchdog
from bert_jax.errors import UserError
from bert_jax.files import finite_json, write_atomically
from bert_jax.parameters import entries
from bert_jax.training.evaluation import Evaluation, make_samples
from bert_jax.training.events import Events, HostTimes
from bert_jax.training.learner import Learner
from bert_jax.training.metrics import Metrics, Rates, WallTime, draw_curves, read_rows
from bert_jax.training.optimizers import average_of
from bert_jax.training.reporter import Guard, PhaseReporter, Trouble, due
from bert_jax.training.state import Replicas, TrainState
from bert_jax.training.step import Program, make_gradients, peak_flops
from bert_jax.training.trackers import Profiler, trackers

TEXTS = 256
"""Most sequences whose text is in a report."""


def write_report(
    workdir: epath.Path,
    trouble: Trouble,
    positions: tuple[int, int],
    learner: Learner,
    phase: Phase,
    state: TrainState,
    examples: Examples | Mixture,
    seed: int,
) -> epath.Path:
    """Write `fault_at_step_N.json` below `workdir`, on the first host, and return its path; every host calls this.

    It has the text of the last batch, the norms of the parameters that the steps have left, and those of the gradients
    that these give for that batch: an array whose norm is not finite is where the trouble begins or shows.

    Args:
      workdir: directory of the run.
      trouble: what has happened.
      positions: the first of the steps that went wrong, and the one behind their last.
      learner: what is trained.
      phase: the phase of the steps.
      state: the newest state.
      examples: the training examples of the phase.
      seed: that of the run.
    """
    last_batch = np.arange(positions[1] - phase.batch_size, positions[1])
    mine = sharding.host_rows(learner.mesh, phase.batch_size)
    batch = sharding.to_global(learner.mesh, examples.batch(last_batch[mine]), phase.batch_size)
    gradients = make_gradients(
        learner.objective_of(phase),
        learner.mesh,
        learner.shardings,
        micro_batches=phase.micro_batches,
        seed=seed,
        frozen=learner.frozen,
    )
    report = {
        "reason": str(trouble),
        "steps": [trouble.first, trouble.last],
        "phase": phase.index,
        "positions": list(positions),
        "parameter_norms": _norms(learner, state.params),
        "gradient_norms": _norms(learner, gradients(state, batch, *learner.frozen)),
    }
    file = workdir / f"fault_at_step_{trouble.last}.json"
    if jax.process_index() == 0:
        report["last_batch"] = _texts(examples, last_batch[:TEXTS])
        write_atomically(file, (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode())
    return file


def _norms(learner: Learner, tree: Any) -> dict[str, Any]:
    """Return the Euclidean norm of each array; for one with an axis of layers, a list with that of each layer."""
    described = entries(learner.objective.model.parameters, tree)

    def norm(parameter: Any, leaf: jax.Array) -> jax.Array:
        layers = parameter.layer_axis
        others = tuple(axis for axis in range(leaf.ndim) if axis != layers)
        return jnp.sqrt(jnp.sum(jnp.square(leaf), axis=others))

    alike = sharding.replicated(learner.mesh)
    found = jax.jit(lambda tree: jax.tree.map(norm, described, tree), out_shardings=alike)(tree)
    return {path: finite_json(np.asarray(value).tolist()) for path, value in leaf_paths(jax.device_get(found)).items()}


def _texts(examples: Examples | Mixture, positions: np.ndarray) -> list[dict[str, Any]]:
    batch, tokenizer = examples.batch(positions), examples.store.tokenizer()
    return [
        {"position": int(position), "text": tokenizer.decode(_ids(batch, row)), "masked": _masked(batch, row)}
        for row, position in enumerate(positions)
    ]


def _ids(batch: Batch, row: int) -> list[int]:
    return batch["input_ids"][row, batch["attention_mask"][row] > 0].tolist()


def _masked(batch: Batch, row: int) -> int:
    """Return the number of predictions in a row."""
    return int((batch["masked_weights"][row] > 0).sum())


def join_hosts(config: Config | FinetuneConfig, may_differ: tuple[str, ...]) -> None:
    """Find the other hosts, notice from now on if one of them dies, and keep compiled programs for later starts.

    Args:
      config: options of the run.
      may_differ: those whose values may differ between hosts (`differing_options`).

    Raises:
      UserError: the hosts were given different options.
    """
    hardware.initialize_distributed(config.faults.peer_timeout_seconds)
    hosts.watch(config.faults.peer_timeout_seconds)
    check_alike(lambda: to_dict(config), may_differ)
    use_compilation_cache()


class PhaseSteps:
    """Makes the step of each phase, and of each batch size in it, once.

    One that has been compiled is kept when a rollback comes back to its phase.

    Args:
      learner: what is trained.
    """

    def __init__(self, learner: Learner):
        self._learner = learner
        self._programs: dict[tuple[int, int], Program] = {}

    def of(self, phase: Phase) -> Program:
        """Return the step of `phase`."""
        key = phase.index, phase.batch_size
        if key not in self._programs:
            learner = self._learner
            options = step_options(learner.config.compute, learner.mesh)
            self._programs[key] = Program(learner.train_step(phase), learner.frozen, options)
        return self._programs[key]

    def begin(self, step: int) -> None:
        """Compile what a run continues with after `step`, in a thread, while it restores its state and opens its files.

        A run that then resumes from a different step has compiled in vain, and compiles again.
        """
        for phase in resolve_stages(self._learner.config):
            if step < phase.end:
                self.of(phase).begin(self._learner.abstract, self._learner.abstract_batch(phase))
                return


class Span(NamedTuple):
    """Positions of a phase that a run has skipped after a rollback."""

    phase: int
    begin: int
    end: int
    """The first position behind the span."""


@dataclasses.dataclass(frozen=True)
class Position:
    """The phase of a run, its place in the examples of that phase, and what it has skipped."""

    phase: int = 0
    examples_seen: int = 0
    """Position of the next example of the phase; those of skipped spans before it count."""
    skipped: tuple[Span, ...] = ()
    """One span per rollback, in the order of the rollbacks."""
    guard: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the guard of the phase remembers of the steps before, see `Guard.memory`."""

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "Position":
        """Return what `to_dict` saved."""
        skipped = tuple(Span(*map(int, span)) for span in saved.get("skipped", ()))
        return cls(saved["phase"], saved["examples_seen"], skipped, saved.get("guard", {}))

    def to_dict(self) -> dict[str, Any]:
        """Return the position as JSON can represent it, without what is empty."""
        optional = {"skipped": [list(span) for span in self.skipped], "guard": self.guard}
        return {"phase": self.phase, "examples_seen": self.examples_seen} | {
            name: value for name, value in optional.items() if value
        }

    def seen_in(self, phase: int) -> int:
        """Return the position of the next example of `phase`, this one or a later one: behind spans that begin there.

        A span begins where a checkpoint was restored. So only a start can come to its beginning, and no batch within a
        phase has a gap.
        """
        seen = self.examples_seen if phase == self.phase else 0
        for span in sorted(self.skipped):
            if span.phase == phase and span.begin <= seen < span.end:
                seen = span.end
        return seen

    def guard_of(self, phase: int) -> dict[str, Any]:
        """Return what the guard of `phase` remembers: nothing, if that phase has not begun."""
        return self.guard if phase == self.phase else {}


@dataclasses.dataclass(frozen=True)
class PretrainingRun:
    """A run whose work directory has been taken."""

    config: Config
    learner: Learner
    steps: PhaseSteps
    corpus: Corpus
    workdir: WorkDirectory
    checkpoints: Checkpoints
    metrics: Metrics
    events: Events
    signals: StopSignals
    wall_time: WallTime
    profiler: Profiler

    @property
    def name(self) -> str:
        return _name(self.config)

    def draw(self, unigram: dict[str, float] | None) -> None:
        """Draw the curves of the run into its directory, with the metrics of word frequencies alone beside them."""
        if self.workdir.is_ours():
            path, terms = self.workdir.path, self.learner.objective.terms
            draw_curves(path / "metrics.jsonl", path / "curves.png", terms, unigram, title=self.name)


def open_directory(config: Config, corpus: Corpus, learner: Learner) -> WorkDirectory:
    """Take the work directory for this run."""
    return open_pretraining(
        config.workdir,
        config,
        store_fingerprint=corpus.fingerprint,
        mixed_stores=corpus.mixed_stores,
        tokenizer=corpus.store.tokenizer(),
        own_names=learner.own_names,
        devices=list(learner.mesh.devices.flat),
    )


def open_checkpoints(config: Config, workdir: WorkDirectory, learner: Learner, events: Events) -> Checkpoints:
    """Return the checkpoints of the run in `workdir`, to be closed at its end."""
    local_path = config.checkpoint.local_path
    committed_locally = lambda step, seconds: events.write("saved_locally", step, seconds=seconds)
    return Checkpoints(
        workdir.checkpoints,
        config.checkpoint,
        run_id=workdir.run_id,
        lost=workdir.is_lost,
        best_metric=learner.main,
        committed=lambda step, seconds: events.write("saved", step, seconds=seconds),
        local=LocalTier(local_path, workdir.run_id, committed_locally) if local_path else None,
    )


def open_metrics(
    config: Config, workdir: WorkDirectory, learner: Learner, wall_time: WallTime, start_step: int
) -> Metrics:
    """Return the metrics of the run that resumes from `start_step`, to be closed at its end."""
    return Metrics(
        workdir.path,
        total_steps=config.total_steps,
        start_step=start_step,
        terms=learner.objective.terms,
        wall_time=wall_time,
        trackers=lambda: trackers(config.sinks, workdir.run_id, _name(config), to_dict(config)),
    )


def open_profiler(config: Config, workdir: WorkDirectory) -> Profiler:
    """Return what traces the steps that the options name, to be closed at the end of the run."""
    return Profiler(workdir.path, traced_steps(config.profile, config.total_steps))


def _name(config: Config) -> str:
    return os.path.basename(os.path.normpath(config.workdir))


def check_way_back(
    run: PretrainingRun, phase: Phase, trouble: Trouble, state: TrainState, positions: Callable[[int], Position]
) -> None:
    """Raise a UserError that names a report if no checkpoint is old enough to go back to, or no rollback is left.

    Args:
      run: what the phases share.
      phase: the phase of the trouble.
      trouble: what has happened.
      state: the newest state.
      positions: returns where the run was in its data after a step.
    """
    left = run.config.faults.rollbacks - len(positions(trouble.last).skipped)
    if left > 0 and any(step < trouble.first for step in run.checkpoints.steps_anywhere()):
        return
    span = positions(trouble.first - 1).examples_seen, positions(trouble.last).examples_seen
    examples = run.corpus.training[phase.index]
    file = write_report(run.workdir.path, trouble, span, run.learner, phase, state, examples, run.config.seed)
    newest = run.checkpoints.latest_step()
    raise UserError(
        f"{trouble}, "
        + (
            "and no checkpoint is older"
            if left > 0
            else f"and none of the {run.config.faults.rollbacks} rollbacks is left"
        )
        + f". {file} has the batch and the norms of each layer"
        + ("" if newest is None else f"; the newest checkpoint is step {newest}")
        + ". Lower the learning rate or lengthen the warm-up, in another --workdir; or raise --faults.rollbacks"
    )


def roll_back(run: PretrainingRun, phase: Phase, trouble: Trouble, behind: Position) -> tuple[TrainState, Position]:
    """Restore the newest good checkpoint before `trouble`; return its state and where to resume: at position `behind`.

    Checkpoints after it, and rows of metrics, are deleted: the run takes these steps again. Nothing else is written.
    A run that ends before its next save meets the same trouble and rolls back in the same way.

    Args:
      run: what the phases share.
      phase: the phase of the trouble.
      trouble: what has happened.
      behind: the position behind the last batch of `trouble`.

    Raises:
      UserError: there is no checkpoint to go back to.
    """
    run.checkpoints.discard_after(trouble.first - 1)
    restored = run.checkpoints.restore(run.learner.abstract)
    if restored is None:
        raise UserError(
            f"{trouble}, before the first checkpoint. Lower the learning rate or lengthen the warm-up, and start in "
            "another --workdir"
        )
    there = Position.from_dict(restored.position)
    known = tuple(dict.fromkeys((*there.skipped, *behind.skipped)))
    there = dataclasses.replace(there, skipped=known)
    span = Span(phase.index, there.seen_in(phase.index), behind.examples_seen)
    run.metrics.rewind(restored.step)
    run.events.write(
        "rollback", trouble.last, reason=str(trouble), from_step=trouble.last, to_step=restored.step, span=list(span)
    )
    logging.warning(
        "%s: back to step %d; the examples %d to %d of phase %d are skipped",
        trouble,
        restored.step,
        span.begin,
        span.end - 1,
        span.phase,
    )
    return restored.state, dataclasses.replace(there, skipped=(*known, span))


class Reporter(Protocol):
    def finish(self) -> None:
        """Write the metrics of earlier steps that are still pending."""


class Saver:
    """Saves the states of one run, and first writes its directory again if that was lost.

    Args:
      workdir: the work directory of the run.
      states: where the states are saved.
      others: whatever else the run writes below `workdir`.
      reporter: finishes the metrics of earlier steps before a save.
      rates: paused during a save.
      watchdog: told that a save takes long.
      config: the resolved configuration, saved in every checkpoint.
      position: returns the position of the run after a step, once `reporter` has finished.
    """

    def __init__(
        self,
        workdir: WorkDirectory,
        states: Checkpoints,
        others: tuple[Checkpoints | Metrics | Events, ...],
        reporter: Reporter,
        rates: Rates,
        watchdog: Watchdog,
        config: dict[str, Any],
        position: Callable[[int], dict[str, Any]],
    ):
        self._workdir, self._states, self._others = workdir, states, others
        self._reporter, self._rates, self._watchdog = reporter, rates, watchdog
        self._config, self._position = config, position

    def secure(self) -> None:
        """Write the directory again if it was deleted, renamed or replaced.

        Every host must call this before anything is saved.

        Raises:
          UserError: another run or process has the directory now.
        """
        if self._workdir.secure():
            for written in (self._states, *self._others):
                written.reload()

    def save(self, step: int, state: Any, metrics: dict[str, float] | None = None) -> None:
        """Write the state after `step` steps and the held-out metrics of that step, in the background.

        Raises:
          UserError: this save or the previous one could not be written.
        """
        self._reporter.finish()
        self._watchdog.begin("save")
        self.secure()
        with self._rates.paused("checkpoint"):
            self._states.save(step, state, position=self._position(step), config=self._config, metrics=metrics)

    def save_locally(self, step: int, state: Any) -> None:
        """Write the state after `step` steps to the local disks of the hosts, if they are used, in the background."""
        if self._states.local is not None:
            self._reporter.finish()
            with self._rates.paused("checkpoint"):
                self._states.local.save(step, state, position=self._position(step), config=self._config)

    def save_for_good(self, step: int, state: Any, metrics: dict[str, float] | None = None) -> None:
        """Save as `save` does, and wait until the state is written."""
        for _ in range(2):  # the second save notices if the directory was lost during the first
            self.save(step, state, metrics)
            with self._rates.paused("checkpoint"):
                self._states.wait()


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
        self.rates: Rates = Rates(peak_flops(learner.mesh), wall_time=run.wall_time)
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

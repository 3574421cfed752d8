"""The loop over the steps of any run (`train`), saving, the position in the data, rollback, and the fault report.

A save works even if the work directory was deleted or renamed since the last one. Every checkpoint of pre-training
keeps the position of the run in its data. A rollback returns to the last good checkpoint; the run then continues after
the batches that it had read. A run that gives up leaves one JSON file with steps, positions, texts, and norms layer by
layer.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from etils import epath

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import Position, Span, leaf_paths
from bert_jax.checkpoints.workdir import WorkDirectory
from bert_jax.config import HostFaultsConfig, Phase
from bert_jax.data.examples import Batch, StoreExamples
from bert_jax.data.mixtures import Mixture
from bert_jax.devices import hardware, hosts, sharding
from bert_jax.devices.compilation import step_options, use_compilation_cache
from bert_jax.devices.hardware import memory_error
from bert_jax.devices.hosts import check_alike
from bert_jax.devices.signals import Stopped, StopSignals
from bert_jax.errors import UserError
from bert_jax.files import finite_json, write_atomically
from bert_jax.models.protocol import Model
from bert_jax.parameters import entries
from bert_jax.training.events import Events
from bert_jax.training.learner import Learner
from bert_jax.training.metrics import Metrics, Rates, WallTime
from bert_jax.training.reporter import Guard, Reporter, Trouble, Work, due
from bert_jax.training.state import Replicas, TrainState
from bert_jax.training.step import COUNTS, Program, make_gradients, useful_flops
from bert_jax.training.trackers import Profiler

TEXTS = 256
"""Most sequences whose text is in a report."""


def write_report(
    workdir: epath.Path,
    trouble: Trouble,
    positions: tuple[int, int],
    learner: Learner,
    phase: Phase,
    state: TrainState,
    examples: StoreExamples | Mixture,
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
    """
    last_batch = np.arange(positions[1] - phase.batch_size, positions[1])
    mine = sharding.host_rows(learner.mesh, phase.batch_size)
    batch = sharding.to_global(learner.mesh, examples.batch(last_batch[mine]), phase.batch_size)
    gradients = make_gradients(
        learner.objective_of(phase),
        learner.mesh,
        learner.shardings,
        micro_batches=phase.micro_batches,
        seed=learner.seed,
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
        try:
            write_atomically(file, (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode())
        except OSError as error:  # what it reports is why the run ends
            logging.warning("%s could not be written: %s", file, error.strerror or error)
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


def _texts(examples: StoreExamples | Mixture, positions: np.ndarray) -> list[dict[str, Any]]:
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


def join_hosts(faults: HostFaultsConfig, options: dict[str, Any], may_differ: tuple[str, ...]) -> None:
    """Find the other hosts, notice from now on if one of them dies, and keep compiled programs for later starts.

    Args:
      faults: how long a host may be silent.
      options: of the run, as JSON.
      may_differ: those whose values may differ between hosts (`differing_options`).

    Raises:
      UserError: the hosts were given different options.
    """
    hardware.initialize_distributed(faults.peer_timeout_seconds)
    hosts.watch(faults.peer_timeout_seconds)
    check_alike(lambda: options, may_differ)
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
            options = step_options(learner.network.compute, learner.mesh)
            self._programs[key] = Program(learner.train_step(phase), learner.frozen, options)
        return self._programs[key]

    def begin(self, step: int) -> None:
        """Compile what a run continues with after `step`, in a thread, while it restores its state and opens its files.

        A run that then resumes from a different step has compiled in vain, and compiles again.
        """
        for phase in self._learner.stages:
            if step < phase.end:
                self.of(phase).begin(self._learner.abstract, self._learner.abstract_batch(phase))
                return


@dataclasses.dataclass(frozen=True, kw_only=True)
class Started:
    """A command that has taken its work directory."""

    workdir: WorkDirectory
    faults: HostFaultsConfig
    events: Events
    signals: StopSignals
    wall_time: WallTime
    """Runs on from one run of the command to the next, so that their rows add up to its time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opened(Started):
    """A run whose files are open."""

    checkpoints: Checkpoints
    """The states to resume from."""
    metrics: Metrics
    profiler: Profiler


def check_way_back(
    opened: Opened,
    learner: Learner,
    phase: Phase,
    examples: StoreExamples | Mixture,
    trouble: Trouble,
    state: TrainState,
    positions: Callable[[int], Position],
    rollbacks: int,
) -> None:
    """Raise a UserError that names a report if no checkpoint is old enough to go back to, or no rollback is left.

    Args:
      opened: the run.
      learner: what is trained.
      phase: the phase of the trouble.
      examples: the training examples of the phase.
      trouble: what has happened.
      state: the newest state.
      positions: returns where the run was in its data after a step.
      rollbacks: how many a run may make.
    """
    left = rollbacks - len(positions(trouble.last).skipped)
    if left > 0 and any(step < trouble.first for step in opened.checkpoints.steps_anywhere()):
        return
    span = positions(trouble.first - 1).examples_seen, positions(trouble.last).examples_seen
    file = write_report(opened.workdir.path, trouble, span, learner, phase, state, examples)
    newest = opened.checkpoints.latest_step()
    raise UserError(
        f"{trouble}, "
        + ("and no checkpoint is older" if left > 0 else f"and none of the {rollbacks} rollbacks is left")
        + f". {file} has the batch and the norms of each layer"
        + ("" if newest is None else f"; the newest checkpoint is step {newest}")
        + ". Lower the learning rate or lengthen the warm-up, in another --workdir; or raise --faults.rollbacks"
    )


def roll_back(
    opened: Opened, abstract: TrainState, phase: Phase, trouble: Trouble, behind: Position
) -> tuple[TrainState, Position]:
    """Restore the newest good checkpoint before `trouble`; return its state and where to resume: at position `behind`.

    Checkpoints after it, and rows of metrics, are deleted: the run takes these steps again. Nothing else is written.
    A run that ends before its next save meets the same trouble and rolls back in the same way.

    Args:
      opened: the run.
      abstract: describes the state.
      phase: the phase of the trouble.
      trouble: what has happened.
      behind: the position behind the last batch of `trouble`.

    Raises:
      UserError: there is no checkpoint to go back to.
    """
    opened.checkpoints.discard_after(trouble.first - 1)
    restored = opened.checkpoints.restore(abstract)
    if restored is None:
        raise UserError(
            f"{trouble}, before the first checkpoint. Lower the learning rate or lengthen the warm-up, and start in "
            "another --workdir"
        )
    there = Position.from_dict(restored.position)
    known = tuple(dict.fromkeys((*there.skipped, *behind.skipped)))
    there = dataclasses.replace(there, skipped=known)
    span = Span(phase.index, there.seen_in(phase.index), behind.examples_seen)
    opened.metrics.rewind(restored.step)
    opened.events.write(
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


class Saver:
    """Saves the states of one run, and first writes its directory again if that was lost.

    Args:
      opened: the run.
      reporter: finishes the metrics of earlier steps before a save; its rates are paused meanwhile.
      config: the resolved configuration, saved in every checkpoint.
      position: returns the position of the run after a step, once `reporter` has finished.
      others: whatever else the run writes below its work directory.
    """

    def __init__(
        self,
        opened: Opened,
        reporter: Reporter,
        config: dict[str, Any],
        position: Callable[[int], dict[str, Any]],
        others: tuple[Checkpoints, ...] = (),
    ):
        self._workdir, self._states, self._watchdog = opened.workdir, opened.checkpoints, opened.signals.watchdog
        self._metrics = opened.metrics
        self._written = (opened.checkpoints, *others, opened.metrics, opened.events)
        self._reporter, self._rates = reporter, reporter.rates
        self._config, self._position = config, position

    def secure(self) -> None:
        """Write the directory again if it was deleted, renamed or replaced.

        Every host must call this before anything is saved.

        Raises:
          UserError: another run or process has the directory now, or it cannot be written again.
        """
        try:
            was_lost = self._workdir.secure()
        except OSError as error:
            raise UserError(
                f"{self._workdir.path} was lost during this run and cannot be written again: "
                f"{error.strerror or error}; start the same command again once it can"
            ) from error
        if was_lost:
            for written in self._written:
                written.reload()

    def save(self, step: int, state: Any, metrics: dict[str, float] | None = None) -> None:
        """Write the state after `step` steps and the held-out metrics of that step, in the background.

        Raises:
          UserError: this save or the previous one could not be written.
        """
        self._finish()
        self._watchdog.begin("save")
        self.secure()
        with self._rates.paused("checkpoint"):
            self._states.save(step, state, position=self._position(step), config=self._config, metrics=metrics)

    def save_locally(self, step: int, state: Any) -> None:
        """Write the state after `step` steps to the local disks of the hosts, if they are used, in the background."""
        if self._states.local is not None:
            self._finish()
            with self._rates.paused("checkpoint"):
                self._states.local.save(step, state, position=self._position(step), config=self._config)

    def _finish(self) -> None:
        """Have every row of a step written that this start does not take again after a crash."""
        self._reporter.finish()
        self._metrics.settle()

    def save_for_good(self, step: int, state: Any, metrics: dict[str, float] | None = None) -> None:
        """Save as `save` does, and wait until the state is written."""
        for _ in range(2):  # the second save notices if the directory was lost during the first
            self.save(step, state, metrics)
            with self._rates.paused("checkpoint"):
                self._states.wait()


class Input(NamedTuple):
    """Arguments of a step after the state."""

    arguments: tuple[Any, ...]
    """A batch on the devices, and whatever else the step reads."""
    work: Work | None = None
    """Work of the step; None if it is known only after it."""


class Task(Protocol):
    """Steps of one program on one stream of batches: a phase of pre-training, or a run of fine-tuning."""

    end: int
    """The last step."""
    program: Program
    """Takes a step."""
    replicas: Replicas
    """Compares the copies of the state."""
    reporter: Reporter
    """Gets the metrics of every step."""

    def batches(self, begin: int) -> Generator[Input, None, None]:
        """Return what the steps after `begin` take."""
        ...

    def after_step(self, step: int, state: TrainState) -> None:
        """Evaluate and save the state after `step` where that is due; called for the first state as well."""

    def save_for_good(self, step: int, state: TrainState) -> None:
        """Save the state after `step`, at which the run has to stop, and wait until it is written."""

    def shortage(self) -> tuple[str, list[str]]:
        """Return what does not fit when the memory of a device runs out, and what helps."""
        ...


def train(task: Task, opened: Opened, state: TrainState) -> tuple[TrainState, int, Trouble | None]:
    """Take the steps of a task from `state` on: to its end, until told to stop, or until something goes wrong.

    If a signal has stopped it, as `exit_code` of the signals says, the state has been saved.

    Returns:
      The newest state, its step, and the trouble that calls for an older state, if there is any.

    Raises:
      UserError: what a device holds is not what the others hold, its memory has run out, or a save has failed.
    """
    signals, events, profiler = opened.signals, opened.events, opened.profiler
    reporter, rates, begin = task.reporter, task.reporter.rates, int(state.step)
    step, trouble = begin, None
    try:
        with contextlib.closing(task.batches(begin)) as stream:
            for step in range(begin, task.end + 1):  # `state` is the state after `step` steps
                signals.saving = step if step > begin else None
                profiler.finish(step, state)
                if step > begin and due(step, opened.faults.check_replicas_every):
                    with rates.paused("setup"):
                        task.replicas.check(step, state)
                task.after_step(step, state)
                if step == task.end:
                    break
                # The first batch starts the pipeline.
                with reporter.awaiting_input() if step > begin else rates.paused("setup"):
                    arguments, work = next(stream)
                task.program.prepare(state, *arguments, signals=signals, rates=rates, events=events)
                signals.check()
                signals.saving = events.step = step + 1
                with profiler.step(step, state):
                    state, values = task.program(state, *arguments)
                reporter.dispatched(step + 1, values, work)
                opened.checkpoints.poll()
    except Stopped:
        # A step that turns out to be bad only now is not saved; the next start takes it again and decides.
        with contextlib.suppress(Trouble):
            if step > begin:
                task.save_for_good(step, state)
                signals.saved(step)
    except jax.errors.JaxRuntimeError as error:
        raise memory_error(error, *task.shortage()) from error
    except Trouble as found:
        trouble = found.with_traceback(None)  # which would keep this state while an older one is restored
    return state, step, trouble


class GuardedSteps:
    """The steps of a phase: their useful work, and their losses, which a guard watches.

    Args:
      rates: counts the work.
      guard: sees the loss of each step.
      events: where a skipped update is noted.
      model: counts the operations.
      phase: the phase of the steps.
      places_after: places of the phases that follow.
      main: name of the loss that is 0 for a batch in which nothing is predicted.
    """

    def __init__(
        self, rates: Rates, guard: Guard, events: Events, model: Model, phase: Phase, places_after: int, main: str
    ):
        self._rates, self._guard, self._events, self._model, self._phase = rates, guard, events, model, phase
        self._places_after, self._main, self._has_told = places_after, main, False

    def observe(self, step: int, values: dict[str, Any]) -> None:
        """Count the work of the update to `step`, and show its loss to the guard."""
        phase, useful = self._phase, {name: float(values.pop(name)) for name in COUNTS}
        flops = useful_flops(self._model, phase.sequence_length, useful)
        self._rates.count(phase.batch_size, useful["useful_tokens"], flops, phase.tokens_per_step)
        loss, skipped = float(values["loss"]), bool(values["skipped"])
        if not self._has_told and values.get(self._main) == 0:
            self._has_told = True
            logging.warning(
                "step %d: nothing in its batch is to be predicted (%s is 0), so it teaches nothing, as any other such "
                "batch: take larger batches or longer texts, or mask single tokens",
                step,
                self._main,
            )
        try:
            self._guard.observe(step, loss, skipped)
        finally:
            if skipped:
                norm, in_a_row = float(values["grad_norm"]), self._guard.skipped
                self._events.write("skipped", step, loss=loss, grad_norm=norm, in_a_row=in_a_row)
                logging.warning("step %d: loss %s, gradient norm %s; the update was skipped", step, loss, norm)

    def left(self, step: int) -> float:
        """Return the places of the later steps, those of the phases that follow included."""
        return (self._phase.end - step) * self._phase.tokens_per_step + self._places_after

"""What one run of fine-tuning writes, reports and saves, opened where it starts or resumes."""

import contextlib
import dataclasses
from typing import Any

import numpy as np

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.run_files import id_below
from bert_jax.config import CheckpointConfig
from bert_jax.config.json_form import to_dict
from bert_jax.config.watching import traced_steps
from bert_jax.data.sequences.batching import TrainingBatches
from bert_jax.devices.memory_shortage import memory_advice
from bert_jax.finetuning.command import Command
from bert_jax.finetuning.dev_evaluations import DevEvaluations
from bert_jax.finetuning.directory import LATEST
from bert_jax.finetuning.plan import Run
from bert_jax.finetuning.programs import Programs, first_state
from bert_jax.finetuning.run_batches import training_batches
from bert_jax.finetuning.run_record import settings
from bert_jax.planning.advice import state_advice
from bert_jax.training import useful_work
from bert_jax.training.announcement import say
from bert_jax.training.host_times import HostTimes
from bert_jax.training.metrics import Metrics, Rates
from bert_jax.training.profiler import Profiler
from bert_jax.training.saver import Saver
from bert_jax.training.state import TrainState
from bert_jax.training.task_reporter import TaskReporter
from bert_jax.training.trackers import Tracker, trackers

STATES = CheckpointConfig(keep_last=2, keep_best=0)


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """A run whose files are open."""

    batches: TrainingBatches
    total_steps: int
    dev: dict[int, dict[str, Any]]
    """What `evaluations` found, by step."""
    states: Checkpoints
    """The states to resume from."""
    weights: Checkpoints
    """The weights that count."""
    profiler: Profiler
    reporter: TaskReporter
    saver: Saver
    evaluations: DevEvaluations


def open_run(run: Run, command: Command, closing: contextlib.ExitStack) -> tuple[TrainingRun, TrainState]:
    """Return the run and the state that it starts or resumes from; `closing` closes what is opened."""
    config, programs, workdir = command.config, command.programs, command.workdir
    directory, run_id = workdir.path / "runs" / run.name, id_below(workdir.run_id, run.name)
    states, weights = (
        closing.enter_context(Checkpoints(directory / name, kept, run_id=run_id, lost=workdir.is_lost))
        for name, kept in (("training", STATES), ("checkpoints", LATEST))
    )
    command.signals.newest = states.latest_step
    # The run starts from: 1. its newest good state; 2. the parameters of init_from with a fresh head, at step 0.
    with memory_advice("the state of a run", state_advice(programs.mesh.shape)):
        restored = states.restore(programs.abstract)
        state = _first_state(command, np.uint32(run.seed)) if restored is None else restored.state
        begin, position = int(state.step), {} if restored is None else restored.position
    dev = {int(step): entry for step, entry in position.get("dev", {}).items()}
    command.events.start(begin, list(programs.mesh.devices.flat), resumed=restored is not None, run=run.name)
    batches = training_batches(config, command.data.train.features, programs, batch_size=run.batch_size, seed=run.seed)
    total = run.epochs * batches.steps_per_epoch
    metrics = Metrics(
        directory,
        total_steps=total,
        start_step=begin,
        evaluated=begin in dev,
        wall_time=command.wall_time,
        trackers=lambda: _trackers(run, command),
    )
    closing.enter_context(metrics)
    profiler = closing.enter_context(Profiler(directory, traced_steps(config.profile, total)))
    reporter = _reporter(command, metrics, batches.steps_per_epoch, total, position.get("totals"))
    recorded = settings(config, programs, command.data, run)
    saver = Saver(
        workdir,
        states,
        (weights, metrics, command.events),
        reporter,
        reporter.rates,
        command.signals.watchdog,
        config=recorded,
        position=lambda step: {
            "step": step,
            "dev": {str(evaluated): entry for evaluated, entry in dev.items()},
            "totals": dict(reporter.totals),
        },
    )
    evaluations = DevEvaluations(command, dev, weights, metrics, saver, recorded)
    return TrainingRun(batches, total, dev, states, weights, profiler, reporter, saver, evaluations), state


def _reporter(
    command: Command, metrics: Metrics, epoch: int, total: int, totals: dict[str, float] | None
) -> TaskReporter:
    config, model = command.config, command.programs.model
    # The second half of the last epoch: a run of one epoch begins with losses of a model that knows nothing.
    tail = max(1, epoch // 2)
    rates = Rates(_peak_flops(command.programs), wall_time=command.wall_time)
    flops = useful_work.flops_of_texts(model, config.options.max_length)
    return TaskReporter(metrics, rates, HostTimes(command.events), config.log_every_steps, total, tail, flops, totals)


def _peak_flops(programs: Programs) -> float | None:
    """Return the FLOP/s that utilization refers to; None if unknown, or if the encoder is not trained.

    A model counts its operations as if all of it was trained.
    """
    head = programs.model.head
    return None if head.features and not head.train_encoder else useful_work.peak_flops(programs.mesh)


def _trackers(run: Run, command: Command) -> list[Tracker]:
    """Return the services that get the metrics of this run, one of several in its work directory."""
    config, workdir = command.config, command.workdir
    name, options = workdir.path.name, to_dict(dataclasses.replace(config, **dataclasses.asdict(run)))
    # Weights & Biases allows no slash in an id.
    return trackers(config.sinks, f"{workdir.run_id}-{run.name}", f"{name}/{run.name}", options)


def _first_state(command: Command, seed: np.uint32) -> TrainState:
    """Return the state at step 0, and print which parameters are fresh."""
    state, report = first_state(command.config, command.stored, command.programs, seed)
    if report is not None:
        fresh = ", ".join(report.fresh) or "none"
        say(f"{len(report.loaded)} arrays loaded from {command.config.init_from}, fresh: {fresh}")
    return state

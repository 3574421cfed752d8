"""One run of fine-tuning, from its initial checkpoint to its record."""

import contextlib
import dataclasses
import time
from typing import Any

import jax
import numpy as np

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.run_files import id_below
from bert_jax.config import CheckpointConfig
from bert_jax.config.json_form import to_dict
from bert_jax.config.watching import traced_steps
from bert_jax.data.sequences.batching import TrainingBatches
from bert_jax.devices import sharding
from bert_jax.devices.signals import Stopped
from bert_jax.errors import UserError
from bert_jax.finetuning.command import Command
from bert_jax.finetuning.dev_evaluations import DevEvaluations
from bert_jax.finetuning.directory import LATEST
from bert_jax.finetuning.plan import Run, learning_rates
from bert_jax.finetuning.programs import Programs, first_state
from bert_jax.finetuning.run_batches import placed_batch, training_batches
from bert_jax.finetuning.run_record import run_record, settings
from bert_jax.planning.advice import advice, memory_error
from bert_jax.training import useful_work
from bert_jax.training.announcement import say
from bert_jax.training.host_times import HostTimes
from bert_jax.training.metrics import Metrics, Rates
from bert_jax.training.pretraining_reporter import due
from bert_jax.training.profiler import Profiler
from bert_jax.training.replicas import Replicas
from bert_jax.training.saver import Saver
from bert_jax.training.state import TrainState, state_shardings
from bert_jax.training.task_reporter import TaskReporter
from bert_jax.training.trackers import Tracker, trackers

STATES = CheckpointConfig(keep_last=2, keep_best=0)


def train(run: Run, command: Command) -> dict[str, Any]:
    """Train one run, from the checkpoint or from where it was interrupted, and return its record.

    The weights that count are in runs/NAME/checkpoints of the work directory afterwards.

    Raises:
      Stopped: a signal ended the run, after its state was saved.
    """
    config, programs, workdir, signals = command.config, command.programs, command.workdir, command.signals
    events, wall_time = command.events, command.wall_time
    wall_time.switch("setup")
    directory, run_id = workdir.path / "runs" / run.name, id_below(workdir.run_id, run.name)
    batches = training_batches(config, command.data.train.features, programs, batch_size=run.batch_size, seed=run.seed)
    clock = time.perf_counter()
    epoch, total = batches.steps_per_epoch, run.epochs * batches.steps_per_epoch
    record_config = settings(config, programs, command.data, run)

    with contextlib.ExitStack() as closing:
        states, weights = (
            closing.enter_context(Checkpoints(directory / name, kept, run_id=run_id, lost=workdir.is_lost))
            for name, kept in (("training", STATES), ("checkpoints", LATEST))
        )
        signals.newest = states.latest_step
        # The run starts from: 1. its newest good state; 2. the parameters of init_from with a fresh head, at step 0.
        restored = states.restore(programs.abstract)
        state = _first_state(command, np.uint32(run.seed)) if restored is None else restored.state
        begin, position = int(state.step), {} if restored is None else restored.position
        dev = {int(step): entry for step, entry in position.get("dev", {}).items()}
        events.start(begin, list(programs.mesh.devices.flat), resumed=restored is not None, run=run.name)
        metrics = closing.enter_context(
            Metrics(
                directory,
                total_steps=total,
                start_step=begin,
                evaluated=begin in dev,
                wall_time=wall_time,
                trackers=lambda: _trackers(run, command),
            )
        )
        profiler = closing.enter_context(Profiler(directory, traced_steps(config.profile, total)))
        # The second half of the last epoch: a run of one epoch begins with losses of a model that knows nothing.
        tail = max(1, epoch // 2)
        reporter = TaskReporter(
            metrics,
            Rates(_peak_flops(programs), wall_time=wall_time),
            HostTimes(events),
            config.log_every_steps,
            total,
            tail,
            useful_work.flops_of_texts(programs.model, config.options.max_length),
            position.get("totals"),
        )
        saver = Saver(
            workdir,
            states,
            (weights, metrics, events),
            reporter,
            reporter.rates,
            signals.watchdog,
            config=record_config,
            position=lambda step: {
                "step": step,
                "dev": {str(evaluated): entry for evaluated, entry in dev.items()},
                "totals": dict(reporter.totals),
            },
        )
        evaluations = DevEvaluations(command, dev, weights, metrics, saver, record_config)
        _train_steps(run, command, batches, state, states, evaluations, reporter, saver, profiler)
        signals.saving = None
        weights.wait()
        counted = weights.latest_step()
        if counted is None:
            raise UserError(
                f"the weights of {run.name} were deleted with {workdir.path} during the run; remove {directory} to "
                "train it again"
            )

    return run_record(run, config, command.data, programs, reporter, dev, counted) | {
        "init_from_step": command.stored.history.get("step"),
        "seconds_since_last_start": round(time.perf_counter() - clock, 1),
    }


def _train_steps(
    run: Run,
    command: Command,
    batches: TrainingBatches,
    state: TrainState,
    states: Checkpoints,
    evaluations: DevEvaluations,
    reporter: TaskReporter,
    saver: Saver,
    profiler: Profiler,
) -> None:
    """Take the steps after `state` to the end of the run, with an evaluation after each epoch.

    Raises:
      Stopped: a signal ended the run, after its state was saved.
    """
    config, programs, signals, events = command.config, command.programs, command.signals, command.events
    mesh, begin = programs.mesh, int(state.step)
    replicas = Replicas(state_shardings(programs.abstract), mesh, events)
    dropout_seed = sharding.on_every_device(mesh, np.uint32(run.seed))
    epoch, total = batches.steps_per_epoch, run.epochs * batches.steps_per_epoch
    rates = learning_rates(run, config.schedule, config.warmup_share, total)
    step = begin
    try:
        for step in range(begin, total + 1):  # `state` is the state after `step` steps
            signals.saving = step if step > begin else None
            profiler.finish(step, state)
            if step and step % epoch == 0 and not evaluations.has(step):
                reporter.finish()
                evaluations.make(step, state.params, reporter.rates, is_last=step == total)
                saver.save(step, state)
            if step == total:
                break
            with reporter.awaiting_input():
                batch = placed_batch(batches.batch(step), mesh)
            scalars = [sharding.on_every_device(mesh, rates[step]), dropout_seed]
            if config.gradual_unfreezing:
                scalars.append(sharding.on_every_device(mesh, np.int32(step // epoch)))
            programs.train_step.prepare(state, batch, *scalars, signals=signals, rates=reporter.rates, events=events)
            signals.check()
            signals.saving = events.step = step + 1
            with profiler.step(step, state):
                state, values = programs.train_step(state, batch, *scalars)
            reporter.dispatched(step + 1, values, batches.rows, batch["input_ids"].size, batches.text_lengths(step))
            states.poll()
            if due(step + 1, config.faults.check_replicas_every):
                with reporter.rates.paused("setup"):
                    replicas.check(step + 1, state)
            if (step + 1) % config.save_every_steps == 0:
                saver.save(step + 1, state)
    except jax.errors.JaxRuntimeError as error:
        remedies = advice(
            remat=programs.model.compute.remat,
            mesh=mesh.shape,
            batch_size=batches.rows,
            micro_batches=config.micro_batches,
        )
        raise memory_error(error, f"a batch of {batches.rows} sequences", remedies) from error
    except Stopped:
        if step > begin:
            saver.save_for_good(step, state)
            signals.saved(step)
        raise


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
    return trackers(config.sinks, f"{workdir.run_id or name}-{run.name}", f"{name}/{run.name}", options)


def _first_state(command: Command, seed: np.uint32) -> TrainState:
    """Return the state at step 0, and print which parameters are fresh."""
    state, report = first_state(command.config, command.stored, command.programs, seed)
    if report is not None:
        fresh = ", ".join(report.fresh) or "none"
        say(f"{len(report.loaded)} arrays loaded from {command.config.init_from}, fresh: {fresh}")
    return state

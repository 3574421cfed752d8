"""One run of fine-tuning, from its initial checkpoint to its record."""

import contextlib
import time
from typing import Any

import jax
import numpy as np

from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.devices import sharding
from bert_jax.devices.memory_shortage import memory_error
from bert_jax.devices.signals import Stopped
from bert_jax.errors import UserError
from bert_jax.finetuning.command import Command
from bert_jax.finetuning.plan import Run, learning_rates
from bert_jax.finetuning.programs import Programs
from bert_jax.finetuning.run_batches import placed_batch
from bert_jax.finetuning.run_record import run_record
from bert_jax.finetuning.training_run import TrainingRun, open_run
from bert_jax.planning.advice import advice
from bert_jax.training.pretraining_reporter import due
from bert_jax.training.replicas import Replicas
from bert_jax.training.state import TrainState, state_shardings


def train(run: Run, command: Command) -> dict[str, Any]:
    """Train one run, from the checkpoint or from where it was interrupted, and return its record.

    The weights that count are in runs/NAME/checkpoints of the work directory afterwards.

    Raises:
      Stopped: a signal ended the run, after its state was saved.
    """
    command.wall_time.switch("setup")
    clock = time.perf_counter()
    with contextlib.ExitStack() as closing:
        opened, state = open_run(run, command, closing)
        _train_steps(run, command, opened, state)
        command.signals.saving = None
        opened.weights.wait()
        counted = opened.weights.latest_step()
        if counted is None:
            path = command.workdir.path
            raise UserError(
                f"the weights of {run.name} were deleted with {path} during the run; remove {path / 'runs' / run.name} "
                "to train it again"
            )
    return run_record(run, command.config, command.data, command.programs, opened.reporter, opened.dev, counted) | {
        "init_from_step": command.stored.history.get("step"),
        "seconds_since_last_start": round(time.perf_counter() - clock, 1),
    }


def _train_steps(run: Run, command: Command, opened: TrainingRun, state: TrainState) -> None:
    """Take the steps after `state` to the end of the run, with an evaluation after each epoch.

    Pre-training has a loop of its own (`pretraining._train_phase`): its batches come from a stream that runs ahead, its
    evaluations follow the number of steps, and it can go back to an earlier one. What both do, programs, signals,
    reporters, profilers and the comparison of copies do for them.

    Raises:
      Stopped: a signal ended the run, after its state was saved.
    """
    config, programs, signals, events = command.config, command.programs, command.signals, command.events
    batches, reporter, saver, total = opened.batches, opened.reporter, opened.saver, opened.total_steps
    mesh, begin, epoch = programs.mesh, int(state.step), batches.steps_per_epoch
    replicas = Replicas(state_shardings(programs.abstract), mesh, events)
    dropout_seed = sharding.on_every_device(mesh, np.uint32(run.seed))
    rates = learning_rates(run, config.schedule, config.warmup_share, total)
    step = begin
    try:
        for step in range(begin, total + 1):  # `state` is the state after `step` steps
            signals.saving = step if step > begin else None
            opened.profiler.finish(step, state)
            if step and step % epoch == 0 and not opened.evaluations.has(step):
                reporter.finish()
                opened.evaluations.make(step, state.params, reporter.rates, is_last=step == total)
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
            with opened.profiler.step(step, state):
                state, values = programs.train_step(state, batch, *scalars)
            reporter.dispatched(step + 1, values, batches.rows, batch["input_ids"].size, batches.text_lengths(step))
            opened.states.poll()
            if due(step + 1, config.faults.check_replicas_every):
                with reporter.rates.paused("setup"):
                    replicas.check(step + 1, state)
            if (step + 1) % config.save_every_steps == 0:
                saver.save(step + 1, state)
    except jax.errors.JaxRuntimeError as error:
        remedies = batch_advice(config, programs, batches.rows)
        raise memory_error(error, f"a batch of {batches.rows} sequences", remedies) from error
    except Stopped:
        if step > begin:
            saver.save_for_good(step, state)
            signals.saved(step)
        raise


def batch_advice(config: FinetuneConfig, programs: Programs, rows: int) -> list[str]:
    """Return what saves memory where a step on `rows` sequences does not fit."""
    return advice(
        remat=programs.model.compute.remat,
        mesh=programs.mesh.shape,
        batch_size=rows,
        micro_batches=config.micro_batches,
    )

"""One run of fine-tuning, from its initial checkpoint to its record, and the work directory of all runs.

The directory has one owner, the same settings for all its runs, and the chosen weights on top:

    DIR/runs/NAME/training      train states of an unfinished run; gone when it is finished
    DIR/runs/NAME/checkpoints   the weights of a finished run that count
    DIR/runs/NAME/results.json  written last: the run is finished
    DIR/checkpoints             weights of the chosen run, for `bert_jax.load(DIR)`
    DIR/results.json, predictions/SPLIT/

The weights that count are the best on dev, or the last (`select`). config.json, every checkpoint and results.json
record the settings of the runs.
"""

import contextlib
import dataclasses
import functools
import json
import time
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath
from jax.sharding import Mesh

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import check_origin, read_record
from bert_jax.checkpoints.workdir import WorkDirectory, id_below, open_workdir, read_json, refused_changes
from bert_jax.config import CheckpointConfig
from bert_jax.config.finetuning import RESULTS, FinetuneConfig, FinetuningRecord
from bert_jax.config.json_form import first_lines, to_dict
from bert_jax.config.pretraining import traced_steps
from bert_jax.data.sequences import Batch, Features, SharedRowBatches, TrainingBatches
from bert_jax.devices import sharding
from bert_jax.devices.hardware import memory_advice, memory_error
from bert_jax.devices.hosts import from_first
from bert_jax.devices.signals import Stopped, StopSignals
from bert_jax.errors import UserError
from bert_jax.finetuning.plan import Run, collapsed, ignores_input, learning_rates
from bert_jax.finetuning.programs import Programs, first_state, predict_logits
from bert_jax.finetuning.results import best, finished_runs
from bert_jax.formats.opening import place
from bert_jax.formats.own import open_checkpoint
from bert_jax.formats.stored import StoredModel
from bert_jax.models.task import BertForTask
from bert_jax.tasks.task_data import TaskData
from bert_jax.tokenization.abstract import Tokenizer
from bert_jax.training.events import Events, HostTimes
from bert_jax.training.learner import advice, state_advice
from bert_jax.training.metrics import Metrics, Rates, WallTime
from bert_jax.training.reporter import TaskReporter, due, say
from bert_jax.training.run import Saver
from bert_jax.training.state import Replicas, TrainState, state_shardings
from bert_jax.training.step import flops_of_texts, peak_flops
from bert_jax.training.trackers import Profiler, Tracker, trackers


@dataclasses.dataclass(frozen=True)
class Command:
    """What all runs of a command share."""

    config: FinetuneConfig
    data: TaskData
    stored: StoredModel
    """The model that is fine-tuned."""
    programs: Programs
    workdir: WorkDirectory
    events: Events
    signals: StopSignals
    wall_time: WallTime
    """Runs on from one run to the next, so that the rows of all of them add up to the time of the command."""


class DevEvaluations:
    """The evaluations of a run on dev after each epoch, and the weights that count according to them.

    Args:
      command: what all runs share.
      found: metrics of each evaluation, and the result of `ignores_input`, by step; `make` adds to it.
      weights: where the weights that count are saved.
      metrics: where the evaluations are logged.
      saver: makes sure of the work directory.
      config: the resolved configuration, saved in every checkpoint.
    """

    def __init__(
        self,
        command: Command,
        found: dict[int, dict[str, Any]],
        weights: Checkpoints,
        metrics: Metrics,
        saver: Saver,
        config: dict[str, Any],
    ):
        self._command, self._found, self._config = command, found, config
        self._weights, self._metrics, self._saver = weights, metrics, saver

    def has(self, step: int) -> bool:
        """Whether the evaluation after `step` was made, by this process or before an interruption."""
        return step in self._found

    def make(self, step: int, params: Any, rates: Rates, is_last: bool) -> None:
        """Evaluate the parameters after `step` steps, and save them if they are the ones that count so far."""
        command, main = self._command, self._command.data.main_metric
        with rates.paused("evaluation"), command.events.timed("evaluated", step) as details:
            scores, ignored = evaluate(
                command.data, command.programs, params, command.config.eval_batch_size, command.signals, rates
            )
            details |= scores
        earlier = [entry["metrics"][main] for entry in self._found.values()]
        self._saver.secure()
        is_best = scores[main] > max(earlier, default=-np.inf)
        command.signals.watchdog.begin("save")
        if is_last if command.config.select == "last" else is_best:
            with rates.paused("checkpoint"):
                state, position = {"params": params}, {"step": step}
                self._weights.save(step, state, position=position, config=self._config, metrics=scores)
                # A kill could otherwise leave only the state that is saved next, and no step would save these again.
                self._weights.wait()
        self._metrics.write(step, {f"dev_{name}": value for name, value in scores.items()}, kind="evaluation")
        self._found[step] = {"metrics": scores, "ignored": ignored}


def evaluate(
    data: TaskData, programs: Programs, params: Any, batch_size: int, signals: StopSignals, rates: Rates | None = None
) -> tuple[dict[str, float], str | None]:
    """Return the metrics on dev, and the result of `ignores_input`.

    Metrics on MNLI's second dev set have names that begin with `mismatched_`. `rates` pause while something is
    compiled.
    """
    results, ignored = {}, None
    for name, split in data.evaluations.items():
        logits = predict_logits(
            programs.predict_step, params, split.features, data.head, batch_size, programs.mesh, signals, rates
        )
        prefix = name.removeprefix("dev").removeprefix("_")
        results |= {
            f"{prefix}_{key}" if prefix else key: float(value)
            for key, value in data.family.score(split.examples, split.features, logits).items()
        }
        if name == "dev":
            ignored = ignores_input(data.head, split.features, logits, results)
    return results, ignored


def training_batches(
    config: FinetuneConfig, features: Features, programs: Programs, *, batch_size: int, seed: int
) -> TrainingBatches:
    """Return the batches of a run, in rows of their own or in shared ones."""
    multiple = sharding.batch_parts(programs.mesh) * config.micro_batches
    if config.packing:
        make = functools.partial(SharedRowBatches, features, batch_size, programs.longest_row)
    else:
        make = functools.partial(TrainingBatches, features, batch_size)
    return make(window=config.bucket_window, seed=seed, multiple=multiple)


def placed_batch(batch: Batch, mesh: Mesh) -> dict[str, jax.Array]:
    """Return the batch on the devices, to which each host contributes its rows."""
    rows = len(batch["input_ids"])
    mine = sharding.host_rows(mesh, rows)
    return sharding.to_global(mesh, {name: values[mine] for name, values in batch.items()}, rows)


def settings(config: FinetuneConfig, programs: Programs, data: TaskData, run: Run | None = None) -> dict[str, Any]:
    """Return what config.json and every checkpoint record; for a run, with its own hyper-parameters."""
    if run is not None:
        config = dataclasses.replace(config, **dataclasses.asdict(run))
    return {
        "model": to_dict(programs.model.config),
        "head": to_dict(programs.model.head),
        "compute": to_dict(config.compute),
        "finetune": to_dict(config),
        "pairs": data.pairs,
        **({} if run is None else {"run": run.name}),
    }


def run_record(
    run: Run,
    config: FinetuneConfig,
    data: TaskData,
    programs: Programs,
    reporter: TaskReporter,
    dev: dict[int, dict[str, Any]],
    counted: int,
) -> dict[str, Any]:
    """Return what results.json records of a run.

    Args:
      dev: evaluations by step.
      counted: step of the weights that count.
    """
    loss, skipped = reporter.tail_loss, reporter.totals["skipped"]
    return {
        "run": run.name,
        "setting": run.setting,
        "seed": run.seed,
        "metrics": dev[counted]["metrics"],
        "collapsed": collapsed(data.head, data.train.features, dev[counted]["ignored"], loss, skipped),
        "step": counted,
        "steps": max(dev),
        "training_loss": loss if np.isfinite(loss) else None,
        "epochs": [{"epoch": epoch, **dev[step]["metrics"]} for epoch, step in enumerate(sorted(dev), 1)],
        "keep": config.keep,
        "hyperparameters": _hyperparameters(run, config, programs.model),
    }


def _hyperparameters(run: Run, config: FinetuneConfig, model: BertForTask) -> dict[str, Any]:
    return {
        "batch_size": run.batch_size,
        "learning_rate": run.learning_rate,
        "epochs": run.epochs,
        "warmup_share": config.warmup_share,
        "schedule": config.schedule.name,
        "optimizer": config.optimizer.name,
        "weight_decay": config.optimizer.weight_decay,
        "layer_decay": config.layer_decay,
        "gradual_unfreezing": config.gradual_unfreezing,
        "reinitialize_layers": config.reinitialize_layers,
        "hidden_dropout": model.config.hidden_dropout,
        "attention_dropout": model.config.attention_dropout,
        "head_dropout": model.head.dropout,
        "crf": model.head.crf,
        "features": model.head.features,
        "train_encoder": model.head.train_encoder,
        "dtype": str(model.encoder.dtype),
        "max_length": config.options.max_length,
        "bucket_window": config.bucket_window,
        "select": config.select,
    }


LATEST = CheckpointConfig(keep_last=1, keep_best=0)


def open_finetuning(
    path: str,
    settings: dict[str, Any],
    features_fingerprint: str,
    init_from_fingerprint: str | None,
    tokenizer: Tokenizer,
    devices: sharding.Devices = None,
    teacher: str | None = None,
) -> WorkDirectory:
    """Take `path` for fine-tuning; the runs in it must have begun with the same data, parameters and settings.

    Args:
      path: the work directory.
      settings: content of config.json.
      features_fingerprint: that of the data; see `TaskData.fingerprint`.
      init_from_fingerprint: that of the parameters that are fine-tuned; None for fresh ones.
      tokenizer: the vocabulary of the model.
      devices: the devices of the runs; None for those of all processes.
      teacher: fingerprint of the teacher; None if there is none.

    Raises:
      UserError: the directory is not writable, another process writes to it, or it holds something else, or runs with
        other settings.
    """
    identity = {
        "features_fingerprint": features_fingerprint,
        "init_from_fingerprint": init_from_fingerprint,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "teacher": teacher,
    }
    directory = epath.Path(path)
    saved = ("checkpoints/*step_*", f"runs/*/{RESULTS}", "runs/*/checkpoints/*step_*", "runs/*/training/*step_*")
    resumed = (directory / "run.json").exists() and any(True for name in saved for _ in directory.glob(name))
    return open_workdir(path, identity, settings, tokenizer, resumed=resumed, check=_check_continues, devices=devices)


def publish(workdir: WorkDirectory, record: dict[str, Any], mesh: Mesh) -> dict[str, Any]:
    """Put the weights of the run of `record` into DIR/checkpoints, unless they are there, and return them on `mesh`."""
    # A different run may have the same name, so metrics are compared too; as JSON text, because nan != nan.
    if from_first(_published(workdir)) == [record["run"], json.dumps(record["metrics"], sort_keys=True)]:
        return place(open_checkpoint(workdir.path), mesh)
    directory = workdir.path / "runs" / record["run"]
    if not Checkpoints(directory / "checkpoints", read_only=True).steps():
        raise UserError(
            f"the weights of the best run are gone from {directory}; remove that directory to train it again"
        )
    stored = open_checkpoint(directory)
    params = place(stored, mesh)
    remove(workdir.checkpoints)
    with Checkpoints(workdir.checkpoints, LATEST, run_id=workdir.run_id) as checkpoints:
        checkpoints.save(
            record["step"],
            {"params": params},
            position={"step": record["step"]},
            config=stored.history["config"],
            metrics=record["metrics"],
        )
    return params


def remove(directory: epath.Path) -> None:
    """Delete a directory, on the first host; the others wait."""
    if jax.process_index() == 0 and directory.exists():
        directory.rmtree()
    from_first(None)


def drop_losers(workdir: WorkDirectory, metric: str) -> None:
    """Delete the weights of runs that can no longer be chosen: those of a grid of large models would fill the disk."""
    if jax.process_index() != 0:  # only the first host is sure to have seen the last record
        return
    records = finished_runs(workdir.path / "runs", metric)
    chosen = best(records, metric)
    for record in records:
        if record is not chosen and record["keep"] == "best":
            (workdir.path / "runs" / record["run"] / "checkpoints").rmtree(missing_ok=True)


def keep(
    workdir: WorkDirectory, wanted: str, record: dict[str, Any], chosen: dict[str, Any], tokenizer: Tokenizer
) -> None:
    """Delete the weights of a run, or make its directory one that can be loaded and used to predict.

    The weights of a command with --keep=all stay, whatever later commands want.
    """
    run = workdir.path / "runs" / record["run"]
    if wanted == record["keep"] == "best":
        remove(run / "checkpoints")
    elif (run / "checkpoints").exists():
        if jax.process_index() == 0:
            tokenizer.save(run / "tokenizer")
    elif wanted == "all":
        remedy = f"they are those of {workdir.path} itself" if record is chosen else f"remove {run} to train it again"
        logging.warning("the weights of %s are gone, an earlier command kept only the best; %s", run.name, remedy)


def _published(workdir: WorkDirectory) -> list[str] | None:
    """Return name and metrics of the run whose weights are in DIR/checkpoints, or None."""
    steps = Checkpoints(workdir.checkpoints, read_only=True).directories()
    try:
        if not steps:
            return None
        record = read_record(steps[-1] / "record")
        check_origin(record, record["step"], workdir.run_id)
        return [record["config"]["run"], json.dumps(record["metrics"], sort_keys=True)]
    except UserError:
        raise
    except Exception as error:  # a damaged record may raise anything; the run still has its weights
        logging.warning("%s cannot be used (%s); it is written again", steps[-1], error)
        return None


def _check_continues(path: epath.Path, identity: dict[str, Any], settings: dict[str, Any]) -> None:
    if "features_fingerprint" not in read_json(path / "run.json"):
        raise UserError(
            f"{path} is the work directory of a pre-training run: it can be given as --init_from; give another "
            "--workdir"
        )
    before = read_json(path / "config.json")
    if lines := refused_changes(path, identity, before, settings, FinetuningRecord):
        raise UserError(
            f"{path} holds runs with different data, parameters or settings ({first_lines(lines)}). Resume with "
            f"those ({path / 'config.json'}), or start this in another --workdir"
        )


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
    flops = flops_of_texts(model, config.options.max_length)
    return TaskReporter(metrics, rates, HostTimes(command.events), config.log_every_steps, total, tail, flops, totals)


def _peak_flops(programs: Programs) -> float | None:
    """Return the FLOP/s that utilization refers to; None if unknown, or if the encoder is not trained.

    A model counts its operations as if all of it was trained.
    """
    head = programs.model.head
    return None if head.features and not head.train_encoder else peak_flops(programs.mesh)


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

"""One run of fine-tuning, from its initial checkpoint to its record, and the work directory of all runs.

The directory has one owner, the same settings for all its runs, and the chosen weights on top:

    DIR/runs/NAME/training      train states of an unfinished run; gone when it is finished
    DIR/runs/NAME/checkpoints   the weights of a finished run that count
    DIR/runs/NAME/results.json  written last: the run is finished
    DIR/checkpoints             weights of the chosen run, for `bert_jax.load(DIR)`
    DIR/adapter                 with LoRA, what it learned, for PEFT
    DIR/results.json, predictions/SPLIT/

The weights that count are the best on dev, or the last (`select`). config.json, every checkpoint and results.json
record the settings of the runs.
"""

import contextlib
import dataclasses
import functools
import io
import json
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath
from flax.traverse_util import unflatten_dict
from jax.sharding import Mesh

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import check_origin, read_record
from bert_jax.checkpoints.workdir import WorkDirectory, id_below
from bert_jax.config import CheckpointConfig
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.heads import SingleVector, WordVector
from bert_jax.config.options import is_of_class, to_dict
from bert_jax.config.pretraining import traced_steps
from bert_jax.config.tasks import SHARE_ROWS, VectorOptions
from bert_jax.data.pipeline import ahead
from bert_jax.data.sequences import (
    Batch,
    Features,
    GroupBatches,
    GroupedFeatures,
    SharedGroupBatches,
    SharedRowBatches,
    SharedTextBatches,
    TextBatches,
    TextFeatures,
    TrainingBatches,
)
from bert_jax.devices import sharding
from bert_jax.devices.hardware import memory_advice
from bert_jax.devices.hosts import from_first
from bert_jax.devices.placement import placed
from bert_jax.devices.signals import Stopped, StopSignals
from bert_jax.errors import UserError
from bert_jax.files import read_bytes, write_atomically
from bert_jax.finetuning.lora import Adapters
from bert_jax.finetuning.plan import Run, collapsed, ignores_input, learning_rates
from bert_jax.finetuning.programs import Programs, first_state, predict_logits
from bert_jax.finetuning.results import best, finished_runs, validation
from bert_jax.formats.opening import place
from bert_jax.formats.own import ADAPTERS, open_adapters, open_checkpoint
from bert_jax.formats.peft import write_adapter
from bert_jax.formats.stored import StoredModel
from bert_jax.models.task import BertForTask
from bert_jax.objectives.distillation import LABELS
from bert_jax.tasks.task_data import TaskData, without_metrics
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.training.events import HostTimes
from bert_jax.training.learner import advice, state_advice
from bert_jax.training.metrics import Metrics, Rates
from bert_jax.training.reporter import Reporter, Work, busy, due, say
from bert_jax.training.run import Input, Opened, Saver, Started, train
from bert_jax.training.state import Replicas, TrainState, state_shardings
from bert_jax.training.step import Program, flops_of_texts, peak_flops
from bert_jax.training.trackers import Destination, Profiler, trackers


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The model and the data that all runs of a command share."""

    config: FinetuneConfig
    data: TaskData
    stored: StoredModel
    """The model that is fine-tuned."""
    programs: Programs

    def of(self, run: Run) -> "Tuning":
        """Return what a run has of it: in a cross-validation, its own parts of the examples."""
        return dataclasses.replace(self, data=self.data.fold(run.fold - 1)) if run.fold else self

    def logits(
        self, params: Any, features: Features, signals: StopSignals, rates: Rates | None = None
    ) -> list[np.ndarray]:
        """Return `predict_logits` of a split; `rates` pause while something is compiled."""
        step, mesh = self.programs.predict_step, self.programs.mesh
        return predict_logits(step, params, features, self.data.head, self.config.eval_batch_size, mesh, signals, rates)


def evaluate(tuning: Tuning, params: Any, signals: StopSignals, rates: Rates) -> tuple[dict[str, float], str | None]:
    """Return the metrics on dev, and the result of `ignores_input`.

    Metrics on MNLI's second dev set have names that begin with `mismatched_`. `rates` pause while something is
    compiled.
    """
    results, ignored, data = {}, None, tuning.data
    for name, split in data.evaluations.items():
        logits = tuning.logits(params, split.features, signals, rates)
        prefix = name.removeprefix("dev").removeprefix("_")
        scores = data.scores(split, split.features, logits)
        results |= {f"{prefix}_{key}" if prefix else key: value for key, value in scores.items()}
        if name == "dev":
            ignored = ignores_input(data.head, split.features, logits, results)
    return results, ignored


WINDOWS = {"on": 1, "off": 4}
"""Values of bucket_window, by packing: sequences that share rows need no sorting."""


def with_packing(
    config: FinetuneConfig, features: Features, programs: Programs, recorded: Mapping[str, Any] | None = None
) -> FinetuneConfig:
    """Return `config` with packing and bucket_window decided, by the lengths of the sequences to train on.

    Where runs have begun, `recorded` has their options and has decided: other devices or another batch size would
    perhaps decide otherwise, and the window determines the order of the sequences.
    """
    if recorded and config.packing == "auto":
        config = dataclasses.replace(config, packing=recorded["packing"])
    if recorded and config.bucket_window is None:
        config = dataclasses.replace(config, bucket_window=recorded["bucket_window"])
    packing = config.packing
    if packing == "auto" and (config.task not in SHARE_ROWS or features.in_windows or several_vectors(features)):
        packing = "off"
    if packing == "auto":
        shared, own = (
            training_batches(
                dataclasses.replace(config, packing=form, bucket_window=config.bucket_window or window),
                features,
                programs,
            ).positions()
            for form, window in WINDOWS.items()
        )
        packing = "on" if shared <= 0.9 * own else "off"
    return dataclasses.replace(config, packing=packing, bucket_window=config.bucket_window or WINDOWS[packing])


def several_vectors(features: Features) -> bool:
    """Return whether the vectors are of tokens or words, which take more than one vector of each text in a row."""
    return isinstance(features, TextFeatures) and not isinstance(features.form, SingleVector)


def training_batches(config: FinetuneConfig, features: Features, programs: Programs) -> TrainingBatches:
    """Return the batches of a run with these options (`Run.of`), in rows of their own or in shared ones.

    `with_packing` has decided which.
    """
    multiple = sharding.batch_parts(programs.mesh) * config.micro_batches
    shared = config.packing == "on"
    if isinstance(features, TextFeatures):
        kind = SharedTextBatches if shared else TextBatches
    elif isinstance(features, GroupedFeatures):
        kind = SharedGroupBatches if shared else GroupBatches
    else:
        kind = SharedRowBatches if shared else TrainingBatches
    make = functools.partial(kind, features, config.batch_size, *((programs.longest_row,) if shared else ()))
    if isinstance(config.options, VectorOptions) and isinstance(config.options.form, WordVector):
        make = functools.partial(make, ramp_epochs=config.options.sparsity.ramp * config.epochs)
    assert config.bucket_window is not None, "with_packing comes first"
    return make(window=config.bucket_window, seed=config.seed, multiple=multiple)


def placed_batch(batch: Batch, mesh: Mesh) -> dict[str, jax.Array]:
    """Return the batch on the devices, to which each host contributes its rows."""
    placed = {}
    for rows in sorted({len(values) for values in batch.values()}):  # of texts, and of examples of several texts
        mine = sharding.host_rows(mesh, rows)
        own = {name: values[mine] for name, values in batch.items() if len(values) == rows}
        placed |= sharding.to_global(mesh, own, rows)
    return placed


def settings(config: FinetuneConfig, programs: Programs, data: TaskData, run: Run | None = None) -> dict[str, Any]:
    """Return what config.json and every checkpoint record; for a run, with its own hyper-parameters."""
    if run is not None:
        config = run.of(config)
    vectors = isinstance(config.options, VectorOptions)
    return {
        "model": to_dict(programs.model.config),
        "head": None if vectors else to_dict(programs.model.head),
        **({"embedding": to_dict(programs.model.embedding)} if vectors else {}),
        "compute": to_dict(config.compute),
        "finetune": to_dict(config),
        "pairs": data.pairs,
        **({} if run is None else {"run": run.name}),
    }


class TaskSteps:
    """The steps of a run: the work of batches that differ in length, and sums that the record of the run needs.

    Args:
      total: last step of the run, if nothing ends it earlier.
      tail: number of the last steps of an epoch whose losses are averaged.
      flops_of: returns the operations of a step on texts of some lengths.
      totals: sums over the steps before an interruption, from the state's checkpoint; a log in a bucket may lag behind.
      epoch: number of steps of an epoch; None: all steps are one.
    """

    def __init__(
        self,
        total: int,
        tail: int,
        flops_of: Callable[[np.ndarray], float],
        totals: dict[str, Any] | None = None,
        epoch: int | None = None,
    ):
        self.total, self._flops_of, self._epoch = total, flops_of, epoch or total
        self._before_tail = self._epoch - tail
        self.totals: dict[str, Any] = {"loss": 0.0, "steps": 0, "skipped": 0} | (totals or {})
        self._steps = self._places = 0

    @property
    def tail_loss(self) -> float:
        """Mean over the steps of the newest tail with a finite loss, or over all steps before the first; NaN if none.

        With a teacher it is that of the labels alone.
        """
        return self.totals["loss"] / self.totals["steps"] if self.totals["steps"] else math.nan

    def work(self, sequences: int, places: int, lengths: np.ndarray) -> Work:
        """Return the work of the next step.

        Args:
          sequences: in the batch.
          places: positions of the batch, padding included.
          lengths: int64 [T], tokens of each of its texts.
        """
        self._steps, self._places = self._steps + 1, self._places + places
        return Work(sequences, float(lengths.sum()), self._flops_of(lengths), places)

    def observe(self, step: int, values: dict[str, Any]) -> None:
        """Add the metrics of the update to `step` to the sums."""
        self.totals["skipped"] += int(values["skipped"])
        loss = values.get(LABELS.loss, values["loss"])
        place = (step - 1) % self._epoch
        if place == self._before_tail:
            self.totals |= {"loss": 0.0, "steps": 0}
        if (place >= self._before_tail or step <= self._epoch) and math.isfinite(loss):
            self.totals["loss"] += float(loss)
            self.totals["steps"] += 1

    def left(self, step: int) -> float:
        """Return the places of the later steps, taken to be as long as those before them."""
        return self._places / self._steps * (self.total - step)

    def epoch_of(self, step: int) -> int | float:
        """Return how many epochs `step` steps are, a whole number where one ends."""
        whole, rest = divmod(step, self._epoch)
        return round(step / self._epoch, 4) if rest else whole


def run_record(
    run: Run, tuning: Tuning, steps: TaskSteps, dev: dict[int, dict[str, Any]], counted: int
) -> dict[str, Any]:
    """Return what results.json records of a run; `dev` has evaluations by step, `counted` is that of its weights."""
    loss, skipped, data = steps.tail_loss, steps.totals["skipped"], tuning.data
    return {
        "run": run.name,
        "setting": run.setting,
        "seed": run.seed,
        **({"fold": run.fold, "folds": run.folds} if run.fold else {}),
        "metrics": dev[counted]["metrics"],
        "collapsed": collapsed(
            data.head, data.train.features, dev[counted]["ignored"], loss, skipped, tuning.programs.loss
        ),
        "step": counted,
        "steps": max(dev),
        "stopped_early": max(dev) < steps.total,
        "training_loss": loss if np.isfinite(loss) else None,
        "epochs": [{"epoch": steps.epoch_of(step), **dev[step]["metrics"]} for step in sorted(dev)],
        "keep": tuning.config.keep,
        "hyperparameters": _hyperparameters(run, tuning.config, tuning.programs.model),
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
        "attention_dropout": to_dict(model.config).get("attention_dropout"),
        "head_dropout": model.head.dropout,
        "crf": model.head.crf,
        "features": model.head.features,
        "train_encoder": model.head.train_encoder,
        "freeze": list(config.freeze),
        "lora": to_dict(config.lora),
        "dtype": str(model.encoder.dtype),
        "max_length": config.max_length,
        "bucket_window": config.bucket_window,
        "select": config.select,
        "patience": config.patience,
        "loss": to_dict(config.loss),
    }


def exhausted(dev: Mapping[int, Mapping[str, Any]], main: str, patience: int) -> bool:
    """Return whether the newest `patience` evaluations, by step, are no better than one before them; 0: never."""
    scores = [dev[step]["metrics"][main] for step in sorted(dev)]
    return 0 < patience < len(scores) and not max(scores[-patience:]) > max(scores[:-patience])


SCORES = "scores.npy"
"""File of a run of a cross-validation: its scores of the sequences that it is not trained on, one after the other."""


def write_scores(directory: epath.Path, tuning: Tuning, signals: StopSignals) -> None:
    """Write the scores, by the weights of a run that count, of the sequences that it is not trained on."""
    params = place(open_checkpoint(directory), tuning.programs.mesh)
    logits = tuning.logits(params, tuning.data.evaluations["dev"].features, signals)
    if jax.process_index() == 0:
        content = io.BytesIO()
        np.save(content, np.concatenate([row.reshape(-1) for row in logits]))
        write_atomically(directory / SCORES, content.getvalue())


def read_scores(file: epath.Path, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Return what `write_scores` has written of sequences whose scores have these shapes.

    Raises:
      UserError: the file is gone or damaged.
    """
    try:
        scores = np.load(io.BytesIO(read_bytes(file)), allow_pickle=False)
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        if scores.dtype == np.float32 and scores.shape == (ends[-1],):
            return [row.reshape(shape) for row, shape in zip(np.split(scores, ends[:-1]), shapes, strict=True)]
    except (OSError, ValueError, EOFError):
        pass
    raise UserError(f"{file} is gone or damaged; remove {file.parent} to train that run again")


LATEST = CheckpointConfig(keep_last=1, keep_best=0)


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
    stored, adapters = open_checkpoint(directory), open_adapters(directory)
    params = place(stored, mesh)
    state: dict[str, Any] = {"params": params}
    if adapters:
        alike = sharding.replicated(mesh)
        copies = {path: placed(array.shape, alike, array.read) for path, array in adapters.items()}
        state[ADAPTERS] = unflatten_dict(copies, sep="/")
    remove(workdir.checkpoints)
    with Checkpoints(workdir.checkpoints, LATEST, run_id=workdir.run_id) as checkpoints:
        checkpoints.save(
            record["step"],
            state,
            position={"step": record["step"]},
            config=stored.history["config"],
            metrics=record["metrics"],
        )
    return params


def publish_adapter(workdir: WorkDirectory, adapters: Adapters, base: str) -> None:
    """Write what the published model has learned with LoRA to DIR/adapter, or say why it cannot be written."""
    if jax.process_index() != 0:
        return
    learned = {
        path: array.read((slice(None),) * len(array.shape)) for path, array in open_adapters(workdir.path).items()
    }
    stored = open_checkpoint(workdir.path)
    recorded = without_metrics(stored.history)["config"]  # with the thresholds of dev among the options
    task = {"pairs": recorded["pairs"], **{name: recorded["finetune"][name] for name in ("task", "options")}}
    place, scale = workdir.path / "adapter", adapters.scale
    try:
        write_adapter(place, stored, learned, adapters.parameters, scale=scale, base=base, task=task)
    except UserError as error:
        say(f"no adapter/ was written: {error}")


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
    groups = {validation(record) for record in records}  # which cross-validation is chosen, later runs decide too
    chosen = {best([each for each in records if validation(each) == group], metric)["run"] for group in groups}
    for record in records:
        if record["run"] not in chosen and record["keep"] == "best":
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


AHEAD = 2
"""Batches that are made during the steps before."""
STATES = CheckpointConfig(keep_last=2, keep_best=0)


class RunTask:
    """A run of fine-tuning, for `train`: an evaluation after each epoch, and between those if an option says so.

    Without patience, `end` is the last step of the last epoch; a run whose patience is exhausted ends where it is.

    Args:
      weights: where the weights that count are saved.
      position: that of the state that it resumes from; {} for none.
      dev: metrics of each evaluation, and the result of `ignores_input`, by step; evaluations add to it.
      begin: step of the state that it starts or resumes from.
    """

    def __init__(
        self,
        run: Run,
        tuning: Tuning,
        opened: Opened,
        batches: TrainingBatches,
        weights: Checkpoints,
        position: dict[str, Any],
        dev: dict[int, dict[str, Any]],
        begin: int,
    ):
        config, programs = tuning.config, tuning.programs
        self._run, self._tuning, self._opened, self._batches, self._begin = run, tuning, opened, batches, begin
        self._weights, self._dev, self._recorded = weights, dev, settings(config, programs, tuning.data, run)
        self._epoch = batches.steps_per_epoch
        self.program: Program = programs.train_step
        self._total = run.epochs * self._epoch
        self._main, patience = tuning.data.main_metric, config.patience
        # What was recorded before an interruption decides again, so the run ends where it would have ended.
        self.end: int = begin if exhausted(dev, self._main, patience) else self._total
        # The second half of an epoch: a run of one epoch begins with losses of a model that knows nothing.
        tail, flops_of = max(1, self._epoch // 2), flops_of_texts(programs.model, config.max_length)
        self.steps: TaskSteps = TaskSteps(self._total, tail, flops_of, position.get("totals"), self._epoch)
        self.reporter: Reporter = Reporter(
            opened.metrics,
            Rates(_peak_flops(programs), wall_time=opened.wall_time),
            HostTimes(opened.events),
            self.steps,
            every=config.log_every_steps,
            total=self._total,
            every_step=False,  # what guards the state is the skipped update
        )
        self.replicas: Replicas = Replicas(state_shardings(programs.abstract), programs.mesh, opened.events)
        self._saver = Saver(
            opened,
            self.reporter,
            self._recorded,
            lambda step: {
                "step": step,
                "dev": {str(evaluated): entry for evaluated, entry in dev.items()},
                "totals": dict(self.steps.totals),
            },
            others=(weights,),
        )

    def batches(self, begin: int) -> Generator[Input, None, None]:
        """Return the batches after `begin`, each with the scalars that the step of all runs shares takes.

        They are made and placed in a thread, during the steps before.
        """
        config, mesh, batches = self._tuning.config, self._tuning.programs.mesh, self._batches
        dropout_seed = sharding.on_every_device(mesh, np.uint32(self._run.seed))
        rates = learning_rates(self._run, config.schedule, config.warmup_share, self._total)

        def made(number: int) -> Input:
            step = begin + number
            batch = placed_batch(batches.batch(step), mesh)
            scalars = [sharding.on_every_device(mesh, rates[step]), dropout_seed]
            if config.gradual_unfreezing:
                scalars.append(sharding.on_every_device(mesh, np.int32(step // self._epoch)))
            sequences, places = len(batches.indices(step)), batch["input_ids"].size
            work = self.steps.work(sequences, places, batches.text_lengths(step))
            return Input((batch, *scalars), work)

        return ahead(made, self.end - begin, AHEAD)

    def after_step(self, step: int, state: TrainState) -> None:
        """Save the state after `step` where that is due; evaluate it where that is due, and save what was found.

        Raises:
          Stopped: a signal ended the evaluation.
        """
        if step > self._begin and due(step, self._tuning.config.save_every_steps):
            self._saver.save(step, state)
        often = self._tuning.config.evaluate_every_steps
        if step and (step % self._epoch == 0 or often and step % often == 0) and step not in self._dev:
            self.reporter.finish()
            self._evaluate(step, state.params)
            self._saver.save(step, state)
            self._end_if_exhausted(step)

    def _end_if_exhausted(self, step: int) -> None:
        """Make `step` the last one if as many evaluations as the options allow have brought nothing better."""
        patience = self._tuning.config.patience
        if step < self.end and exhausted(self._dev, self._main, patience):
            self.end = step
            say(
                f"{self._run.name} ends at step {step:,} of {self._total:,}: {patience} "
                f"evaluation{'s' * (patience > 1)} in a row brought no better {self._main} on dev"
            )

    def _evaluate(self, step: int, params: Any) -> None:
        """Evaluate the parameters after `step` steps on dev, and save them if they are the ones that count so far."""
        tuning, opened, rates = self._tuning, self._opened, self.reporter.rates
        learned, params = params, tuning.programs.whole(params)
        main, signals = self._main, opened.signals
        with rates.paused("evaluation"), opened.events.timed("evaluated", step) as details:
            scores, ignored = evaluate(tuning, params, signals, rates)
            details |= scores
        earlier = [entry["metrics"][main] for entry in self._dev.values()]
        self._saver.secure()
        is_best = scores[main] > max(earlier, default=-np.inf)
        signals.watchdog.begin("save")
        if step == self.end if tuning.config.select == "last" else is_best:
            with rates.paused("checkpoint"):
                state, position = {"params": params}, {"step": step}
                if tuning.programs.adapters is not None:
                    state[ADAPTERS] = learned
                self._weights.save(step, state, position=position, config=self._recorded, metrics=scores)
                # A kill could otherwise leave only the state that is saved next, and no step would save these again.
                self._weights.wait()
        shown = {f"dev_{name}": value for name, value in scores.items() if not is_of_class(name)}
        opened.metrics.write(step, shown, kind="evaluation")
        self._dev[step] = {"metrics": scores, "ignored": ignored}

    def save_for_good(self, step: int, state: TrainState) -> None:
        """Save the state after `step`, and wait until it is written."""
        self._saver.save_for_good(step, state)

    def shortage(self) -> tuple[str, list[str]]:
        """Return that a batch does not fit into the memory, and what helps."""
        rows = self._batches.rows
        return f"a batch of {rows} sequences", batch_advice(self._tuning.config, self._tuning.programs, rows)


def _peak_flops(programs: Programs) -> float | None:
    """Return the FLOP/s that utilization refers to; None if unknown, or if not all of the encoder is trained.

    A model counts its operations as if all of it was trained.
    """
    head, partly = programs.model.head, programs.adapters is not None or programs.frozen
    return None if partly or (head.features and not head.train_encoder) else peak_flops(programs.mesh)


def _trackers(run: Run, config: FinetuneConfig, workdir: WorkDirectory) -> list[Destination]:
    """Return the services that get the metrics of this run, one of several in its work directory."""
    name, options = workdir.path.name, to_dict(run.of(config))
    # Weights & Biases allows no slash in an id.
    return trackers(config.sinks, f"{workdir.run_id}-{run.name}", f"{name}/{run.name}", options)


def train_run(run: Run, tuning: Tuning, started: Started) -> dict[str, Any]:
    """Train one run, from the checkpoint or from where it was interrupted, and return its record.

    The weights that count are in runs/NAME/checkpoints of the work directory afterwards.

    Raises:
      Stopped: a signal ended the run, after its state was saved.
    """
    started.wall_time.switch("setup")
    clock, signals = time.perf_counter(), started.signals
    with contextlib.ExitStack() as closing:
        task, weights, dev = _train(run, tuning, started, closing)
        signals.saving = None
        weights.wait()
        counted = weights.latest_step()
        if counted is None:
            path = started.workdir.path
            raise UserError(
                f"the weights of {run.name} were deleted with {path} during the run; remove {path / 'runs' / run.name} "
                "to train it again"
            )
    return run_record(run, tuning, task.steps, dev, counted) | {
        "init_from_step": tuning.stored.history.get("step"),
        "seconds_since_last_start": round(time.perf_counter() - clock, 1),
    }


def _train(
    run: Run, tuning: Tuning, started: Started, closing: contextlib.ExitStack
) -> tuple[RunTask, Checkpoints, dict[int, dict[str, Any]]]:
    """Open the files of a run, which `closing` closes, and train it; return what its record is made of.

    That is the finished task, the weights that count, and what the evaluations found, by step.
    """
    config, programs, workdir, events = tuning.config, tuning.programs, started.workdir, started.events
    directory, run_id = workdir.path / "runs" / run.name, id_below(workdir.run_id, run.name)
    states, weights = (
        closing.enter_context(Checkpoints(directory / name, kept, run_id=run_id, lost=workdir.is_lost))
        for name, kept in (("training", STATES), ("checkpoints", LATEST))
    )
    started.signals.newest = states.latest_step
    begins = "making the first parameters" if states.latest_step() is None else "reading the newest checkpoint"
    # The run starts from: 1. its newest good state; 2. the parameters of init_from with a fresh head, at step 0.
    with (
        busy(f"{run.name}: {begins}"),
        memory_advice("the state of a run", state_advice(programs.mesh.shape)),
    ):
        restored, report = states.restore(programs.abstract), None
        if restored is None:
            state, report = first_state(config, tuning.stored, programs, np.uint32(run.seed))
        else:
            state = restored.state
        begin, position = int(state.step), {} if restored is None else restored.position
    if report is not None:
        fresh = ", ".join(report.fresh) or "none"
        say(f"{len(report.loaded)} arrays loaded from {config.init_from}, fresh: {fresh}")
    dev = {int(step): entry for step, entry in position.get("dev", {}).items()}
    events.start(begin, list(programs.mesh.devices.flat), resumed=restored is not None, run=run.name)
    features = tuning.data.train.features
    batches = training_batches(run.of(config), features, programs)
    for note in batches.notes():
        say(note)
    total = run.epochs * batches.steps_per_epoch
    metrics = Metrics(
        directory,
        total_steps=total,
        start_step=begin,
        evaluated=begin in dev,
        wall_time=started.wall_time,
        trackers=lambda: _trackers(run, config, workdir),
    )
    opened = Opened(
        **vars(started),
        checkpoints=states,
        metrics=closing.enter_context(metrics),
        profiler=closing.enter_context(Profiler(directory, traced_steps(config.profile, total))),
    )
    task = RunTask(run, tuning, opened, batches, weights, position, dev, begin)
    train(task, opened, state)
    if started.signals.exit_code:
        raise Stopped
    return task, weights, dev


def batch_advice(config: FinetuneConfig, programs: Programs, rows: int) -> list[str]:
    """Return what saves memory where a step on `rows` sequences does not fit."""
    return advice(
        remat=programs.model.compute.remat,
        mesh=programs.mesh.shape,
        batch_size=rows,
        micro_batches=config.micro_batches,
    )

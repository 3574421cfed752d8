"""Several tasks over one encoder: a head for each, and steps on the batches of one task at a time.

A step is that of the task alone, on the encoder and its own head, so the heads of other tasks, and their moments, stay
as they are. The tasks take turns in an order that depends on their sizes only. The result is a model for each task, all
with the same encoder, that is loaded, asked and converted like any other:

    DIR/training            states of an unfinished run; gone when it is finished
    DIR/tasks/NAME          checkpoints/, tokenizer/, predictions/ and results.json of a task
    DIR/results.json        written last
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import statistics
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import stored_fingerprint
from bert_jax.checkpoints.workdir import Rules, WorkDirectory, id_below, open_workdir, read_json, write_json
from bert_jax.config.checks import check_trackers
from bert_jax.config.finetuning import OF_A_TASK, RESULTS, FinetuneConfig, FinetuningRecord, check_finetune
from bert_jax.config.options import differences, differing_options, is_harmless, to_dict
from bert_jax.config.pretraining import ProfileConfig
from bert_jax.config.tasks import SequenceOptions
from bert_jax.data.pipeline import ahead
from bert_jax.data.sequences import TrainingBatches
from bert_jax.devices import sharding
from bert_jax.devices.hosts import check_alike, ending_together, from_first
from bert_jax.devices.signals import Stopped, StopSignals, Watchdog
from bert_jax.errors import UserError, first_lines
from bert_jax.finetuning.loop import answer_splits, from_arguments, open_model, prepared, sizes
from bert_jax.finetuning.plan import Run, learning_rates
from bert_jax.finetuning.programs import first_state
from bert_jax.finetuning.results import show_together, summary
from bert_jax.finetuning.run import (
    AHEAD,
    LATEST,
    STATES,
    TaskSteps,
    Tuning,
    batch_advice,
    evaluate,
    placed_batch,
    remove,
    run_record,
    settings,
    training_batches,
)
from bert_jax.formats.opening import place
from bert_jax.formats.own import open_checkpoint
from bert_jax.formats.stored import StoredModel
from bert_jax.models.bert_parameters import TASK_PARTS, TOKEN_VECTORS
from bert_jax.models.kernels.choice import check_attention
from bert_jax.pretrained.model import PretrainedModel, load
from bert_jax.tasks.task_data import check_metrics
from bert_jax.training.events import Events, HostTimes
from bert_jax.training.metrics import Metrics, Rates, WallTime
from bert_jax.training.reporter import Reporter, due, say, say_hardware
from bert_jax.training.run import Input, Opened, Saver, Started, join_hosts, train
from bert_jax.training.state import Replicas, TrainState, state_shardings
from bert_jax.training.step import Program, flops_of_texts
from bert_jax.training.trackers import Profiler

ALONE = {
    **{"seeds": 1, "grid": False, "features": "", "gradual_unfreezing": False, "patience": 0, "keep": "best"},
    **{"reinitialize_layers": 0, "random_weights": False, "profile": ProfileConfig()},
}
"""Options that only a task by itself has, and their usual values."""
SPLITS = ("train", "dev", "test")
OWN_PARTS = (*TASK_PARTS, TOKEN_VECTORS)
"""Parts of the parameters that each task has for itself."""


@dataclasses.dataclass(frozen=True)
class Together:
    """The outcome of `finetune_together`."""

    results: dict[str, Any] = dataclasses.field(repr=False)
    """Content of results.json; empty if a signal ended the call."""
    exit_code: int
    """0; 130 (SIGINT) or 143 (SIGTERM) if a signal ended the call, after the steps made so far were saved."""
    path: str
    """The work directory."""

    def model(self, name: str) -> PretrainedModel:
        """Return the model of a task, of which PATH/tasks/NAME is the directory."""
        if name not in (there := self.results.get("tasks", {})):
            raise UserError(f"{self.path} has no finished task {name!r:.60}; it has {', '.join(there) or 'none'}")
        return load(epath.Path(self.path) / "tasks" / name)


def finetune_together(
    tasks: Mapping[str, Mapping[str, Any]],
    *,
    temperature: float = 1.0,
    select_by: str = "",
    devices: sharding.Devices = None,
    **options: object,
) -> Together:
    """Fine-tune one encoder on several tasks, each with a head of its own, and publish a model for each.

        tasks = {
            "sentiment": {"task": "text", "train": reviews, "dev": more_reviews},
            "entities": {"task": "ner", "train": "train.txt", "dev": "dev.txt", "max_length": 128},
        }
        result = bert_jax.finetune_together(tasks, init_from=MODEL, epochs=3, workdir="runs/together")
        result.model("sentiment").predict(["a text"])

    The same call resumes an interrupted run, with the weights of one that was not.

    Args:
      tasks: for each name the task, its examples as for `finetune`, and options of its own: those of its data and of
        its sequences, loss, batch_size, head_dropout, select_by (its metric), metrics (functions by name), and
        loss_weight, a factor of its loss.
      temperature: a task takes a share of the steps in proportion to its batches per epoch to the power of 1 /
        temperature. 1: each task has its `epochs`; the higher, the more alike are the shares. The number of steps of
        the run is that of all epochs of all tasks.
      select_by: name of the task whose metric on dev chooses with select="best"; by default it is the mean of all.
      devices: as for `finetune`.
      **options: those of the run, as for `finetune`, for all tasks; the defaults are those of the first task.

    Raises:
      UserError: as for `finetune`; or an option of the run is given for a task.
    """
    found: dict[str, Task] = {}
    if not isinstance(tasks, Mapping) or not tasks:
        raise UserError(
            f"tasks={tasks!r:.60} must be a dict of tasks by name, such as {{'sentiment': {{'task': 'text'}}}}"
        )
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 < temperature < math.inf:
        raise UserError(f"temperature={temperature!r:.60} must be a number above 0; 1 is in proportion to the sizes")
    if select_by and select_by not in tasks:
        raise UserError(f"select_by={select_by!r:.60} is none of the tasks {', '.join(map(str, tasks))}")
    if not options.get("workdir"):
        raise UserError("workdir is missing: give a directory for the results")
    for name, own in tasks.items():
        found[name] = _member(name, own, options, next((task.config for task in found.values()), None))
    return _together(found, float(temperature), select_by, devices)


class Task(NamedTuple):
    """One of the tasks as it is given."""

    config: FinetuneConfig
    given: dict[str, list[Any]]
    """Its rows in memory."""
    metrics: Mapping[str, Any]
    factor: float


def _member(name: str, own: Mapping[str, Any], options: Mapping[str, object], first: FinetuneConfig | None) -> "Task":
    """Return a task with the options of the run; `first` is the configuration of the first one."""
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w-]{0,63}", name):
        raise UserError(f"the task {name!r:.60} needs a name of letters, digits, - and _, as it names a directory")
    if not isinstance(own, Mapping) or not isinstance(own.get("task"), str):
        raise UserError(f"tasks[{name!r}] is {own!r:.60}; expected a dict with task, train and dev, or other data")
    chosen = {key: value for key, value in own.items() if key not in ("task", "metrics", "loss_weight", *SPLITS)}
    splits = {split: own.get(split) for split in SPLITS}
    if "workdir" in chosen:
        raise UserError(f"tasks[{name!r}] has workdir, which belongs to the run: give it once, for all tasks")
    usual, alone = (from_arguments(own["task"], {}, each)[0] for each in ({}, chosen))
    for field in dataclasses.fields(FinetuneConfig):
        if field.name not in (*OF_A_TASK, "workdir") and getattr(usual, field.name) != getattr(alone, field.name):
            raise UserError(f"tasks[{name!r}] has {field.name}, which belongs to the run: give it once, for all tasks")
    config, given = from_arguments(own["task"], splits, {**options, **chosen})
    if first is not None:
        shared = {
            each.name: getattr(first, each.name) for each in dataclasses.fields(first) if each.name not in OF_A_TASK
        }
        config = dataclasses.replace(config, **shared)
    _check_member(name, config)
    metrics = own.get("metrics") or {}
    check_metrics(config.task, metrics)
    return Task(config, given, metrics, _factor(name, own))


def _factor(name: str, own: Mapping[str, Any]) -> float:
    factor = own.get("loss_weight", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
        raise UserError(f"tasks[{name!r}] has loss_weight={factor!r:.60}; expected a number above 0")
    return float(factor)


def _check_member(name: str, config: FinetuneConfig) -> None:
    """Raise a UserError about an option that several tasks cannot have."""
    check_finetune(config)
    if not isinstance(config.options, SequenceOptions):
        raise UserError(f"tasks[{name!r}] is {config.task}, which is not trained; leave it out")
    for option, usual in ALONE.items():
        if (value := getattr(config, option)) != usual:
            raise UserError(f"{option}={value} is for a task by itself, not for several over one encoder; leave it out")
    for option, value in {
        "data.folds": config.folds,
        "lora.rank": config.lora.rank,
        "distillation.teacher": config.distillation.teacher,
    }.items():
        if value:
            raise UserError(f"{option}={value} is for a task by itself, not for several over one encoder; leave it out")


def turns(sizes: Sequence[int], temperature: float, steps: int) -> np.ndarray:
    """Return the number of the task of each step, int64 [steps].

    After any number of steps a task has had its share of them, to within a few (Webster's method). The shares are in
    proportion to sizes ** (1 / temperature); with temperature 1, after sum(sizes) steps each has had its size.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        shares = np.array(sizes, np.float64) ** (1 / temperature)
        shares /= shares.sum()
    if not (shares * sum(sizes) > 0.5).all():  # its first turn is after half a share
        raise UserError(
            f"temperature={temperature:g} leaves no step of an epoch to the task with the fewest batches, "
            f"{min(sizes):,} of {max(sizes):,} in the largest; give a higher one"
        )
    counts = np.ceil(shares * steps).astype(np.int64) + len(sizes)
    times = np.concatenate([(np.arange(count) + 0.5) / share for count, share in zip(counts, shares, strict=True)])
    owners = np.repeat(np.arange(len(sizes)), counts)
    return owners[np.lexsort((owners, times))][:steps]


@dataclasses.dataclass(frozen=True)
class Member:
    """One of the tasks, and what its turns are made of."""

    name: str
    tuning: Tuning
    batches: TrainingBatches
    parts: tuple[str, ...]
    """Parts of its parameters."""
    factor: float = 1.0
    """Factor of its loss."""

    def view(self, state: TrainState) -> TrainState:
        """Return the state of this task alone: what all share, and its own head."""

        def own(leaf: Any) -> Any:
            if not _is_parameters(leaf):
                return leaf
            shared = {part: each for part, each in leaf.items() if part in self.parts and part not in OWN_PARTS}
            return shared | {part: leaf[part][self.name] for part in OWN_PARTS if self.name in leaf.get(part, {})}

        return jax.tree.map(own, state, is_leaf=_is_parameters)

    def put(self, state: TrainState, new: TrainState) -> TrainState:
        """Return the state of all tasks with that of this one replaced."""

        def one(old: Any, new: Any) -> Any:
            if not _is_parameters(old):
                return new
            heads = {part: {**old.get(part, {}), self.name: new[part]} for part in OWN_PARTS if part in new}
            return {**old, **{part: each for part, each in new.items() if part not in OWN_PARTS}, **heads}

        return jax.tree.map(one, state, new, is_leaf=_is_parameters)


def _is_parameters(leaf: Any) -> bool:
    """Return whether this is a tree with the parts of a model: parameters, or moments of them."""
    return isinstance(leaf, dict) and bool({"embeddings", "encoder", *OWN_PARTS} & leaf.keys())


def joined(members: Sequence[Member], states: Sequence[TrainState]) -> TrainState:
    """Return the state of all tasks, of whose shared parts the first that has them gives the values."""

    def together(*trees: Any) -> Any:
        if not _is_parameters(trees[0]):
            return trees[0]
        found: dict[str, Any] = {}
        for member, tree in zip(members, trees, strict=True):
            for part, values in tree.items():
                if part in OWN_PARTS:
                    found.setdefault(part, {})[member.name] = values
                else:
                    found.setdefault(part, values)
        return found

    return jax.tree.map(together, *states, is_leaf=_is_parameters)


class SwitchedProgram(Program):
    """Takes a step of the task whose turn it is: (state, its number, batch, …) → (state, metrics)."""

    def __init__(self, members: Sequence[Member]):
        self._members = members

    def __call__(self, *arguments: Any) -> Any:
        state, number, *others = arguments
        member = self._members[number]
        new, values = member.tuning.programs.train_step(member.view(state), *others)
        kept = {name: values[name] for name in ("loss", "learning_rate", "grad_norm", "skipped")}  # what all tasks have
        if member.factor != 1:
            kept["loss"] = kept["loss"] / member.factor
        return member.put(state, new), kept

    def prepare(self, *arguments: Any, **options: Any) -> None:
        state, number, *others = arguments
        member = self._members[number]
        member.tuning.programs.train_step.prepare(member.view(state), *others, **options)


class TurnSteps:
    """The steps of the run, each seen by its task (see `TaskSteps`)."""

    def __init__(self, members: Sequence[Member], order: np.ndarray, counts: np.ndarray, totals: Mapping[str, Any]):
        self._order, self._counts, self._places, self._steps = order, counts, 0, 0
        self.of: list[TaskSteps] = []
        for member in members:
            epoch, config = member.batches.steps_per_epoch, member.tuning.config
            flops_of = flops_of_texts(member.tuning.programs.model, config.max_length)
            known = totals.get(member.name)
            self.of.append(TaskSteps(len(order), max(1, epoch // 2), flops_of, known, epoch))

    def observe(self, step: int, values: dict[str, Any]) -> None:
        """Add the metrics of the update to `step` to the sums of its task."""
        self.of[self._order[step - 1]].observe(int(self._counts[step - 1]) + 1, values)

    def count(self, places: int) -> None:
        """Note the positions of the next step."""
        self._steps, self._places = self._steps + 1, self._places + places

    def left(self, step: int) -> float:
        """Return the places of the later steps, taken to be as long as those before them."""
        return self._places / self._steps * (len(self._order) - step)


class TogetherTask:
    """The run, for `train`: turns of the tasks, and an evaluation of all after each epoch.

    Args:
      members: the tasks.
      order: `turns` of the whole run.
      weights: where the weights of each task that count are saved.
      position: that of the state that it resumes from; {} for none.
      begin: step of that state.
      abstract: describes the state of all tasks.
      select_by: the task whose metric chooses; "" for the mean of all.
    """

    def __init__(
        self,
        members: Sequence[Member],
        order: np.ndarray,
        opened: Opened,
        weights: Sequence[Checkpoints],
        position: dict[str, Any],
        begin: int,
        abstract: TrainState,
        select_by: str,
    ):
        self._members, self._order, self._opened, self._weights, self._begin = members, order, opened, weights, begin
        self._select_by, config = select_by, members[0].tuning.config
        self._config, self._mesh = config, members[0].tuning.programs.mesh
        self._epoch = sum(member.batches.steps_per_epoch for member in members)
        self._counts = np.zeros(len(order), np.int64)  # batches that the task of each step has had before
        for number in range(len(members)):
            self._counts[order == number] = np.arange(np.sum(order == number))
        self.dev: dict[int, dict[str, Any]] = {int(step): entry for step, entry in position.get("dev", {}).items()}
        self.end: int = len(order)
        self.steps: TurnSteps = TurnSteps(members, order, self._counts, position.get("totals", {}))
        self.program: Program = SwitchedProgram(members)
        self.reporter: Reporter = Reporter(
            opened.metrics,
            Rates(None, wall_time=opened.wall_time),
            HostTimes(opened.events),
            self.steps,
            every=config.log_every_steps,
            total=self.end,
            every_step=False,
        )
        self.replicas: Replicas = Replicas(state_shardings(abstract), self._mesh, opened.events)
        self._recorded = {
            each.name: settings(each.tuning.config, each.tuning.programs, each.tuning.data) for each in members
        }
        self._saver = Saver(opened, self.reporter, {"tasks": self._recorded}, self._position, others=tuple(weights))

    def _position(self, step: int) -> dict[str, Any]:
        totals = {member.name: dict(steps.totals) for member, steps in zip(self._members, self.steps.of, strict=True)}
        return {"step": step, "dev": {str(each): entry for each, entry in self.dev.items()}, "totals": totals}

    def batches(self, begin: int) -> Generator[Input, None, None]:
        """Return the batches after `begin`, each with the number of its task and the scalars that a step takes."""
        config, mesh = self._config, self._mesh
        dropout_seed = sharding.on_every_device(mesh, np.uint32(config.seed))
        rates = learning_rates(_run(config), config.schedule, config.warmup_share, self.end)

        def made(number: int) -> Input:
            step = begin + number
            owner = int(self._order[step])
            batches, own = self._members[owner].batches, int(self._counts[step])
            batch = placed_batch(batches.batch(own), mesh)
            places = batch["input_ids"].size
            self.steps.count(places)
            work = self.steps.of[owner].work(len(batches.indices(own)), places, batches.text_lengths(own))
            return Input((owner, batch, sharding.on_every_device(mesh, rates[step]), dropout_seed), work)

        return ahead(made, self.end - begin, AHEAD)

    def after_step(self, step: int, state: TrainState) -> None:
        """Save the state after `step` where that is due; evaluate all tasks where that is due, and save what was found.

        Raises:
          Stopped: a signal ended the evaluation.
        """
        if step > self._begin and due(step, self._config.save_every_steps):
            self._saver.save(step, state)
        often = self._config.evaluate_every_steps
        if step and (step % self._epoch == 0 or often and step % often == 0) and step not in self.dev:
            self.reporter.finish()
            self._evaluate(step, state)
            self._saver.save(step, state)

    def figure(self, entry: Mapping[str, Any]) -> float:
        """Return what an evaluation is compared by: the metric of one task, or the mean of all."""
        found = {each.name: entry[each.name]["metrics"][each.tuning.data.main_metric] for each in self._members}
        return found[self._select_by] if self._select_by else statistics.fmean(found.values())

    def _evaluate(self, step: int, state: TrainState) -> None:
        """Evaluate all tasks on their dev sets, and save their models if they are the ones that count so far."""
        opened, rates, entry = self._opened, self.reporter.rates, {}
        views = [member.view(state).params for member in self._members]
        with rates.paused("evaluation"), opened.events.timed("evaluated", step) as details:
            for member, params in zip(self._members, views, strict=True):
                scores, ignored = evaluate(member.tuning, params, opened.signals, rates)
                entry[member.name] = {"metrics": scores, "ignored": ignored}
                details |= {f"{member.name}_{name}": value for name, value in scores.items()}
        is_best = self.figure(entry) > max(map(self.figure, self.dev.values()), default=-math.inf)
        self._saver.secure()
        opened.signals.watchdog.begin("save")
        if step == self.end if self._config.select == "last" else is_best:
            with rates.paused("checkpoint"):
                for member, params, weights in zip(self._members, views, self._weights, strict=True):
                    config, metrics = self._recorded[member.name], entry[member.name]["metrics"]
                    weights.save(step, {"params": params}, position={"step": step}, config=config, metrics=metrics)
                for weights in self._weights:  # before a state is saved after which no step would save them again
                    weights.wait()
        main = {
            f"dev_{each.name}_{(name := each.tuning.data.main_metric)}": entry[each.name]["metrics"][name]
            for each in self._members
        }
        opened.metrics.write(step, main, kind="evaluation")
        self.dev[step] = entry

    def save_for_good(self, step: int, state: TrainState) -> None:
        """Save the state after `step`, and wait until it is written."""
        self._saver.save_for_good(step, state)

    def shortage(self) -> tuple[str, list[str]]:
        """Return that a batch does not fit into the memory, and what helps."""
        largest = max(self._members, key=lambda member: member.batches.rows)
        rows = largest.batches.rows
        return f"a batch of {rows} sequences", batch_advice(self._config, largest.tuning.programs, rows)


def _run(config: FinetuneConfig) -> Run:
    return Run(config.batch_size, config.learning_rate, config.epochs, config.seed)


@ending_together
def _together(tasks: dict[str, Task], temperature: float, select_by: str, devices: sharding.Devices) -> Together:
    wall_time, first = WallTime(), next(iter(tasks.values())).config
    join_hosts(first.faults, to_dict(first), differing_options(FinetuneConfig))
    mesh = sharding.make_mesh(first.mesh, devices)
    check_attention(first.compute, mesh.devices.flat[0].platform)
    check_trackers(first.sinks)
    stored, begun = open_model(first), _begun(first.workdir)
    members, seeds = [], {}
    for number, (name, task) in enumerate(tasks.items()):
        members.append(_prepared(name, task, stored, mesh, begun.get(name, {})))
        seeds[name] = (first.seed + number) % 2**32
    lengths = [member.batches.steps_per_epoch for member in members]
    order = turns(lengths, temperature, first.epochs * sum(lengths))
    say_hardware(mesh, first.compute)
    for number, member in enumerate(members):
        counted = ", ".join(f"{split} {size:,}" for split, size in sizes(member.tuning.data).items())
        taken = f"{np.sum(order == number):,} of {len(order):,} steps"
        say(f"{member.name} ({member.tuning.config.task}): {counted} examples; {taken}")
    results: dict[str, Any] = {}
    with (
        Watchdog(first.faults.step_timeout_seconds) as watchdog,
        StopSignals(watchdog) as signals,
        _open_directory(members, temperature, select_by) as workdir,
        Events(workdir.path, signals) as events,
    ):
        started = Started(workdir=workdir, faults=first.faults, events=events, signals=signals, wall_time=wall_time)
        file = workdir.path / RESULTS
        if from_first(file.exists()):
            results = from_first(read_json(file))
        else:
            with contextlib.ExitStack() as closing:
                task = _train(members, order, seeds, select_by, started, closing)
            results = _conclude(members, task, workdir, signals, temperature)
        remove(workdir.path / "training")
    if signals.exit_code:
        return Together({}, signals.exit_code, first.workdir)
    if jax.process_index() == 0:
        show_together(results, first.workdir)
    return Together(results, 0, first.workdir)


def _prepared(name: str, task: Task, stored: StoredModel, mesh: Mesh, begun: Mapping[str, Any]) -> Member:
    """Return a task with its data, programs and batches."""
    tuning, note = prepared(task.config, task.given, task.metrics, stored, mesh, begun, task.factor)
    if note:
        say(f"{name}: {note}")
    config, features = tuning.config, tuning.data.train.features
    batches = training_batches(config, features, tuning.programs)
    return Member(name, tuning, batches, tuple(tuning.programs.abstract.params), task.factor)


def _train(
    members: Sequence[Member],
    order: np.ndarray,
    seeds: Mapping[str, int],
    select_by: str,
    started: Started,
    closing: contextlib.ExitStack,
) -> TogetherTask:
    """Train all tasks, from the model or from where the run was interrupted."""
    workdir, mesh = started.workdir, members[0].tuning.programs.mesh
    directories = [workdir.path / "tasks" / member.name for member in members]
    states = closing.enter_context(
        Checkpoints(workdir.path / "training", STATES, run_id=workdir.run_id, lost=workdir.is_lost)
    )
    weights = [
        closing.enter_context(
            Checkpoints(each / "checkpoints", LATEST, run_id=id_below(workdir.run_id, each.name), lost=workdir.is_lost)
        )
        for each in directories
    ]
    started.signals.newest = states.latest_step
    abstract = joined(members, [member.tuning.programs.abstract for member in members])
    restored = states.restore(abstract)
    if restored is None:
        state = joined(members, [_first(member, np.uint32(seeds[member.name])) for member in members])
    else:
        state = restored.state
    begin, position = int(state.step), {} if restored is None else restored.position
    started.events.start(begin, list(mesh.devices.flat), resumed=restored is not None, run="together")
    metrics = Metrics(
        workdir.path,
        total_steps=len(order),
        start_step=begin,
        evaluated=str(begin) in position.get("dev", {}),
        wall_time=started.wall_time,
    )
    opened = Opened(
        **vars(started),
        checkpoints=states,
        metrics=closing.enter_context(metrics),
        profiler=closing.enter_context(Profiler(workdir.path, range(0))),
    )
    task = TogetherTask(members, order, opened, weights, position, begin, abstract, select_by)
    train(task, opened, state)
    if started.signals.exit_code:
        raise Stopped
    return task


def _first(member: Member, seed: np.uint32) -> TrainState:
    tuning = member.tuning
    return first_state(tuning.config, tuning.stored, tuning.programs, seed)[0]


def _conclude(
    members: Sequence[Member], task: TogetherTask, workdir: WorkDirectory, signals: StopSignals, temperature: float
) -> dict[str, Any]:
    """Predict with the model of each task, write the results, and return them."""
    found, config = {}, members[0].tuning.config
    for member, steps in zip(members, task.steps.of, strict=True):
        directory, tuning = workdir.path / "tasks" / member.name, member.tuning
        stored = open_checkpoint(directory)
        step, params = stored.history["step"], place(stored, tuning.programs.mesh)
        dev = {each: entry[member.name] for each, entry in task.dev.items()}
        record = run_record(_run(tuning.config), tuning, steps, dev, step)
        tests, report, files = answer_splits(directory / "predictions", tuning, params, record["metrics"], signals)
        facts = {
            **{"tests": tests, "report": report, "data": sizes(tuning.data), "truncated": tuning.data.truncated},
            **{"labels": list(tuning.data.head.labels)},
            "predictions": {"test_fingerprint": tuning.data.test_fingerprint(), "files": files},
        }
        found[member.name] = summary(tuning.config, [record], tuning.data.main_metric, facts)
        if jax.process_index() == 0:
            tuning.stored.need_tokenizer().save(directory / "tokenizer")
            write_json(directory / RESULTS, found[member.name])
    results = {"tasks": found, "temperature": temperature, "steps": task.end, "select": config.select}
    if jax.process_index() == 0:
        write_json(workdir.path / RESULTS, results)
    return results


def _open_directory(members: Sequence[Member], temperature: float, select_by: str) -> WorkDirectory:
    """Take the work directory, once all hosts have the same model, data and settings."""
    first = members[0].tuning
    fingerprints = {member.name: member.tuning.data.fingerprint() for member in members}
    run = {name: getattr(first.config, name) for name in ("epochs", "learning_rate", "seed")}
    identity = {
        "features_fingerprint": hashlib.sha256(json.dumps(fingerprints).encode()).hexdigest(),
        "init_from_fingerprint": stored_fingerprint(first.stored.arrays),
        "tokenizer_fingerprint": first.stored.need_tokenizer().fingerprint,
        "together": {
            **run,
            "loss_weights": {member.name: member.factor for member in members},
            "batch_sizes": {member.name: member.tuning.config.batch_size for member in members},
            "temperature": temperature,
            "select_by": select_by,
        },
    }
    wanted = {
        "tasks": {each.name: settings(each.tuning.config, each.tuning.programs, each.tuning.data) for each in members}
    }
    differing = [
        name for member in members for name in differing_options(FinetuneConfig, f"tasks.{member.name}.finetune.")
    ]
    check_alike(lambda: identity | wanted, tuple(differing))
    tokenizer, devices = first.stored.need_tokenizer(), list(first.programs.mesh.devices.flat)
    return open_workdir(first.config.workdir, TOGETHER, identity, wanted, tokenizer, devices=devices)


def _begun(workdir: str) -> dict[str, Any]:
    """Return the options of each task of the run in the work directory; {} if it has saved nothing."""
    path = epath.Path(workdir)
    tasks = read_json(path / "config.json").get("tasks") if _has_saved(path) else None
    known = tasks if isinstance(tasks, dict) else {}
    return from_first({name: each.get("finetune", {}) for name, each in known.items() if isinstance(each, dict)})


def _has_saved(path: epath.Path) -> bool:
    saved = (RESULTS, "training/*step_*", "tasks/*/checkpoints/*step_*")
    return (path / "run.json").exists() and any(True for name in saved for _ in path.glob(name))


def _check_together(path: epath.Path, identity: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise a UserError if `wanted`, the data or the parameters would not continue the run in `path`."""
    saved = read_json(path / "run.json")
    if "together" not in saved:
        raise UserError(f"{path} is the work directory of another run; give another workdir")
    lines = differences({name: saved.get(name) for name in identity}, identity)
    before = read_json(path / "config.json").get("tasks") or {}
    for name, each in wanted["tasks"].items():
        changed = differences(before.get(name) or {}, each)
        lines += [f"{name}: {line}" for line in changed if not is_harmless(FinetuningRecord, line)]
    if lines:
        raise UserError(
            f"{path} holds a run with different data, parameters or settings ({first_lines(lines)}). Resume with those "
            f"({os.fspath(path / 'config.json')}), or start this in another workdir"
        )


TOGETHER = Rules(_has_saved, _check_together)

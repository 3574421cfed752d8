"""The runs of a study: every option of every pre-training and fine-tuning, resolved and checked before any runs.

The checks find what would fail an hour later, and show the plan with its cost. The measures of a finished run are
read from its work directories; held-out texts are the same for all arms.
"""

import dataclasses
import hashlib
import json
import os
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
from etils import epath
from rich.table import Table

from bert_jax.checkpoints.workdir import has_checkpoint, read_json, write_json
from bert_jax.config import Config, PhaseConfig, config_of_phase, resolve_phases, resolve_stages
from bert_jax.config.checks import check
from bert_jax.config.finetuning import RESULTS, FinetuneConfig, check_finetune
from bert_jax.config.options import differences, flattened, is_harmless, switched, to_dict, with_options
from bert_jax.config.studies import HELD_OUT, OWN, Arm, Study, StudyConfig
from bert_jax.console import load_config, parse
from bert_jax.data.store import open_store
from bert_jax.devices import sharding
from bert_jax.errors import UserError, at_least, first_lines
from bert_jax.files import is_remote
from bert_jax.finetuning.plan import plan as planned_runs
from bert_jax.finetuning.programs import make_programs, task_loss
from bert_jax.models.protocol import Model
from bert_jax.pretrained.model import load
from bert_jax.pretraining import default_objective, make_learner
from bert_jax.tasks.task_data import TaskData, read_task
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.learner import Learner
from bert_jax.training.metrics import read_rows
from bert_jax.training.optimizers import optimizer_flops
from bert_jax.training.reporter import say, show
from bert_jax.training_data import held_out_examples, open_corpus, read_config


@dataclasses.dataclass(frozen=True)
class Given:
    """Options of the command line that all arms take, as words."""

    pretraining: tuple[str, ...] = ()
    finetuning: tuple[str, ...] = ()


def given_words(words: list[str]) -> Given:
    """Return the words for pre-training, and those for fine-tuning (--finetune.epochs=2) without their prefix."""
    pretraining: list[str] = []
    finetuning: list[str] = []
    chosen = pretraining
    for word in words:
        if word.startswith("--"):
            chosen = finetuning if word.startswith("--finetune.") else pretraining
        chosen.append(word.replace("--finetune.", "--", 1) if chosen is finetuning else word)
    return Given(tuple(pretraining), tuple(finetuning))


USAGE = "bert-jax study NAME"
Configured = TypeVar("Configured", Config, FinetuneConfig)


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """One arm with one seed: a pre-training, and the fine-tunings of what comes out of it."""

    arm: Arm
    seed: int
    config: Config
    """Configuration of the pre-training; its workdir is that of the first arm with the same options."""
    tasks: Mapping[str, FinetuneConfig]

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"{self.arm.name}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class StudyPlan:
    """Runs of a call of `bert-jax study`, in order."""

    study: Study
    workdir: str
    base: Config
    """Options that all arms share."""
    runs: tuple[StudyRun, ...]
    """All arms with the first seed, then all with the second, and so on, so that what is done compares."""

    @property
    def pretrainings(self) -> dict[str, StudyRun]:
        """The first run of every pre-training, by its work directory."""
        return {run.config.workdir: run for run in reversed(self.runs)}


def study_plan(study: Study, options: StudyConfig, given: Given) -> StudyPlan:
    """Return the runs of a study, whose options have been checked.

    Args:
      given: options of the command line that all arms take.

    Raises:
      UserError: an unknown option or arm, a value that does not fit, or an option of the command line that is what the
        arms differ in.
    """
    seeds = study.seeds if options.seeds is None else options.seeds
    at_least(1, seeds=seeds)
    _check_differs(study.arms, given)
    base = parse(changed(load_config(study.base), study.options), list(given.pretraining), USAGE, whole=False)
    places: dict[Config, str] = {}
    tasks = tasks_below(study.tasks, given, options.task_data, USAGE)
    arms = {arm.name: _arm(base, tasks, arm) for arm in _chosen(study, options.arms)}
    for name, (_, config, _) in arms.items():
        _check_taken(name, config, given)
    runs = [_run(options, places, *arms[name], base.seed + number) for number in range(seeds) for name in arms]
    return StudyPlan(study, options.workdir, base, tuple(runs))


def _chosen(study: Study, names: tuple[str, ...]) -> list[Arm]:
    arms = {arm.name: arm for arm in study.arms}
    if unknown := [name for name in names if name not in arms]:
        raise UserError(f"arms={unknown[0]}: this study has no such arm; it has {', '.join(arms)}")
    return [arms[name] for name in names or arms]


def _check_differs(arms: Iterable[Arm], given: Given) -> None:
    """Raise a UserError if the command line sets an option for all arms in which they differ."""
    for arm in arms:
        check_not_given(arm.name, arm.options, given.pretraining, full_name)
        check_not_given(arm.name, arm.task_options, given.finetuning)


def check_not_given(arm: str, own: Mapping[str, Any], words: Iterable[str], full: Callable[[str], str] = str) -> None:
    """Raise a UserError if words of a command line set one of an arm's own options; `full` returns the name of one."""
    given = {full(name) for name in given_names(words)}
    for name, value in own.items():
        if full(name) in given:
            raise UserError(
                f"{name} is what the arms differ in ({arm} has {value}), so it cannot be set for all of them"
            )


def given_names(words: Iterable[str]) -> list[str]:
    """Return the names of the options that words of a command line set."""
    return [word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")]


def _check_taken(arm: str, config: Config, given: Given) -> None:
    """Raise a UserError if the command line sets an option that the model or the objective of an arm does not have."""
    for word in given.pretraining:
        name = full_name(word.removeprefix("--").partition("=")[0].replace("-", "_"))
        if word.startswith("--") and name not in flattened(to_dict(config)):
            raise UserError(
                f"arm {arm}: {word} is for another model or objective; leave it out, or the arm with --arms"
            )


def full_name(name: str) -> str:
    """Return the full name of an option of pre-training; options of the only phase have a short name too."""
    return f"phases.0.{name}" if name in {field.name for field in dataclasses.fields(PhaseConfig)} else name


def _arm(
    base: Config, given_tasks: Mapping[str, FinetuneConfig], arm: Arm
) -> tuple[Arm, Config, dict[str, FinetuneConfig]]:
    """Return an arm with the options of its pre-training and fine-tunings, without seed and places."""
    try:
        config = check_afresh(check(changed(base, arm.options)))
        named = given_tasks if arm.tasks is None else arm.tasks
        tasks = {name: changed(given_tasks[name], arm.task_options) for name in named}
        for task in tasks.values():
            check_finetune(dataclasses.replace(task, init_from="the pre-training", workdir="its own"))
    except UserError as error:
        raise UserError(f"arm {arm.name}: {error}") from None
    return arm, config, tasks


def check_afresh(config: Config) -> Config:
    """Return `config` if it names neither where its run is nor what it begins with; raise a UserError otherwise."""
    for name in ("workdir", "init_from", "branch_from"):
        if value := getattr(config, name):
            raise UserError(f"{name}={value}: every run of a comparison starts afresh in a directory of its own")
    return config


def _run(
    options: StudyConfig,
    places: dict[Config, str],
    arm: Arm,
    config: Config,
    tasks: Mapping[str, FinetuneConfig],
    seed: int,
) -> StudyRun:
    """Return the run of one arm and seed; `places` has the work directories of the pre-trainings so far."""
    home = os.path.join(options.workdir, "runs", arm.name, f"seed_{seed}")
    config = dataclasses.replace(config, seed=seed)
    own = os.path.join(options.pretrainings, _digest(config)) if options.pretrainings else f"{home}/pretraining"
    place = places.setdefault(config, own)
    tasks = {
        name: dataclasses.replace(task, init_from=place, workdir=os.path.join(home, name), seed=seed)
        for name, task in tasks.items()
    }
    return StudyRun(arm, seed, dataclasses.replace(config, workdir=place), tasks)


def _digest(config: Config) -> str:
    """Return a name for the options of a pre-training, of sixteen hexadecimal digits.

    Those at their defaults do not enter it, so that it stays the same when bert_jax gets another option.
    """
    values = flattened(to_dict(config))
    own = switched(Config(), {name: str(value) for name, value in values.items()})  # the kinds that were chosen
    defaults = flattened(to_dict(own)) | flattened(to_dict(Config()))
    chosen = {name: value for name, value in values.items() if value != defaults.get(name)}
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]


def changed(config: Configured, options: Mapping[str, Any]) -> Configured:
    """Return `config` with options by their dotted names, those of the only phase also by their own.

    Raises:
      UserError: there is no such option, or its value has the wrong type.
    """
    if isinstance(config, Config):
        options = {full_name(name): value for name, value in options.items()}
    return with_options(config, options)


def tasks_below(
    tasks: Mapping[str, FinetuneConfig], given: Given, directory: str, usage: str
) -> dict[str, FinetuneConfig]:
    """Return the tasks with the options of the command line, and their data below `directory`."""
    parsed = {name: parse(task, list(given.finetuning), usage, whole=False) for name, task in tasks.items()}
    return {name: _below(task, directory) for name, task in parsed.items()}


def _below(task: FinetuneConfig, directory: str) -> FinetuneConfig:
    """Return `task` with the paths of its data below `directory`, unless they are absolute or on cloud storage."""
    paths = {
        name: path if is_remote(path) else os.path.join(directory, path)
        for name in ("dir", "train", "dev", "test")
        if (path := getattr(task.data, name))
    }
    return dataclasses.replace(task, data=dataclasses.replace(task.data, **paths))


MEASURED = "study_held_out.json"


def run_measures(plan: StudyPlan, run: StudyRun) -> dict[str, dict[str, float]]:
    """Return the metrics that a run has so far, by what they are figures of: held_out, own, or the name of a task."""
    found: dict[str, dict[str, float]] = {}
    if own := own_evaluation(run.config):
        found[OWN] = own
        shared = own if same_texts(run.config, plan.base) else _saved(run.config, plan.base)
        if shared:
            found[HELD_OUT] = shared
    for name, task in run.tasks.items():
        if metrics := task_metrics(task):
            found[name] = metrics
    return found


def own_evaluation(config: Config) -> dict[str, float]:
    """Return the held-out metrics at the last step of a pre-training; {} while it has not got there."""
    rows = read_rows(epath.Path(config.workdir) / "metrics.jsonl")
    last = [row for row in rows if row.get("kind") == "evaluation" and row.get("step") == config.total_steps]
    return {name: value for name, value in last[-1].items() if isinstance(value, float)} if last else {}


def task_metrics(task: FinetuneConfig) -> dict[str, float]:
    """Return the mean dev metrics over the planned runs of a fine-tuning; {} while one of them is missing."""
    records = [epath.Path(task.workdir) / "runs" / run.name / RESULTS for run in planned_runs(task)]
    if not all(record.exists() for record in records):
        return {}
    metrics = [read_json(record)["metrics"] for record in records]
    return {name: statistics.fmean(each[name] for each in metrics) for name in metrics[0]}


def same_texts(config: Config, base: Config) -> bool:
    """Return whether an arm's own evaluation reads what that of the base reads, or has nothing in common with it."""
    config, base = _as_last(config), _as_last(base)
    return type(config.objective) is not type(base.objective) or _as_base(config, base) == config


def measure_held_out(config: Config, base: Config, devices: sharding.Devices = None) -> None:
    """Measure the last checkpoint of an arm on held-out texts, cut and masked as in the base; save the result."""
    if _saved(config, base):
        return
    metrics = held_out_metrics(config.workdir, _as_base(_as_last(config), _as_last(base)), devices)
    values = {"step": config.total_steps, "read_as": _reading(base), "metrics": metrics}
    write_json(epath.Path(config.workdir) / MEASURED, values)


def held_out_metrics(workdir: str, read_as: Config, devices: sharding.Devices = None) -> dict[str, float]:
    """Return the metrics of the last checkpoint in `workdir` on held-out texts, cut and masked as `read_as` says."""
    mesh = sharding.make_mesh(read_as.mesh, devices)
    model = load(workdir, mesh=mesh, compute=read_as.compute)
    given = dataclasses.replace(read_as, model=model.config)
    corpus, phase = open_corpus(given), resolve_phases(given)[-1]
    evaluation = Evaluation(
        default_objective(model.network, given),
        given.evaluation,
        held_out_examples(given, phase, corpus.held_out),
        corpus.shares(phase),
        mesh,
        jax.tree.map(lambda leaf: leaf.sharding, model.params),
    )
    return evaluation.run(model.params)


def _as_last(config: Config) -> Config:
    """Return the options as the last phase sees them, which made what is measured."""
    return config_of_phase(config, len(config.phases) - 1)


def _as_base(config: Config, base: Config) -> Config:
    """Return the options of an arm with those of the base where they say how held-out texts are cut and masked, both as
    their last phases see them."""
    data = dataclasses.replace(
        config.data,
        sentence_pairs=base.data.sentence_pairs,
        short_sequence_probability=base.data.short_sequence_probability,
    )
    lengths = [phase.sequence_length for phase in base.phases], [phase.sequence_length for phase in config.phases]
    phases = config.phases if lengths[0] == lengths[1] else base.phases
    return dataclasses.replace(config, masking=base.masking, data=data, phases=phases)


def _reading(base: Config) -> dict[str, Any]:
    base, length = _as_last(base), base.phases[-1].sequence_length
    return {"masking": to_dict(base.masking), "sentence_pairs": base.data.sentence_pairs, "sequence_length": length}


def _saved(config: Config, base: Config) -> dict[str, float]:
    """Return what `measure_held_out` wrote for this checkpoint and base; {} if it has not."""
    file = epath.Path(config.workdir) / MEASURED
    values = read_json(file) if file.exists() else {}
    # JSON has no tuples, so both are compared as it writes them.
    fits = json.dumps([values.get("step"), values.get("read_as")]) == json.dumps([config.total_steps, _reading(base)])
    return values["metrics"] if fits else {}


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of one pre-training."""

    steps: int
    flops: float
    """Floating-point operations: products, forward and backward, and those of Muon, by their closed form."""


def check_runs(plan: StudyPlan, devices: sharding.Devices = None) -> dict[str, Cost]:
    """Check stores, sizes, tasks and work directories of every run; return the cost of each pre-training by its place.

    Nothing is written or compiled.

    Raises:
      UserError: something does not fit; the message names the arm.
    """
    costs: dict[str, Cost] = {}
    opened: dict[Config, tuple[Config, Cost]] = {}
    read: dict[Hashable, TaskData] = {}
    for run in plan.runs:
        try:
            if not run.config.data.path:
                raise UserError("--data.path is missing: give the token store that bert-jax prepare wrote")
            # The seeds of an arm have all but this in common.
            same = dataclasses.replace(run.config, seed=0, workdir="")
            if same not in opened:
                opened[same] = priced(run.config, devices)
                check_tasks(run.tasks, opened[same][0], read, devices)
            config, costs[run.config.workdir] = opened[same]
            check_continues(dataclasses.replace(run.config, model=config.model))
        except UserError as error:
            raise UserError(f"arm {run.arm.name}: {error}") from None
    return costs


def priced(config: Config, devices: sharding.Devices = None) -> tuple[Config, Cost]:
    """Return the options with the vocabulary size of the store, once they have been compared with it, and the cost."""
    config, learner = described_learner(config, devices)
    return config, Cost(config.total_steps, pretraining_flops(config, phase_models(learner)))


def described_learner(config: Config, devices: sharding.Devices = None) -> tuple[Config, Learner]:
    """Return the options with the vocabulary size of the store, and what they train; no array is made."""
    mesh = sharding.make_mesh(config.mesh, devices)
    sharding.check_batch(resolve_stages(config), config.phases, mesh)
    store = open_corpus(config).store
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=store.vocab_size))
    return config, make_learner(config, mesh)


def phase_models(learner: Learner) -> tuple[Model, ...]:
    """Return the model of each phase of a run."""
    return tuple(objective.model for objective in learner.objectives)


def pretraining_flops(config: Config, models: Sequence[Model]) -> float:
    """Return the operations of all steps of a run: those of its phases' models, with padding, and of the optimizer."""
    total = float(config.total_steps * optimizer_flops(config.optimizer, models[0].parameters))
    for stage in resolve_stages(config):
        row = models[stage.index].training_flops(stage.sequence_length, stage.max_predictions)
        total += stage.steps * stage.batch_size * row
    return total


def check_tasks(
    tasks: Mapping[str, FinetuneConfig], config: Config, read: dict[Hashable, TaskData], devices: sharding.Devices
) -> None:
    """Read the data of every task of a run unless `read` has them, and make its model without arrays.

    Raises:
      UserError: the data are not there, or do not fit the task or the model; the message names the task.
    """
    tokenizer = open_store(config.data.path, config.data.cache).tokenizer()
    for name, task in tasks.items():
        form = (task.crf, task.features, task.lstm_size, task.head_dropout)
        limits = (config.data.path, config.model.longest_sequence, config.model.type_vocab_size)
        key = (task.task, task.data, task.options, form, limits)
        try:
            if key not in read:
                read[key] = read_task(task, config.model, tokenizer)
            data = read[key].measured_by({}, task.select_by)
            loss = task_loss(task.loss, data.head, data.train.features)
            make_programs(task, config.model, data.head, sharding.make_mesh(task.mesh, devices), loss=loss)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None


def check_continues(config: Config) -> None:
    """Raise a UserError if the work directory holds a pre-training with other options, of length too."""
    if not has_checkpoint(config.workdir):
        return
    lines = differences(to_dict(read_config(config.workdir)), to_dict(config))
    if lines := [line for line in lines if not is_harmless(Config, line)]:
        raise UserError(
            f"{config.workdir} holds a run with different settings ({first_lines(lines)}); give "
            "another --workdir, or the options that it was started with"
        )


def show_plan(plan: StudyPlan, costs: dict[str, Cost]) -> None:
    """Print what will run: steps and operations of each pre-training, and its fine-tunings."""
    table = Table(title=f"{plan.study.title}: the plan")
    for column in ("arm", "seeds", "steps each", "GFLOP each", "fine-tunings each", "pre-training"):
        table.add_column(column, justify="left" if column in ("arm", "pre-training") else "right")
    arms = {run.arm.name: run for run in reversed(plan.runs)}
    for name, run in reversed(arms.items()):
        cost, place = costs[run.config.workdir], run.config.workdir
        owner = plan.pretrainings[place].arm.name
        own = [each for each in plan.runs if each.arm.name == name]
        table.add_row(
            run.arm.title,
            str(len(own)),
            f"{cost.steps:,}",
            f"{cost.flops / 1e9:,.0f}",
            ", ".join(run.tasks) or "none",
            "its own" if owner == name else f"that of {owner}",
        )
    show(table)
    total = sum(costs[place].flops for place in plan.pretrainings)
    say(
        f"{len(plan.pretrainings)} pre-trainings, {sum(costs[place].steps for place in plan.pretrainings):,} steps, "
        f"{total / 1e15:.3g} PFLOP; {sum(len(run.tasks) for run in plan.runs)} fine-tunings"
    )

"""The runs of a study: every option of every pre-training and fine-tuning, resolved before anything runs."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from bert_jax.config import Config, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.finetuning_checks import check_finetune
from bert_jax.config.json_form import flattened, from_dict, to_dict
from bert_jax.config.studying import Arm, Study, StudyConfig
from bert_jax.console.command_line import load_config, parse
from bert_jax.errors import UserError
from bert_jax.files import is_remote
from bert_jax.studies.study_file import Given

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
        """What messages call it."""
        return f"{self.arm.name}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class StudyPlan:
    """What a call of `bert-jax study` runs, in order."""

    study: Study
    workdir: str
    base: Config
    """What all arms share."""
    runs: tuple[StudyRun, ...]
    """All arms with the first seed, then all with the second, and so on, so that what is done compares."""

    @property
    def pretrainings(self) -> dict[str, StudyRun]:
        """The first run of every pre-training, by its work directory."""
        return {run.config.workdir: run for run in reversed(self.runs)}


def study_plan(study: Study, options: StudyConfig, given: Given) -> StudyPlan:
    """Return the runs of a study, whose options have been checked.

    Args:
      study: what is compared.
      options: which arms and seeds, and where.
      given: options of the command line that all arms take.

    Raises:
      UserError: an unknown option or arm, a value that does not fit, or an option of the command line that is what the
        arms differ in.
    """
    seeds = study.seeds if options.seeds is None else options.seeds
    if seeds < 1:
        raise UserError(f"seeds={seeds} must be at least 1")
    _check_differs(study.arms, given)
    base = parse(changed(load_config(study.base), study.options), list(given.pretraining), USAGE)
    places: dict[Config, str] = {}
    tasks = {
        name: _below(parse(task, list(given.finetuning), USAGE), options.task_data)
        for name, task in study.tasks.items()
    }
    arms = {arm.name: _arm(base, tasks, arm) for arm in _chosen(study, options.arms)}
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
        for words, own, full in (
            (given.pretraining, arm.options, _full_name),
            (given.finetuning, arm.task_options, str),
        ):
            names = [word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")]
            for name, value in own.items():
                if full(name) in map(full, names):
                    raise UserError(
                        f"{name} is what the arms of this study differ in ({arm.name} has {value}), so it cannot be "
                        "set for all of them"
                    )


def _full_name(name: str) -> str:
    """Return the full name of an option of pre-training, which those of the only phase have beside their own."""
    return f"phases.0.{name}" if name in {field.name for field in dataclasses.fields(PhaseConfig)} else name


def _arm(
    base: Config, given_tasks: Mapping[str, FinetuneConfig], arm: Arm
) -> tuple[Arm, Config, dict[str, FinetuneConfig]]:
    """Return an arm with the options of its pre-training and fine-tunings, without seed and places."""
    try:
        config = check(changed(base, arm.options))
        named = given_tasks if arm.tasks is None else arm.tasks
        tasks = {name: changed(given_tasks[name], arm.task_options) for name in named}
        for task in tasks.values():
            check_finetune(dataclasses.replace(task, init_from="the pre-training", workdir="its own"))
    except UserError as error:
        raise UserError(f"arm {arm.name}: {error}") from None
    if config.workdir or config.init_from:
        name = "workdir" if config.workdir else "init_from"
        raise UserError(
            f"arm {arm.name}: {name}={getattr(config, name)}: every run of a study starts in a work directory of its "
            "own"
        )
    return arm, config, tasks


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
    defaults = flattened(to_dict(Config()))
    chosen = {name: value for name, value in flattened(to_dict(config)).items() if value != defaults.get(name)}
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]


def changed(config: Configured, options: Mapping[str, Any]) -> Configured:
    """Return `config` with options by their dotted names, those of the only phase also by their own.

    Raises:
      UserError: there is no such option, or its value has the wrong type.
    """
    values = to_dict(config)
    for name, value in options.items():
        full = _full_name(name) if isinstance(config, Config) else name
        _put(values, full.split("."), value, name)
    return from_dict(type(config), values)


def _put(values: Any, path: list[str], value: Any, option: str) -> None:
    """Set the entry at `path` of nested dicts and lists; unknown groups are made, for `from_dict` to name them."""
    name, *below = path
    if isinstance(values, list) and below and name.isdecimal() and int(name) < len(values):
        _put(values[int(name)], below, value, option)
    elif not isinstance(values, dict):
        raise UserError(f"unknown option {option}: there is no {name} in what comes before it")
    elif below:
        _put(values.setdefault(name, {}), below, value, option)
    else:
        values[name] = value


def _below(task: FinetuneConfig, directory: str) -> FinetuneConfig:
    """Return `task` with the paths of its data below `directory`, unless they are absolute or on cloud storage."""
    paths = {
        name: path if is_remote(path) else os.path.join(directory, path)
        for name in ("dir", "train", "dev", "test")
        if (path := getattr(task.data, name))
    }
    return dataclasses.replace(task, data=dataclasses.replace(task.data, **paths))

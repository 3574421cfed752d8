"""What would fail an hour later, found before a study begins; and the plan with its cost."""

import dataclasses
from collections.abc import Hashable

from rich.table import Table

from bert_jax.checkpoints.run_directory import has_checkpoint, read_config
from bert_jax.config import Config, resolve_phases
from bert_jax.config.changes import is_harmless
from bert_jax.config.json_form import differences, first_lines, to_dict
from bert_jax.data.examples.corpus import open_corpus
from bert_jax.data.store.access import open_store
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.finetuning.programs import make_programs
from bert_jax.objectives.objective_choice import default_objective
from bert_jax.studies.study_plan import StudyPlan, StudyRun
from bert_jax.tasks.task_data import TaskData, read_task
from bert_jax.training.announcement import say, show
from bert_jax.training.learner import Learner


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one pre-training takes."""

    steps: int
    flops: float
    """Floating-point operations: products, forward and backward, by their closed form."""


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
            same = dataclasses.replace(
                run.config, seed=0, workdir=""
            )  # the seeds of an arm have all but this in common
            if same not in opened:
                opened[same] = _opened(run.config, devices)
                _check_tasks(run, opened[same][0], read, devices)
            config, costs[run.config.workdir] = opened[same]
            _check_continues(dataclasses.replace(run.config, model=config.model))
        except UserError as error:
            raise UserError(f"arm {run.arm.name}: {error}") from None
    return costs


def _opened(config: Config, devices: sharding.Devices) -> tuple[Config, Cost]:
    """Return the options with the vocabulary size of the store, once they have been compared with it, and the cost."""
    mesh = sharding.make_mesh(config.mesh, devices)
    sharding.check_batch(config, mesh)
    store = open_corpus(config).store
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=store.vocab_size))
    model = Learner.of(config, mesh, default_objective).objective.model
    flops = sum(
        phase.steps * phase.batch_size * model.training_flops(phase.sequence_length, phase.max_predictions)
        for phase in resolve_phases(config)
    )
    return config, Cost(config.total_steps, flops)


def _check_tasks(run: StudyRun, config: Config, read: dict[Hashable, TaskData], devices: sharding.Devices) -> None:
    """Read the data of every task of a run unless `read` has them, and make its model without arrays."""
    tokenizer = open_store(config.data.path, config.data.cache).tokenizer()
    for name, task in run.tasks.items():
        form = (task.crf, task.features, task.lstm_size, task.head_dropout)
        limits = (config.data.path, config.model.longest_sequence, config.model.type_vocab_size)
        key = (task.task, task.data, task.options, form, limits)
        try:
            if key not in read:
                read[key] = read_task(task, config.model, tokenizer)
            make_programs(task, config.model, read[key].head, sharding.make_mesh(task.mesh, devices))
        except UserError as error:
            raise UserError(f"{name}: {error}") from None


def _check_continues(config: Config) -> None:
    """Raise a UserError if the work directory holds a pre-training with other options, of length too."""
    if not has_checkpoint(config.workdir):
        return
    lines = differences(to_dict(read_config(config.workdir)), to_dict(config))
    if lines := [line for line in lines if not is_harmless(line)]:
        raise UserError(
            f"{config.workdir} holds a run with different settings ({first_lines(lines)}); give the study "
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

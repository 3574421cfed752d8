"""`bert-jax study`: from a study file to results.json, table.md and picture.png, readable from top to bottom."""

import dataclasses
import gc

from absl import logging

from bert_jax.config.studying import Study, StudyConfig
from bert_jax.devices import hardware, sharding
from bert_jax.errors import UserError
from bert_jax.finetuning.loop import finetune
from bert_jax.pretraining import pretrain
from bert_jax.studies.run_measures import measure_held_out, own_evaluation, same_texts, task_metrics
from bert_jax.studies.study_checks import check_runs, show_plan
from bert_jax.studies.study_file import Given
from bert_jax.studies.study_plan import StudyPlan, StudyRun, study_plan
from bert_jax.studies.study_report import write_report
from bert_jax.training.announcement import say


@dataclasses.dataclass
class Progress:
    """What went wrong so far, and whether a signal ended a run."""

    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    """The reason of each failure, by the name of the run."""
    exit_code: int = 0


def run_study(study: Study, options: StudyConfig, given: Given | None = None, devices: sharding.Devices = None) -> int:
    """Run what is left of a study, and write its table and picture after every run; return the exit status.

    The status is 0; 1 if a run failed, which does not keep the others from running; 130 or 143 if a signal ended the
    study, after the steps made so far were saved. The same call resumes from there.

    Args:
      study: what is compared.
      options: which arms and seeds, and where.
      given: options of the command line that all arms take.
      devices: the devices of the mesh; by default every device.

    Raises:
      UserError: something does not fit, and nothing has been run.
    """
    hardware.initialize_distributed()  # must come before JAX is asked for devices
    plan = study_plan(study, options, given or Given())
    machine = str(hardware.hardware(devices))
    if options.render:
        print(write_report(plan, {}, machine))
        return 0
    show_plan(plan, check_runs(plan, devices))
    if options.dry_run:
        return 0
    progress, table = Progress(), ""
    for number, run in enumerate(plan.runs, 1):
        say(f"run {number} of {len(plan.runs)}: {run.name}")
        _run(plan, run, progress, devices)
        table = write_report(plan, progress.failures, machine)
        if progress.exit_code:
            say(f"stopped; the same command resumes with {run.name}")
            return progress.exit_code
        gc.collect()  # what a run compiled and held has cycles, and the next one needs the memory
    print(table)
    say(f"{plan.workdir}: results.json, table.md, picture.png")
    for name, message in progress.failures.items():
        say(f"failed: {name}: {message}")
    return 1 if progress.failures else 0


def _run(plan: StudyPlan, run: StudyRun, progress: Progress, devices: sharding.Devices) -> None:
    """Pre-train, measure and fine-tune what is left of one run; note what goes wrong."""
    try:
        if not own_evaluation(run.config):
            _check_not_failed(plan, run, progress)
            progress.exit_code = pretrain(run.config, devices).exit_code
        if not progress.exit_code and not same_texts(run.config, plan.base):
            measure_held_out(run.config, plan.base, devices)
        for task in run.tasks.values():
            if not progress.exit_code and not task_metrics(task):
                progress.exit_code = finetune(task, devices=devices).exit_code
    except Exception as error:  # whatever it is, it must not cost the other arms
        message = " ".join(str(error).split())[:300] or type(error).__name__
        progress.failures[run.name] = message
        logging.error("%s failed: %s", run.name, message, exc_info=None if isinstance(error, UserError) else error)


def _check_not_failed(plan: StudyPlan, run: StudyRun, progress: Progress) -> None:
    """Raise a UserError if another arm, which has the same pre-training, has failed at it in this start."""
    owner = plan.pretrainings[run.config.workdir]
    if owner is not run and owner.name in progress.failures:
        raise UserError(f"its pre-training, that of {owner.name}, has failed")

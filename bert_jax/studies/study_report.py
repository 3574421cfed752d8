"""results.json, table.md and picture.png of a study, from whatever its runs have measured so far."""

import dataclasses
from typing import Any

import jax
from etils import epath

from bert_jax.checkpoints.run_files import write_json
from bert_jax.config.finetuning import RESULTS
from bert_jax.config.json_form import to_dict
from bert_jax.config.studying import Study
from bert_jax.devices.software import commit, versions
from bert_jax.files import write_atomically
from bert_jax.studies.run_measures import run_measures
from bert_jax.studies.study_picture import draw_study, write_picture
from bert_jax.studies.study_plan import StudyPlan
from bert_jax.studies.study_summary import Column, column
from bert_jax.studies.study_table import study_table

Measured = dict[str, dict[str, dict[str, float]]]
"""Metrics by the name of the run, then by what they are figures of."""


def write_report(plan: StudyPlan, failures: dict[str, str], machine: str) -> str:
    """Write results.json, table.md and the picture into the work directory, on the first host; return the table.

    Args:
      plan: the runs, done or not.
      failures: what went wrong, by the name of the run.
      machine: the hardware of this start.
    """
    measured = {run.name: run_measures(plan, run) for run in plan.runs}
    columns = [
        column(plan.study, measure.heading, _values(plan, measured, measure.of, measure.metric), measure.beside)
        for measure in plan.study.measures
    ]
    done = sum(is_done(plan, index, measured) for index in range(len(plan.runs)))
    table = study_table(plan.study, columns, failures, f"{done} of {len(plan.runs)} runs are done.")
    if jax.process_index():
        return table
    directory = epath.Path(plan.workdir)
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / "table.md", table.encode())
    write_picture(draw_study(plan.study, columns), directory)
    write_json(directory / RESULTS, _results(plan, measured, columns, failures, machine))
    return table


def is_done(plan: StudyPlan, index: int, measured: Measured) -> bool:
    """Return whether a run has every figure that the study's measures ask of it."""
    run = plan.runs[index]
    return "own" in measured[run.name] and all(name in measured[run.name] for name in run.tasks)


def _values(plan: StudyPlan, measured: Measured, of: str, metric: str) -> dict[str, list[float]]:
    """Return the figures of one measure over the seeds, by arm; arms without one are absent."""
    values: dict[str, list[float]] = {}
    for run in plan.runs:
        if metric in (found := measured[run.name].get(of, {})):
            values.setdefault(run.arm.name, []).append(found[metric])
    return values


def _results(
    plan: StudyPlan, measured: Measured, columns: list[Column], failures: dict[str, str], machine: str
) -> dict[str, Any]:
    study: Study = plan.study
    return {
        "title": study.title,
        "question": study.question,
        "base": to_dict(plan.base),
        "arms": [
            {"name": arm.name, "title": arm.title, "options": dict(arm.options), "task_options": dict(arm.task_options)}
            for arm in study.arms
        ],
        "measures": [
            {
                "heading": each.heading,
                "of": measure.of,
                "metric": measure.metric,
                "arms": {name: dataclasses.asdict(figure) for name, figure in each.figures.items()},
                "p_value": each.p_value,
                "beside": each.beside,
                "rank_correlation": each.rank_correlation,
            }
            for each, measure in zip(columns, study.measures, strict=True)
        ],
        "published": [
            {"source": each.source, "figures": {name: dict(rows) for name, rows in each.figures.items()}}
            for each in study.published
        ],
        "runs": [
            {
                "arm": run.arm.name,
                "seed": run.seed,
                "pretraining": run.config.workdir,
                "tasks": {name: task.workdir for name, task in run.tasks.items()},
                "metrics": measured[run.name],
                "failed": failures.get(run.name),
            }
            for run in plan.runs
        ],
        "hardware": machine,
        "commit": commit(),
        "versions": versions(),
    }

"""`bert-jax study`: from a study file to results.json, table.md and picture.png, readable from top to bottom.

The results cover whatever the runs have measured so far: means and deviations over seeds, differences between arms
with the confidence that the seeds allow, and a comparison with the figures and the order of a paper. The picture has
a panel for each measure, and one for each column of the papers.
"""

import dataclasses
import gc
import io
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bert_jax.checkpoints.workdir import write_json
from bert_jax.config.finetuning import RESULTS
from bert_jax.config.options import to_dict
from bert_jax.config.studies import Arm, Study, StudyConfig
from bert_jax.devices import hardware, sharding
from bert_jax.devices.hosts import commit, versions
from bert_jax.errors import UserError
from bert_jax.files import write_atomically
from bert_jax.finetuning.loop import finetune
from bert_jax.pretraining import pretrain
from bert_jax.tasks.sentences import spearman
from bert_jax.tools import study_plan
from bert_jax.training.reporter import say

CONFIDENCE = 0.95
Values = Mapping[str, Sequence[float]]
"""The figures of one measure over the seeds, by arm."""


@dataclasses.dataclass(frozen=True)
class MeasuredFigure:
    """One measure of one arm."""

    values: tuple[float, ...]
    """One value per seed."""
    mean: float
    deviation: float | None
    """Sample standard deviation; None for one seed."""
    difference: float | None
    """From the mean of the first arm; None for that arm, and where that has no figure."""
    interval: tuple[float, float] | None
    """95 % confidence interval of the difference (Welch's t); None unless both arms have two seeds."""

    @property
    def told_apart(self) -> bool | None:
        """Whether the interval excludes 0; None where there is none."""
        return None if self.interval is None else not self.interval[0] <= 0 <= self.interval[1]


@dataclasses.dataclass(frozen=True)
class Column:
    """One measure of all arms."""

    heading: str
    figures: dict[str, MeasuredFigure]
    """The figures by arm; arms without a finished run are absent."""
    p_value: float | None
    """Probability of differences as large as these if all arms were the same (one-way analysis of variance); None
    unless all arms, two at least, have two seeds."""
    beside: str
    """The paper's column that it is compared with; "" for none."""
    rank_correlation: float | None
    """Spearman's correlation of the means with that column over the arms that both have; None below three."""


def column(study: Study, heading: str, values: Values, beside: str = "") -> Column:
    """Return the figures of one measure."""
    first = values.get(study.arms[0].name, ())
    figures = {
        arm.name: _figure(values[arm.name], None if number == 0 else first)
        for number, arm in enumerate(study.arms)
        if values.get(arm.name)
    }
    published = {arm: value for each in study.published for arm, value in each.figures.get(beside, {}).items()}
    both = [name for name in figures if name in published]
    correlation = None
    if len(both) >= 3:
        ours, theirs = [figures[name].mean for name in both], [published[name] for name in both]
        correlation = spearman(np.asarray(ours), np.asarray(theirs))
    return Column(heading, figures, _p_value(list(values.values())), beside, correlation)


def difference_interval(values: Sequence[float], first: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of mean(values) − mean(first) by Welch's t; None below two values each."""
    from scipy import stats  # takes half a second to import

    if min(len(values), len(first)) < 2:
        return None
    difference = statistics.fmean(values) - statistics.fmean(first)
    if not statistics.pvariance(values) and not statistics.pvariance(first):
        return difference, difference
    interval = stats.ttest_ind(values, first, equal_var=False).confidence_interval(CONFIDENCE)
    return float(interval.low), float(interval.high)


def _figure(values: Sequence[float], first: Sequence[float] | None) -> MeasuredFigure:
    return MeasuredFigure(
        tuple(values),
        statistics.fmean(values),
        statistics.stdev(values) if len(values) > 1 else None,
        statistics.fmean(values) - statistics.fmean(first) if first else None,
        difference_interval(values, first) if first else None,
    )


def _p_value(groups: list[Sequence[float]]) -> float | None:
    from scipy import stats

    if len(groups) < 2 or min(map(len, groups)) < 2 or not any(map(statistics.pvariance, groups)):
        return None
    return float(stats.f_oneway(*groups).pvalue)


OURS, THEIRS = "#1f6fb4", "#d9822b"
PER_ROW = 4


def draw_study(study: Study, columns: list[Column]) -> Figure:
    """Return the picture: our means, their deviation over seeds, every seed as a point; and the paper's figures."""
    published = {name: rows for each in study.published for name, rows in each.figures.items()}
    groups = {name: [arm for arm in study.arms if arm.panel == name] for name in (arm.panel for arm in study.arms)}
    count = len(columns) * len(groups) + len(published)
    across = min(count, max(PER_ROW // len(groups), 1) * len(groups))
    down = -(-count // across)
    on_axis = _places(study.arms) is not None
    height = 2.9 if on_axis else 1.0 + 0.32 * len(study.arms)
    figure = Figure(figsize=(3.6 * across + 1.4, height * down + 0.6), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    left = iter(panels)
    for each, measure in zip(columns, study.measures, strict=True):
        beside = None
        for name, arms in groups.items():
            panel = next(left)
            _draw_ours(panel, arms, each, measure.scale)
            _finish(
                panel, study, arms, f"{each.heading}{', ' * bool(name)}{name}" + " (%)" * (measure.scale == 100), OURS
            )
            if beside is not None and on_axis:
                panel.sharey(beside)
            beside = panel
    for name, rows in published.items():
        panel = next(left)
        _draw_theirs(panel, study, rows)
        _finish(panel, study, study.arms, f"{name} (paper)", THEIRS)
    for number, panel in enumerate(panels):
        if number >= count:
            panel.set_axis_off()
        elif number % across and not on_axis and len(groups) == 1:  # arms are named before the first panel of a row
            panel.set_yticklabels([])
    figure.suptitle(study.title, fontsize=11, parse_math=False)
    return figure


def write_picture(figure: Figure, directory: str | os.PathLike[str]) -> None:
    """Write picture.png into a directory."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_atomically(epath.Path(directory) / "picture.png", buffer.getvalue())


def _places(arms: Sequence[Arm]) -> list[float] | None:
    """Return the places of the arms on an axis of numbers; None if one of them has none."""
    places = [arm.x for arm in arms if arm.x is not None]
    return places if len(places) == len(arms) else None


def _draw_ours(panel: Axes, arms: Sequence[Arm], column: Column, scale: int) -> None:
    places = _places(arms)
    lines: dict[str, list[tuple[float, float]]] = {arm.line: [] for arm in arms}
    colours = {line: OURS if len(lines) == 1 else f"C{number % 10}" for number, line in enumerate(lines)}
    for row, arm in enumerate(arms):
        if (found := column.figures.get(arm.name)) is None:
            continue
        mean, spread = scale * found.mean, None if found.deviation is None else scale * found.deviation
        points, colour = [scale * value for value in found.values], colours[arm.line]
        if places is None:
            panel.scatter(points, [row] * len(points), s=10, color=colour, alpha=0.45)
            panel.errorbar(mean, row, xerr=spread, fmt="o", color=colour, capsize=3)
        else:
            panel.scatter([places[row]] * len(points), points, s=10, color=colour, alpha=0.45)
            panel.errorbar(places[row], mean, yerr=spread, fmt="o", color=colour, capsize=3)
            lines[arm.line].append((places[row], mean))
    for line, upright in lines.items():
        if upright:
            panel.plot(*zip(*sorted(upright), strict=True), color=colours[line], label=line)
    if len(lines) > 1:
        panel.legend(fontsize=8)


def _draw_theirs(panel: Axes, study: Study, rows: Mapping[str, float]) -> None:
    places = _places(study.arms)
    there = [(row, rows[arm.name]) for row, arm in enumerate(study.arms) if arm.name in rows]
    if places is None:
        panel.scatter([value for _, value in there], [row for row, _ in there], color=THEIRS, marker="D")
    else:
        panel.plot(*zip(*sorted((places[row], value) for row, value in there), strict=True), "D-", color=THEIRS)


def _finish(panel: Axes, study: Study, arms: Sequence[Arm], title: str, colour: str) -> None:
    places = _places(arms)
    panel.set_title(title, fontsize=9, loc="left", color=colour, parse_math=False)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color="#e6e6e6", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(labelsize=8)
    panel.ticklabel_format(axis="x" if places is None else "y", useOffset=False)
    if places is None:
        panel.set_yticks(range(len(arms)), [arm.title for arm in arms], parse_math=False)
        panel.set_ylim(len(arms) - 0.5, -0.5)  # the first arm on top, also where an arm has no figure
        return
    panel.set_xlabel(study.axis, fontsize=8, parse_math=False)
    if study.log_axis:
        panel.set_xscale("log")
    shared = len(set(places)) < len(places)  # arms of several lines, whose names have the place and the line
    names = {place: f"{place:g}" if shared else arm.title for place, arm in zip(places, arms, strict=True)}
    panel.set_xticks(list(names), list(names.values()), parse_math=False)
    panel.minorticks_off()


NOT_APART = "≈"


def study_table(study: Study, columns: list[Column], failures: dict[str, str], runs: str) -> str:
    """Return table.md.

    Args:
      columns: our figures, in the order of the study's measures.
      failures: what went wrong, by the name of the run.
      runs: how many runs are done, in words.
    """
    published = [(name, rows) for each in study.published for name, rows in each.figures.items()]
    headings = ["arm", *(each.heading for each in columns), *(f"{name} (paper)" for name, _ in published)]
    lines = [
        f"# {study.title}",
        "",
        study.question,
        "",
        runs,
        "",
        table_row(headings),
        table_row(["---"] * len(headings)),
    ]
    for arm in study.arms:
        ours = [
            _cell(each.figures.get(arm.name), measure.scale)
            for each, measure in zip(columns, study.measures, strict=True)
        ]
        theirs = [str(rows[arm.name]) if arm.name in rows else "" for _, rows in published]
        lines.append(table_row([arm.title, *ours, *theirs]))
    lines += ["", *_notes(study, columns), ""]
    lines += [f"The paper's figures: {each.source}." for each in study.published]
    lines += [f"Failed: {name}: {message}" for name, message in failures.items()]
    return "\n".join(lines) + "\n"


def table_row(cells: Sequence[str]) -> str:
    """Return a line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def _cell(figure: MeasuredFigure | None, scale: int) -> str:
    """Return mean ± standard deviation; ≈ where the seeds do not tell it from the first arm."""
    if figure is None:
        return "–"
    form = ".2f" if scale == 100 else ".3f"
    spread = "" if figure.deviation is None else f" ± {scale * figure.deviation:{form}}"
    return f"{scale * figure.mean:{form}}{spread}{f' {NOT_APART}' if figure.told_apart is False else ''}"


def _notes(study: Study, columns: list[Column]) -> list[str]:
    """Return what the figures say and do not say, a line each."""
    figures = [figure for each in columns for figure in each.figures.values()]
    counts = {len(figure.values) for figure in figures}
    lines = []
    if any(count > 1 for count in counts):
        seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
        lines.append(
            f"Mean ± standard deviation over {seeds} seeds. {NOT_APART}: not significantly different from "
            f"{study.arms[0].title}, because the 95 % confidence interval of the difference (Welch's t) contains 0."
        )
    if 1 in counts:
        lines.append("Figures without ± are those of one seed: what lies between them may be chance.")
    lines += [line for each in columns if (line := _verdict(each))]
    return [line for each in lines for line in (each, "")][:-1]


def _verdict(each: Column) -> str:
    parts = []
    if each.p_value is not None:
        seen = "the arms differ by more" if each.p_value < 0.05 else "the arms are not seen to differ by more"
        parts.append(f"{seen} than their seeds (one-way analysis of variance, p = {each.p_value:.2g})")
    if each.rank_correlation is not None:
        parts.append(f"rank correlation with the paper's {each.beside} {each.rank_correlation:+.2f}")
    return f"{each.heading}: {'; '.join(parts)}." if parts else ""


Measured = dict[str, dict[str, dict[str, float]]]
"""Metrics by the name of the run, then by what they are figures of."""


def write_report(plan: study_plan.StudyPlan, failures: dict[str, str], machine: str) -> str:
    """Write results.json, table.md and the picture on the first host; return the table.

    `failures`: what went wrong, by the name of the run.
    """
    measured = {run.name: study_plan.run_measures(plan, run) for run in plan.runs}
    columns = [
        column(plan.study, measure.heading, _values(plan, measured, measure.of, measure.metric), measure.beside)
        for measure in plan.study.measures
    ]
    done = sum("own" in measured[run.name] and measured[run.name].keys() >= run.tasks.keys() for run in plan.runs)
    table = study_table(plan.study, columns, failures, f"{done} of {len(plan.runs)} runs are done.")
    if jax.process_index():
        return table
    directory = epath.Path(plan.workdir)
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / "table.md", table.encode())
    write_picture(draw_study(plan.study, columns), directory)
    write_json(directory / RESULTS, _results(plan, measured, columns, failures, machine))
    return table


def _values(plan: study_plan.StudyPlan, measured: Measured, of: str, metric: str) -> dict[str, list[float]]:
    """Return the figures of one measure over the seeds, by arm; arms without one are absent."""
    values: dict[str, list[float]] = {}
    for run in plan.runs:
        if metric in (found := measured[run.name].get(of, {})):
            values.setdefault(run.arm.name, []).append(found[metric])
    return values


def _results(
    plan: study_plan.StudyPlan, measured: Measured, columns: list[Column], failures: dict[str, str], machine: str
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
        "published": [dataclasses.asdict(each) for each in study.published],
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


@dataclasses.dataclass
class Progress:
    """Failures so far, and whether a signal ended a run."""

    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    """The reason of each failure, by the name of the run."""
    exit_code: int = 0


def run_study(
    study: Study, options: StudyConfig, given: study_plan.Given | None = None, devices: sharding.Devices = None
) -> int:
    """Run what is left of a study, and write its table and picture after every run; return the exit status.

    The status is 0; 1 if a run failed, which does not keep the others from running; 130 or 143 if a signal ended the
    study, after the steps made so far were saved. The same call resumes from there.

    Args:
      given: options of the command line that all arms take.
      devices: the devices of the mesh; by default every device.

    Raises:
      UserError: something does not fit, and nothing has been run.
    """
    hardware.initialize_distributed()  # must come before JAX is asked for devices
    plan = study_plan.study_plan(study, options, given or study_plan.Given())
    machine = str(hardware.hardware(devices))
    if options.render:
        print(write_report(plan, {}, machine))
        return 0
    study_plan.show_plan(plan, study_plan.check_runs(plan, devices))
    if options.dry_run:
        return 0
    progress, table = Progress(), ""
    for number, run in enumerate(plan.runs, 1):
        say(f"run {number} of {len(plan.runs)}: {run.name}")
        _run(plan, run, progress, devices)
        try:
            table = write_report(plan, progress.failures, machine)
        except OSError as error:  # the runs go on; the last one must be told of
            if number == len(plan.runs):
                raise
            logging.warning("%s has no table of this run: %s", plan.workdir, error)
        if progress.exit_code:
            say(f"stopped; the same command resumes with {run.name}")
            return progress.exit_code
        gc.collect()  # what a run compiled and held has cycles, and the next one needs the memory
    print(table)
    say(f"{plan.workdir}: results.json, table.md, picture.png")
    for name, message in progress.failures.items():
        say(f"failed: {name}: {message}")
    return 1 if progress.failures else 0


def _run(plan: study_plan.StudyPlan, run: study_plan.StudyRun, progress: Progress, devices: sharding.Devices) -> None:
    """Pre-train, measure and fine-tune what is left of one run; note what goes wrong."""
    try:
        if not study_plan.own_evaluation(run.config):
            _check_not_failed(plan, run, progress)
            progress.exit_code = pretrain(run.config, devices).exit_code
        if not progress.exit_code and not study_plan.same_texts(run.config, plan.base):
            study_plan.measure_held_out(run.config, plan.base, devices)
        for task in run.tasks.values():
            if not progress.exit_code and not study_plan.task_metrics(task):
                progress.exit_code = finetune(task, devices=devices).exit_code
    except Exception as error:  # whatever it is, it must not cost the other arms
        message = " ".join(str(error).split())[:300] or type(error).__name__
        progress.failures[run.name] = message
        logging.error("%s failed: %s", run.name, message, exc_info=None if isinstance(error, UserError) else error)


def _check_not_failed(plan: study_plan.StudyPlan, run: study_plan.StudyRun, progress: Progress) -> None:
    """Raise a UserError if another arm, which has the same pre-training, has failed at it in this start."""
    owner = plan.pretrainings[run.config.workdir]
    if owner is not run and owner.name in progress.failures:
        raise UserError(f"its pre-training, that of {owner.name}, has failed")

"""What a speedrun has found: operations to the target with intervals over seeds, as a table, as JSON and as a picture.

Operations are compared in their logarithms, so that a mean is a geometric one and a difference is a ratio: intervals
are those of Student's t for one arm, and of Welch's t for two.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from etils import epath
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from bert_jax.checkpoints.workdir import write_json
from bert_jax.config.finetuning import RESULTS
from bert_jax.config.options import to_dict
from bert_jax.config.studies import Measure, Share
from bert_jax.devices.hosts import commit, versions
from bert_jax.files import write_atomically
from bert_jax.tools.speedrun_plan import Crossing, Progress, Run, SpeedrunPlan, crossing_share, interpolated
from bert_jax.tools.study import CONFIDENCE, NOT_APART, difference_interval, table_row, write_picture


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one finished run has measured and taken."""

    loss: float
    """Loss of the masked words of the common held-out texts, in nats per word."""
    accuracy: float
    flops: float
    """Operations: products, forward and backward, by their closed form, padding included."""
    tokens: int
    """Positions that it read, padding included."""
    cpu_seconds: float | None
    """Time of all processors, with compiling and the evaluation at the end; None for a run that was interrupted."""


Outcomes = Mapping[Run, Outcome]
Scores = Mapping[Run, Mapping[str, Mapping[str, float]]]
"""Metrics of the fine-tunings of a run, by the name of the task."""


@dataclasses.dataclass(frozen=True)
class Reached:
    """What one seed took to the target, between the two runs on either side of it."""

    flops: float
    tokens: float
    cpu_seconds: float | None


@dataclasses.dataclass(frozen=True)
class Mean:
    """The geometric mean of the positive figures of several seeds."""

    value: float
    interval: tuple[float, float] | None
    """95 % confidence interval (Student's t on logarithms); None for one seed."""


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How one arm's figures relate to another's."""

    value: float
    interval: tuple[float, float] | None
    """95 % confidence interval (Welch's t on logarithms); None unless both have two seeds."""
    p_value: float | None
    """Probability of a ratio as far from 1 if both were the same (Welch's test); None without an interval."""


@dataclasses.dataclass(frozen=True)
class Standing:
    """How one arm stands so far."""

    arm: str
    learning_rate: float
    """Its best peak rate of the last phase."""
    at_edge: bool
    """Whether that is the lowest or the highest that was tried."""
    reached: tuple[Reached, ...]
    """Of each seed that reaches the target."""
    too_short: bool
    """Whether the shortest length reaches it for some seed, so that the figures are upper bounds."""
    unreached: int
    """Number of seeds that do not reach the target at the longest length."""
    missing: int
    """Number of seeds of which that is not known yet."""
    flops: Mean | None
    """Operations to target; None until a seed has reached it, or if one does not."""
    tokens: Mean | None
    """Tokens to target, likewise."""
    to_reference: Ratio | None
    to_changed: Ratio | None
    """To the arm that it changes; None for the reference, and where that is the reference."""


def mean(values: Sequence[float]) -> Mean:
    """Return the geometric mean of positive numbers."""
    logs = [math.log(value) for value in values]
    centre, interval = statistics.fmean(logs), None
    if len(logs) > 1:
        from scipy import stats  # takes half a second to import

        half = stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        interval = math.exp(centre - half), math.exp(centre + half)
    return Mean(math.exp(centre), interval)


def ratio(values: Sequence[float], others: Sequence[float]) -> Ratio:
    """Return how the geometric mean of `values` relates to that of `others`."""
    own, theirs = ([math.log(value) for value in each] for each in (values, others))
    difference = statistics.fmean(own) - statistics.fmean(theirs)
    interval = difference_interval(own, theirs)
    if interval is None:
        return Ratio(math.exp(difference), None, None)
    return Ratio(math.exp(difference), (math.exp(interval[0]), math.exp(interval[1])), welch(own, theirs))


def welch(values: Sequence[float], others: Sequence[float]) -> float | None:
    """Return the probability of means as far apart if both had the same; None where nothing varies."""
    from scipy import stats

    if not statistics.pvariance(values) and not statistics.pvariance(others):
        return None
    return float(stats.ttest_ind(values, others, equal_var=False).pvalue)  # pyright: ignore[reportAttributeAccessIssue]


def reached(crossing: Crossing, outcomes: Outcomes, target: float) -> Reached | None:
    """Return what a seed took to the target; None if it does not reach it at the longest length."""
    if crossing.after is None:
        return None
    after = outcomes[crossing.after]
    before = outcomes.get(crossing.before) if crossing.before else None
    if before is None:  # the shortest length reaches it, or the run before it failed
        return Reached(after.flops, after.tokens, after.cpu_seconds)
    share = crossing_share(before.loss, after.loss, target)
    seconds = None
    if before.cpu_seconds is not None and after.cpu_seconds is not None:
        seconds = interpolated(before.cpu_seconds, after.cpu_seconds, share)
    return Reached(
        interpolated(before.flops, after.flops, share), interpolated(before.tokens, after.tokens, share), seconds
    )


def standings(plan: SpeedrunPlan, progress: Progress, outcomes: Outcomes) -> dict[str, Standing]:
    """Return how the arms stand whose rate has been found, by their names."""
    found: dict[str, Standing] = {}
    for name in plan.recipes:
        factor = progress.rate_factor(name)
        if factor is None:
            continue
        crossings = [progress.crossing(name, seed) for seed in plan.design.seeds]
        known = [each for each in crossings if each is not None]
        figures = [each for each in (reached(each, outcomes, progress.target or 0.0) for each in known) if each]
        unreached = len(known) - len(figures)
        values = [each.flops for each in figures]
        tried = [run.rate_factor for run in progress.trials(name)]
        others, on = {key: [each.flops for each in found[key].reached] for key in found}, plan.design.arms[name]
        compares = bool(values) and not unreached

        def to(other: str, values: list[float] = values, others: Mapping[str, list[float]] = others) -> Ratio | None:
            there = others.get(other)
            return ratio(values, there) if there and not found[other].unreached else None

        run = Run(name, factor, 1.0, plan.design.seeds[0])
        found[name] = Standing(
            arm=name,
            learning_rate=plan.config(run).phases[-1].learning_rate,
            at_edge=len(tried) > 1 and factor in (min(tried), max(tried)),
            reached=tuple(figures),
            too_short=any(each.before is None for each in known),
            unreached=unreached,
            missing=len(crossings) - len(known),
            flops=mean(values) if compares else None,
            tokens=mean([each.tokens for each in figures]) if compares else None,
            to_reference=to(plan.design.reference) if compares and on else None,
            to_changed=to(on) if compares and on and on != plan.design.reference else None,
        )
    return found


def write_report(
    plan: SpeedrunPlan,
    progress: Progress,
    outcomes: Outcomes,
    scores: Scores,
    failures: Mapping[str, str],
    machine: str,
) -> str:
    """Write results.json, table.md and the picture on the first host; return the table."""
    found = standings(plan, progress, outcomes)
    table = speedrun_table(plan, progress, found, scores, failures)
    if jax.process_index():
        return table
    directory = epath.Path(plan.workdir)
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / "table.md", table.encode())
    write_picture(draw_speedrun(plan, progress, found, outcomes), directory)
    write_json(directory / RESULTS, _results(plan, progress, found, outcomes, scores, failures, machine))
    return table


def speedrun_table(
    plan: SpeedrunPlan,
    progress: Progress,
    found: Mapping[str, Standing],
    scores: Scores,
    failures: Mapping[str, str],
) -> str:
    """Return table.md."""
    measures = [measure for measure in plan.speedrun.measures if any(measure.of in each for each in scores.values())]
    headings = [
        *("arm", "changes", "peak rate", "operations to target", "of the reference's", "of those of what it changes"),
        *("tokens to target", "CPU seconds", *(measure.heading for measure in measures)),
    ]
    whole = plan.flops(Run(plan.design.reference, 1.0, 1.0, plan.base.seed))
    scored = functools.partial(_scored, scores)
    untrained = functools.partial(scored, plan.design.untrained)
    lines = [f"# {plan.speedrun.title}", "", table_row(headings), table_row(["---"] * len(headings))]
    for name, recipe in plan.recipes.items():
        standing, on = found.get(name), recipe.arm.on
        cells = [recipe.arm.title, plan.recipes[on].arm.title if on else "", *["–"] * 6]
        if standing is not None:
            cells[2] = f"{standing.learning_rate:.3g}{' *' if standing.at_edge else ''}"
            cells[3] = _operations(plan, standing)
            cells[4], cells[5] = _ratio(standing.to_reference), _ratio(standing.to_changed)
            if standing.tokens is not None:
                cells[6] = f"{standing.tokens.value / 1e6:.2f} M{_interval(standing.tokens.interval, 1e-6)}"
                seconds = [each.cpu_seconds for each in standing.reached if each.cpu_seconds is not None]
                cells[7] = f"{mean(seconds).value:,.0f}" if seconds else "–"
        lines.append(
            table_row([*cells, *(_score(scored(progress.whole(name), each), untrained(each)) for each in measures)])
        )
    if any(map(untrained, measures)):
        lines.append(table_row(["random weights", *["–"] * 7, *(_score(untrained(each), []) for each in measures)]))
    target = "not known yet" if progress.target is None else f"{progress.target:.3f} nats per masked word"
    lengths = plan.design.lengths
    lines += [
        "",
        f"Target: {target}, the mean of {len(plan.design.seeds)} runs of {plan.design.reference} with "
        f"{whole / 1e12:.3g} TFLOP, on {plan.speedrun.sequences:,} held-out texts of {plan.speedrun.sequence_length} "
        "tokens (15 % single tokens, the same for all). Lengths tried: "
        f"{min(lengths):.3g} to {max(lengths):.3g} times that. Geometric means over seeds with 95 % confidence "
        "intervals (Student's t; ratios: Welch's t, and its p). *: the lowest or highest rate tried.",
        *([SCORES] if measures else []),
    ]
    lines += [f"Failed: {name}: {message}" for name, message in failures.items()]
    return "\n".join(lines) + "\n"


SCORES = (
    "Scores are those of fine-tunings from runs of length 1: mean ± standard deviation over seeds. "
    f"{NOT_APART}: not significantly different from random weights (95 %, Welch's t)."
)


def _operations(plan: SpeedrunPlan, standing: Standing) -> str:
    longest, known = plan.design.lengths[-1], len(standing.reached) + standing.unreached
    so_far = f"; {known} of {known + standing.missing} seeds so far" if standing.missing else ""
    if standing.unreached:
        return f"> {longest:g} × ({len(standing.reached)} of {known} seeds reach it){so_far}"
    if standing.flops is None:
        return "–"
    bound = "≤ " if standing.too_short else ""
    return f"{bound}{standing.flops.value / 1e12:.3g} TFLOP{_interval(standing.flops.interval, 1e-12)}{so_far}"


def _ratio(found: Ratio | None) -> str:
    if found is None:
        return ""
    p = "" if found.p_value is None else f", p = {found.p_value:.2g}"
    return f"{found.value:.2f} ×{_interval(found.interval)}{p}"


def _interval(interval: tuple[float, float] | None, scale: float = 1.0) -> str:
    return "" if interval is None else f" ({scale * interval[0]:.3g} to {scale * interval[1]:.3g})"


def _scored(scores: Scores, runs: Sequence[Run], measure: Measure) -> list[float]:
    """Return the scores of these runs, as they are displayed."""
    found = [scores.get(run, {}).get(measure.of) for run in runs]
    return [measure.scale * metrics[measure.metric] for metrics in found if metrics]


def _score(values: list[float], untrained: list[float]) -> str:
    """Return mean ± standard deviation; ≈ where the seeds do not tell it from random weights."""
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.1f}" if values[1:] else ""
    interval = difference_interval(values, untrained)
    same = interval is not None and interval[0] <= 0 <= interval[1]
    return f"{statistics.fmean(values):.1f}{spread}{f' {NOT_APART}' if same else ''}"


def draw_speedrun(plan: SpeedrunPlan, progress: Progress, found: Mapping[str, Standing], outcomes: Outcomes) -> Figure:
    """Return the picture: the final loss of each run over its operations, a line per arm, and the target."""
    figure = Figure(figsize=(10, 5.5), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    for number, name in enumerate(found):
        factor, colour = progress.rate_factor(name), f"C{number % 10}"
        marker = "osD^v"[number // 10 % 5]
        by_length: dict[float, list[Outcome]] = {}
        for run, outcome in outcomes.items():
            if run.arm == name and run.rate_factor == factor:
                by_length.setdefault(run.length, []).append(outcome)
                panel.plot(outcome.flops / 1e12, outcome.loss, marker, color=colour, markersize=3, alpha=0.4)
        line = [
            (each[0].flops / 1e12, statistics.fmean(outcome.loss for outcome in each))
            for _, each in sorted(by_length.items())
        ]
        panel.plot(*zip(*line, strict=True), f"{marker}-", color=colour, label=plan.recipes[name].arm.title)
    if progress.target is not None:
        panel.axhline(progress.target, color="#444444", linestyle="--", linewidth=1)
        panel.annotate("target", (1.0, progress.target), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter("")
    panel.set_xlabel("operations of a whole run, TFLOP")
    panel.set_ylabel("held-out loss of masked words")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color="#e6e6e6", linewidth=0.8)
    if found:
        figure.legend(loc="outside right upper", fontsize=8)
    figure.suptitle(plan.speedrun.title, fontsize=11, parse_math=False)
    return figure


def _results(
    plan: SpeedrunPlan,
    progress: Progress,
    found: Mapping[str, Standing],
    outcomes: Outcomes,
    scores: Scores,
    failures: Mapping[str, str],
    machine: str,
) -> dict[str, Any]:
    return {
        "title": plan.speedrun.title,
        "base": to_dict(plan.base),
        "shares": {name: value.of_run for name, value in plan.shares.items()},
        "target": progress.target,
        "arms": [
            {
                "name": name,
                "title": recipe.arm.title,
                "on": recipe.arm.on,
                "options": plain(recipe.arm.options),
                "phases": [plain(phase) for phase in recipe.arm.phases],
                "standing": dataclasses.asdict(found[name]) if name in found else None,
            }
            for name, recipe in plan.recipes.items()
        ],
        "runs": [
            {"arm": run.arm, "learning_rate": plan.config(run).phases[-1].learning_rate, "rate_factor": run.rate_factor}
            | {"length": run.length, "seed": run.seed}
            | dataclasses.asdict(outcome)
            | {"scores": scores.get(run, {})}
            for run, outcome in sorted(outcomes.items(), key=lambda pair: pair[0].name)
        ],
        "failed": dict(failures),
        "hardware": machine,
        "commit": commit(),
        "versions": versions(),
    }


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an arm with shares of its steps in words."""
    shown = lambda value: f"{value.of_run:g} of the steps" if isinstance(value, Share) else value
    return {name: shown(value) for name, value in options.items()}

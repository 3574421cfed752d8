"""`bert-jax report`: runs side by side in one HTML file, which needs neither a server nor the network.

The page holds tables, one Plotly figure per metric with the curves of all runs, and the library that draws them.
Names and values come from anybody's files, so every text is escaped, data reach the script as JSON in which no "<" is
left, and a content security policy lets nothing run but the two scripts of this file.
"""

import dataclasses
import html
import json
import math
import os
import pathlib
import re
import secrets
import time
from typing import Any

import numpy as np

from bert_jax import __version__
from bert_jax.config import phase_of_step, resolve_phases
from bert_jax.config.options import flattened
from bert_jax.config.pretraining import ReportConfig
from bert_jax.errors import UserError, need_extra
from bert_jax.files import write_output
from bert_jax.tools.status import LOST, RunHistory, goodput, read_run, status
from bert_jax.training.events import EVENTS
from bert_jax.training.metrics import CATEGORIES, duration, read_rows, smoothed

COLOURS = ("#3b6fb6", "#d1495b", "#3a9a6b", "#e0902b", "#7a5bb5", "#2b9aa8", "#a8572b", "#6b6b6b")
MOST_POINTS = 2_000  # of a series; more make a page slow and show no more
LEFT_OUT = ("kind", "step", "skipped", "seconds_left", "steps_per_second", "sequences_per_second")
LAST = ("learning_rate", "grad_norm", "tokens_per_second", "token_share", "mfu")


def figures(runs: dict[str, RunHistory]) -> dict[str, dict[str, Any]]:
    """Return a figure for each metric that any of the runs, by their names on the page, has logged, in order."""
    names = {name for run in runs.values() for row in run.rows if row["kind"] != "time" for name in row}
    terms = [term for run in runs.values() for term in run.terms]
    first = dict.fromkeys(("loss", *(name for each in terms for name in (each.loss, each.accuracy, each.perplexity))))
    middle = sorted(names - {*LEFT_OUT, *first, *LAST})
    logarithmic = {"grad_norm", *(term.perplexity for term in terms)}
    shown = [name for name in (*first, *middle, *LAST) if name in names]
    return {name: _figure(name, runs, name in logarithmic) for name in shown}


def _figure(metric: str, runs: dict[str, RunHistory], logarithmic: bool) -> dict[str, Any]:
    traces, shapes, baselines = [], [], []
    for number, (name, run) in enumerate(runs.items()):
        colour = COLOURS[number % len(COLOURS)]
        traces += _traces(metric, name, run, colour)
        shapes += _marks(run, colour)
        baselines += _baselines(metric, run, colour)
    for line in baselines[1:]:  # one name for all, which are close to each other
        del line["label"]
    axis = {"title": {"text": "step"}, "rangemode": "tozero"}
    is_share = metric.endswith("accuracy") or metric == "mfu"
    scale = {"type": "log"} if logarithmic else {"tickformat": ".1%"} if is_share else {}
    longest = {"namelength": -1}  # by default 15 letters of a name, by which runs cannot be told apart
    return figure(traces, axis, scale, {"shapes": shapes + baselines, "hovermode": "x", "hoverlabel": longest})


def figure(
    traces: list[dict[str, Any]], below: dict[str, Any], left: dict[str, Any], layout: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a figure of Plotly; `below` and `left` are added to its axes, `layout` to its layout."""
    return {
        "data": traces,
        "layout": {
            "xaxis": {"gridcolor": "#e6e6e6", **below},
            "yaxis": {"gridcolor": "#e6e6e6", "zeroline": False, **left},
            "height": 340,
            "margin": {"l": 55, "r": 15, "t": 10, "b": 45},
            "legend": {"orientation": "h", "y": -0.28},
            **(layout or {}),
        },
    }


def _traces(metric: str, name: str, run: RunHistory, colour: str) -> list[dict[str, Any]]:
    """Return the steps of a run as a smooth line over a pale one, and its held-out figures as points."""
    shown, traces = html.escape(name), []  # Plotly reads some tags in names
    steps, values = _series(run.of_kind("train"), metric)
    if len(steps):
        line = values if metric == "learning_rate" else smoothed(values, len(values) // 50)
        (at, pale), (_, strong) = _thinned(steps, values), _thinned(steps, line)
        if metric != "learning_rate":
            faint = {"color": colour, "width": 1}
            silent = {"showlegend": False, "hoverinfo": "skip"}
            traces.append({"x": at, "y": pale, "line": faint, "opacity": 0.25, **silent})
        traces.append({"x": at, "y": strong, "name": f"{shown}, training", "line": {"color": colour, "width": 2}})
    steps, values = _series(run.of_kind("evaluation"), metric)
    if len(steps):
        at, points = _thinned(steps, values)
        dashed = {"color": colour, "dash": "dot", "width": 1.5}
        held_out = {"x": at, "y": points, "name": f"{shown}, held out", "line": dashed, "mode": "lines+markers"}
        traces.append(held_out)
    return [{"type": "scatter", "mode": "lines", **trace} for trace in traces]


def _series(rows: list[dict[str, Any]], metric: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(row["step"], row[metric]) for row in rows if metric in row]
    return np.array([step for step, _ in pairs], float), np.array([value for _, value in pairs], float)


def _thinned(steps: np.ndarray, values: np.ndarray) -> tuple[list[float], list[float | None]]:
    """Return at most `MOST_POINTS` points, each the mean of its neighbours; None, a hole, where none is finite."""
    parts = min(len(steps), MOST_POINTS)
    where = np.arange(len(steps)) * parts // max(1, len(steps))
    finite = np.isfinite(values)
    counts = np.bincount(where, finite, parts)
    sums = np.bincount(where, np.where(finite, values, 0.0), parts)
    at = np.bincount(where, steps, parts) / np.maximum(np.bincount(where, minlength=parts), 1)
    means = [float(f"{total / count:.6g}") if count else None for total, count in zip(sums, counts, strict=True)]
    return [round(float(step), 1) for step in at], means


def _marks(run: RunHistory, colour: str) -> list[dict[str, Any]]:
    """Return a vertical line for each event that explains a kink."""
    marks = []
    for row in run.events:
        mark = EVENTS[row["event"]].mark if row["event"] in EVENTS else ""  # the file may hold anything
        if row["event"] == "phase":  # also told where a run resumes within one
            mark = f"{mark} {row.get('phase')!s:.4}" if 0 < row["step"] == row.get("begin") else ""
        if mark and (row["event"] != "start" or row.get("resumed") is True):
            label = {"text": mark, "textangle": 90, "font": {"size": 9, "color": colour}}
            place = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": row["step"], "x1": row["step"]}
            marks.append({**place, "line": {"color": colour, "width": 1, "dash": "dash"}, "label": label})
    return marks[-100:]


def _baselines(metric: str, run: RunHistory, colour: str) -> list[dict[str, Any]]:
    """Return a horizontal line for each phase where word frequencies alone come to, as wide as the phase is so far."""
    config, newest, found = run.config, max((row["step"] for row in run.rows), default=0), {}
    for row in run.happened("baseline"):
        value = row.get(metric)
        if isinstance(value, float) and math.isfinite(value):
            found[0 if config is None else phase_of_step(config, row["step"] + 1)] = value
    places: list[dict[str, Any]] = [{"xref": "paper", "x0": 0, "x1": 1}]
    if config is not None and len(config.phases) > 1:
        places = [{"x0": phase.begin, "x1": min(phase.end, newest)} for phase in resolve_phases(config)]
    label = {"text": "word frequencies alone", "textposition": "end", "font": {"size": 9}}
    line = {"color": colour, "width": 1, "dash": "dot"}
    return [
        {"type": "line", **places[phase], "y0": value, "y1": value, "line": line, "label": label}
        for phase, value in found.items()
    ]


PAGE = pathlib.Path(__file__).with_name("report.html")
"""The page, with names in double braces for what differs between pages."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A section of the page."""

    title: str
    head: list[str]
    rows: list[list[str]]
    nothing: str = ""
    """Text in place of rows if there are none."""
    folded: tuple["Table", ...] = ()
    """Tables below it that open on a click."""


def page(
    title: str, figures: dict[str, dict[str, Any]], tables: list[Table], now: float, heading: str = "Curves"
) -> str:
    """Return the page.

    Args:
      figures: figures of Plotly, by heading.
      tables: the first one goes above the figures, the others below.
      now: time of the page, in seconds since 1970.
      heading: that of the figures.
    """
    from plotly.offline import get_plotlyjs  # 4.8 MB of text

    nonce = secrets.token_urlsafe(16)
    policy = f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data: blob:"
    charts = "".join(
        f'<div><h3>{html.escape(name)}</h3><div id="chart-{number}"></div></div>' for number, name in enumerate(figures)
    )
    data = json.dumps(list(figures.values()), allow_nan=False).replace("<", "\\u003c")
    first, *others = (_section(table) for table in tables)
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    values = {
        **{"policy": html.escape(policy), "nonce": nonce, "title": html.escape(title), "heading": html.escape(heading)},
        **{"first": first, "charts": charts or "<p>No run has logged a step yet.</p>", "others": "".join(others)},
        **{"version": html.escape(__version__), "made": made, "data": data, "plotly": get_plotlyjs()},
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda name: values[name[1]], PAGE.read_text(encoding="utf-8"))


def _section(table: Table) -> str:
    body = _table(table) if table.rows else f"<p>{html.escape(table.nothing)}</p>"
    folded = "".join(
        f"<details><summary>{html.escape(each.title)}</summary>{_table(each)}</details>" for each in table.folded
    )
    return f"<h2>{html.escape(table.title)}</h2>{body}{folded}"


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.head)
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in table.rows)
    return f'<div class="scroll"><table><tr>{head}</tr>\n{rows}</table></div>'


UNTOLD = ("time", "event", "step", "versions", "norms", "terms")  # of an event: they have a column, or are too long
MOST_EVENTS = 200  # per run, the newest
MOST_RUNS = 32
MOST_STEPS = 8  # columns of a table of sample predictions
NO_SAMPLES = "None were noted; pretrain --evaluation.samples=4 notes those of four sequences at each evaluation."


def run_report(paths: list[str], config: ReportConfig) -> int:
    """Write a page that compares the runs in these work directories; return the size of the file in bytes.

    Args:
      paths: work directories, local or gs://. Each run of a fine-tuning directory is a run of its own.

    Raises:
      UserError: a path is not a work directory, there are too many runs, plotly is not installed, or the file cannot be
        written.
    """
    need_extra("plotly", "report", "bert-jax report")
    runs = named([run for path in paths for run in runs_below(path)])
    if len(runs) > MOST_RUNS:
        raise UserError(f"{len(runs)} runs are more than a page can compare; give at most {MOST_RUNS}")
    now = time.time()
    tables = [summary(runs, now), time_spent(runs), held_out(runs), sampled(runs), differing(runs), events(runs)]
    content = page(" · ".join(runs), figures(runs), tables, now).encode()
    write_output(config.output, content)
    shown = f"{len(runs)} run" + "s" * (len(runs) > 1)
    print(f"{config.output}: {shown}, {len(content) / 1e6:.1f} MB; open it in any browser")
    return len(content)


def runs_below(path: str) -> list[RunHistory]:
    """Return the run in work directory `path`, or each run of a fine-tuning directory."""
    run = read_run(path)
    found = sorted((run.path / "runs").glob("*")) if run.is_finetuning else []
    return [
        dataclasses.replace(
            run,
            path=each,
            home=run.path,
            rows=read_rows(each / "metrics.jsonl"),
            events=_events_of(run.events, each.name),
            problems=[],
        )
        for each in found
    ] or [run]


def _events_of(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return those of one run of a fine-tuning: from each of its starts to the next start."""
    found, current = [], None
    for row in events:
        current = row.get("run") if row["event"] == "start" else current
        found += [row] * (current == name)
    return found


def named(runs: list[RunHistory]) -> dict[str, RunHistory]:
    """Return the runs by name: that of the directory, or its whole path where two have one name."""
    names = [run.name for run in runs]
    paths = [os.fspath(run.path) for run in runs]
    return {path if names.count(name) > 1 else name: run for name, path, run in zip(names, paths, runs, strict=True)}


def summary(runs: dict[str, RunHistory], now: float) -> Table:
    rows = []
    for name, run in runs.items():
        facts = status(run, now)
        step = facts.get("step", max((row["step"] for row in run.rows), default=0))
        done = f"{step:,}" + (f" of {facts['total_steps']:,}" if "total_steps" in facts else "")
        state = "finished" if facts.get("finished") else "running" if facts["process"] else "not running"
        spent = f"{facts['goodput']['share']:.1%}" if "goodput" in facts else ""
        rate = facts.get("rates", {}).get("tokens_per_second")
        speed = f"{rate:,.0f}" if isinstance(rate, float) else ""
        done += f", phase {facts['phase']['number']} (of {facts['phase']['of']})" if "phase" in facts else ""
        parent = facts.get("branched_from")
        done += f", branch of {parent['path']} from step {parent['step']:,}" if parent else ""
        rows.append([name, os.fspath(run.path), done, state, speed, spent, "; ".join(facts["alarms"])])
    head = ["run", "work directory", "step", "state", "tokens/s", "goodput", "alarms"]
    return Table("Runs", head, rows)


def time_spent(runs: dict[str, RunHistory]) -> Table:
    head, rows = ["run", *CATEGORIES, LOST, "total"], []
    for name, run in runs.items():
        if (found := goodput(run.rows)) is not None:
            rows.append([name, *(duration(found.seconds[category]) for category in head[1:-1]), duration(found.total)])
    return Table("What the time went to", head, rows, "No run has logged any yet.")


def held_out(runs: dict[str, RunHistory]) -> Table:
    """Return the last figures of each run and those of the step of that phase with the lowest main loss."""
    evaluations = {name: run.of_kind("evaluation") for name, run in runs.items()}
    metrics = list(dict.fromkeys(key for rows in evaluations.values() for row in rows for key in row))
    metrics = [metric for metric in metrics if metric not in ("kind", "step")]
    found: list[tuple[str, str, dict[str, Any]]] = []
    for name, rows in evaluations.items():
        main, chosen = runs[name].main_loss, {"last": rows[-1]} if rows else {}
        if len(comparable := runs[name].of_last_phase(rows)) > 1 and any(main in row for row in comparable):
            chosen["best"] = min(comparable, key=lambda row: row.get(main, float("inf")))
        found += [(name, which, row) for which, row in chosen.items()]
    metrics = [metric for metric in metrics if any(metric in row for *_, row in found)]  # not those of earlier phases
    shown = lambda row: [f"{row[metric]:.4g}" if metric in row else "" for metric in metrics]
    table = [[name, which, _step(runs[name], row["step"]), *shown(row)] for name, which, row in found]
    return Table("Held-out figures", ["run", "which", "step", *metrics], table, "No run has been evaluated yet.")


def _step(run: RunHistory, step: int) -> str:
    """Return a step and, if the run has several phases, the one that took it."""
    config = run.config
    phase = "" if config is None or len(config.phases) == 1 else f", phase {phase_of_step(config, step)}"
    return f"{step:,}{phase}"


def sampled(runs: dict[str, RunHistory]) -> Table:
    """Return, for each masked word of the sequences that the runs have noted, what was filled in at which step."""
    folded = []
    for name, run in runs.items():
        noted = {row["step"]: row["samples"] for row in run.happened("sampled") if is_samples(row.get("samples"))}
        steps = sorted(noted)
        places = np.unique(np.linspace(0, len(steps) - 1, MOST_STEPS).round().astype(int)) if steps else []
        shown = [steps[place] for place in places]
        for number, sample in enumerate(noted[shown[-1]] if shown else []):
            cells = [[_filled(noted[step], number, slot) for step in shown] for slot in range(len(sample["masks"]))]
            rows = [[mask["word"], *row] for mask, row in zip(sample["masks"], cells, strict=True)]
            head = ["masked word", *(f"step {step:,}" for step in shown)]
            folded.append(Table(f"{name}: {sample['text']}", head, rows))
    nothing = "The same held-out sequences at several steps; open one." if folded else NO_SAMPLES
    return Table("Sample predictions over time", [], [], nothing, folded=tuple(folded))


def is_samples(value: Any) -> bool:
    """Return whether a value from events.jsonl has the form that `training.evaluation.Samples` writes."""
    if not isinstance(value, list):
        return False
    return all(
        isinstance(sample, dict)
        and isinstance(sample.get("text"), str)
        and isinstance(sample.get("masks"), list)
        and all(isinstance(mask, dict) and isinstance(mask.get("word"), str) for mask in sample["masks"])
        for sample in value
    )


def _filled(samples: list[dict[str, Any]], number: int, slot: int) -> str:
    """Return the candidates for one mask in words: cat 41%, dog 7%."""
    masks = samples[number]["masks"] if number < len(samples) else []
    candidates = masks[slot].get("candidates") if slot < len(masks) else None
    pairs = candidates if isinstance(candidates, list) else []
    words = [
        f"{pair[0]} {pair[1]:.0%}"
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], (int, float))
    ]
    return ", ".join(words)


def differing(runs: dict[str, RunHistory]) -> Table:
    """Return the options in which the runs differ."""
    flat = {name: _texts(run.settings) for name, run in runs.items()}
    keys = sorted({key for options in flat.values() for key in options})
    values = {key: [str(options.get(key, "")) for options in flat.values()] for key in keys}
    told = lambda shown: {"" if value == "None" else value for value in shown}  # no such phase, or no change
    rows = [[key, *shown] for key, shown in values.items() if len(told(shown)) > 1]
    nothing = "All options are the same." if len(runs) > 1 else "There is one run."
    whole = [
        Table(f"All options of {name}", ["option", "value"], [list(pair) for pair in options.items()])
        for name, options in flat.items()
    ]
    return Table("Options that differ", ["option", *runs], rows, nothing, folded=tuple(whole))


def _texts(options: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in flattened(options).items()}


def _in_words(value: Any) -> str:
    """Return a detail of an event without the brackets of Python."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def events(runs: dict[str, RunHistory]) -> Table:
    rows, shown = [], {name for name, kind in EVENTS.items() if kind.is_told}
    for name, run in runs.items():
        for row in [row for row in run.events if row["event"] in shown][-MOST_EVENTS:]:
            details = {key: value for key, value in row.items() if key not in UNTOLD}
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(max(0.0, min(row["time"], 2**40))))
            told = ", ".join(f"{key} {_in_words(value)}" for key, value in details.items() if value not in ({}, []))[
                :300
            ]
            rows.append([name, when, row["event"], f"{row['step']:,}", told])
    return Table("Events (UTC)", ["run", "time", "event", "step", "details"], rows, "Nothing has happened yet.")

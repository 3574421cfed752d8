"""The curves of several runs as figures of Plotly: plain dicts, one figure per metric."""

import html
import math
from typing import Any

import numpy as np

from bert_jax.monitoring.run_history import RunHistory
from bert_jax.training.curves import smoothed
from bert_jax.training.events import EVENTS

COLOURS = ("#3b6fb6", "#d1495b", "#3a9a6b", "#e0902b", "#7a5bb5", "#2b9aa8", "#a8572b", "#6b6b6b")
MOST_POINTS = 2_000  # of a series; more make a page slow and show no more
LEFT_OUT = ("kind", "step", "skipped", "seconds_left", "steps_per_second", "sequences_per_second")
LAST = ("learning_rate", "grad_norm", "tokens_per_second", "token_share", "mfu")


def figures(runs: dict[str, RunHistory]) -> dict[str, dict[str, Any]]:
    """Return a figure for each metric that any of the runs has logged, by name, in reading order.

    Args:
      runs: by the name that the page shows.
    """
    names = {name for run in runs.values() for row in run.rows if row["kind"] != "time" for name in row}
    terms = [term for run in runs.values() for term in run.terms]
    first = dict.fromkeys(("loss", *(name for each in terms for name in (each.loss, each.accuracy, each.perplexity))))
    middle = sorted(names - {*LEFT_OUT, *first, *LAST})
    logarithmic = {"grad_norm", *(term.perplexity for term in terms)}
    shown = [name for name in (*first, *middle, *LAST) if name in names]
    return {name: _figure(name, runs, name in logarithmic) for name in shown}


def _figure(metric: str, runs: dict[str, RunHistory], logarithmic: bool) -> dict[str, Any]:
    traces, shapes = [], []
    for number, (name, run) in enumerate(runs.items()):
        colour = COLOURS[number % len(COLOURS)]
        traces += _traces(metric, name, run, colour)
        shapes += _marks(run, colour) + _baseline(metric, run, colour)
    axis = {"title": {"text": "step"}, "rangemode": "tozero", "gridcolor": "#e6e6e6"}
    scale = {"type": "log"} if logarithmic else {"tickformat": ".1%"} if _is_share(metric) else {}
    return {
        "data": traces,
        "layout": {
            "xaxis": axis,
            "yaxis": {"gridcolor": "#e6e6e6", "zeroline": False, **scale},
            "shapes": shapes,
            "hovermode": "x",
            "hoverlabel": {"namelength": -1},  # by default 15 letters of a name, by which runs cannot be told apart
            "height": 340,
            "margin": {"l": 55, "r": 15, "t": 10, "b": 45},
            "legend": {"orientation": "h", "y": -0.28},
        },
    }


def _is_share(metric: str) -> bool:
    return metric.endswith("accuracy") or metric == "mfu"


def _traces(metric: str, name: str, run: RunHistory, colour: str) -> list[dict[str, Any]]:
    """Return the steps of a run as a smooth line over a pale one, and its held-out figures as points."""
    shown, traces = html.escape(name), []  # Plotly reads some tags in names
    steps, values = _series(run.of_kind("train"), metric)
    if len(steps):
        line = values if metric == "learning_rate" else smoothed(values, len(values) // 50)
        (at, pale), (_, strong) = _thinned(steps, values), _thinned(steps, line)
        if metric != "learning_rate":
            faint = {"color": colour, "width": 1}
            traces.append(
                {"x": at, "y": pale, "line": faint, "opacity": 0.25, "showlegend": False, "hoverinfo": "skip"}
            )
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
        if mark and (row["event"] != "start" or row.get("resumed") is True):
            label = {"text": mark, "textangle": 90, "font": {"size": 9, "color": colour}}
            place = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": row["step"], "x1": row["step"]}
            marks.append({**place, "line": {"color": colour, "width": 1, "dash": "dash"}, "label": label})
    return marks[-100:]


def _baseline(metric: str, run: RunHistory, colour: str) -> list[dict[str, Any]]:
    """Return a horizontal line where word frequencies alone come to."""
    for row in reversed(run.happened("baseline")):
        value = row.get(metric)
        if isinstance(value, float) and math.isfinite(value):
            label = {"text": "word frequencies alone", "textposition": "end", "font": {"size": 9}}
            place = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value}
            return [{**place, "line": {"color": colour, "width": 1, "dash": "dot"}, "label": label}]
    return []

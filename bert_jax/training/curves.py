"""The picture of a run: losses, accuracies and learning rate over its steps, from metrics.jsonl."""

import io
import math
import os
from typing import Any

import numpy as np

from bert_jax.files import write_atomically
from bert_jax.objectives.objective import Term
from bert_jax.training.sinks import read_rows

TRAIN, HELD_OUT, BASELINE = "#3b6fb6", "#d1495b", "#8a8a8a"


def draw_curves(
    metrics_file: str | os.PathLike[str],
    picture: str | os.PathLike[str],
    terms: tuple[Term, ...],
    unigram: dict[str, float] | None = None,
    title: str = "",
) -> bool:
    """Write a PNG with the panels of each term and one panel for the learning rate, two per row.

    Args:
      metrics_file: metrics.jsonl of the run.
      picture: file to write.
      terms: terms of the objective.
      unigram: metrics by name of predicting from word frequencies alone, drawn as dashed lines.
      title: heading of the picture.

    Returns:
      True; False, without a picture, if there are fewer than two training rows.
    """
    rows = read_rows(metrics_file)
    train = [row for row in rows if row["kind"] == "train"]
    held_out = [row for row in rows if row["kind"] == "evaluation"]
    if len(train) < 2:
        return False
    # Takes a second to import; this canvas needs no global state and no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [(f"{term.title}: {kind}", *_metric(term, kind)) for term in terms for kind in term.panels]
    rows_of_panels = -(-(len(panels) + 1) // 2)
    height = 3.2 * rows_of_panels
    figure = Figure(figsize=(10, height), facecolor="white")
    # Margins in inches: a layout that Matplotlib computes takes as long as all the rest.
    figure.subplots_adjust(0.075, 0.5 / height, 0.98, 1 - 0.7 / height, wspace=0.2, hspace=0.45)
    FigureCanvasAgg(figure)
    places = list(figure.subplots(rows_of_panels, 2, squeeze=False).flat)
    for axes, (heading, name, unit) in zip(places, panels, strict=False):
        _panel(axes, heading, unit, name, train, held_out, (unigram or {}).get(name))
    _panel(places[len(panels)], "Learning rate", "", "learning_rate", train, [], None)
    for axes in places[len(panels) + 1 :]:
        axes.set_axis_off()
    if title:
        figure.suptitle(title, fontsize=14)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    write_atomically(picture, buffer.getvalue())
    return True


def _metric(term: Term, kind: str) -> tuple[str, str]:
    """Return the name and unit of one metric of a term."""
    return (term.loss, term.unit) if kind == "loss" else (term.accuracy, "%")


def smoothed(values: np.ndarray, reach: int) -> np.ndarray:
    """Return the mean over up to `reach` values on either side; NaNs are skipped.

    A running mean over the past alone would lag behind training, so that held-out figures would look better than it.
    """
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    places = np.arange(len(values))
    low, high = np.maximum(places - reach, 0), np.minimum(places + reach + 1, len(values))
    with np.errstate(invalid="ignore"):
        return (sums[high] - sums[low]) / (counts[high] - counts[low])


def _panel(axes: Any, title: str, unit: str, name: str, train: Any, held_out: Any, baseline: Any) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    steps, values = _series(train, name)
    scale = 100 if unit == "%" else 1
    if name == "learning_rate" and len(values) and values.max() > 0:
        exponent = math.floor(math.log10(values.max()))
        scale, unit = 10.0**-exponent, f"$\\times\\,10^{{{exponent}}}$"
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.set_ylabel(unit)
    axes.set_xlabel("step")
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    if not len(steps):
        axes.text(
            0.5, 0.5, "not measured in this run", transform=axes.transAxes, ha="center", va="center", color=BASELINE
        )
        return
    noisy = name != "learning_rate"
    if noisy:
        axes.plot(steps, scale * values, color=TRAIN, alpha=0.22, linewidth=0.8)
    line = smoothed(values, len(values) // 50) if noisy else values
    axes.plot(steps, scale * line, color=TRAIN, linewidth=1.8, label="training" if noisy else None)
    places, points = _series(held_out, name)
    if len(places):
        axes.plot(places, scale * points, color=HELD_OUT, marker="o", markersize=4, linewidth=1.2, label="held out")
    for number, key in enumerate(sorted({key for row in held_out for key in row if key.endswith(f"/{name}")})):
        places, points = _series(held_out, key)  # of one store of a mixture
        axes.plot(places, scale * points, color=f"C{number + 2}", linewidth=1.0, label=key.rpartition("/")[0])
    if baseline is not None:
        axes.axhline(scale * baseline, color=BASELINE, linestyle="--", linewidth=1.2, label="token frequencies alone")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)


def _series(rows: list[dict[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(row["step"], row[name]) for row in rows if name in row]
    return np.array([step for step, _ in pairs]), np.array([value for _, value in pairs])

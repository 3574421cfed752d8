"""The picture of a study: a panel for each measure, and one for each column of the papers."""

import io
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from etils import epath

from bert_jax.config.studying import Study
from bert_jax.files import write_atomically
from bert_jax.studies.study_summary import Column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, THEIRS = "#1f6fb4", "#d9822b"
PER_ROW = 4


def draw_study(study: Study, columns: list[Column]) -> "Figure":
    """Return the picture: our means, their deviation over seeds, every seed as a point; and the paper's figures."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # takes a second to import
    from matplotlib.figure import Figure

    published = {name: rows for each in study.published for name, rows in each.figures.items()}
    count = len(columns) + len(published)
    across = min(count, PER_ROW)
    down = -(-count // across)
    names = _on_axis(study)
    height = 2.9 if names is not None else 1.0 + 0.32 * len(study.arms)
    figure = Figure(figsize=(3.6 * across + 1.4, height * down + 0.6), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for panel, each, measure in zip(panels, columns, study.measures, strict=False):
        _draw_ours(panel, study, each, measure.scale)
        _finish(panel, study, each.heading + (" (%)" if measure.scale == 100 else ""), OURS)
    for panel, (name, rows) in zip(panels[len(columns) :], published.items(), strict=False):
        _draw_theirs(panel, study, rows)
        _finish(panel, study, f"{name} (paper)", THEIRS)
    for number, panel in enumerate(panels):
        if number >= count:
            panel.set_axis_off()
        elif number % across and names is None:  # the names of the arms are before the first panel of a row
            panel.set_yticklabels([])
    figure.suptitle(study.title, fontsize=11, parse_math=False)
    return figure


def write_picture(figure: "Figure", directory: str | os.PathLike[str]) -> None:
    """Write picture.png into a directory."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_atomically(epath.Path(directory) / "picture.png", buffer.getvalue())


def _on_axis(study: Study) -> list[float] | None:
    """Return the places of the arms on an axis of numbers; None if one of them has none."""
    places = [arm.x for arm in study.arms if arm.x is not None]
    return places if len(places) == len(study.arms) else None


def _draw_ours(panel: "Axes", study: Study, column: Column, scale: int) -> None:
    places, upright = _on_axis(study), []
    for row, arm in enumerate(study.arms):
        if (found := column.figures.get(arm.name)) is None:
            continue
        mean, spread = scale * found.mean, None if found.deviation is None else scale * found.deviation
        points = [scale * value for value in found.values]
        if places is None:
            panel.scatter(points, [row] * len(points), s=10, color=OURS, alpha=0.45)
            panel.errorbar(mean, row, xerr=spread, fmt="o", color=OURS, capsize=3)
        else:
            panel.scatter([places[row]] * len(points), points, s=10, color=OURS, alpha=0.45)
            panel.errorbar(places[row], mean, yerr=spread, fmt="o", color=OURS, capsize=3)
            upright.append((places[row], mean))
    panel.plot(*zip(*sorted(upright), strict=True), color=OURS) if upright else None


def _draw_theirs(panel: "Axes", study: Study, rows: Mapping[str, float]) -> None:
    places = _on_axis(study)
    there = [(row, rows[arm.name]) for row, arm in enumerate(study.arms) if arm.name in rows]
    if places is None:
        panel.scatter([value for _, value in there], [row for row, _ in there], color=THEIRS, marker="D")
    else:
        panel.plot(*zip(*sorted((places[row], value) for row, value in there), strict=True), "D-", color=THEIRS)


def _finish(panel: "Axes", study: Study, title: str, colour: str) -> None:
    panel.set_title(title, fontsize=9, loc="left", color=colour, parse_math=False)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color="#e6e6e6", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(labelsize=8)
    if (places := _on_axis(study)) is None:
        panel.set_yticks(range(len(study.arms)), [arm.title for arm in study.arms], parse_math=False)
        panel.set_ylim(len(study.arms) - 0.5, -0.5)  # the first arm on top, also where an arm has no figure
        return
    panel.set_xlabel(study.axis, fontsize=8, parse_math=False)
    if study.log_axis:
        panel.set_xscale("log")
    panel.set_xticks(places, [arm.title for arm in study.arms], parse_math=False)
    panel.minorticks_off()

"""Picture of probes: score by layer, a panel per task."""

from typing import TYPE_CHECKING

import numpy as np

from bert_jax.analysis.pictures import new_figure, plain_frame, short_path
from bert_jax.analysis.probing.layer_probes import LayerProbes
from bert_jax.analysis.probing.task_probes import TaskProbes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3


def draw_probes(result: LayerProbes) -> "Figure":
    """Return a panel per task: the score by layer and of the mix, its control and its baseline."""
    columns = min(COLUMNS, len(result.tasks))
    rows = -(-len(result.tasks) // columns)
    figure = new_figure(4.4 * columns, 3.0 * rows + 0.4)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    names = [*("emb" if layer == 0 else str(layer) for layer in result.layers), "mix"]
    for axes, task in zip(panels, result.tasks, strict=False):
        _draw_task(axes, task, names)
    for axes in panels[len(result.tasks) :]:
        axes.set_visible(False)
    panels[0].legend(frameon=False, fontsize=8)
    figure.suptitle(f"{short_path(result.model)}: linear probes, {result.seeds} seeds", fontsize=11, parse_math=False)
    return figure


def _draw_task(axes: "Axes", task: TaskProbes, names: list[str]) -> None:
    places, last = np.arange(len(names)), len(names) - 1
    error = np.nan_to_num(task.interval)
    (line,) = axes.plot(places[:last], task.mean[:last], marker="o", label="probe")
    axes.errorbar(places, task.mean, yerr=error, fmt="o", color=line.get_color(), capsize=3)
    axes.plot(places, task.mean - task.selectivity, linestyle="--", marker=".", color="#d1751f", label="control task")
    axes.axhline(task.baseline.mean(), color="#8a8a8a", linewidth=0.9, linestyle=":", label="most frequent label")
    axes.set_xticks(places, names)
    axes.set_ylabel(task.metric)
    title = f"{task.task}, centre {task.centre_of_gravity.mean():.2f}"
    axes.set_title(title, loc="left", fontsize=10, parse_math=False)
    plain_frame(axes)

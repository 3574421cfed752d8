"""The picture of a removal of layers."""

from typing import TYPE_CHECKING

import numpy as np

from bert_jax.analysis.pictures import new_figure, plain_frame, short_path, write_numbers
from bert_jax.analysis.pruning.layer_removal import Pruning

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = {"cka": ("#1f77b4", "guided by CKA"), "top": ("#d62728", "top layers"), "random": ("#8a8a8a", "random layers")}


def draw_pruning(result: Pruning) -> "Figure":
    """Return a panel for each measure over the number of layers, and the candidates of every step of the removal."""
    names = {"similarity": "CKA with the whole model", "mlm_accuracy": "MLM accuracy", "score": result.score_name}
    shown = [name for name in names if not np.isnan(getattr(result.curves[0], name)).all()]
    steps, count = result.candidates.shape
    figure = new_figure(4.0 * len(shown) + 1.6 + 0.45 * count, 3.8)
    panels = figure.subplots(1, len(shown) + 1, width_ratios=[*[1.0] * len(shown), (1.0 + 0.45 * count) / 4.0])
    for axes, name in zip(panels, shown, strict=False):
        _curves(axes, result, name)
        axes.set_title(names[name], loc="left", parse_math=False)
    panels[0].legend(frameon=False, fontsize=9)
    panels[-1].imshow(result.candidates, cmap="viridis", vmin=0.0, vmax=1.0)
    write_numbers(panels[-1], result.candidates)
    panels[-1].set_xticks(range(count))
    panels[-1].set_yticks(range(steps), [f"{depth - 1}" for depth in result.depths[:-1]])
    panels[-1].set_xlabel("layer left out")
    panels[-1].set_ylabel("layers left")
    panels[-1].set_title("CKA of each candidate", loc="left")
    heading = f"{short_path(result.model)}: {result.texts:,} texts, vectors: {result.vectors}"
    figure.suptitle(heading, fontsize=11, parse_math=False)
    return figure


def _curves(axes: "Axes", result: Pruning, name: str) -> None:
    labelled: set[str] = set()
    for curve in (*result.curves[2:], *result.curves[:2]):  # the random ones below the others
        colour, label = STYLES[curve.order]
        width = 1.0 if curve.order == "random" else 2.0
        axes.plot(
            result.depths,
            getattr(curve, name),
            marker="o",
            markersize=4,
            color=colour,
            linewidth=width,
            label=None if label in labelled else label,
        )
        labelled.add(label)
    axes.set_xticks(result.depths)
    axes.invert_xaxis()
    axes.set_xlabel("layers")
    plain_frame(axes)

"""The pictures of a model before its first step."""

from typing import TYPE_CHECKING

import numpy as np

from bert_jax.analysis.pictures import layer_names, new_figure, plain_frame, short_path
from bert_jax.analysis.signal.attention_norm import AttentionNorm
from bert_jax.analysis.signal.depth_growth import KINDS, DepthGrowth
from bert_jax.analysis.signal.initialisation import Initialisation
from bert_jax.analysis.signal.position_similarity import PositionSimilarity
from bert_jax.analysis.signal.step_costs import StepCosts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_initialisation(result: Initialisation) -> "Figure":
    """Return six panels: norm of attention, states, gradients, the last gradient, operations, memory."""
    figure = new_figure(13.0, 7.4)
    panels = figure.subplots(2, 3)
    _norms(panels[0, 0], result.norm)
    _growth(panels[0, 1], panels[0, 2], panels[1, 0], result.growth)
    _costs(panels[1, 1], panels[1, 2], result.costs)
    for axes in panels.flat:
        plain_frame(axes)
    figure.suptitle(f"{short_path(result.model)} before its first step", fontsize=11, parse_math=False)
    return figure


def draw_positions(result: PositionSimilarity, name: str = "") -> "Figure":
    """Return a map of cosines for each table, and the mean cosine by distance."""
    count = len(result.tables)
    figure = new_figure(3.6 * (count + 1), 3.6)
    panels = figure.subplots(1, count + 1)
    for axes, table, matrix in zip(panels, result.tables, result.maps, strict=False):
        ends = (result.rows[0], result.rows[-1])
        axes.imshow(matrix, cmap="RdBu_r", vmin=-1.0, vmax=1.0, origin="lower", extent=(*ends, *ends))
        axes.set_title(table, loc="left")
        axes.set_xlabel("position")
    figure.colorbar(panels[0].images[0], ax=panels[count - 1], label="cosine", shrink=0.8)
    for table, values in zip(result.tables, result.by_distance, strict=True):
        panels[-1].plot(values, label=table)
    panels[-1].plot(result.predicted, color="black", linestyle=":", label="sinusoids, closed form")
    panels[-1].set_title("Mean cosine by distance", loc="left")
    panels[-1].set_xlabel("distance")
    panels[-1].legend(frameon=False, fontsize=8)
    plain_frame(panels[-1])
    figure.suptitle(
        f"{short_path(name)}: position tables" if name else "Position tables", fontsize=11, parse_math=False
    )
    return figure


def _norms(axes: "Axes", norm: AttentionNorm) -> None:
    places = np.arange(len(norm.heads))
    axes.errorbar(places, norm.ratio, yerr=2 * norm.standard_error, fmt="o", capsize=4, label="measured ± 2 errors")
    axes.axhline(1.0, color="black", linestyle=":", label="law")
    axes.set_xticks(places, list(map(str, norm.heads)))
    axes.set_xlabel("heads")
    axes.set_title("Squared norm of attention / law", loc="left")
    axes.legend(frameon=False, fontsize=9)


def _growth(states: "Axes", gradients: "Axes", last: "Axes", growth: DepthGrowth) -> None:
    names = layer_names(growth.state.shape[1])
    for kind, values, gradient, ending in zip(KINDS, growth.state, growth.gradient, growth.last_gradient, strict=True):
        states.plot(values, marker="o", label=f"{kind}-norm")
        gradients.plot(range(1, len(names)), gradient, marker="o", label=f"{kind}-norm")
        last.plot(growth.depths, ending, marker="o", label=f"{kind}-norm")
    states.plot(growth.predicted_state, color="black", linestyle=":", label="pre-norm, theory")
    last.plot(
        growth.depths,
        growth.last_gradient[0] / growth.predicted_ratio,
        color="black",
        linestyle=":",
        label="pre-norm, from post by theory",
    )
    states.set_title("Root mean square of states", loc="left")
    gradients.set_title("Gradient norm by layer", loc="left")
    last.set_title("Gradient of the last layer's output kernel", loc="left")
    for axes, label in ((states, "layer"), (gradients, "layer"), (last, "depth of the model")):
        axes.set_xlabel(label)
        axes.legend(frameon=False, fontsize=9)
    states.set_xticks(range(len(names)), names)
    gradients.set_xticks(range(1, len(names)), names[1:])
    last.set_xticks(growth.depths)
    gradients.set_ylim(bottom=0)
    last.set_ylim(bottom=0)


def _costs(operations: "Axes", memory: "Axes", costs: StepCosts) -> None:
    for axes, measured, closed, title in (
        (operations, costs.flops, costs.closed_flops, "Operations per sequence"),
        (memory, costs.bytes, costs.closed_bytes, "Bytes per sequence"),
    ):
        axes.plot(costs.lengths, measured, "o", label="XLA")
        axes.plot(costs.lengths, closed, color="black", linestyle=":", label="closed form")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(costs.lengths, list(map(str, costs.lengths)))
        axes.set_xlabel("tokens")
        axes.set_title(title, loc="left")
        axes.legend(frameon=False, fontsize=9)
    operations.plot(costs.lengths, costs.attention_flops, color="#8a8a8a", linewidth=1.0, label="its quadratic part")
    operations.legend(frameon=False, fontsize=9)

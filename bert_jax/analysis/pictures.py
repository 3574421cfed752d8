"""What the pictures of analyses have in common: figures of Matplotlib without global state or a display."""

import io
import os
from typing import TYPE_CHECKING

import numpy as np
from etils import epath

from bert_jax.files import near_path, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_PATH = 40  # characters


def layer_names(count: int) -> list[str]:
    """Return the names of `count` hidden states: that of the embeddings, then the numbers of the layers."""
    return ["emb", *map(str, range(1, count))]


def write_pictures(figure: "Figure", directory: str | os.PathLike[str], name: str) -> list[str]:
    """Write a figure as `name`.png and `name`.svg into a directory; return their names."""
    for suffix in ("png", "svg"):
        buffer = io.BytesIO()
        metadata = {"Date": None} if suffix == "svg" else None  # the same figure is the same file
        figure.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
        write_atomically(epath.Path(directory) / f"{name}.{suffix}", buffer.getvalue())
    return [f"{name}.png", f"{name}.svg"]


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure; sizes are in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # takes a second to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def lines_by_layer(axes: "Axes", series: dict[str, np.ndarray]) -> None:
    """Draw lines over the layers, one for each entry of `series`, float [layers + 1]."""
    for label, values in series.items():
        axes.plot(range(len(values)), values, marker="o", label=label)
        axes.set_xticks(range(len(values)), layer_names(len(values)))
    axes.set_xlabel("layer")
    plain_frame(axes)


def plain_frame(axes: "Axes") -> None:
    """Take away the upper and the right edge, and draw a grid behind everything."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def write_numbers(axes: "Axes", matrix: np.ndarray) -> None:
    """Write the value of each cell of a heat map into it; – marks NaN."""
    for (row, column), value in np.ndenumerate(matrix):
        text = "–" if np.isnan(value) else f"{value:.2f}"
        colour = "white" if value < 0.6 else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color="black" if text == "–" else colour)


def short_path(path: str) -> str:
    """Return a path as seen from the current directory if that is shorter, or the end of it, which tells it apart."""
    path = near_path(path)
    return path if len(path) <= LONGEST_PATH else f"…{path[-LONGEST_PATH:]}"

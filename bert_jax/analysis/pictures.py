"""The pictures of analyses, as figures of Matplotlib without global state or a display."""

import io
import os
from typing import TYPE_CHECKING

import numpy as np
from etils import epath

from bert_jax.analysis.layer_isotropy import LayerIsotropy
from bert_jax.analysis.layer_similarity import LayerSimilarity
from bert_jax.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NUMBERED = 14  # rows or columns of a heat map whose cells show their numbers; in larger ones they would not fit


def draw_layer_similarity(result: LayerSimilarity) -> "Figure":
    """Return a heat map of the CKA matrix, with the embeddings in the lower left corner."""
    rows, columns = result.matrix.shape
    figure = _figure(2.2 + 0.5 * columns, 1.6 + 0.5 * rows)
    axes = figure.subplots()
    image = axes.imshow(result.matrix, cmap="viridis", vmin=0.0, vmax=1.0, origin="lower")
    figure.colorbar(image, ax=axes, label="linear CKA", shrink=0.8)
    for labels, size, name, axis in (
        (axes.set_yticks, rows, result.models[0], axes.set_ylabel),
        (axes.set_xticks, columns, result.models[1], axes.set_xlabel),
    ):
        labels(range(size), layer_names(size))
        axis(f"layer of {_end(name)}", parse_math=False)
    if max(rows, columns) <= MOST_NUMBERED:
        _write_numbers(axes, result.matrix)
    axes.set_title(f"Linear CKA, {result.texts:,} texts, vectors: {result.vectors}", fontsize=11)
    return figure


def draw_layer_isotropy(result: LayerIsotropy) -> "Figure":
    """Return three panels: mean cosines and the partition function by layer, and the spectrum of every layer."""
    from matplotlib import colormaps

    count = len(result.cosine)
    figure = _figure(13.0, 3.8)
    cosines, partition, spectrum = figure.subplots(1, 3)
    for values, label in ((result.cosine, "mean cosine"), (result.absolute_cosine, "mean |cosine|")):
        cosines.plot(range(count), values, marker="o", label=label)
    cosines.axhline(0.0, color="#8a8a8a", linewidth=0.8)
    cosines.legend(frameon=False)
    partition.semilogy(range(count), result.partition, marker="o", color="#d1495b")
    for axes, title in ((cosines, "Pairs of texts"), (partition, "Partition function, min F / max F")):
        axes.set_title(title, loc="left")
        axes.set_xlabel("layer")
        axes.set_xticks(range(count), layer_names(count))
    for layer, (name, values) in enumerate(zip(layer_names(count), result.spectrum, strict=True)):
        if total := values.sum():
            colour = colormaps["viridis"](layer / count)
            spectrum.plot(np.arange(1, len(values) + 1), np.cumsum(values) / total, color=colour, label=name)
    spectrum.set_xscale("log")
    spectrum.set_ylim(0.0, 1.02)
    spectrum.set_title("Share of the variance in the first directions", loc="left")
    spectrum.set_xlabel("number of directions")
    spectrum.legend(frameon=False, title="layer", fontsize=8)
    for axes in (cosines, partition, spectrum):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e6e6", linewidth=0.8)
        axes.set_axisbelow(True)
    heading = f"{_end(result.model)}: {result.texts:,} texts, vectors: {result.vectors}"
    figure.suptitle(heading, fontsize=11, parse_math=False)
    return figure


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


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # takes a second to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _write_numbers(axes: "Axes", matrix: np.ndarray) -> None:
    for (row, column), value in np.ndenumerate(matrix):
        text = "–" if np.isnan(value) else f"{value:.2f}"
        colour = "white" if value < 0.6 else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color="black" if text == "–" else colour)


def _end(path: str, longest: int = 40) -> str:
    """Return the end of a path, which tells it from others."""
    return path if len(path) <= longest else f"…{path[-longest:]}"

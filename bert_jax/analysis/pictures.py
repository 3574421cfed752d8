"""The pictures of analyses, as figures of Matplotlib without global state or a display."""

import io
import os
from typing import TYPE_CHECKING

import numpy as np
from etils import epath

from bert_jax.analysis.attention_maps import AttentionMaps
from bert_jax.analysis.context_similarity import ContextSimilarity
from bert_jax.analysis.layer_isotropy import LayerIsotropy
from bert_jax.analysis.layer_similarity import LayerSimilarity
from bert_jax.analysis.sentence_correlation import SentenceCorrelation
from bert_jax.analysis.word_senses import SenseSimilarity
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
    _lines_by_layer(cosines, {"mean cosine": result.cosine, "mean |cosine|": result.absolute_cosine})
    cosines.axhline(0.0, color="#8a8a8a", linewidth=0.8)
    cosines.legend(frameon=False)
    _lines_by_layer(partition, {"partition": result.partition})
    partition.set_yscale("log")
    cosines.set_title("Pairs of texts", loc="left")
    partition.set_title("Partition function, min F / max F", loc="left")
    for layer, (name, values) in enumerate(zip(layer_names(count), result.spectrum, strict=True)):
        if total := values.sum():
            colour = colormaps["viridis"](layer / count)
            spectrum.plot(np.arange(1, len(values) + 1), np.cumsum(values) / total, color=colour, label=name)
    spectrum.set_xscale("log")
    spectrum.set_ylim(0.0, 1.02)
    spectrum.set_title("Share of the variance in the first directions", loc="left")
    spectrum.set_xlabel("number of directions")
    spectrum.legend(frameon=False, title="layer", fontsize=8)
    _plain_frame(spectrum)
    heading = f"{_end(result.model)}: {result.texts:,} texts, vectors: {result.vectors}"
    figure.suptitle(heading, fontsize=11, parse_math=False)
    return figure


def draw_sentence_correlation(result: SentenceCorrelation) -> "Figure":
    """Return one panel per pooling: the correlation by layer, before and after each treatment."""
    figure = _figure(10.0, 3.8)
    panels = figure.subplots(1, len(result.poolings), sharey=True)
    for axes, pooling, values in zip(panels, result.poolings, result.spearman, strict=True):
        names = (treatment.replace("_", " ") for treatment in result.treatments)
        _lines_by_layer(axes, dict(zip(names, values.T, strict=True)))
        axes.set_title(f"vectors: {pooling}", loc="left")
    panels[0].set_ylabel("Spearman's correlation")
    panels[0].legend(frameon=False, fontsize=9)
    heading = f"{_end(result.model)}: {result.pairs:,} pairs, fitted on {result.texts:,} texts"
    figure.suptitle(heading, fontsize=11, parse_math=False)
    return figure


def draw_context_similarity(result: ContextSimilarity) -> "Figure":
    """Return three panels: each measure by layer, with the baseline that it is to be compared with."""
    figure = _figure(13.0, 3.8)
    panels = figure.subplots(1, 3)
    for axes, title, values, baseline in zip(
        panels,
        ("Self-similarity of words", "Words and their sentence's mean", "Explained by one direction"),
        (result.self_similarity.mean(axis=0), result.intra_sentence, result.explained_variance.mean(axis=0)),
        (result.cosine_baseline, result.cosine_baseline, result.explained_baseline),
        strict=True,
    ):
        _lines_by_layer(axes, {"measured": values, "words at random": baseline})
        axes.set_title(title, loc="left")
    panels[0].legend(frameon=False)
    heading = f"{_end(result.model)}: {len(result.words)} words in {result.contexts} texts each"
    figure.suptitle(heading, fontsize=11, parse_math=False)
    return figure


def draw_sense_similarity(result: SenseSimilarity) -> "Figure":
    """Return the cosines within and between senses by layer, and those of all texts in the last layer."""
    order = np.argsort(result.senses, kind="stable")
    figure = _figure(11.0, 4.2)
    by_layer, pairs = figure.subplots(1, 2)
    series = {"within senses": result.within, "between senses": result.between, "other words": result.baseline}
    _lines_by_layer(by_layer, series)
    by_layer.legend(frameon=False)
    by_layer.set_title("Mean cosine", loc="left")
    image = pairs.imshow(result.cosines[-1][np.ix_(order, order)], cmap="viridis")
    labels = [result.senses[number] or result.texts[number][:20] for number in order]
    pairs.set_yticks(range(len(order)), labels, fontsize=8, parse_math=False)
    pairs.set_xticks([])
    pairs.set_title("Texts in the last layer", loc="left")
    figure.colorbar(image, ax=pairs, label="cosine")
    figure.suptitle(f"{_end(result.model)}: {result.word!r}", fontsize=11, parse_math=False)
    return figure


def draw_attention(result: AttentionMaps) -> "Figure":
    """Return a map for every layer (rows, the first at the top) and head: queries from the top, keys from the left."""
    layers, heads, count, _ = result.weights.shape
    figure = _figure(1.2 * heads + 1.4, 1.2 * layers + 1.0)
    axes = figure.subplots()
    size = count + max(2, count // 15)  # of a map with the gap behind it
    picture = np.full((layers * size, heads * size), np.nan)
    for layer, head in np.ndindex(layers, heads):
        rows, columns = layer * size, head * size
        picture[rows : rows + count, columns : columns + count] = np.sqrt(result.weights[layer, head])
    gap = size - count
    axes.imshow(picture[:-gap, :-gap], cmap="Blues", vmin=0.0, vmax=1.0, interpolation="none")
    axes.set_xticks([head * size + count / 2 for head in range(heads)], [f"head {head + 1}" for head in range(heads)])
    axes.set_yticks([row * size + count / 2 for row in range(layers)], [f"layer {row + 1}" for row in range(layers)])
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.set_facecolor("#e6e6e6")
    heading = f"{_end(result.model)}: attention in {count} tokens (square roots of the probabilities)"
    figure.suptitle(heading, fontsize=10, parse_math=False)
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


def _lines_by_layer(axes: "Axes", series: dict[str, np.ndarray]) -> None:
    for label, values in series.items():
        axes.plot(range(len(values)), values, marker="o", label=label)
        axes.set_xticks(range(len(values)), layer_names(len(values)))
    axes.set_xlabel("layer")
    _plain_frame(axes)


def _plain_frame(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def _write_numbers(axes: "Axes", matrix: np.ndarray) -> None:
    for (row, column), value in np.ndenumerate(matrix):
        text = "–" if np.isnan(value) else f"{value:.2f}"
        colour = "white" if value < 0.6 else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color="black" if text == "–" else colour)


def _end(path: str, longest: int = 40) -> str:
    """Return a path as seen from the current directory if that is shorter, or the end of it, which tells it apart."""
    path = path if "://" in path else min(path, os.path.relpath(path), key=len)
    return path if len(path) <= longest else f"…{path[-longest:]}"

"""Pictures of the geometry of layers."""

from typing import TYPE_CHECKING

import numpy as np

from bert_jax.analysis.layer_states.layer_isotropy import LayerIsotropy
from bert_jax.analysis.layer_states.layer_similarity import LayerSimilarity
from bert_jax.analysis.layer_states.sentence_correlation import SentenceCorrelation
from bert_jax.analysis.pictures import layer_names, lines_by_layer, new_figure, plain_frame, short_path, write_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NUMBERED = 14  # rows or columns of a heat map whose cells show their numbers; in larger ones they would not fit


def draw_layer_similarity(result: LayerSimilarity) -> "Figure":
    """Return a heat map of the CKA matrix, with the embeddings in the lower left corner."""
    rows, columns = result.matrix.shape
    figure = new_figure(2.2 + 0.5 * columns, 1.6 + 0.5 * rows)
    axes = figure.subplots()
    image = axes.imshow(result.matrix, cmap="viridis", vmin=0.0, vmax=1.0, origin="lower")
    figure.colorbar(image, ax=axes, label="linear CKA", shrink=0.8)
    for labels, size, name, axis in (
        (axes.set_yticks, rows, result.models[0], axes.set_ylabel),
        (axes.set_xticks, columns, result.models[1], axes.set_xlabel),
    ):
        labels(range(size), layer_names(size))
        axis(f"layer of {short_path(name)}", parse_math=False)
    if max(rows, columns) <= MOST_NUMBERED:
        write_numbers(axes, result.matrix)
    axes.set_title(f"Linear CKA, {result.texts:,} texts, vectors: {result.vectors}", fontsize=11)
    return figure


def draw_layer_isotropy(result: LayerIsotropy) -> "Figure":
    """Return three panels: mean cosines and the partition function by layer, and the spectrum of every layer."""
    from matplotlib import colormaps

    count = len(result.cosine)
    figure = new_figure(13.0, 3.8)
    cosines, partition, spectrum = figure.subplots(1, 3)
    lines_by_layer(cosines, {"mean cosine": result.cosine, "mean |cosine|": result.absolute_cosine})
    cosines.axhline(0.0, color="#8a8a8a", linewidth=0.8)
    cosines.legend(frameon=False)
    lines_by_layer(partition, {"partition": result.partition})
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
    plain_frame(spectrum)
    heading = f"{short_path(result.model)}: {result.texts:,} texts, vectors: {result.vectors}"
    figure.suptitle(heading, fontsize=11, parse_math=False)
    return figure


def draw_sentence_correlation(result: SentenceCorrelation) -> "Figure":
    """Return one panel per pooling: the correlation by layer, before and after each treatment."""
    figure = new_figure(10.0, 3.8)
    panels = figure.subplots(1, len(result.poolings), sharey=True)
    for axes, pooling, values in zip(panels, result.poolings, result.spearman, strict=True):
        names = (treatment.replace("_", " ") for treatment in result.treatments)
        lines_by_layer(axes, dict(zip(names, values.T, strict=True)))
        axes.set_title(f"vectors: {pooling}", loc="left")
    panels[0].set_ylabel("Spearman's correlation")
    panels[0].legend(frameon=False, fontsize=9)
    heading = f"{short_path(result.model)}: {result.pairs:,} pairs, fitted on {result.texts:,} texts"
    figure.suptitle(heading, fontsize=11, parse_math=False)
    return figure

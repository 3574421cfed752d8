"""Static pictures of attention."""

from typing import TYPE_CHECKING

import numpy as np

from bert_jax.analysis.attention_weights.attention_maps import AttentionMaps
from bert_jax.analysis.pictures import new_figure, short_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_attention(result: AttentionMaps) -> "Figure":
    """Return a map for every layer (rows, the first at the top) and head: queries from the top, keys from the left."""
    layers, heads, count, _ = result.weights.shape
    figure = new_figure(1.2 * heads + 1.4, 1.2 * layers + 1.0)
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
    heading = f"{short_path(result.model)}: attention in {count} tokens (square roots of the probabilities)"
    figure.suptitle(heading, fontsize=10, parse_math=False)
    return figure

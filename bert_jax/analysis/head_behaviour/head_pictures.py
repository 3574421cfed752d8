"""Pictures of what attention heads do: one figure each for statistics, clusters, ablation and relations."""

from typing import TYPE_CHECKING

import numpy as np

from bert_jax.analysis.head_behaviour.head_behaviour import HeadBehaviour
from bert_jax.analysis.head_behaviour.head_statistics import MEASURES
from bert_jax.analysis.pictures import new_figure, plain_frame, short_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARES = 6  # of the MEASURES, the first ones are shares of attention
RELATIONS = 15  # in a picture, at most
LARGEST = 60  # heads, up to which each has its name or number in a picture


def draw_heads(result: HeadBehaviour) -> "Figure":
    """Return nine maps, of layers (rows) and heads (columns); under each its value for attention to all alike."""
    layers, heads = result.entropy.shape
    figure = new_figure(3 * max(2.6, 0.5 * heads + 0.6), 3 * max(2.2, 0.4 * layers + 1.0))
    for number, (name, axes) in enumerate(zip(MEASURES, figure.subplots(3, 3).flat, strict=True)):
        values, share = getattr(result, name), number < SHARES or name == "broadness"
        titles = {"cls": "to [CLS]", "sep": "to [SEP]", "punctuation": "to punctuation", "itself": "to itself"}
        titles |= {"previous": "to the previous token", "next": "to the next token", "distance": "distance (tokens)"}
        _by_head(axes, values, (0.0, 1.0) if share else (0.0, float(np.nanmax(values, initial=1e-9))))
        axes.set_title(titles.get(name, name), loc="left", fontsize=9)
        axes.set_xlabel(f"attention to all alike: {result.uniform[number]:.2f}", fontsize=7)
    heading = f"{short_path(result.model)}: heads over {result.texts:,} texts, {result.tokens:,} tokens"
    figure.suptitle(heading, fontsize=11, parse_math=False)
    return figure


def draw_head_clusters(result: HeadBehaviour) -> "Figure":
    """Return the map of heads by the divergence of their attention; colours are clusters, 2-3 is layer 2, head 3."""
    heads = result.entropy.shape[1]
    figure = new_figure(7.0, 6.0)
    axes = figure.subplots()
    clusters = result.clusters.astype(int)
    for cluster in range(clusters.max() + 1):
        points = result.points[clusters == cluster]
        axes.scatter(points[:, 0], points[:, 1], s=40, label=f"cluster {cluster + 1} ({len(points)})")
    for number, (x, y) in enumerate(result.points):
        if len(result.points) <= LARGEST:
            label = f"{number // heads + 1}-{number % heads + 1}"
            axes.annotate(label, (x, y), (3, 3), textcoords="offset points", fontsize=8)
    plain_frame(axes)
    axes.set_aspect("equal", "datalim")
    axes.legend(frameon=False, fontsize=8)
    heading = f"{short_path(result.model)}: heads by how differently they attend"
    figure.suptitle(heading, fontsize=11, parse_math=False)
    return figure


def draw_head_ablation(result: HeadBehaviour) -> "Figure":
    """Return the increase of the loss without each head, with 95 % intervals, layer by layer."""
    ablation, (layers, heads) = result.ablation, result.ablation.increase.shape
    figure = new_figure(max(6.0, 0.22 * layers * heads + 1.5), 3.8)
    axes = figure.subplots()
    for layer in range(layers):
        places = np.arange(heads) + layer * (heads + 1)
        intervals = 1.96 * ablation.error[layer]
        axes.bar(places, ablation.increase[layer], yerr=intervals, capsize=2, color="#1f5fa8", error_kw={"lw": 1})
    places = [layer * (heads + 1) + (heads - 1) / 2 for layer in range(layers)]
    axes.set_xticks(places, [f"layer {layer + 1}" for layer in range(layers)])
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_ylabel("increase of the loss (nats)")
    plain_frame(axes)
    heading = f"{short_path(result.model)}: MLM loss {ablation.loss:.3f}, and how much more without each head"
    figure.suptitle(heading, fontsize=10, parse_math=False)
    return figure


def draw_head_relations(result: HeadBehaviour) -> "Figure":
    """Return, for the most frequent relations, the head that finds them best, beside guessing by place."""
    found = result.relations
    count = min(len(found.relations), RELATIONS)
    best = np.maximum(found.to_head, found.from_head)[:count].reshape(count, -1).max(axis=1)
    figure = new_figure(7.0, 0.3 * count + 1.4)
    axes = figure.subplots()
    places = np.arange(count)
    axes.barh(places - 0.2, best, 0.4, label="the best head", color="#1f5fa8")
    axes.barh(places + 0.2, found.baseline[:count], 0.4, label="the most frequent distance", color="#b8b8b8")
    axes.set_yticks(
        places, [f"{name} ({int(found.counts[row]):,})" for row, name in enumerate(found.relations[:count])]
    )
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.0)
    axes.set_xlabel("share of the words whose syntactic head is found")
    axes.legend(frameon=False, fontsize=8)
    plain_frame(axes)
    figure.suptitle(f"{short_path(result.model)}: {found.sentences:,} sentences", fontsize=11, parse_math=False)
    return figure


def _by_head(axes: "Axes", values: np.ndarray, limits: tuple[float, float]) -> None:
    layers, heads = values.shape
    image = axes.imshow(values, cmap="Blues", vmin=limits[0], vmax=limits[1], aspect="auto")
    axes.set_xticks(range(heads), [str(head + 1) for head in range(heads)], fontsize=7)
    axes.set_yticks(range(layers), [str(layer + 1) for layer in range(layers)], fontsize=7)
    if layers * heads <= LARGEST:
        for (layer, head), value in np.ndenumerate(values):
            dark = value > 0.6 * limits[1]
            axes.text(head, layer, f"{value:.2f}", ha="center", va="center", fontsize=7, color="w" if dark else "k")
    else:
        axes.figure.colorbar(image, ax=axes)

"""Pictures of words in their contexts."""

from typing import TYPE_CHECKING

import numpy as np

from bert_jax.analysis.pictures import lines_by_layer, new_figure, short_path
from bert_jax.analysis.word_states.context_similarity import ContextSimilarity
from bert_jax.analysis.word_states.word_senses import SenseSimilarity

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_context_similarity(result: ContextSimilarity) -> "Figure":
    """Return three panels: each measure by layer, with the baseline that it is to be compared with."""
    figure = new_figure(13.0, 3.8)
    panels = figure.subplots(1, 3)
    for axes, title, values, baseline in zip(
        panels,
        ("Self-similarity of words", "Words and their sentence's mean", "Explained by one direction"),
        (result.self_similarity.mean(axis=0), result.intra_sentence, result.explained_variance.mean(axis=0)),
        (result.cosine_baseline, result.cosine_baseline, result.explained_baseline),
        strict=True,
    ):
        lines_by_layer(axes, {"measured": values, "words at random": baseline})
        axes.set_title(title, loc="left")
    panels[0].legend(frameon=False)
    heading = f"{short_path(result.model)}: {len(result.words)} words in {result.contexts} texts each"
    figure.suptitle(heading, fontsize=11, parse_math=False)
    return figure


def draw_sense_similarity(result: SenseSimilarity) -> "Figure":
    """Return the cosines within and between senses by layer, and those of all texts in the last layer."""
    order = np.argsort(result.senses, kind="stable")
    figure = new_figure(11.0, 4.2)
    by_layer, pairs = figure.subplots(1, 2)
    series = {"within senses": result.within, "between senses": result.between, "other words": result.baseline}
    lines_by_layer(by_layer, series)
    by_layer.legend(frameon=False)
    by_layer.set_title("Mean cosine", loc="left")
    image = pairs.imshow(result.cosines[-1][np.ix_(order, order)], cmap="viridis")
    labels = [result.senses[number] or result.texts[number][:20] for number in order]
    pairs.set_yticks(range(len(order)), labels, fontsize=8, parse_math=False)
    pairs.set_xticks([])
    pairs.set_title("Texts in the last layer", loc="left")
    figure.colorbar(image, ax=pairs, label="cosine")
    figure.suptitle(f"{short_path(result.model)}: {result.word!r}", fontsize=11, parse_math=False)
    return figure

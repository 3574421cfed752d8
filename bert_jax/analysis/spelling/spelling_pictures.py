"""Pictures of what spelling errors cost a model."""

from typing import TYPE_CHECKING

import numpy as np

from bert_jax.analysis.pictures import new_figure, plain_frame, short_path
from bert_jax.analysis.spelling.noise_sums import SpellingNoise
from bert_jax.analysis.spelling.task_noise import TaskNoise

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_noise(result: SpellingNoise) -> "Figure":
    """Return accuracy, loss and the shares of words that are broken up, over the rate of errors."""
    panels = {
        "Accuracy of hidden words": {"": result.accuracy},
        "Loss of hidden words": {"": result.loss},
        "Pieces per word": {"": result.pieces_per_word},
        "Share of words": {
            "spelled differently": result.changed_words,
            "split": result.split_words,
            "unknown": result.unknown_words,
        },
    }
    heading = f"{short_path(result.model)}: {result.predictions:,} hidden pieces in {result.texts:,} texts"
    return _over_rates(result.rates, panels, heading)


def draw_task_noise(result: TaskNoise) -> "Figure":
    """Return the score and the lengths of the sequences over the rate of errors."""
    panels = {
        result.metric: {"": result.score},
        "Pieces per example": {"": result.pieces},
        "Share of the unknown piece": {"": result.unknown},
    }
    return _over_rates(result.rates, panels, f"{short_path(result.model)}: {result.examples:,} examples")


def _over_rates(rates: np.ndarray, panels: dict[str, dict[str, np.ndarray]], heading: str) -> "Figure":
    figure = new_figure(3.9 * len(panels), 3.6)
    for axes, (title, lines) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for label, values in lines.items():
            axes.plot(rates, values, marker="o", label=label)
        if len(lines) > 1:
            axes.legend(frameon=False, fontsize=9)
        axes.set_title(title, loc="left", parse_math=False)
        axes.set_xlabel("rate of errors")
        plain_frame(axes)
    figure.suptitle(heading, fontsize=11, parse_math=False)
    return figure

"""The picture of how far a model has memorized its masks."""

from typing import TYPE_CHECKING

from bert_jax.analysis.mask_memory.mask_overfitting import MaskGap
from bert_jax.analysis.pictures import new_figure, plain_frame, short_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_mask_gap(result: MaskGap) -> "Figure":
    """Return the losses and the gaps, with bands of two standard errors, over the steps of training."""
    figure = new_figure(10.0, 3.8)
    losses, gaps = figure.subplots(1, 2)
    losses.plot(result.steps, result.trained, marker="o", label="training text, masks of training")
    losses.plot(result.steps, result.fresh, marker="o", label="training text, fresh masks")
    losses.plot(result.steps, result.held_out, marker="o", label="held-out text, fresh masks")
    losses.set_title("Loss of the masked words", loc="left")
    for name, values, errors in (
        ("training text", result.gap, result.gap_error),
        ("held-out text", result.held_out_gap, result.held_out_gap_error),
    ):
        (line,) = gaps.plot(result.steps, values, marker="o", label=name)
        gaps.fill_between(
            result.steps, values - 2 * errors, values + 2 * errors, alpha=0.2, color=line.get_color(), linewidth=0
        )
    gaps.axhline(0.0, color="#8a8a8a", linewidth=0.8)
    gaps.set_title("Masks of training less fresh masks", loc="left")
    for axes in (losses, gaps):
        axes.set_xlabel("step")
        axes.legend(frameon=False, fontsize=9)
        plain_frame(axes)
    heading = f"{short_path(result.run)}: {result.masks} masks, {result.sequences:,} sequences"
    figure.suptitle(heading, fontsize=11, parse_math=False)
    return figure

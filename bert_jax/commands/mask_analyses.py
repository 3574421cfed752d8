"""`bert-jax analyze mask_gap`: how far a run has memorized its masks, computed, printed and drawn."""

import dataclasses
import os

from rich.console import Console
from rich.table import Table

from bert_jax.analysis.mask_memory.mask_overfitting import MaskGap, mask_gap
from bert_jax.analysis.mask_memory.mask_pictures import draw_mask_gap
from bert_jax.analysis.pictures import write_pictures
from bert_jax.analysis.saved_results import model_fingerprint, output_directory, save_result, saved_result
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.run_directory import read_config
from bert_jax.config.analyses.mask_options import MaskGapConfig
from bert_jax.config.json_form import to_dict
from bert_jax.pretrained.loading import load


def run_mask_gap(path: str, options: MaskGapConfig) -> None:
    """Print and draw the gap between masks of training and fresh masks at every checkpoint of a run."""
    config = read_config(path)
    chosen = {
        name: value for name, value in dataclasses.asdict(options).items() if name not in ("output", "batch_size")
    }
    key = {
        "analysis": "mask_gap",
        "run": os.fspath(path),
        "config": to_dict(config),
        "steps": Checkpoints(os.path.join(path, "checkpoints"), read_only=True).steps(),
        "newest": model_fingerprint(load(path)),
        "options": chosen,
    }
    file = output_directory(options.output) / "result.json"
    result = saved_result(file, key, MaskGap)
    if result is not None:
        print(f"{options.output}/result.json has this result already; it is not computed again")
    else:
        result = mask_gap(
            path,
            sequences=options.sequences,
            fresh_masks=options.fresh_masks,
            seed=options.seed,
            batch_size=options.batch_size,
        )
        save_result(file, key, result)
    pictures = write_pictures(draw_mask_gap(result), options.output, "mask_gap")
    _print_steps(result)
    print(f"{options.output}: {', '.join(['result.json', *pictures])}")


def _print_steps(result: MaskGap) -> None:
    title = f"{result.masks} masks: {result.sequences:,} sequences, {result.held_out_sequences:,} held out"
    table = Table("step", "epochs", "visits", "own", "fresh", "gap", "±", "held out", "gap", "±", title=title)
    for number, step in enumerate(result.steps):
        values = (result.trained, result.fresh, result.gap, result.gap_error)
        reference = (result.held_out, result.held_out_gap, result.held_out_gap_error)
        table.add_row(
            f"{step:,.0f}",
            f"{result.epochs[number]:.1f}",
            f"{result.visits[number]:.1f}",
            *(f"{each[number]:.2f}" for each in (*values, *reference)),
        )
    Console().print(table)

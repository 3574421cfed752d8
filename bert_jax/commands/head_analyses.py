"""`bert-jax analyze heads`: what attention heads do, computed, printed and drawn."""

import functools

import numpy as np
from rich.console import Console
from rich.table import Table

from bert_jax.analysis.head_behaviour.head_behaviour import HeadBehaviour, heads
from bert_jax.analysis.head_behaviour.head_pictures import (
    draw_head_ablation,
    draw_head_clusters,
    draw_head_relations,
    draw_heads,
)
from bert_jax.analysis.head_behaviour.head_relations import HeadRelations
from bert_jax.analysis.head_behaviour.head_statistics import MEASURES
from bert_jax.analysis.head_behaviour.parsed_text import read_parsed
from bert_jax.analysis.pictures import write_pictures
from bert_jax.commands.analysis_results import print_files, saved_or_computed
from bert_jax.config.analyses.head_options import HeadsConfig
from bert_jax.pretrained.loading import load

COLUMNS = ("head", "prev", "next", "self", "CLS", "SEP", "punct", "dist", "entropy", "broad", "cluster", "loss")
"""Short, so that the table fits a narrow terminal."""
SHOWN = 20  # relations in the table, the most frequent ones


def run_heads(path: str, options: HeadsConfig) -> None:
    """Print and draw what the heads of a model do over texts, and in parsed sentences."""
    trees = read_parsed(options.trees) if options.trees else []  # before anything that takes long
    model = load(path)
    compute = functools.partial(
        heads,
        model,
        trees=trees,
        clusters=options.clusters,
        ablation_texts=options.ablation_texts,
        seed=options.seed,
        batch_size=options.batch_size,
        max_length=options.max_length,
    )
    result = saved_or_computed(HeadBehaviour, "heads", [model], options, compute, more_input=options.trees)
    _print_heads(result)
    drawn = {"heads": draw_heads, "clusters": draw_head_clusters}
    if result.ablation.texts:
        drawn["ablation"] = draw_head_ablation
    if result.relations.relations:
        _print_relations(result.relations)
        drawn["relations"] = draw_head_relations
    pictures = [file for name, draw in drawn.items() for file in write_pictures(draw(result), options.output, name)]
    print_files(options, pictures)


def _print_heads(result: HeadBehaviour) -> None:
    title = f"{result.texts:,} texts, {result.tokens:,} tokens"
    table = Table(*COLUMNS, title=title, padding=(0, 0), collapse_padding=True)
    clusters = result.clusters.reshape(result.entropy.shape)
    for layer, head in np.ndindex(result.entropy.shape):
        values = (format(getattr(result, name)[layer, head], ".2f") for name in MEASURES)
        increase, error = result.ablation.increase[layer, head], result.ablation.error[layer, head]
        effect = f"{increase:+.3f} ±{error:.3f}" if result.ablation.texts else "-"
        table.add_row(f"{layer + 1}-{head + 1}", *values, str(int(clusters[layer, head]) + 1), effect)
    table.add_section()
    table.add_row("even", *(format(value, ".2f") for value in result.uniform), "", "")
    Console().print(table)
    print(f"states with and without returning attention differ by at most {result.map_error:.1e}")
    if result.ablation.texts:
        print(
            f"MLM loss {result.ablation.loss:.4f} over {result.ablation.predictions:,} masked tokens of "
            f"{result.ablation.texts:,} texts; the column is how much more without the head"
        )


def _print_relations(found: HeadRelations) -> None:
    title = f"{found.sentences:,} sentences ({found.skipped:,} left out)"
    table = Table("relation", "pairs", "best head", "who looks", "found", "distance", "found by it", title=title)
    for row, name in enumerate(found.relations[:SHOWN]):
        ways = np.stack([found.to_head[row], found.from_head[row]])
        way, layer, head = np.unravel_index(ways.argmax(), ways.shape)
        looks = ("word", "its head")[way]
        place = f"{layer + 1}-{head + 1}", looks, f"{ways.max():.3f}"
        table.add_row(
            name, f"{int(found.counts[row]):,}", *place, f"{found.offsets[row]:+.0f}", f"{found.baseline[row]:.3f}"
        )
    Console().print(table)
    if found.mentions:
        layer, head = np.unravel_index(found.antecedents.argmax(), found.antecedents.shape)
        print(
            f"antecedents of {found.mentions:,} mentions: head {layer + 1}-{head + 1} finds "
            f"{found.antecedents.max():.3f}, the nearest earlier mention {found.nearest:.3f}"
        )

"""`bert-jax analyze cka|isotropy`: the geometry of layers, computed, printed and drawn."""

import functools

from rich.console import Console
from rich.table import Table

from bert_jax.analysis.layer_states.layer_isotropy import LayerIsotropy, isotropy
from bert_jax.analysis.layer_states.layer_pictures import (
    draw_layer_isotropy,
    draw_layer_similarity,
    draw_sentence_correlation,
)
from bert_jax.analysis.layer_states.layer_similarity import LayerSimilarity, cka
from bert_jax.analysis.layer_states.sentence_correlation import (
    SentenceCorrelation,
    read_judged_pairs,
    sentence_correlation,
)
from bert_jax.analysis.pictures import layer_names, write_pictures
from bert_jax.commands.analysis_results import print_files, print_layers, saved_or_computed
from bert_jax.config.analyses.layer_options import CkaConfig, IsotropyConfig
from bert_jax.pretrained.loading import load
from bert_jax.pretrained.model import PretrainedModel


def run_cka(path: str, options: CkaConfig) -> None:
    """Print and draw how similar the layers of a model are, or those of two models."""
    model, other = load(path), load(options.other) if options.other else None
    compute = functools.partial(
        cka,
        model,
        other=other,
        vectors=options.vectors,
        minibatch=options.minibatch,
        seed=options.seed,
        batch_size=options.batch_size,
        max_length=options.max_length,
    )
    models = [model] if other is None else [model, other]
    result = saved_or_computed(LayerSimilarity, "cka", models, options, compute)
    pictures = write_pictures(draw_layer_similarity(result), options.output, "cka")
    print(f"linear CKA over {result.texts:,} texts in {result.minibatches} minibatches")
    if other is None:
        steps = [float(result.matrix[layer, layer + 1]) for layer in range(len(result.matrix) - 1)]
        print(f"neighbouring layers, from the embeddings up: {', '.join(f'{each:.3f}' for each in steps)}")
    else:
        print(f"the last layers of both: {result.matrix[-1, -1]:.3f}")
    print_files(options, pictures)


def run_isotropy(path: str, options: IsotropyConfig) -> None:
    """Print and draw how evenly vectors fill their space by layer; with `--sts`, how well they tell similar texts."""
    judged = read_judged_pairs(options.sts) if options.sts else None  # before anything that takes long
    model = load(path)
    compute = functools.partial(
        isotropy,
        model,
        vectors=options.vectors,
        seed=options.seed,
        batch_size=options.batch_size,
        max_length=options.max_length,
    )
    result = saved_or_computed(LayerIsotropy, "isotropy", [model], options, compute)
    pictures = write_pictures(draw_layer_isotropy(result), options.output, "isotropy")
    columns = {
        "mean cosine": result.cosine,
        "mean |cosine|": result.absolute_cosine,
        "partition": result.partition,
        "effective dimensions": result.effective_dimensions,
    }
    print_layers(columns, digits=".3g")
    print_files(options, pictures)
    if judged is not None:
        _sentence_correlation(model, options, *judged)


def _sentence_correlation(
    model: PretrainedModel, options: IsotropyConfig, pairs: list[tuple[str, str]], similarities: list[float]
) -> None:
    compute = functools.partial(
        sentence_correlation,
        model,
        pairs=pairs,
        similarities=similarities,
        batch_size=options.batch_size,
        max_length=options.max_length,
    )
    result = saved_or_computed(SentenceCorrelation, "sts", [model], options, compute, "sts.json", options.sts)
    pictures = write_pictures(draw_sentence_correlation(result), options.output, "sts")
    table = Table("vectors", "layer", *result.treatments, title=f"Spearman's correlation, {result.pairs:,} pairs")
    for pooling, layers in zip(result.poolings, result.spearman, strict=True):
        for name, values in zip(layer_names(len(layers)), layers, strict=True):
            table.add_row(pooling, name, *(f"{value:.3f}" for value in values))
    Console().print(table)
    print_files(options, pictures, "sts.json")

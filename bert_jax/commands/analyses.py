"""`bert-jax analyze`: from its words to an analysis, its result in JSON, and its pictures."""

import dataclasses
import typing
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from bert_jax.config.analyzing import (
    ANALYSES,
    AnalysisConfig,
    CkaConfig,
    IsotropyConfig,
    SimilarityConfig,
    check_analysis,
)
from bert_jax.console.command_line import parse, positional
from bert_jax.console.help import described, usage
from bert_jax.errors import UserError

if TYPE_CHECKING:  # --help answers without the libraries that compute
    from bert_jax.pretrained.model import PretrainedModel

Result = typing.TypeVar("Result")
NOT_IN_KEY = ("input", "other", "sts", "word", "senses", "output", "batch_size")
"""Options that a result does not follow from as they stand: files and models are in its key by their contents."""


def run_analysis(name: str, words: list[str]) -> None:
    """Run an analysis and write its files, or print its help.

    Args:
      name: one of ANALYSES.
      words: the words of the command line after the name.

    Raises:
      UserError: an unknown analysis, a model or texts that cannot be read, or options that cannot work.
    """
    if name not in ANALYSES:
        raise UserError(f"unknown analysis {name!r}; analyses: {', '.join(ANALYSES)}")
    path, given = positional(words, usage(ANALYSES[name]), "MODEL")
    options = parse(ANALYSES[name], given, *described(ANALYSES[name]))
    check_analysis(options)
    {"cka": _cka, "isotropy": _isotropy, "similarity": _similarity}[name](path, options)


def _cka(path: str, options: CkaConfig) -> None:
    from bert_jax.analysis.layer_similarity import LayerSimilarity, cka
    from bert_jax.analysis.pictures import draw_layer_similarity, write_pictures
    from bert_jax.pretrained.loading import load

    model, other = load(path), load(options.other) if options.other else None

    def compute(texts: Iterable[str]) -> LayerSimilarity:
        return cka(
            model,
            texts,
            other,
            vectors=options.vectors,
            minibatch=options.minibatch,
            seed=options.seed,
            batch_size=options.batch_size,
            max_length=options.max_length,
        )

    models = [model] if other is None else [model, other]
    result = _saved_or_computed(LayerSimilarity, "cka", models, options, compute)
    pictures = write_pictures(draw_layer_similarity(result), options.output, "cka")
    print(f"linear CKA over {result.texts:,} texts in {result.minibatches} minibatches")
    if other is None:
        steps = [float(result.matrix[layer, layer + 1]) for layer in range(len(result.matrix) - 1)]
        print(f"neighbouring layers, from the embeddings up: {', '.join(f'{each:.3f}' for each in steps)}")
    else:
        print(f"the last layers of both: {result.matrix[-1, -1]:.3f}")
    _print_files(options, pictures)


def _isotropy(path: str, options: IsotropyConfig) -> None:
    from rich.console import Console
    from rich.table import Table

    from bert_jax.analysis.layer_isotropy import LayerIsotropy, isotropy
    from bert_jax.analysis.pictures import draw_layer_isotropy, layer_names, write_pictures
    from bert_jax.analysis.sentence_correlation import read_judged_pairs
    from bert_jax.pretrained.loading import load

    judged = read_judged_pairs(options.sts) if options.sts else None  # before anything that takes long
    model = load(path)

    def compute(texts: Iterable[str]) -> LayerIsotropy:
        return isotropy(
            model,
            texts,
            vectors=options.vectors,
            seed=options.seed,
            batch_size=options.batch_size,
            max_length=options.max_length,
        )

    result = _saved_or_computed(LayerIsotropy, "isotropy", [model], options, compute)
    pictures = write_pictures(draw_layer_isotropy(result), options.output, "isotropy")
    table = Table("layer", "mean cosine", "mean |cosine|", "partition", "effective dimensions")
    columns = (result.cosine, result.absolute_cosine, result.partition, result.effective_dimensions)
    for name, *values in zip(layer_names(len(result.cosine)), *columns, strict=True):
        table.add_row(name, *(f"{value:.3g}" for value in values))
    Console().print(table)
    _print_files(options, pictures)
    if judged is not None:
        _sentence_correlation(model, options, *judged)


def _sentence_correlation(
    model: "PretrainedModel", options: IsotropyConfig, pairs: list[tuple[str, str]], similarities: list[float]
) -> None:
    from rich.console import Console
    from rich.table import Table

    from bert_jax.analysis.pictures import draw_sentence_correlation, layer_names, write_pictures
    from bert_jax.analysis.sentence_correlation import SentenceCorrelation, sentence_correlation

    def compute(texts: Iterable[str]) -> SentenceCorrelation:
        return sentence_correlation(
            model, texts, pairs, similarities, batch_size=options.batch_size, max_length=options.max_length
        )

    result = _saved_or_computed(SentenceCorrelation, "sts", [model], options, compute, "sts.json", options.sts)
    pictures = write_pictures(draw_sentence_correlation(result), options.output, "sts")
    table = Table("vectors", "layer", *result.treatments, title=f"Spearman's correlation, {result.pairs:,} pairs")
    for pooling, layers in zip(result.poolings, result.spearman, strict=True):
        for name, values in zip(layer_names(len(layers)), layers, strict=True):
            table.add_row(pooling, name, *(f"{value:.3f}" for value in values))
    Console().print(table)
    _print_files(options, pictures, "sts.json")


def _similarity(path: str, options: SimilarityConfig) -> None:
    from rich.console import Console
    from rich.table import Table

    from bert_jax.analysis.context_similarity import ContextSimilarity, similarity
    from bert_jax.analysis.pictures import draw_context_similarity, layer_names, write_pictures
    from bert_jax.analysis.word_senses import read_senses
    from bert_jax.pretrained.loading import load

    rows = read_senses(options.senses) if options.word else None  # before anything that takes long
    model = load(path)

    def compute(texts: Iterable[str]) -> ContextSimilarity:
        return similarity(
            model,
            texts,
            words=options.words,
            contexts=options.contexts,
            seed=options.seed,
            batch_size=options.batch_size,
            max_length=options.max_length,
        )

    result = _saved_or_computed(ContextSimilarity, "similarity", [model], options, compute)
    pictures = write_pictures(draw_context_similarity(result), options.output, "similarity")
    table = Table("layer", "self-similarity", "intra-sentence", "baseline", "explained", "baseline")
    table.title = f"{len(result.words)} words in {result.contexts} texts each"
    columns = (
        result.self_similarity.mean(axis=0),
        result.intra_sentence,
        result.cosine_baseline,
        result.explained_variance.mean(axis=0),
        result.explained_baseline,
    )
    for name, *values in zip(layer_names(len(result.intra_sentence)), *columns, strict=True):
        table.add_row(name, *(f"{value:.3f}" for value in values))
    Console().print(table)
    _print_files(options, pictures)
    if rows is not None:
        _word_senses(model, options, rows)


def _word_senses(model: "PretrainedModel", options: SimilarityConfig, rows: list[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from bert_jax.analysis.pictures import draw_sense_similarity, layer_names, write_pictures
    from bert_jax.analysis.saved_results import output_directory, save_result
    from bert_jax.analysis.word_senses import word_senses

    senses, texts = [sense for sense, _ in rows], [text for _, text in rows]
    result = word_senses(
        model, options.word, texts, senses, batch_size=options.batch_size, max_length=options.max_length
    )
    save_result(output_directory(options.output) / "word.json", {"word": options.word, "model": model.path}, result)
    pictures = write_pictures(draw_sense_similarity(result), options.output, "word")
    table = Table("layer", "within senses", "between senses", "other words", title=f"cosines of {options.word!r}")
    columns = (result.within, result.between, result.baseline)
    for name, *values in zip(layer_names(len(result.within)), *columns, strict=True):
        table.add_row(name, *(f"{value:.3f}" for value in values))
    Console().print(table)
    _print_files(options, pictures, "word.json")


def _saved_or_computed(
    kind: type[Result],
    name: str,
    models: list["PretrainedModel"],
    options: AnalysisConfig,
    compute: Callable[[Iterable[str]], Result],
    file: str = "result.json",
    more_input: str = "",
) -> Result:
    """Return the result of `compute` for the texts of the input, and save it; or the one that was saved before.

    The result also depends on the file `more_input`, if one is named.
    """
    from bert_jax.analysis.saved_results import model_fingerprint, output_directory, save_result, saved_result
    from bert_jax.analysis.text_sample import texts_of
    from bert_jax.data.corpus.readers import find_sources

    sources = find_sources(options.input, options.format)
    further = find_sources(more_input) if more_input else []
    directory = output_directory(options.output)
    chosen = {field: value for field, value in dataclasses.asdict(options).items() if field not in NOT_IN_KEY}
    key: dict[str, Any] = {
        "analysis": name,
        "models": [model_fingerprint(model) for model in models],
        "input": [dataclasses.astuple(source) for source in (*sources, *further)],
        "options": chosen,
    }
    result = saved_result(directory / file, key, kind)
    if result is not None:
        print(f"{options.output}/{file} has this result already; it is not computed again")
        return result
    result = compute(texts_of(sources, options.texts, options.seed, options.text_field))
    save_result(directory / file, key, result)
    return result


def _print_files(options: AnalysisConfig, pictures: list[str], file: str = "result.json") -> None:
    print(f"{options.output}: {', '.join([file, *pictures])}")

"""Results of analyses: computed unless they were saved before, in JSON, as a table by layer, and as pictures."""

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from rich.console import Console
from rich.table import Table

from bert_jax.analysis.pictures import layer_names
from bert_jax.analysis.saved_results import model_fingerprint, output_directory, save_result, saved_result
from bert_jax.analysis.text_sample import texts_of
from bert_jax.config.analyses.analysis_options import AnalysisConfig
from bert_jax.data.corpus.readers import find_sources
from bert_jax.pretrained.model import PretrainedModel

Result = typing.TypeVar("Result")
NOT_IN_KEY = ("input", "other", "sts", "word", "senses", "task_data", "trees", "output", "batch_size")
"""Options whose values are not in the key of a result: files and models are in it by their contents."""


def saved_or_computed(
    kind: type[Result],
    name: str,
    models: list[PretrainedModel],
    options: AnalysisConfig,
    compute: Callable[[Iterable[str]], Result],
    file: str = "result.json",
    more_input: str = "",
) -> Result:
    """Return the result of `compute` for the texts of the input, and save it; or the one that was saved before.

    The result also depends on the file `more_input`, if one is named.
    """
    sources = find_sources(options.input, options.format)
    further = find_sources(more_input) if more_input else []
    directory = output_directory(options.output)
    chosen = {field: value for field, value in dataclasses.asdict(options).items() if field not in NOT_IN_KEY}
    key = {
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


def print_layers(columns: Mapping[str, np.ndarray], digits: str = ".3f", title: str | None = None) -> None:
    """Print one row for each layer, the embeddings first; columns hold one number per layer."""
    table = Table("layer", *columns, title=title)
    for name, *values in zip(layer_names(len(next(iter(columns.values())))), *columns.values(), strict=True):
        table.add_row(name, *(format(value, digits) for value in values))
    Console().print(table)


def print_files(options: AnalysisConfig, pictures: list[str], file: str = "result.json") -> None:
    """Print where the result and the pictures of an analysis are."""
    print(f"{options.output}: {', '.join([file, *pictures])}")

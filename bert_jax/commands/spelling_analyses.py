"""`bert-jax analyze noise`: what spelling errors cost, computed, printed and drawn."""

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np
from etils import epath
from rich.console import Console
from rich.table import Table

from bert_jax.analysis.pictures import write_pictures
from bert_jax.analysis.spelling.noise_sums import SpellingNoise
from bert_jax.analysis.spelling.spelling_noise import noise
from bert_jax.analysis.spelling.spelling_pictures import draw_noise, draw_task_noise
from bert_jax.analysis.spelling.task_noise import TaskNoise, task_noise
from bert_jax.commands.analysis_results import print_files, saved_or_computed
from bert_jax.config.analyses.spelling_options import SpellingConfig
from bert_jax.config.task_options import TaskDataConfig
from bert_jax.pretrained.loading import load
from bert_jax.pretrained.model import PretrainedModel


def run_noise(path: str, options: SpellingConfig) -> None:
    """Print and draw how well a model copes with spelling errors, at hidden words or in its task."""
    model = load(path)
    if model.head is not None:
        _run_task_noise(model, options)
        return
    compute = functools.partial(
        noise,
        model,
        rates=options.rates,
        per=options.per,
        kinds=options.kinds,
        seed=options.seed,
        batch_size=options.batch_size,
        max_length=options.max_length,
    )
    result = saved_or_computed(SpellingNoise, "noise", [model], options, compute)
    pictures = write_pictures(draw_noise(result), options.output, "noise")
    columns = {
        "edits": result.edits,
        "accuracy": result.accuracy,
        "loss": result.loss,
        "pieces per word": result.pieces_per_word,
        "changed": result.changed_words,
        "split": result.split_words,
        "unknown": result.unknown_words,
    }
    title = f"{result.predictions:,} hidden pieces, {result.words:,} other words, {result.texts:,} texts"
    _print_rates(result.rates, columns, title)
    print_files(options, pictures)


def _run_task_noise(model: PretrainedModel, options: SpellingConfig) -> None:
    file = epath.Path(options.input).expanduser()
    data = TaskDataConfig(dir=options.input) if file.is_dir() else TaskDataConfig(dev=options.input)
    options = dataclasses.replace(options, texts=0)

    def compute(texts: Iterable[str]) -> TaskNoise:
        return task_noise(
            model,
            data,
            rates=options.rates,
            per=options.per,
            kinds=options.kinds,
            task=options.task,
            seed=options.seed,
            batch_size=options.batch_size,
        )

    result = saved_or_computed(TaskNoise, "task_noise", [model], options, compute)
    pictures = write_pictures(draw_task_noise(result), options.output, "noise")
    columns = {result.metric: result.score, "pieces": result.pieces, "unknown": result.unknown}
    _print_rates(result.rates, columns, f"{result.examples:,} examples")
    print_files(options, pictures)


def _print_rates(rates: np.ndarray, columns: dict[str, np.ndarray], title: str) -> None:
    table = Table("rate", *columns, title=title)
    for rate, *values in zip(rates, *columns.values(), strict=True):
        table.add_row(f"{rate:g}", *(f"{value:.3f}" for value in values))
    Console().print(table)

"""`bert-jax analyze probe`: what linear probes read, computed, printed and drawn."""

import dataclasses
from typing import Any

from rich.console import Console
from rich.table import Table

from bert_jax.analysis.pictures import write_pictures
from bert_jax.analysis.probing.layer_probes import LayerProbes, probe
from bert_jax.analysis.probing.probe_pictures import draw_probes
from bert_jax.analysis.probing.task_reading import read_probing_tasks
from bert_jax.analysis.saved_results import model_fingerprint, output_directory, save_result, saved_result
from bert_jax.config.analyses.probe_options import ProbeConfig
from bert_jax.data.corpus.readers import find_sources
from bert_jax.pretrained.loading import load
from bert_jax.pretrained.model import PretrainedModel

NOT_IN_KEY = ("input", "dev", "test", "output", "batch_size")


def run_probe(path: str, options: ProbeConfig) -> None:
    """Print and draw what linear probes read from each layer."""
    directory = output_directory(options.output)
    model = load(path)
    key = _key(model, options)
    result = saved_result(directory / "result.json", key, LayerProbes)
    if result is None:
        result = _computed(model, options)
        save_result(directory / "result.json", key, result)
    else:
        print(f"{options.output}/result.json has this result already; it is not computed again")
    pictures = write_pictures(draw_probes(result), options.output, "probe")
    _print(result)
    print(f"{options.output}: {', '.join(['result.json', *pictures])}")


def _key(model: PretrainedModel, options: ProbeConfig) -> dict[str, Any]:
    return {
        "analysis": "probe",
        "models": [model_fingerprint(model)],
        "input": [
            [dataclasses.astuple(source) for source in find_sources(files, "text")] if files else []
            for files in (options.input, options.dev, options.test)
        ],
        "options": {name: value for name, value in dataclasses.asdict(options).items() if name not in NOT_IN_KEY},
    }


def _computed(model: PretrainedModel, options: ProbeConfig) -> LayerProbes:
    tasks = read_probing_tasks(
        model,
        options.input,
        dev=options.dev,
        test=options.test,
        tasks=[name.strip() for name in options.tasks.split(",") if name.strip()],
        columns=options.tag_columns(),
        texts=options.texts,
        seed=options.seed,
        text_field=options.text_field,
    )
    return probe(
        model,
        tasks,
        directory=options.output,
        layers=options.layer_numbers(),
        pieces=options.pieces,
        seeds=options.seeds,
        examples=options.examples,
        seed=options.seed,
        batch_size=options.batch_size,
        max_length=options.max_length,
    )


def _print(result: LayerProbes) -> None:
    names = ["baseline", *("emb" if layer == 0 else str(layer) for layer in result.layers), "mix"]
    for title, rows in (
        (f"scores on test, {result.seeds} seeds", [(task.baseline.mean(), *task.mean) for task in result.tasks]),
        ("selectivity", [task.selectivity for task in result.tasks]),
    ):
        table = Table("layer", *(f"{task.task}, {task.metric}" for task in result.tasks), title=title)
        for name, *values in zip(names[-len(rows[0]) :], *rows, strict=True):
            table.add_row(name, *(f"{value:.3f}" for value in values))
        if title != "selectivity":
            table.add_row("widest ±", *(f"{task.interval.max():.3f}" for task in result.tasks))
            table.add_row("centre", *(f"{task.centre_of_gravity.mean():.2f}" for task in result.tasks))
        Console().print(table)
    for task in result.tasks:
        if task.left_out:
            print(f"{task.task}: {task.left_out:,} examples are left out, because their texts were cut before them")
        if task.unconverged:
            print(
                f"{task.task}: {task.unconverged} probes did not converge; the largest gradient among those chosen is "
                f"{task.gradient:.1e}"
            )

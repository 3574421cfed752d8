"""`bert-jax generate`: texts with their masks filled in; and `bert-jax score`: how likely a model finds texts."""

import json
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from bert_jax.config.commands import GenerateConfig, ScoreConfig
from bert_jax.files import check_output_place, write_output
from bert_jax.pretrained.generation import generate
from bert_jax.pretrained.likelihood import (
    Likelihood,
    Pair,
    Preferences,
    likelihoods,
    preferences,
    read_pairs,
    scores_of_pairs,
)
from bert_jax.pretrained.model import load_with_generator
from bert_jax.tasks.text import read_plain_texts
from bert_jax.training.trackers import screen

MEANINGS = {"blimp": "good sentence preferred", "crows_pairs": "stereotype preferred"}


def run_generate(path: str, prompts: Sequence[str], options: GenerateConfig) -> None:
    """Print the texts that a model makes of `prompts`, and write them to a file if asked to."""
    if options.output:
        check_output_place(options.output)
    model = _opened(path)
    console = screen(markup=False, highlight=False, soft_wrap=True)

    def show(step: int, texts: list[str]) -> None:
        for text in texts:
            console.print(f"step {step}: {text}")

    found = generate(model, prompts, options, options.batch_size, show if options.show_steps else None)
    rows = [
        {"prompt": prompt, "sample": number, "text": text}
        for prompt, texts in zip(prompts, found, strict=True)
        for number, text in enumerate(texts)
    ]
    if options.output:
        _write(options.output, rows)
        return
    for row in rows:
        console.print(row["text"])


def run_score(path: str, texts: Sequence[str], options: ScoreConfig) -> None:
    """Print the scores of texts or a table of pairs, and write them to a file if asked to."""
    if options.output:
        check_output_place(options.output)
    if options.pairs:
        form, pairs = read_pairs(options.pairs, options.group_by)
        _score_pairs(_opened(path), form, pairs, options)
        return
    texts = texts or [each.text for each in read_plain_texts(options.input)]
    model = _opened(path)
    found = likelihoods(model, list(texts), options.unit, options.batch_size)
    if options.output:
        rows = ({"text": text, **_figures(each)} for text, each in zip(texts, found, strict=True))
        _write(options.output, rows)
        return
    console = screen(markup=False, highlight=False, soft_wrap=True)
    for text, each in zip(texts, found, strict=True):
        console.print(f"{each.mean if options.reduction == 'mean' else each.total:10.3f}  {text}")
        if options.reduction == "tokens":
            for token, value in zip(each.tokens, each.log_probabilities.tolist(), strict=True):
                console.print(f"{'':12}{value:10.3f}  {token}")


def _opened(path: str) -> Any:
    model, generator = load_with_generator(path)
    return generator or model  # a discriminator writes no words


def _figures(found: Likelihood) -> dict[str, Any]:
    figures = {"sum": found.total, "mean": found.mean, "tokens": found.tokens}
    return figures | {"log_probabilities": [round(value, 6) for value in found.log_probabilities.tolist()]}


def _score_pairs(model: Any, form: str, pairs: Sequence[Pair], options: ScoreConfig) -> None:
    mean = options.reduction == "mean"
    scores = scores_of_pairs(model, form, pairs, options.unit, mean, options.batch_size)
    if options.output:
        rows = (
            {"group": pair.group, "texts": pair.texts, "scores": own}
            for pair, own in zip(pairs, scores.tolist(), strict=True)
        )
        _write(options.output, rows)
    table = Table("group", MEANINGS[form], "95 %", "pairs", "equal")
    for column in table.columns[1:]:
        column.justify = "right"
    for found in preferences(pairs, scores):
        if found.group == "all":
            table.add_section()
        table.add_row(*_cells(found))
    screen(markup=False, highlight=False).print(table)


def _cells(found: Preferences) -> tuple[str, ...]:
    low, high = found.interval
    return found.group, f"{found.share:.1%}", f"{low:.1%} to {high:.1%}", f"{found.pairs:,}", f"{found.equal:,}"


def _write(file: str, rows: Any) -> None:
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    write_output(file, "".join(f"{line}\n" for line in lines).encode())

"""`bert-jax replay`: the steps that were taken again, next to what was logged."""

import dataclasses
import json
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bert_jax.cli.inspect import LEGEND, row_as_text
from bert_jax.config.commands import ReplayConfig
from bert_jax.data.reads import ReadDocuments
from bert_jax.errors import at_least
from bert_jax.files import check_output_place, finite_json, write_output
from bert_jax.tools.replay import Replay, ReplayedStep, batches_of_steps, replay

SHOWN = ("loss", "grad_norm")
MOST_SHOWN = 40
"""Steps that are printed; the file of --output has all of them."""


def run_replay(workdir: str, config: ReplayConfig, console: Console | None = None, devices: Any = None) -> int:
    """Take steps of the run in `workdir` again, print how they compare, and return the exit status.

    Raises:
      UserError: as `replay`, or the output cannot be written.
    """
    console = console or Console(highlight=False)
    at_least(0, show=config.show)
    if config.output:
        check_output_place(config.output)
    options = {name: getattr(config, name) for name in ("stores", "teacher", "from_start")}
    found = replay(workdir, config.step, devices=devices, **options)
    _print(console, found)
    texts = _print_rows(console, workdir, found, config) if config.show else {}
    if config.output:
        facts = found.to_dict()
        for step in facts["steps"]:
            step |= {"texts": texts[step["step"]]} if texts else {}
        write_output(config.output, (json.dumps(finite_json(facts), indent=1) + "\n").encode())
    return int(found.equal < found.compared and not found.obstacles)


def _print(console: Console, found: Replay) -> None:
    whence = f"the checkpoint of step {found.begin:,}" if found.begin else "the first parameters"
    console.print(f"{found.path}, from {whence}", markup=False)
    table = Table()
    for name in ("step", "examples", *SHOWN, "logged"):
        table.add_column(name, justify="right", no_wrap=True)
    for step in found.steps[:MOST_SHOWN]:
        figures = (f"{step.replayed[name]:.9g}" for name in SHOWN)
        table.add_row(f"{step.step:,}", f"{step.positions[0]:,}–{step.positions[1] - 1:,}", *figures, _verdict(step))
    console.print(table)
    if len(found.steps) > MOST_SHOWN:
        console.print(f"… and {len(found.steps) - MOST_SHOWN:,} more steps; --output=FILE has all", style="dim")
    if not found.compared:
        console.print("None of these steps has a row in metrics.jsonl, so there is nothing to compare them with")
        return
    console.print(
        f"{found.equal:,} of the {found.compared:,} steps with a row are equal to the last bit in every figure"
    )
    for obstacle in found.obstacles:
        console.print(f"Bits may differ because {obstacle}", markup=False)
    if found.equal < found.compared and not found.obstacles:
        console.print(
            "Devices and versions are those of the run, as far as it has recorded them. On CPUs also the model of the "
            "processor and the number of its threads count; otherwise the code, the options or the data have changed"
        )


def _verdict(step: ReplayedStep) -> str:
    logged, differences = step.logged, step.differences
    if logged is None:
        return "no row"
    if not differences:
        return "equal"
    worst = max(differences, key=lambda name: abs(differences[name] / (logged[name] or 1)))
    return f"{worst} {logged[worst]:.9g}"


def _print_rows(console: Console, workdir: str, found: Replay, config: ReplayConfig) -> dict[int, list[dict[str, Any]]]:
    """Print the first rows of each batch, and return their texts by step."""
    console.print(LEGEND)
    texts = {}
    numbers = [step.step for step in found.steps]
    for step, (batch, tokenizer) in zip(found.steps, batches_of_steps(workdir, numbers, config.stores), strict=True):
        texts[step.step] = []
        for row, documents in enumerate(step.documents[: config.show]):
            heading = f"\nStep {step.step:,}, row {row}, {_named(documents)}: "
            console.print(Text(heading, "bold") + row_as_text(batch, row, tokenizer))
            ids = batch["input_ids"][row, batch["attention_mask"][row] > 0]
            predicted = batch["masked_weights"][row] > 0
            places, wanted = (batch[f"masked_{each}"][row, predicted] for each in ("positions", "ids"))
            texts[step.step].append(
                {
                    "row": row,
                    **dataclasses.asdict(documents),
                    "text": tokenizer.decode(ids.tolist()),
                    "predicted": [
                        {"place": place, "token": tokenizer.tokens[token]}
                        for place, token in zip(places.tolist(), wanted.tolist(), strict=True)
                    ],
                }
            )
    return texts


def _named(documents: ReadDocuments) -> str:
    noun, numbers = (
        "documents" if len(documents.documents) > 1 else "document",
        ", ".join(map(str, documents.documents)),
    )
    return f"{noun} {numbers}" + (f" of {documents.store}" if documents.store else "")

#!/usr/bin/env python3
"""Pre-train small encoders of the family with equal computation, fine-tune each, and print what came of it as a table.

    python scripts/compare_family.py STORE GLUE OUTPUT [--petaflop=0.3] [--configs=bert_mini,…] [--tasks="sst2 mrpc"] \
      [--seeds=3] [--dry_run]

STORE is a token store of `bert-jax prepare`, GLUE the benchmark's directory. Every configuration keeps its shape,
objective, masks, optimizer and form of schedule; vocabulary, batch, length and learning rate are the same for all, and
so many steps are made that all take the same number of floating-point operations (products, forward and backward, by
the closed form of each). `distilbert_mini` learns from the `bert_mini` of the same comparison. --dry_run prints the
plan alone. Started again, it resumes where it stopped.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax

from bert_jax.config import Config, resolve_phases
from bert_jax.console.command_line import configured
from bert_jax.data.store.access import open_store
from bert_jax.devices import sharding
from bert_jax.objectives.objective_choice import default_objective
from bert_jax.training.learner import Learner

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONFIGS = (
    *("bert_mini", "roberta_mini", "albert_mini", "spanbert_mini", "electra_mini", "distilbert_mini", "deberta_mini"),
    *("deberta_v3_mini", "xlnet_mini", "modernbert_mini", "gpt_mini", "elmo_mini", "ulmfit_mini"),
)
SHAPE = ("--sequence_length=128", "--batch_size=32", "--learning_rate=5e-4")
TUNING = ("--batch_size=32", "--learning_rate=3e-4")
WARMUP, COOLDOWN = 0.05, 0.2  # shares of the steps in which the learning rate rises, and falls where it is constant


@dataclasses.dataclass(frozen=True)
class Plan:
    """One configuration of the comparison."""

    name: str
    options: tuple[str, ...]
    """What is given to `bert-jax pretrain`, beside the name."""
    steps: int
    flops: float
    """Operations of one step."""


def main() -> None:
    given = {"petaflop": "0.3", "configs": ",".join(CONFIGS), "tasks": "sst2 stsb mrpc cola", "seeds": "3"}
    places, dry = [], False
    for word in sys.argv[1:]:
        name, _, value = word.removeprefix("--").partition("=")
        if word == "--dry_run":
            dry = True
        elif word.startswith("--") and name in given:
            given[name] = value
        else:
            places.append(word)
    if len(places) != 3 or any(word.startswith("-") for word in places):
        sys.exit(__doc__)
    store, glue, output = places
    plans = [plan(name, store, output, float(given["petaflop"]) * 1e15) for name in given["configs"].split(",")]
    for each in plans:
        print(
            f"{each.name}: {each.steps:,} steps of {each.flops / 1e9:,.0f} GFLOP: {' '.join(each.options)}", flush=True
        )
    if dry:
        return
    for each in plans:
        command("pretrain", each.name, *each.options)
        tasks = {"TASKS": given["tasks"]}
        words = [str(ROOT / "scripts/run_glue.sh"), f"{output}/{each.name}", glue, f"{output}/tasks/{each.name}"]
        run([*words, f"--seeds={given['seeds']}", *TUNING], tasks)
    print(held_out(plans, output))
    command("results", *(f"{output}/tasks/{each.name}" for each in plans), f"--output={output}")


def plan(name: str, store: str, output: str, flops: float) -> Plan:
    """Return the options of a configuration, with the number of steps that take `flops` operations."""
    options = (f"--data.path={store}", f"--workdir={output}/{name}", *SHAPE, "--evaluation.every_steps=0")
    opened = open_store(store)
    if name == "distilbert_mini":
        options = (*options, f"--objective.distillation.teacher={output}/bert_mini", "--model.activation=gelu_tanh")
    config = configured([name, *options, f"--steps={10**6}"], "")
    if config.model.padding_id is not None:
        options = (*options, f"--model.padding_id={opened.tokenizer().pad_id}")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=opened.vocab_size))
    step = flops_of(config)
    if name == "distilbert_mini":  # its teacher reads every batch too, forward only
        step += plan("bert_mini", store, output, flops).flops / 3
    steps = round(flops / step)
    options = (*options, f"--steps={steps}", f"--warmup_steps={round(steps * WARMUP)}")
    if config.schedule.cooldown_steps:
        options = (*options, f"--schedule.cooldown_steps={round(steps * COOLDOWN)}")
    return Plan(name, options, steps, step)


def flops_of(config: Config) -> float:
    """Return the operations of one step."""
    phase = resolve_phases(config)[0]
    learner = Learner.of(config, sharding.make_mesh(config.mesh, jax.devices()[:1]), default_objective)
    return phase.batch_size * learner.objective.model.training_flops(phase.sequence_length, phase.max_predictions)


def held_out(plans: list[Plan], output: str) -> str:
    """Return a table of the last evaluation of each run: every term of its own objective."""
    lines = ["| configuration | steps | GFLOP a step | held out, by its own objective |", "|---|---|---|---|"]
    for each in plans:
        rows = map(json.loads, pathlib.Path(output, each.name, "metrics.jsonl").read_text().splitlines())
        *_, last = (row for row in rows if row.get("kind") == "evaluation")
        figures = ", ".join(f"{key} {value:.3f}" for key, value in last.items() if key.endswith(("_loss", "_accuracy")))
        lines.append(f"| `{each.name}` | {each.steps:,} | {each.flops / 1e9:,.0f} | {figures} |")
    return "\n".join(lines)


def command(*words: str) -> None:
    run([sys.executable, "-m", "bert_jax", *words], {})


def run(words: list[str], variables: dict[str, str]) -> None:
    paths = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    if code := subprocess.run(words, env=os.environ | {"PATH": paths} | variables).returncode:
        sys.exit(code)


if __name__ == "__main__":
    main()

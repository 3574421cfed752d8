#!/usr/bin/env python3
"""Pre-train small encoders of the family with equal computation, fine-tune each, and print what came of it as a table.

    python scripts/compare_family.py STORE GLUE OUTPUT [--petaflop=0.24] [--configs bert_mini …] [--tasks sst2 mrpc …] \
      [--seeds=3] [--rows=DIR] [--random_weights] [--dry_run] [OPTIONS]

STORE is a token store of `bert-jax prepare`, GLUE the benchmark's directory. Every configuration keeps its shape,
objective, masks, optimizer and form of schedule, and the shares of its phases. Vocabulary, batch, length, learning rate
(but for `best_mini`, whose own is a part of it) and initial range are the same for all, and there is no dropout. The
numbers of steps are such that all take the same number of floating-point operations (products, forward and backward, by
the closed form of each). `distilbert_mini` learns from the `bert_mini` of the same comparison. Static vectors
(`skipgram_mini`, `glove_mini`) have few products, and get 30,000 steps instead, with larger batches and a higher rate.
--random_weights then fine-tunes random weights of the same shapes: a row of its own, and what the other is compared
with. --dry_run prints the plan alone. Started again, the script resumes where it stopped. Options that are not its own
are those of every pre-training, such as --model.hidden_size=128 with --configs bert_mini roberta_mini, and must fit all
of them.

The whole comparison takes many hours on two cores. The figures of each configuration are a file in --rows, and the
table is printed from all files there, so that it can be made on several days and machines.
"""

import argparse
import dataclasses
import datetime
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence

import jax
from scipy import stats

from bert_jax.config import Config, PhaseConfig
from bert_jax.config.options import to_dict
from bert_jax.console import configured, load_config
from bert_jax.data.store import open_store
from bert_jax.devices import sharding
from bert_jax.devices.hosts import commit
from bert_jax.errors import UserError
from bert_jax.pretraining import make_learner
from bert_jax.tools.bench.turns import processor
from bert_jax.tools.study_plan import phase_models, pretraining_flops

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONFIGS = (
    *("bert_mini", "roberta_mini", "albert_mini", "spanbert_mini", "electra_mini", "distilbert_mini", "deberta_mini"),
    *("deberta_v3_mini", "xlnet_mini", "modernbert_mini", "gpt_mini", "elmo_mini", "ulmfit_mini"),
    *("best_mini", "skipgram_mini", "glove_mini"),
)
RECIPE = (
    *("--sequence_length=64", "--batch_size=16", "--learning_rate=5e-4", "--model.initializer_range=0.05"),
    "--model.hidden_dropout=0",
)
"""With these, but 32 rows, a BERT of this size left its first plateau after 6 million tokens (docs/experiments.md)."""
OF_SOME = ("--model.attention_dropout=0", "--model.position_init=sinusoidal")  # of models that have such options
PHASE_OPTIONS = [field.name for field in dataclasses.fields(PhaseConfig)]
OWN_RATE = ("best_mini",)  # the rate of the configuration is a part of what is compared
WARMUP, COOLDOWN = 0.05, 0.2  # shares of the steps in which the learning rate rises, and falls where it is constant
STATIC = ("skipgram_mini", "glove_mini")
STATIC_RECIPE = ("--sequence_length=64", "--batch_size=128", "--learning_rate=5e-3")
STATIC_STEPS = 30_000
TUNING = ("--learning_rate=3e-4",)
OWN_TUNING = {
    # Not fine-tuned: ELMo's layers are features of another network.
    "elmo_mini": ("--features=weighted_with_embeddings", "--lstm_size=128", "--learning_rate=1e-3"),
    # Rates fall from layer to layer, and by slanted triangles; gradual unfreezing would take an epoch per layer.
    "ulmfit_mini": (
        *("--learning_rate=1e-3", "--layer_decay=0.385"),
        *("--schedule.name=linear_after_warmup", "--schedule.final_fraction=0.03125"),
    ),
    # Vectors this short need long steps (docs/family.md).
    **dict.fromkeys(STATIC, ("--learning_rate=5e-3",)),
}
METRICS = {"sst2": "accuracy", "stsb": "spearman", "mrpc": "accuracy", "cola": "matthews"}
RANDOM = {"sst2": (0.781, 0.004), "stsb": (0.174, 0.008), "mrpc": (0.697, 0.012), "cola": (0.068, 0.017)}
"""Means and sample deviations of three fine-tunings of random weights of BERT-mini's size (docs/experiments.md)."""
OF_RANDOM = "_random"
"""End of the names of rows and directories of random weights."""
EPOCHS = {"sst2": 1}  # 67,349 sentences; the others have 3,668 to 8,551, which are read three times


@dataclasses.dataclass(frozen=True)
class Plan:
    """One configuration of the comparison."""

    name: str
    options: tuple[str, ...]
    """What is given to `bert-jax pretrain` in addition to the name."""
    steps: int
    flops: float
    """Operations of one step."""


def main() -> None:
    options, others = arguments()
    store, glue, output = options.store, options.glue, options.output
    plans = [plan(name, store, output, options.petaflop * 1e15, others) for name in options.configs]
    for each in plans:
        print(
            f"{each.name}: {each.steps:,} steps of {each.flops / 1e9:,.0f} GFLOP: {' '.join(each.options)}", flush=True
        )
    if options.dry_run:
        return
    rows = options.rows or pathlib.Path(output, "rows")
    rows.mkdir(parents=True, exist_ok=True)
    for each in plans:
        if options.random_weights:
            name, random = f"{each.name}{OF_RANDOM}", ["--random_weights"]
        else:
            name, random = each.name, []
            if each.name == "glove_mini" and not pathlib.Path(counts(output)).exists():
                run([sys.executable, "-m", "bert_jax", "count", store, f"--output={counts(output)}"], {})
            run([sys.executable, "-m", "bert_jax", "pretrain", each.name, *each.options], {})
        for task in options.tasks:
            words = [str(ROOT / "scripts/run_glue.sh"), f"{output}/{each.name}", glue, f"{output}/tasks/{name}"]
            epochs = f"--epochs={EPOCHS.get(task, 3)}"
            tuning = [*OWN_TUNING.get(each.name, TUNING), *random]
            run([*words, f"--seeds={options.seeds}", epochs, "--batch_size=32", *tuning], {"TASKS": task})
        scores = scores_of(pathlib.Path(output, "tasks", name), options.tasks)
        found = {"scores": scores, **where()} if options.random_weights else row(each, output, scores)
        (rows / f"{name}.json").write_text(json.dumps({"configuration": name} | found, indent=2) + "\n")
    print(table([json.loads(file.read_text()) for file in sorted(rows.glob("*.json"))]))


def arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for place in ("store", "glue", "output"):
        parser.add_argument(place, metavar=place.upper())
    parser.add_argument("--petaflop", type=float, default=0.24, help="Operations of each pre-training, in 10^15.")
    parser.add_argument("--configs", nargs="+", default=CONFIGS, help="Configurations to compare.")
    parser.add_argument("--tasks", nargs="+", choices=METRICS, default=list(METRICS), help="Tasks of GLUE.")
    parser.add_argument("--seeds", type=int, default=3, help="Seeds of fine-tuning.")
    parser.add_argument("--rows", type=pathlib.Path, help="Directory of the figures; by default OUTPUT/rows.")
    parser.add_argument(
        "--random_weights", action="store_true", help="Fine-tune random weights in place of what has been pre-trained."
    )
    parser.add_argument("--dry_run", action="store_true", help="Print the plan alone.")
    return parser.parse_known_args()


def plan(name: str, store: str, output: str, flops: float, others: list[str]) -> Plan:
    """Return the options of a configuration, with the numbers of steps that take `flops` operations.

    A configuration of several phases keeps the share of each in the steps, and they continue one schedule.
    """
    preset = load_config(name)
    phases, count = preset.phases, len(preset.phases)
    place = "phases.{}." if count > 1 else ""
    given = in_phases(others, count)
    known = to_dict(configured([name, *given], "").model)
    recipe = [option for option in OF_SOME if option.removeprefix("--model.").partition("=")[0] in known]
    common = STATIC_RECIPE if name in STATIC else RECIPE
    common = [each for each in common if not (name in OWN_RATE and each.startswith("--learning_rate="))]
    recipe += in_phases(common, count) + given
    options = (f"--data.path={store}", f"--workdir={output}/{name}", *recipe, "--evaluation.every_steps=0")
    opened = open_store(store)
    if name == "glove_mini":
        options = (*options, f"--objective.static_vectors.counts={counts(output)}")
    if name == "distilbert_mini":
        options = (*options, f"--objective.distillation.teacher={output}/bert_mini", "--model.activation=gelu_tanh")
    config = configured([name, *options], "")
    if config.model.padding_id is not None:
        options = (*options, f"--model.padding_id={opened.tokenizer().pad_id}")
    if config.model.type_vocab_size == 1:  # with WordPiece, pairs of the tasks have two segments
        options = (*options, "--model.type_vocab_size=2")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=opened.vocab_size))
    step = flops_of(config)
    if name == "distilbert_mini":  # its teacher reads every batch too, forward only
        step += plan("bert_mini", store, output, flops, others).flops / 3
    steps = STATIC_STEPS if name in STATIC else round(flops / step)
    before = [
        round(steps * sum(phase.steps for phase in phases[:number]) / preset.total_steps) for number in range(count)
    ]
    for number, (begin, end) in enumerate(itertools.pairwise([*before, steps])):
        options = (*options, f"--{place.format(number)}steps={end - begin}")
    options = (*options, f"--{place.format(0)}warmup_steps={round(steps * WARMUP)}")
    if config.schedule.cooldown_steps:
        options = (*options, f"--schedule.cooldown_steps={round(steps * COOLDOWN)}")
    return Plan(name, options, steps, step)


def in_phases(options: Sequence[str], count: int) -> list[str]:
    """Return the options of a run of `count` phases, with those that each phase has of its own given to all."""
    found = []
    for option in options:
        name = option.removeprefix("--")
        everywhere = count > 1 and name.partition("=")[0] in PHASE_OPTIONS
        found += [f"--phases.{number}.{name}" for number in range(count)] if everywhere else [option]
    return found


def counts(output: str) -> str:
    """Return the directory of the counts of pairs that GloVe fits."""
    return f"{output}/counts"


def flops_of(config: Config) -> float:
    """Return the operations of one step, in the mean over the steps of all phases."""
    learner = make_learner(config, sharding.make_mesh(config.mesh, jax.devices()[:1]))
    return pretraining_flops(config, phase_models(learner)) / config.total_steps


def scores_of(place: pathlib.Path, tasks: list[str]) -> dict[str, list[float]]:
    """Return each seed's score of each task."""
    results = {task: json.loads((place / task / "results.json").read_text()) for task in tasks}
    return {task: [found["metrics"][METRICS[task]] for found in results[task]["runs"]] for task in tasks}


def where() -> dict[str, str]:
    return {"processor": processor(), "commit": commit(), "date": datetime.date.today().isoformat()}


def row(made: Plan, output: str, scores: dict[str, list[float]]) -> dict:
    """Return the figures of a pre-training: held out by its own objective, and each seed's score of each task."""
    logged = map(json.loads, pathlib.Path(output, made.name, "metrics.jsonl").read_text().splitlines())
    *_, last = (line for line in logged if line.get("kind") == "evaluation")
    return {
        "steps": made.steps,
        "gflop_per_step": round(made.flops / 1e9, 1),
        "held_out": {key: value for key, value in last.items() if key.endswith(("_loss", "_accuracy"))},
        "scores": scores,
        # Without places of the machine that it was computed on.
        "options": [
            option.replace(f"={output}/", "=OUTPUT/")
            for option in made.options
            if not option.startswith(("--data", "--workdir"))
        ],
        **where(),
    }


def table(rows: list[dict]) -> str:
    """Return a table of all rows: the last evaluation, and the mean and sample deviation of each task over seeds.

    ≈ marks what is not significantly different from random weights (95 %, Welch's t): those of the same shape where
    they have a row, otherwise those of BERT-mini's.
    """
    random = {each["configuration"]: each["scores"] for each in rows}
    lines = [
        f"| configuration | steps | GFLOP per step | held out, by its own objective | {' | '.join(METRICS)} |",
        "|---|---|---|---|" + "---|" * len(METRICS),
    ]
    for each in rows:
        name, own = each["configuration"], random.get(f"{each['configuration']}{OF_RANDOM}", {})
        scores = [score(each["scores"].get(task, []), task, own.get(task)) for task in METRICS]
        if name.endswith(OF_RANDOM):
            first = f"| random weights of `{name.removesuffix(OF_RANDOM)}` | – | – | –"
            scores = [found.removesuffix(" ≈") for found in scores]
        else:
            held_out = ", ".join(f"{key} {value:.3f}" for key, value in each["held_out"].items())
            first = f"| `{name}` | {each['steps']:,} | {each['gflop_per_step']:,.0f} | {held_out}"
        lines.append(f"{first} | {' | '.join(scores)} |")
    return "\n".join(lines)


def score(values: list[float], task: str, random: list[float] | None = None) -> str:
    """Return the mean in percent; if there are several ± the sample standard deviation, and the mark of the table."""
    of_random = RANDOM[task] if random is None else (statistics.fmean(random), statistics.stdev(random))
    if not values[1:]:
        return f"{100 * values[0]:.1f}" if values else "–"
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    test = stats.ttest_ind_from_stats(mean, deviation, len(values), *of_random, 3, equal_var=False)
    return f"{100 * mean:.1f} ± {100 * deviation:.1f}{'' if test.pvalue < 0.05 else ' ≈'}"


def run(words: list[str], variables: dict[str, str]) -> None:
    paths = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    if code := subprocess.run(words, env=os.environ | {"PATH": paths} | variables).returncode:
        sys.exit(code)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")

"""Is growing worth it? Operations to a held-out loss of 4 layers that grew from 2, and of a fresh one.

    python scripts/warm_start.py --store=STORE --workdir=DIR [--steps=3000] [--seeds=3] [--rates=1e-3,2e-3,4e-3] \
      [--processes=1]

Every arm is trained for the same number of steps, with the first seed at each rate and with the others at the rate that
ended lowest; the small model for half of the steps, at the middle rate. The target is the loss that the fresh arm has
where its rate begins to fall, the highest of its seeds. An arm's operations are those to the first evaluation,
interpolated, at which it is as low, still at the constant rate, once without and once with those of the small model. So
many runs at a time share the cores, and write to DIR/worker_N.txt. The same command goes on after an interruption.
Writes table.json below DIR and prints the table.
"""

import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import statistics
import sys

import numpy as np

import bert_jax
from bert_jax.config.options import with_options
from bert_jax.errors import UserError
from bert_jax.tools.study_plan import described_learner, phase_models, pretraining_flops
from bert_jax.training.metrics import read_rows

MODEL = bert_jax.ModelConfig(
    hidden_size=128,
    num_heads=4,
    num_layers=4,
    max_position_embeddings=64,
    norm_position="pre",
    hidden_dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.05,
    positions=bert_jax.Rope(),  # with learned ones every arm ends on the plateau where it knows frequencies alone
)
SMALL = "small"
ARMS = {"fresh": {}, **{how: {"init_from_depth": how} for how in ("identity", "stack", "spread")}}


def configuration(options: argparse.Namespace, rate: float, seed: int) -> bert_jax.Config:
    phase = bert_jax.PhaseConfig(
        steps=options.steps, sequence_length=64, batch_size=16, learning_rate=rate, warmup_steps=options.steps // 20
    )
    return bert_jax.Config(
        model=MODEL,
        data=bert_jax.DataConfig(path=options.store, sentence_pairs="none", held_out=0.05),
        phases=(phase,),
        schedule=bert_jax.ScheduleConfig(name="constant", cooldown_steps=options.steps // 5),
        checkpoint=bert_jax.CheckpointConfig(every_steps=options.steps // 4, keep_last=1, keep_best=0),
        evaluation=bert_jax.EvaluationConfig(every_steps=max(1, options.steps // 40), sequences=512),
        seed=seed,
    )


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of an arm, or of the small model."""

    arm: str
    rate: float
    seed: int

    def config(self, options: argparse.Namespace) -> bert_jax.Config:
        config = configuration(options, self.rate, self.seed)
        if self.arm == SMALL:
            return with_options(
                config,
                {
                    "workdir": str(options.workdir / f"{SMALL}_{self.seed}"),
                    "model.num_layers": 2,
                    "phases.0.steps": options.steps // 2,
                },
            )
        growth = {"init_from": str(options.workdir / f"{SMALL}_{self.seed}")} if ARMS[self.arm] else {}
        workdir = options.workdir / f"{self.arm}_{self.rate:g}_{self.seed}"
        return with_options(config, {**ARMS[self.arm], **growth, "workdir": str(workdir)})


def share_cores(places: multiprocessing.Queue, workdir: pathlib.Path, processes: int) -> None:
    """Give this process its part of the cores, and let it write to a file of its own."""
    place, cores = places.get(), sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[place::processes] or cores)
    with open(workdir / f"worker_{place}.txt", "a") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())


def trained(pool: concurrent.futures.Executor, options: argparse.Namespace, runs: list[Run]) -> dict[Run, list[dict]]:
    """Train each run to its end, and return its evaluations."""
    configs = {run: run.config(options) for run in runs}
    waiting = {pool.submit(bert_jax.pretrain, config): run for run, config in configs.items()}
    for number, done in enumerate(concurrent.futures.as_completed(waiting), 1):
        run = waiting[done]
        if done.exception():
            pool.shutdown(cancel_futures=True)
        done.result()
        print(f"{run.arm}, rate {run.rate:g}, seed {run.seed}: the end of run {number} of {len(runs)}", flush=True)
    return {
        run: [row for row in read_rows(pathlib.Path(config.workdir, "metrics.jsonl")) if row["kind"] == "evaluation"]
        for run, config in configs.items()
    }


def operations(config: bert_jax.Config, steps: float) -> float:
    """Return the operations of this many of a run's steps, counted as those of speedruns are."""
    config, learner = described_learner(config)
    return pretraining_flops(config, phase_models(learner)) * steps / config.total_steps


def steps_to(evaluations: list[dict], target: float) -> float:
    """The first step at which the loss is as low as the target, between two evaluations on their line."""
    steps, losses = ([row[name] for row in evaluations] for name in ("step", "mlm_loss"))
    for place, loss in enumerate(losses):
        if loss <= target:
            if place == 0:
                return steps[0]
            return float(np.interp(-target, [-losses[place - 1], -loss], steps[place - 1 : place + 1]))
    return math.inf


def train_all(options: argparse.Namespace) -> tuple[dict[Run, list[dict]], dict[str, float]]:
    """Train what is not trained yet; return the evaluations of all runs of the arms, and the best rate of each arm."""
    context, seeds = multiprocessing.get_context("spawn"), range(options.seeds)
    places = context.Queue()
    for place in range(options.processes):
        places.put(place)
    pool = concurrent.futures.ProcessPoolExecutor(
        options.processes, context, share_cores, (places, options.workdir, options.processes)
    )
    with pool:
        trained(pool, options, [small(options, seed) for seed in seeds])
        rows = trained(pool, options, [Run(arm, rate, 0) for arm, rate in itertools.product(ARMS, options.rates)])
        best = {
            arm: min((run for run in rows if run.arm == arm), key=lambda run: rows[run][-1]["mlm_loss"]).rate
            for arm in ARMS
        }
        rows |= trained(pool, options, [Run(arm, best[arm], seed) for arm in ARMS for seed in seeds[1:]])
    return rows, best


def small(options: argparse.Namespace, seed: int) -> Run:
    return Run(SMALL, options.rates[len(options.rates) // 2], seed)


def compared(options: argparse.Namespace, rows: dict[Run, list[dict]], best: dict[str, float]) -> dict:
    """Return the target, the operations of the small model, and those of each run to the target; None if it is not."""
    last = options.steps - options.steps // 5
    constant = {run: [row for row in found if row["step"] <= last] for run, found in rows.items()}
    target = max(constant[Run("fresh", best["fresh"], seed)][-1]["mlm_loss"] for seed in range(options.seeds))
    table = []
    for run, found in rows.items():
        steps = steps_to(constant[run], target)
        spent = operations(run.config(options), steps) if math.isfinite(steps) else None
        table.append({**dataclasses.asdict(run), "operations": spent, "last_loss": found[-1]["mlm_loss"]})
    before = operations(small(options, 0).config(options), options.steps // 2)
    return {"target": target, "small": before, "rows": table}


def described(found: dict, best: dict[str, float]) -> str:
    """Return the table as text, a line for each arm at its best rate."""
    lines = [f"target: held-out loss {found['target']:.4f}; the small model took {found['small']:.3g} operations"]
    for arm, rate in best.items():
        chosen = [row for row in found["rows"] if row["arm"] == arm and row["rate"] == rate]
        spent, last = ([row[name] for row in chosen] for name in ("operations", "last_loss"))
        losses = f"last losses {', '.join(f'{loss:.3f}' for loss in last)}"
        if None in spent:
            lines.append(f"{arm:9} rate {rate:g}: not every seed has reached it; {losses}")
            continue
        mean, deviation = statistics.mean(spent), statistics.stdev(spent) if spent[1:] else 0.0
        whole = mean + (found["small"] if ARMS[arm] else 0)
        told = f"{mean:.3g} ± {deviation:.2g} operations, {whole:.3g} with the small model"
        lines.append(f"{arm:9} rate {rate:g}: {told}; {losses}")
    return "\n".join(lines)


def numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True)
    parser.add_argument("--workdir", required=True, type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=numbers, default=[1e-3, 2e-3, 4e-3])
    parser.add_argument("--processes", type=int, default=1, help="Runs at a time.")
    options = parser.parse_args()
    bert_jax.open_store(options.store)  # refused at once, not by every process
    options.workdir.mkdir(parents=True, exist_ok=True)
    rows, best = train_all(options)
    found = compared(options, rows, best)
    (options.workdir / "table.json").write_text(json.dumps(found, indent=2))
    print(described(found, best))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")

"""Is growing worth it? Operations to a held-out loss of 4 layers that grew from 2, and of a fresh one.

    python scripts/warm_start.py --store=STORE --workdir=DIR [--steps=3000] [--seeds=3] [--rates=1e-3,2e-3,4e-3]

Every arm is trained for the same number of steps at each rate and with each seed; the small model for half of them. The
target is the loss that the fresh arm has after half of its steps at its best rate, the mean over the seeds. An arm's
operations are those to the first evaluation, interpolated, at which it is as low; once without and once with those of
the small model, and the best rate of each arm counts. The same command goes on after an interruption. Writes table.json
below DIR and prints the table.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import statistics

import numpy as np

import bert_jax
from bert_jax.config.options import with_options
from bert_jax.models.costs import run_flops
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


def trained(config: bert_jax.Config, workdir: pathlib.Path, **changes) -> tuple[bert_jax.Config, list[dict]]:
    """The run in `workdir`, trained to its end, and its evaluations."""
    config = with_options(config, {**changes, "workdir": str(workdir)})
    bert_jax.pretrain(config)
    return config, [row for row in read_rows(workdir / "metrics.jsonl") if row["kind"] == "evaluation"]


def operations(config: bert_jax.Config, steps: float) -> float:
    (phase,) = config.phases
    model = dataclasses.replace(config.model, vocab_size=bert_jax.open_store(config.data.path).vocab_size)
    predictions = config.objective.predictions(phase.sequence_length, phase.max_predictions, config.masking.rate)
    each = run_flops(model, config.objective, phase.sequence_length, predictions).total
    return each * phase.batch_size * steps


def steps_to(evaluations: list[dict], target: float) -> float:
    """The first step at which the loss is as low as the target, between two evaluations on their line."""
    steps, losses = ([row[name] for row in evaluations] for name in ("step", "mlm_loss"))
    for place, loss in enumerate(losses):
        if loss <= target:
            if place == 0:
                return steps[0]
            return float(np.interp(-target, [-losses[place - 1], -loss], steps[place - 1 : place + 1]))
    return math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True)
    parser.add_argument("--workdir", required=True, type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--rates", type=lambda text: [float(rate) for rate in text.split(",")], default=[1e-3, 2e-3, 4e-3]
    )
    options = parser.parse_args()
    runs: dict[tuple[str, float], list] = {}
    source = configuration(options, options.rates[0], 0)
    for seed in range(options.seeds):
        small = options.workdir / f"small_{seed}"
        base = configuration(options, options.rates[len(options.rates) // 2], seed)
        source, _ = trained(base, small, **{"model.num_layers": 2, "phases.0.steps": options.steps // 2})
        for arm, changes in ARMS.items():
            for rate in options.rates:
                growth = {**changes, "init_from": str(small)} if changes else {}
                run = trained(configuration(options, rate, seed), options.workdir / f"{arm}_{rate:g}_{seed}", **growth)
                runs.setdefault((arm, rate), []).append(run)
    halves = {
        rate: statistics.mean(
            next(row["mlm_loss"] for row in rows if row["step"] >= options.steps // 2)
            for _, rows in runs["fresh", rate]
        )
        for rate in options.rates
    }
    target, before, table = min(halves.values()), operations(source, options.steps // 2), []
    for (arm, rate), found in runs.items():
        spent = [operations(config, steps_to(rows, target)) for config, rows in found]
        last = [rows[-1]["mlm_loss"] for _, rows in found]
        table.append({"arm": arm, "rate": rate, "operations": spent, "last_loss": last})
    (options.workdir / "table.json").write_text(
        json.dumps({"target": target, "small": before, "rows": table}, indent=2)
    )
    print(f"target: held-out loss {target:.4f}; the small model took {before:.3g} operations")
    for arm in ARMS:
        best = min((row for row in table if row["arm"] == arm), key=lambda row: statistics.mean(row["operations"]))
        spent, deviation = np.mean(best["operations"]), np.std(best["operations"])
        if not math.isfinite(spent):
            print(f"{arm:9} has not reached it with every seed at any rate")
            continue
        whole = spent + (before if ARMS[arm] else 0)
        print(
            f"{arm:9} rate {best['rate']:g}: {spent:.3g} ± {deviation:.2g} operations, {whole:.3g} with the small "
            f"model; last loss {statistics.mean(best['last_loss']):.4f}"
        )


if __name__ == "__main__":
    main()

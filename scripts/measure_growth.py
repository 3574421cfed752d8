"""How memory and time of a training step grow with an option, beside the closed forms of `bert-jax info`.

    python scripts/measure_growth.py CONFIG --over=sequence_length=128,512,2048,8192 [--steps=3] [OPTIONS]

Each value of the option (--over=batch_size=…, model.num_layers=…, model.vocab_size=…) is a process of its own, on a
synthetic batch without padding. "Temporary" is what the compiled step takes beyond state and batch; its closed form is
that of gradients and activations. Operations are the closed form of products, which the time is divided by. Only the
options of the first phase count.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import jax
import numpy as np

from bert_jax.bench.step_benchmark import synthetic_batch, with_vocabulary
from bert_jax.config import resolve_phases
from bert_jax.console.command_line import configured
from bert_jax.devices import sharding
from bert_jax.devices.host_process import computing_variables
from bert_jax.models import costs, memory_costs
from bert_jax.models.architecture import computation_dtype
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.objectives.objective_choice import default_objective
from bert_jax.training.learner import Learner
from bert_jax.training.state import create_state

HEADER = "MiB temporary | closed form | ratio | GFLOP per step | CPU s | GFLOP/CPU s"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--over", required=True)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--value", help=argparse.SUPPRESS)
    own, words = parser.parse_known_args()
    if own.value:
        print(json.dumps(measured([*words, f"--{own.value}"], own.steps)))
        return
    option, _, values = own.over.partition("=")
    print(f"| {option} | {HEADER} |\n|{'---|' * 7}")
    for value in values.split(","):
        command = [
            sys.executable,
            __file__,
            *words,
            f"--over={own.over}",
            f"--steps={own.steps}",
            f"--value={option}={value}",
        ]
        environment = os.environ | computing_variables(os.environ)
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            sys.exit(f"{option}={value}: {(done.stderr.strip().splitlines() or ['it printed nothing'])[-1]}")
        print(_row(value, json.loads(done.stdout.splitlines()[-1])), flush=True)


def measured(words: list[str], steps: int) -> dict[str, float]:
    """Return bytes, operations and seconds of the step of these options."""
    config = with_vocabulary(configured(words, "measure_growth.py CONFIG", __doc__ or ""))
    phase, mesh = resolve_phases(config)[0], sharding.make_mesh(config.mesh)
    what = Learner.of(config, mesh, default_objective)
    place = lambda seed: sharding.to_global(mesh, synthetic_batch(config, phase, 0.0, seed), phase.batch_size)
    state, batch = create_state(what.objective.model, what.optimizer, mesh, config.seed), place(0)
    step = what.train_step(phase).lower(state, batch).compile()
    state, _ = jax.block_until_ready(step(state, batch))
    spent = []
    for _ in range(steps):
        begun = time.process_time()
        state, _ = jax.block_until_ready(step(state, batch))
        spent.append(time.process_time() - begun)
    parameters, sizes = bert_parameters(config.model), (phase.sequence_length, phase.max_predictions)
    value_bytes = computation_dtype(config.compute).itemsize
    kept = memory_costs.activation_bytes(config.model, *sizes, what.remat(phase), value_bytes).total * phase.batch_size
    flops = costs.training_flops(config.model, parameters, *sizes).total * phase.batch_size
    gradients = memory_costs.state_bytes(parameters, config.optimizer.moments).gradients
    memory = step.memory_analysis()
    assert memory is not None, "XLA says it for every platform that steps are compiled for here"
    return {
        "temporary": memory.temp_size_in_bytes,
        "closed": kept + gradients,
        "flops": flops,
        "seconds": float(np.median(spent)),
    }


def _row(value: str, found: dict[str, float]) -> str:
    cells = (
        value,
        f"{found['temporary'] / 2**20:,.0f}",
        f"{found['closed'] / 2**20:,.0f}",
        f"{found['temporary'] / found['closed']:.2f}",
        f"{found['flops'] / 1e9:,.0f}",
        f"{found['seconds']:.2f}",
        f"{found['flops'] / 1e9 / found['seconds']:,.0f}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Plan steps of three models on one graphics card and write what is expected, to be compared with a measurement.

    python scripts/plan_cards.py [MODEL…] > docs/gpu/h200_predicted.json

Each MODEL is bert_base, bert_large or modernbert_base; by default all are planned. It needs the compiler for NVIDIA
GPUs (docs/planning.md), no card, and a minute for each of 24 programs, which the user's cache directory keeps.
"""

import datetime
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
MACHINE = "--topology=gpu:h200:1 --compute.remat=none"
NO_DROPOUT = " --model.attention_dropout=0"
LONG = (
    "--sequence_length=8192 --batch_size=2 --model.max_position_embeddings=8192 --model.rope_theta=160000 "
    "--model.rope_local_theta=10000"
)
SIZES = {  # of batches, for each run that is planned; lengths and masked words are those of the configuration
    "bert_base": ("--phases.0.batch_size=256 --phases.1.batch_size=64",),
    "bert_large": ("--phases.0.batch_size=128 --phases.1.batch_size=32",),
    "modernbert_base": tuple(f"{sizes} --ramp_batch_sizes= --ramp_steps=0" for sizes in ("--batch_size=16", LONG)),
}
KERNELS = {
    "bert_base": ("xla", "triton", "xla" + NO_DROPOUT, "triton" + NO_DROPOUT, "cudnn" + NO_DROPOUT),
    "bert_large": ("xla", "triton", "cudnn" + NO_DROPOUT, "triton --compute.layers=scan"),
    "modernbert_base": ("xla", "triton", "cudnn"),
}


def commands(model: str) -> list[str]:
    """Return the commands that plan a model."""
    return [
        f"bert-jax plan {model} {MACHINE} {sizes} --compute.attention={kernel}"
        + ("" if "layers" in kernel else " --compute.layers=loop")
        for sizes in SIZES[model]
        for kernel in KERNELS[model]
    ]


def expected(command: str) -> list[dict]:
    """Run a command and return what it says of each phase."""
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory, "plan.json")
        program = [sys.executable, "-m", "bert_jax", *command.split()[1:], f"--output={file}"]
        done = subprocess.run(program, cwd=ROOT, stdout=subprocess.DEVNULL)
        if not file.exists():
            raise SystemExit(f"{command} has failed with {done.returncode}")
        return [summary(phase) for phase in json.loads(file.read_text())["phases"]]


def summary(plan: dict) -> dict:
    """Return the figures of one phase that a measurement can be compared with."""
    phase, work, memory, best = (plan[part] for part in ("phase", "work", "memory", "optimistic"))
    arguments = sum(memory[part] for part in ("parameters", "moments", "teacher", "batch", "padding"))
    temporaries = sum(memory[part] for part in ("gradients", "activations", "unattributed"))
    return {
        "length": phase["sequence_length"],
        "sequences": phase["batch_size"],
        "masked_positions": phase["max_predictions"],
        "packed": phase["packed"],
        "closed_form_tflop": round(plan["flops"] / 1e12, 3),
        "compiled_tflop": round(work["flops"] / 1e12, 3),
        "moved_gb": round(work["bytes"] / 1e9, 2),
        "fastest_ms": round(best["step_seconds"] * 1e3, 2),
        "highest_mfu": round(best["utilization"], 3),
        "argument_gib": round(arguments / 2**30, 2),
        "temporary_gib": round(temporaries / 2**30, 2),
        "together_gib": round(sum(memory.values()) / 2**30, 2),
        "fits": plan["shortage"] is None,
    }


def main() -> None:
    models = sys.argv[1:] or list(SIZES)
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "jax-cuda13-plugin")}
    plans = [{"command": command, "phases": expected(command)} for model in models for command in commands(model)]
    print(json.dumps({"date": str(datetime.date.today()), **versions, "plans": plans}, indent=1))


if __name__ == "__main__":
    main()

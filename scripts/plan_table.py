#!/usr/bin/env python3
"""Plan BERT-base and BERT-large, both phases, for six machines, and write the table of docs/planning.md.

    pip install 'bert_jax[plan]'
    python scripts/plan_table.py [NAME…] > table.md

Each NAME is base or large, a machine such as v5e:2x2, or both joined by @ (large@v5e:2x2); by default everything is
planned. Every program is compiled once, in minutes of processor time, and kept in the user's cache directory, so that
an interrupted run continues where it stopped. No TPU is needed.
"""

import dataclasses
import datetime
import importlib.metadata
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
MACHINES = ("v5e:1x1", "v5e:2x2", "v5e:16x16", "v5p:4x4x4", "v6e:4x4", "2xv5e:4x4")
PER_CHIP = {"base": (64, 16), "large": (32, 8)}  # sequences of length 128 and of length 512
HEADER = (
    "| model, length | machine | sequences per chip | GiB per chip: parameters and moments, temporaries, total of | "
    "TFLOP per chip: closed form, compiled | sent, MB per chip: needed, compiled | "
    "step, ms | tokens/s | MFU | CPU s to compile |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)


def configuration(size: str, chips: int):
    """Return the shipped configuration with the batch of the table, and its layers in a loop that the compiler sees."""
    from bert_jax.console import load_config

    config = load_config(f"bert_{size}")
    phases = tuple(
        dataclasses.replace(phase, batch_size=rows * chips)
        for phase, rows in zip(config.phases, PER_CHIP[size], strict=True)
    )
    return dataclasses.replace(config, phases=phases, compute=dataclasses.replace(config.compute, layers="scan"))


def row(size: str, machine: str, number: int) -> str:
    """Return the line of the table for one phase."""
    from bert_jax.tools.planning.compiler import resolved
    from bert_jax.tools.planning.plan import plan_phase
    from bert_jax.tools.planning.topology import find_topology

    topology = find_topology(machine)
    config = resolved(configuration(size, topology.chips), topology)
    plan = plan_phase(
        config, topology, number, lambda stage: print(f"{size} {machine} {number}: {stage}", file=sys.stderr)
    )
    phase, first = plan.phase, f"| {size}, {plan.phase.sequence_length} | {machine} | {PER_CHIP[size][number]} | "
    if plan.memory is None or plan.work is None or plan.optimistic is None or plan.pessimistic is None:
        return first + f"does not fit: {plan.shortage} | | | | | | |"
    gib, memory, chip = 2**30, plan.memory, topology.chip
    assert chip is not None and phase.batch_size == PER_CHIP[size][number] * topology.chips
    temporaries = memory.gradients + memory.activations + memory.unattributed
    moved = sum(each.moved for each in plan.collectives)
    wanted = plan.needed.within_slice + plan.needed.between_slices
    ends = (plan.optimistic, plan.pessimistic)
    cells = (
        f"{(memory.parameters + memory.moments) / gib:.2f}, {temporaries / gib:.2f}, {memory.total / gib:.2f} of "
        f"{chip.memory_bytes / gib:.2f}",
        f"{plan.flops / 1e12:.3f}, {plan.work.flops / 1e12:.3f}",
        f"{wanted / 1e6:,.0f}, {moved / 1e6:,.0f}",
        " to ".join(f"{end.step_seconds * 1e3:,.1f}" for end in ends),
        " to ".join(f"{end.tokens_per_second:,.0f}" for end in ends[::-1]),
        " to ".join(f"{end.utilization:.0%}" for end in ends[::-1]),
        f"{plan.compile_cpu_seconds:.0f}",
    )
    return first + " | ".join(cells) + " |"


def main() -> None:
    sys.path.insert(0, str(ROOT))
    asked = [name.split("@") for name in sys.argv[1:]]
    rows = [
        row(size, machine, number)
        for machine in MACHINES
        for size in PER_CHIP
        for number in (0, 1)
        if not asked or any(set(names) <= {size, machine} for names in asked)
    ]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "libtpu"))
    print(f"{datetime.date.today()}, {versions}.\n", *HEADER, *rows, sep="\n")


if __name__ == "__main__":
    main()

"""Benchmark the attention kernels that run on this machine, by length, in turns (`bert-jax bench attention`)."""

import dataclasses
import functools
import os
from typing import Any

from bert_jax.config import ComputeConfig
from bert_jax.config.commands import AttentionBenchConfig
from bert_jax.config.options import to_dict
from bert_jax.devices.process import computing_variables, on_tpu
from bert_jax.errors import UserError
from bert_jax.tools.bench import turns

HEAD_SIZE = 64
PEER = "torch"
PRODUCTS = 2 + 5  # of L × L × head size: forward, and backward with the scores computed again


def run_attention(options: AttentionBenchConfig, words: list[str]) -> None:
    """Measure, print and write the result; the kernels at one length, and the peer, are compared with the first.

    Raises:
      UserError: a kernel or the peer does not run on this machine; this is found before its first round.
    """
    peer = turns.peer_versions(options)
    if len(options.kernels) > 1 and on_tpu():
        raise UserError("a TPU belongs to one process, so kernels cannot take turns; measure each in a run of its own")
    before, found = turns.load_average(), []
    for length in options.lengths:
        torch = functools.partial(torch_contestant, options, length)
        found += attention_figures(
            options, length, *turns.measured(options, kernel_contestants(options, length), torch)
        )
    values = turns.recorded(
        "attention", words, (before, turns.load_average()), peer=peer, options=dataclasses.asdict(options)
    )
    turns.show(attention_report(options, found, values), options.output)


def kernel_contestants(options: AttentionBenchConfig, length: int) -> list[turns.Contestant]:
    """Return one contestant for each kernel at one length."""
    program, job = turns.our_program("attention"), attention_job(options, length)
    return [
        turns.Contestant(
            f"{kernel}, {length}", program, job | {"compute": to_dict(ComputeConfig()) | {"attention": kernel}}
        )
        for kernel in options.kernels
    ]


def torch_contestant(options: AttentionBenchConfig, length: int, facts: dict[str, Any]) -> list[turns.Contestant]:
    """Return torch, if it was asked for, on the device of which our process has reported these facts."""
    if options.peer != "torch":
        return []
    program = turns.peer_program(options.peer_python, "attention")
    job = attention_job(options, length) | turns.as_ours(facts)
    return [turns.Contestant(f"{PEER}, {length}", program, job, computing_variables(os.environ), is_peer=True)]


def attention_job(options: AttentionBenchConfig, length: int) -> dict[str, Any]:
    """Return what every contestant has to compute at one length."""
    return {
        "shape": [rows(options, length), length, options.heads, HEAD_SIZE],
        "dtype": options.dtype,
        "dropout": options.dropout,
        "padding": options.padding,
        "window": options.window or None,
        "global_tokens": options.global_tokens,
    }


def rows(options: AttentionBenchConfig, length: int) -> int:
    """Return the number of sequences of a batch: as many as hold the tokens that were asked for."""
    return max(1, options.tokens // length)


def attention_figures(
    options: AttentionBenchConfig, length: int, waiting: list[turns.Waiting], played: list[list[turns.Turn]]
) -> list[dict[str, Any]]:
    """Return what was found about each contestant at one length."""
    found = []
    for name, one, taken in zip((*options.kernels, PEER), waiting, played, strict=False):
        wall, cpu = turns.seconds(taken)
        operations = PRODUCTS * 2 * rows(options, length) * options.heads * length**2 * HEAD_SIZE
        found.append(
            {
                "kernel": name,
                "path": one.facts["path"],
                "length": length,
                "seconds": wall,
                "cpu_seconds": cpu,
                "tokens_per_second": rows(options, length) * length / wall.median,
                "flops_per_second": operations / wall.median,
                "temporary_bytes": one.facts.get("temporary_bytes"),
                "ratio": turns.ratio(played[0], taken),
                "facts": one.facts,
                "turns": taken,
            }
        )
    return found


def attention_report(
    options: AttentionBenchConfig, found: list[dict[str, Any]], values: dict[str, Any]
) -> turns.Report:
    """Return a row for each kernel and length."""
    first, memory = options.kernels[0], lambda size: "" if size is None else f"{size / 2**20:,.0f}"
    return turns.Report(
        {**values, "contestants": found},
        f"Attention, forward and backward: {options.heads} heads of {HEAD_SIZE}, about {options.tokens:,} tokens, "
        f"{options.dtype}, dropout {options.dropout}"
        + (f", window {options.window}" if options.window else "")
        + (f", {options.global_tokens} global tokens" if options.global_tokens else ""),
        {
            "length": lambda entry: str(entry["length"]),
            "kernel": lambda entry: entry["kernel"],
            "path": lambda entry: entry["path"],
            "ms": lambda entry: turns.shown(entry["seconds"], ",.2f", 1e3),
            "CPU ms": lambda entry: turns.shown(entry["cpu_seconds"], ",.2f", 1e3),
            "GFLOP/s": lambda entry: f"{entry['flops_per_second'] / 1e9:,.1f}",
            "MiB": lambda entry: memory(entry["temporary_bytes"]),
            f"{first} is faster by": lambda entry: (
                "" if entry["kernel"] == first else turns.shown(entry["ratio"].wall, ".2f")
            ),
        },
        [
            f"Medians of {options.rounds} rounds with quartiles. Operations: {PRODUCTS} products, of whole rows. MiB: "
            "what our compiled program needs in addition to its inputs and gradients.",
        ],
    )

"""`bert-jax info`: the cost of a configuration, by arithmetic alone; it needs neither data nor an accelerator."""

import dataclasses
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bert_jax.config import Config, PhaseConfig, max_predictions, resolve_phases
from bert_jax.config.encoder import DEFAULT_VOCAB_SIZE
from bert_jax.models import costs
from bert_jax.models.bert_parameters import bert_parameters, pretraining_parts
from bert_jax.models.parameters import ParameterTable

SHARED = {
    "none": "",
    "attention": ", attention shared",
    "feed_forward": ", feed-forward shared",
    "all": ", all shared",
}
LENGTHS = (128, 256, 512, 1024, 2048, 4096)


def run_info(config: Config) -> None:
    """Print parameters by part, operations and memory by sequence length, and the totals of each phase."""
    console = Console(highlight=False)
    if config.model.vocab_size is None:
        console.print(
            f"model.vocab_size is not set (a run takes it from the token store); {DEFAULT_VOCAB_SIZE:,} is assumed."
        )
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=DEFAULT_VOCAB_SIZE))
    console.print(parameter_table(config))
    console.print(state_line(config))
    console.print(flops_table(config))
    console.print(memory_table(config))
    longest = config.model.longest_sequence
    if longest < LENGTHS[-1]:
        console.print(f"Lengths above {longest:,}, the longest sequence of this model, show the growth only.")
    console.print(phase_table(config))


def parameter_table(config: Config) -> Table:
    counts = costs.parameter_counts(_parameters(config))
    table = _table("Parameters", "part", "number")
    rows = [
        ("embeddings", counts.embeddings),
        ("block", counts.block),
        (f"{config.model.num_layers} blocks{SHARED[config.model.sharing]}", counts.layers),
    ]
    if counts.final_norm:
        rows.append(("final norm", counts.final_norm))
    rows += [
        ("encoder without pooler", counts.encoder_without_pooler),
        ("masked-language-model head (table shared)", counts.mlm_head),
        ("pre-training model", counts.pretraining),
    ]
    if counts.pooler:
        rows.insert(-2, ("pooler", counts.pooler))
        rows.insert(-2, ("encoder with pooler", counts.encoder))
        rows.insert(-1, ("next-sentence head", counts.next_sentence))
    if counts.span_boundary:
        rows.insert(-1, ("span boundary head (table shared)", counts.span_boundary))
    for name, number in rows:
        table.add_row(name, f"{number:,}")
    return table


def state_line(config: Config) -> str:
    state = costs.state_bytes(_parameters(config), config.optimizer.moments)
    return (
        f"Training state, float32: parameters {_bytes(state.parameters)}, moments {_bytes(state.moments)}, "
        f"gradients {_bytes(state.gradients)}; together {_bytes(state.total)}, divided over mesh.fsdp × mesh.tensor."
    )


def flops_table(config: Config) -> Table:
    """Return the training FLOPs per sequence and per token, by sequence length."""
    table = _table(
        "Training FLOPs (matrix products, forward and backward)",
        "length",
        "predicted",
        "GFLOP/sequence",
        "MFLOP/token",
        "attention's share",
    )
    for length in LENGTHS:
        predicted = max_predictions(PhaseConfig(sequence_length=length), config)
        flops = costs.training_flops(config.model, _parameters(config), length, predicted)
        table.add_row(
            f"{length:,}",
            f"{predicted:,}",
            f"{flops.total / 1e9:,.2f}",
            f"{flops.total / length / 1e6:,.2f}",
            f"{flops.attention / flops.total:.1%}",
        )
    return table


def memory_table(config: Config) -> Table:
    """Return what the backward pass needs of the forward pass, per sequence, by sequence length and remat policy."""
    table = _table(
        "Activations kept for the backward pass, MiB/sequence (2 bytes a value)",
        "length",
        "remat=none",
        "of it L×L arrays",
        "of it heads",
        "remat=sel",
        "remat=full",
    )
    for length in LENGTHS:
        predicted = max_predictions(PhaseConfig(sequence_length=length), config)
        none, *less = (
            costs.activation_bytes(config.model, length, predicted, remat) for remat in ("none", "sel", "full")
        )
        parts = (none.total, none.quadratic, none.heads, *(kept.total for kept in less))
        table.add_row(f"{length:,}", *(f"{size / 2**20:,.1f}" for size in parts))
    return table


def phase_table(config: Config) -> Table:
    """Return the tokens and floating-point operations of each phase of the run."""
    table = _table("The run", "phase", "steps", "batch × length", "sequences", "tokens", "FLOP")
    totals = [0, 0, 0, 0]
    for phase in resolve_phases(config):
        sequences = phase.steps * phase.batch_size
        sizes = phase.sequence_length, phase.max_predictions
        flops = costs.training_flops(config.model, _parameters(config), *sizes).total
        row = (phase.steps, sequences, sequences * phase.sequence_length, sequences * flops)
        totals = [a + b for a, b in zip(totals, row, strict=True)]
        table.add_row(str(phase.index), *_run_cells(row, f"{phase.batch_size:,} × {phase.sequence_length:,}"))
    if len(config.phases) > 1:
        table.add_row("all", *_run_cells(totals, ""))
    return table


def _run_cells(row: Any, shape: str) -> tuple[str, ...]:
    steps, sequences, tokens, flops = row
    return f"{steps:,}", shape, f"{sequences:,}", f"{tokens:,}", f"{flops:.3g}"


def _parameters(config: Config) -> ParameterTable:
    return bert_parameters(config.model, pretraining_parts(config.model, config.objective))


def _table(title: str, first: str, *numbers: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _bytes(number: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if number >= size:
            return f"{number / size:,.2f} {unit}" if unit == "GiB" else f"{number / size:,.1f} {unit}"
    return f"{number / 2**10:,.1f} KiB"

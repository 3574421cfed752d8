"""The sequences per second that hosts need: rates of the command line, or those that `bert-jax plan` predicts."""

import math
from typing import Any

from bert_jax.config.benchmarking import DataBenchConfig
from bert_jax.errors import UserError
from bert_jax.files import read_object

REMEDY = "write it again with bert-jax plan CONFIG --topology=NAME --output=FILE.json"


def needed(options: DataBenchConfig) -> dict[str, float]:
    """Return the sequences per second by the name of what needs them.

    Raises:
      UserError: a value of `need` is neither NAME=RATE nor the file of a plan that has the measured phase.
    """
    return dict(_of_plan(word, options) if word.endswith(".json") else _given(word) for word in options.need)


def _given(word: str) -> tuple[str, float]:
    name, _, rate = word.rpartition("=")
    try:
        found = float(rate)
    except ValueError:
        found = 0.0
    if not name or not 0 < found < math.inf:
        raise UserError(
            f"need={word} must be NAME=SEQUENCES_PER_SECOND, such as v5e:2x4=11000, or the file that bert-jax plan "
            "wrote, such as plan.json"
        )
    return name, found


def _of_plan(file: str, options: DataBenchConfig) -> tuple[str, float]:
    """Return the machine of a plan, and the sequences per second of one host where its steps are fastest."""
    plan = read_object(file, REMEDY)
    try:
        name, phase = str(plan["topology"]["name"]), plan["phases"][options.phase]
        length, rate = phase["phase"]["sequence_length"], _fastest(phase)
    except (KeyError, IndexError, TypeError, ValueError):
        raise UserError(f"need={file} holds no rate for phase {options.phase}; {REMEDY}") from None
    if length != options.run.phases[0].sequence_length:
        raise UserError(
            f"need={file}: its phase {options.phase} has rows of {length} tokens, but the measured phase has "
            f"{options.run.phases[0].sequence_length}; choose another --phase, or {REMEDY}"
        )
    return f"{name} ({file})", rate


def _fastest(phase: dict[str, Any]) -> float:
    """Return the rate at the optimistic end, which asks most of a host."""
    rate = float(phase["optimistic"]["sequences_per_host"])
    if not 0 < rate < math.inf:
        raise ValueError
    return rate

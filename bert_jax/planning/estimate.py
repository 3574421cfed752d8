"""Bounds on the time of a step, from a compiled program, and what follows from them for a whole run.

Nothing is executed. The pessimistic bound adds up the compiler's own estimates and all transfers between chips, as if
nothing overlapped. The optimistic bound lets each instruction run at a peak of the chip and hides all transfers behind
computation. A step can take longer than the pessimistic bound: BLIND_SPOTS lists what neither of them sees.
"""

import dataclasses

from bert_jax.config import Phase
from bert_jax.devices.hardware import peak_flops
from bert_jax.planning.collectives import BETWEEN_SLICES, Collective
from bert_jax.planning.roofline import Work
from bert_jax.planning.topology import HOST_NETWORK, Topology

NOT_INCLUDED = "Input, checkpoints, evaluation, compilation and restarts are not included."
LINKS = "Transfers between chips are bytes over the links' rates: no latency, no other traffic."
BLIND_SPOTS = (
    "The compiler gives no estimate for hardware random numbers (rbg), Pallas kernels, gathers and scatters.",
    "Copies between the chip's own memories that run during computation count as free.",
    LINKS,
    "Estimates of element-wise bfloat16 operations are too long by up to 3 times, found by single operations.",
    NOT_INCLUDED,
)
OF_A_GPU = (
    "Anything that takes longer than the peaks of products and memory: the compiler for GPUs estimates no times.",
    "The choice of kernels for products, which needs a card: all are taken to be cuBLAS's, at the peak.",
    LINKS,
    NOT_INCLUDED,
)
WITHOUT_A_COMPILER = (
    "Anything but products at their peak and one sum of the gradients: a step takes longer than this.",
    NOT_INCLUDED,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a step."""

    optimistic: float
    pessimistic: float | None
    """None where the compiler states no cycles."""
    computing: float | None
    """The part of the pessimistic bound that comes from the compiler's estimates."""
    links: float
    """The part of the pessimistic bound that is transfers within a slice: one ring in one direction of one link."""
    network: float
    """The part of the pessimistic bound that is transfers between slices."""


def step_time(topology: Topology, work: Work, collectives: list[Collective]) -> StepTime:
    """Return the bounds of a step on `topology`, whose chips are known."""
    chip = topology.chip
    assert chip is not None
    moved = sum(each.moved for each in collectives if each.kind != BETWEEN_SLICES)
    across = sum(each.moved for each in collectives if each.kind == BETWEEN_SLICES)
    network = across * min(chip.per_host, topology.chips_per_slice) / HOST_NETWORK
    links = moved / chip.link_bandwidth
    computing = work.cycles / chip.clock if chip.clock and work.cycles else None
    return StepTime(
        optimistic=max(work.roofline_seconds, links / chip.links, network),
        pessimistic=None if computing is None else computing + links + network,
        computing=computing,
        links=links,
        network=network,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Throughput:
    """What a time of a step means for a phase."""

    step_seconds: float
    tokens_per_second: float
    """On all chips together."""
    utilization: float
    """Share of the peak: the closed form of operations over time and peak (MFU)."""
    days: float
    """For all steps of the phase."""
    sequences_per_host: float
    """Sequences/s that each host has to make."""


def throughput(seconds: float, topology: Topology, phase: Phase, flops: float) -> Throughput:
    """Return what steps of `seconds` mean for a phase.

    Args:
      seconds: time of a step.
      topology: the machine, whose chips have a known peak.
      phase: the phase.
      flops: operations of a step on one chip, by closed form.
    """
    peak = topology.chip and peak_flops(topology.chip.kind)
    assert peak is not None
    return Throughput(
        step_seconds=seconds,
        tokens_per_second=phase.tokens_per_step / seconds,
        utilization=flops / seconds / peak,
        days=phase.steps * seconds / 86_400,
        sequences_per_host=phase.batch_size / seconds / topology.hosts,
    )


def cost(days: float, chips: int, price_per_chip_hour: float) -> float:
    """Return the price of `days` on `chips`, in the currency of the price."""
    return days * 24 * chips * price_per_chip_hour

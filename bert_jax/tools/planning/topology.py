"""Names of machines to plan for, such as v5e:16x16, and the known facts about their chips.

`v5e:4x4` is one slice of 16 chips, `2xv5e:4x4` two such slices, `cpu:8` eight devices of a processor, `gpu:h100:8`
eight graphics cards. Peaks of bfloat16 products are in devices/hardware.py.
"""

import dataclasses
import difflib
import math
import os
import re
from typing import Literal

from bert_jax.errors import UserError

SHAPES_2D = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
SHAPES_3D = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16", "16x16x16")
MOST_DEVICES = 4096  # of cpu:N and gpu:KIND:N, whose devices are all made
HOST_NETWORK = 25e9  # bytes/s in each direction between slices: 2 × 100 Gbit/s per host (cloud.google.com/tpu/docs/v5e)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reached:
    """What steps reach on a card, as was measured."""

    products: float
    """Share of the peak of products."""
    memory: float
    """Share of the bandwidth of the memory, by what is no product."""
    kernels: float
    """Share of the peak of products, by kernels of attention."""
    launch_seconds: float
    """Time from the end of an operation to the start of the next one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """One JAX device of an accelerator."""

    name: str
    """Name of the chip in names of machines, such as v5e or h100."""
    kind: str
    """Name that JAX gives the device; devices/hardware.py has its peak under this name."""
    memory_bytes: int
    """Memory that a program can use, which is less than the data sheet says: for TPUs what the compiler allows, for
    GPUs, as `find_topology` returns them, what JAX takes of it."""
    memory_bandwidth: float
    """Bytes/s between the chip and its memory."""
    link_bandwidth: float
    """Bytes/s in each direction of one link between chips; for GPUs, of all links of a card together."""
    links: int
    """How many links can carry a sum over all chips at once: one for each axis of the torus and direction."""
    clock: float | None = None
    """Cycles/s, in which the compiler states its estimates; None where it states none."""
    per_host: int = 4
    """Chips that one host feeds."""
    reached: Reached | None = None
    """None where no step was measured."""


# Memory: the limit that the compiler of libtpu 0.0.51 names in its message about a program that does not fit. Memory
# bandwidth and matrix units: cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}. Links: "How to Scale Your Model" (Austin et
# al. 2025), part 2. Clock: peak ÷ (units × 2 × side²): 8 of 128² in v4 and v5p, 4 of 128² in v5e, 4 of 256² in v6e.
# Name, JAX's name, GiB that a program can use, bytes/s of the memory and of a link, links, cycles/s.
TPUS = {
    name: Chip(
        name=name,
        kind=kind,
        memory_bytes=int(gib * 2**30),
        memory_bandwidth=memory,
        link_bandwidth=link,
        links=links,
        clock=clock,
    )
    for name, kind, gib, memory, link, links, clock in (
        ("v4", "TPU v4", 31.75, 1228e9, 45e9, 6, 1.05e9),
        ("v5e", "TPU v5 lite", 15.75, 819e9, 50e9, 4, 1.5e9),
        ("v5p", "TPU v5", 95.74, 2765e9, 100e9, 6, 1.75e9),
        ("v6e", "TPU v6 lite", 31.25, 1640e9, 100e9, 4, 1.75e9),
    )
}
OF_A_CARD = 0.75  # what JAX takes of a card's memory unless one of these variables, the new and the old one, is set
MEMORY_SHARES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
# Fitted to six steps of an H200 (docs/speed.md), and taken for the H100 too, which has the same processor.
HOPPER = Reached(products=0.75, memory=0.63, kernels=0.19, launch_seconds=1.2e-6)
# Memory, its bandwidth and NVLink in each direction: data sheets of NVIDIA, for the SXM form where there are several.
GPUS = {
    name: Chip(
        name=name,
        kind=kind,
        memory_bytes=gigabytes * 10**9,
        memory_bandwidth=memory,
        link_bandwidth=link,
        links=1,
        per_host=8,
        reached=reached,
    )
    for name, kind, gigabytes, memory, link, reached in (
        ("a100", "NVIDIA A100-SXM4-80GB", 80, 2039e9, 300e9, None),
        ("h100", "NVIDIA H100 80GB HBM3", 80, 3350e9, 450e9, HOPPER),
        ("h200", "NVIDIA H200", 141, 4800e9, 450e9, HOPPER),
    )
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """A machine to plan for."""

    name: str
    platform: Literal["tpu", "gpu", "cpu"]
    chip: Chip | None
    """None for processors, whose peak is unknown."""
    slices: int
    shape: str
    """Chips of one slice along each axis of its torus, such as 4x4; the number of devices where there is no torus."""

    @property
    def chips_per_slice(self) -> int:
        return math.prod(int(size) for size in self.shape.split("x"))

    @property
    def chips(self) -> int:
        """Number of chips in all slices."""
        return self.slices * self.chips_per_slice

    @property
    def hosts(self) -> int:
        """Number of hosts of all slices together."""
        return self.slices * -(-self.chips_per_slice // self.chip.per_host) if self.chip else 1


def find_topology(name: str) -> Topology:
    """Return the machine of that name.

    Raises:
      UserError: there is none; the message lists the known names.
    """
    match = re.fullmatch(r"(?:([1-9]\d{0,2})x)?(v\w+):([\dx]+)", name)
    if match and match[2] in TPUS and match[3] in _shapes(match[2]):
        slices = int(match[1] or 1)
        return Topology(name=name, platform="tpu", chip=TPUS[match[2]], slices=slices, shape=match[3])
    match = re.fullmatch(r"(cpu|gpu:(\w+)):(\d{1,4})", name)
    if match and 0 < int(match[3]) <= MOST_DEVICES and (match[1] == "cpu" or match[2] in GPUS):
        platform, chip = ("cpu", None) if match[1] == "cpu" else ("gpu", _as_set_up(GPUS[match[2]]))
        return Topology(name=name, platform=platform, chip=chip, slices=1, shape=str(int(match[3])))
    raise UserError(_unknown(name))


def _as_set_up(card: Chip) -> Chip:
    """Return the card with the share of its memory that the environment lets JAX take."""
    name = next((name for name in MEMORY_SHARES if os.environ.get(name)), "")
    given = os.environ.get(name, str(OF_A_CARD))
    try:
        share = float(given)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise UserError(f"{name}={given} must be a share of the memory, above 0 and at most 1")
    return dataclasses.replace(card, memory_bytes=round(card.memory_bytes * share))


def _shapes(chip: str) -> tuple[str, ...]:
    return SHAPES_2D if TPUS[chip].links == 4 else SHAPES_3D


def _unknown(name: str) -> str:
    names = [f"{chip}:{shape}" for chip in TPUS for shape in _shapes(chip)]
    close = difflib.get_close_matches(re.sub(r"^\d+[x*]", "", name), names, n=1)
    what = f"unknown topology {name!r}" if name else "--topology is missing"
    return (
        what
        + (f"; perhaps you meant {close[0]}" if close and name else "")
        + f"; known: v5e and v6e with {', '.join(SHAPES_2D)} chips; v4 and v5p with {', '.join(SHAPES_3D)}; several "
        + f"slices as 2xv5e:4x4; cpu:N; gpu:KIND:N with {', '.join(GPUS)}"
    )

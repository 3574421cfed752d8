"""The collectives of a compiled program with the bytes that they move, beside what the algorithm needs."""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

from bert_jax.planning.hlo import Instruction, Program

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
BETWEEN_SLICES = "between slices"
BESIDE_COMPUTATION = (*KINDS, "send", "recv", "copy-start", "slice-start")
"""Their bytes do not pass between a chip and its own memory, or are counted here."""
BESIDE_PRODUCTS = "async_collective_fusion"
"""How fusions of products with a part of a collective are called; its start and its end are fusions of their own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    """Collectives of a step that are alike."""

    kind: str
    """One of KINDS, or BETWEEN_SLICES for a sum that the hosts of several slices make."""
    dtype: str
    """Type of what is moved; several joined by +."""
    times: int
    """How often it runs in a step."""
    bytes: int
    """Bytes of the whole arrays on one chip, all times together: what is summed, or what results from gathering."""
    group: int
    """How many chips, or slices, take part."""
    origin: str
    """Where the largest comes from in the traced function."""
    bytes_beside: int = 0
    """Those of `bytes` that are moved while the chip computes: the compiler has put products into the same fusion."""

    @property
    def moved(self) -> float:
        """Bytes that each chip sends if the participants form a ring."""
        return _in_a_ring(self.kind, self.bytes, self.group)

    @property
    def moved_beside(self) -> float:
        """Those of `moved` that it sends while it computes."""
        return _in_a_ring(self.kind, self.bytes_beside, self.group)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needed:
    """Bytes that each chip has to send in a step of data parallelism, in rings."""

    gradients: float
    """Summing the gradients within a slice once."""
    parameters: float
    """Gathering the parameters once, where they are split (fsdp)."""
    between_slices: float
    """Summing over slices what each chip has of the sum within its slice."""

    @property
    def within_slice(self) -> float:
        return self.gradients + self.parameters


def needed(parameter_bytes: int, mesh: Mapping[str, int], teacher_bytes: int = 0) -> Needed:
    """Return what a step needs; sums of activations (tensor parallelism) are not included.

    Args:
      parameter_bytes: bytes of the parameters, whole over fsdp and in the type in which they are moved.
      mesh: sizes of its axes.
      teacher_bytes: those of a teacher's parameters, which have no gradients.
    """
    data, fsdp, slices = mesh["data"], mesh["fsdp"], mesh["slice"]
    scattered = _in_a_ring("reduce-scatter", parameter_bytes, fsdp)
    reduced = _in_a_ring("all-reduce", parameter_bytes, data) / fsdp
    return Needed(
        gradients=scattered + reduced,
        parameters=_in_a_ring("all-gather", parameter_bytes + teacher_bytes, fsdp),
        between_slices=_in_a_ring("all-reduce", parameter_bytes, slices) / (data * fsdp),
    )


def collectives_of(program: Program, chips: int, slices: int = 1) -> list[Collective]:
    """Return the collectives of a step, those that are alike together, the largest first.

    Args:
      program: the compiled program.
      chips: number of chips of one slice, all of which take part where a collective names no groups.
      slices: number of slices.
    """
    found, seen = [], set()
    beside = {_part(kind, each) for kind, each, _, within in _every(program) if within.startswith(BESIDE_PRODUCTS)}
    for kind, each, times, _ in _every(program):
        part = _part(kind, each)
        if part in seen and part is not None:
            continue
        seen.add(part)
        if kind == "send":
            kind, group, shapes = BETWEEN_SLICES, slices, each.shapes[:1]
        else:
            group, shapes = _group(each, chips), _moved_shapes(each)
        whole = sum(shape.bytes for shape in shapes) * (group if each.op.startswith("reduce-scatter") else 1)
        found.append(
            Collective(
                kind=kind,
                dtype="+".join(sorted({shape.dtype for shape in shapes})),
                times=times,
                bytes=times * whole,
                group=group,
                origin=each.op_name,
                bytes_beside=times * whole if part in beside and part is not None else 0,
            )
        )
    return _together(found)


def _part(kind: str, each: Instruction) -> tuple[str, str | None] | None:
    """Return what names a collective that stands in several fusions, or None: its number, if it is in a chain."""
    return (kind, each.attribute(r"channel_id=(\d+)")) if each.attribute(r'chain_id="(\w+)"') else None


def is_collective(program: Program, each: Instruction) -> bool:
    """Return whether an instruction is a collective, or a fusion around one."""
    return next(iter(_inside(program, each, 1)), None) is not None


def _every(program: Program) -> Iterator[tuple[str, Instruction, int, str]]:
    for _, each, times in program.scheduled():
        yield from _inside(program, each, times)


def _inside(
    program: Program, each: Instruction, times: int, within: str = ""
) -> Iterator[tuple[str, Instruction, int, str]]:
    """Yield kind, instruction, times and surrounding fusion of the collective that `each` is, or of those within it.

    TPUs write a reduce-scatter as a fusion named so of an all-reduce and the slice of it that a chip keeps.
    """
    kind = each.op.removesuffix("-start")
    if kind in KINDS:
        is_scattered = "all-reduce-scatter" in within and kind == "all-reduce"
        yield "reduce-scatter" if is_scattered else kind, each, times, within
    elif kind == "send" and "megascale" in each.attributes:
        yield kind, each, times, within
    elif each.op in ("fusion", "async-start"):
        for called in each.calls:
            for inner in program.computations.get(called, {}).values():
                yield from _inside(program, inner, times, called)


def _together(found: list[Collective]) -> list[Collective]:
    groups = collections.defaultdict(list)
    for each in found:
        groups[each.kind, each.dtype, each.group].append(each)
    merged = [
        dataclasses.replace(
            max(alike, key=lambda each: each.bytes),
            times=sum(each.times for each in alike),
            bytes=sum(each.bytes for each in alike),
            bytes_beside=sum(each.bytes_beside for each in alike),
        )
        for alike in groups.values()
    ]
    return sorted(merged, key=lambda each: -each.moved)


def _moved_shapes(each: Instruction):
    """Return the arrays that result; the type of a -start also has the operands before them."""
    arrays = [shape for shape in each.shapes if shape.dims or each.op == "all-reduce"]
    if each.op.endswith("-start") and each.op != "all-reduce-start":
        return arrays[len(arrays) // 2 :]
    return arrays or list(each.shapes)


def _group(each: Instruction, chips: int) -> int:
    """Return how many take part: from lists of numbers, from a shape such as [2,4]<=[8], or from axes of a mesh."""
    if each.op.startswith("collective-permute"):
        return 2
    text = each.attributes[each.attributes.find("replica_groups=") :]
    if listed := re.match(r"replica_groups=\{\{([\d,]+)\}", text):
        return len(listed[1].split(","))
    if shape := re.match(r"replica_groups=\[\d+,(\d+)\]", text):
        return int(shape[1])
    if axes := re.match(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", text):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", axes[1]))
        chosen = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", axes[2])
        return math.prod(int(part or sizes[name]) for name, part in chosen)
    return chips


def _in_a_ring(kind: str, size: float, group: int) -> float:
    """Return the bytes that each of a ring of `group` sends for an array of `size` bytes."""
    if kind == "collective-permute":
        return size
    rounds = 2 if kind in ("all-reduce", BETWEEN_SLICES) else 1
    return rounds * (group - 1) / group * size

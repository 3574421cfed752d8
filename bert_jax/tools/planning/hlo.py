"""The text of a compiled program (HLO), as the compiler dumps it, and the collectives in it.

The text is parsed into computations, instructions, shapes and loops. Collectives come with the bytes that they move,
to be compared with what the algorithm needs.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

BITS = {
    **{"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "bf16": 16, "f16": 16},
    **{"s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128},
}
NO_ESTIMATE = 10**13  # cycles; the compiler writes INT64_MAX where its model gave up

_SHAPE = re.compile(r"(\w+)\[([\d,]*)\](\{[^}]*\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|called_computations)=\{?%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Shape:
    """An array in a program."""

    dtype: str
    dims: tuple[int, ...]
    on_chip: bool
    """Whether it is in the memory on the chip (VMEM and the like), so that using it costs no traffic."""

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes without padding."""
        return self.size * BITS[self.dtype] // 8


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str
    op: str
    type: str
    """Text of its type, with layouts."""
    operands: tuple[str, ...]
    raw: str
    """Text between the brackets: operands, or the value of a constant or the number of a parameter."""
    attributes: str
    is_root: bool

    @functools.cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Arrays of the result; several for a tuple."""
        return shapes_of(self.type)

    @functools.cached_property
    def calls(self) -> tuple[str, ...]:
        """Computations that it calls."""
        branches = [name for group in _BRANCHES.findall(self.attributes) for name in re.split(r",\s*", "".join(group))]
        return (*_CALLED.findall(self.attributes), *(name.strip(" %") for name in branches if name))

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate; None where it states none."""
        match = re.search(r'"estimated_cycles":"?(-?\d+)', self.attributes)
        return max(0, int(match[1])) if match and int(match[1]) < NO_ESTIMATE else None

    @property
    def op_name(self) -> str:
        """Where it comes from in the traced function, such as jit(step)/transpose(jvp())/dot_general."""
        return self.attribute(r'op_name="([^"]*)"') or ""

    def attribute(self, pattern: str) -> str | None:
        match = re.search(pattern, self.attributes)
        return match[1] if match else None


Computation = dict[str, Instruction]
"""Instructions by name, in the order in which they run."""


@dataclasses.dataclass(frozen=True)
class Program:
    computations: dict[str, Computation]
    entry: str

    def root(self, computation: str) -> Instruction:
        return next(each for each in self.computations[computation].values() if each.is_root)

    def trips(self, computation: str, loop: Instruction) -> int:
        """Return how often a while loop in `computation` runs.

        That is what the compiler knows, else the largest constant of its condition without what the counter, which is
        the first of its values, begins with: 1 where the compiler has moved the first trip out of the loop.
        """
        if known := loop.attribute(r'known_trip_count"?[^\d]*(\d+)'):
            return int(known)
        most, waiting = 1, [loop.attribute(r"condition=%?([\w.\-]+)")]
        while waiting:
            for each in self.computations.get(waiting.pop() or "", {}).values():
                if each.op == "constant" and each.type.startswith("s32[]") and each.raw.strip().isdigit():
                    most = max(most, int(each.raw))
                waiting += each.calls
        return most - self._counter_begins(self.computations[computation], loop)

    def _counter_begins(self, scope: Computation, loop: Instruction) -> int:
        counter = scope.get(loop.operands[0])
        while counter is not None and counter.op in ("tuple", "copy", "bitcast"):
            counter = scope.get(counter.operands[0])
        is_number = counter is not None and counter.op == "constant" and counter.type.startswith("s32[]")
        return int(counter.raw) if counter is not None and is_number else 0

    def scheduled(self, computation: str | None = None, times: int = 1) -> Iterator[tuple[str, Instruction, int]]:
        """Yield (computation, instruction, times it runs) for all that runs by itself, not inside a fusion."""
        name = computation or self.entry
        for instruction in self.computations[name].values():
            if instruction.op == "while":
                body = instruction.attribute(r"body=%?([\w.\-]+)") or ""
                yield from self.scheduled(body, times * self.trips(name, instruction))
            elif instruction.op == "call" or instruction.op == "conditional":
                for called in instruction.calls[:1]:  # of a conditional the first branch, since one of them runs
                    yield from self.scheduled(called, times)
            else:
                yield name, instruction, times


def parse_program(text: str) -> Program:
    """Return the program in the text of an HLO module.

    Raises:
      ValueError: it has no entry computation.
    """
    computations: dict[str, Computation] = {}
    entry, current = None, None
    for line in text.splitlines():
        if current is None:
            if match := _COMPUTATION.match(line):
                current = computations[match[2]] = {}
                entry = match[2] if match[1] else entry
        elif line.startswith("}"):
            current = None
        elif match := _INSTRUCTION.match(line):
            each = _instruction(match[2], match[3], bool(match[1]))
            for name in each.operands:
                if "#" in name and name not in current:
                    current[name] = _element(name, current)
            current[each.name] = each
    if entry is None:
        raise ValueError("the text of the program has no entry computation")
    return Program(computations, entry)


def shapes_of(text: str) -> tuple[Shape, ...]:
    """Return the arrays in the text of a type; tokens and opaque values are left out."""
    return tuple(
        Shape(dtype, tuple(int(size) for size in dims.split(",") if size), bool(re.search(r"S\([1-9]", layout or "")))
        for dtype, dims, layout in _SHAPE.findall(text)
        if dtype in BITS
    )


def _instruction(name: str, text: str, is_root: bool) -> Instruction:
    """Return the instruction `name = text`, where text is: type op(operands), attributes."""
    if text.startswith("("):
        end = _closing(text, 0) + 1
        type_, rest = text[:end], text[end:].strip()
    else:
        type_, _, rest = text.partition(" ")
    op, _, _ = rest.partition("(")
    end = _closing(rest, len(op))
    raw = rest[len(op) + 1 : end]
    operands = () if op in ("parameter", "constant") else _names(raw)
    return Instruction(name, op, type_, operands, raw, rest[end + 1 :], is_root)


def _names(raw: str) -> tuple[str, ...]:
    """Return the names of operands, which begin with % except in a program that has not been compiled."""
    if "%" in raw:
        return tuple(re.findall(r"%([\w.\-]+(?:#\d+)?)", raw))
    return tuple(re.sub(r"/\*.*?\*/", "", raw).replace(" ", "").split(",")) if raw else ()


def _element(name: str, scope: Computation) -> Instruction:
    """Return the instruction that takes an element out of a tuple; XLA of jaxlib 0.11 writes only TUPLE#NUMBER."""
    whole, _, number = name.partition("#")
    type_ = [match[0] for match in _SHAPE.finditer(scope[whole].type)][int(number)]
    return Instruction(name, "get-tuple-element", type_, (whole,), f"%{whole}", f", index={number}", is_root=False)


def _closing(text: str, start: int) -> int:
    """Return the place of the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    return len(text)


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

    `chips`: number of chips of one slice, all of which take part where a collective names no groups.
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
    """Return what names a collective that occurs in several fusions, or None: its number, if it is in a chain."""
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

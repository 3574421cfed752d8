"""The text of a compiled program (HLO), as the compiler dumps it: computations, instructions, shapes, loops."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

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
            current[match[2]] = _instruction(match[2], match[3], bool(match[1]))
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
        return tuple(re.findall(r"%([\w.\-]+)", raw))
    return tuple(re.sub(r"/\*.*?\*/", "", raw).replace(" ", "").split(",")) if raw else ()


def _closing(text: str, start: int) -> int:
    """Return the place of the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    return len(text)

"""The memory of one device by part: what the compiler says, and what is in its temporaries when they are largest."""

import dataclasses
import re
from typing import Any

from bert_jax.planning.hlo import shapes_of
from bert_jax.planning.program_store import CompiledProgram

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+),(?: color (\d+),)?.*preallocated-temp")
_VALUE = re.compile(r"^ value: <\d+ (\S+) @\d+> \(size=(\d+),offset=(\d+)\): (.*)$")
_RANGE = re.compile(r"^    (\S+?):(\d+)-(\d+)$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device during a step."""

    parameters: int
    moments: int
    """The state of the optimizer: moments, and its count of steps."""
    teacher: int
    """Parameters of the model that this one learns from."""
    batch: int
    padding: int
    """Bytes that the layouts on the device add to the arrays above."""
    gradients: int
    """Arrays that have the shape of a parameter, or of one layer of it, at the moment when most memory is in use:
    gradients, and copies of parameters that are gathered or cast."""
    activations: int
    """All other arrays at that moment: those kept for the backward pass, and those being computed."""
    unattributed: int
    """Temporaries whose lifetimes the compiler does not report, and gaps between the others."""
    other: int
    """Results that do not replace the state: the metrics."""
    code: int
    """The program itself."""

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


def memory_of(program: CompiledProgram, facts: dict[str, Any]) -> Memory:
    """Return the memory by part of a program that fits.

    Args:
      program: the compiled program.
      facts: bytes of parameters, moments, teacher and batch on each device, and the shapes of all parameters.
    """
    said = program.memory
    live = _live_at_peak(program)
    gradients = sum(size for size, type_ in live if _like_a_parameter(type_, facts["parameter_shapes"]))
    activations = sum(size for size, _ in live) - gradients
    state = sum(facts[part] for part in ("parameters", "moments", "teacher", "batch"))
    return Memory(
        parameters=facts["parameters"],
        moments=facts["moments"],
        teacher=facts["teacher"],
        batch=facts["batch"],
        padding=max(0, said["argument"] - state),
        gradients=gradients,
        activations=activations,
        unattributed=max(0, said["temp"] - gradients - activations),
        other=said["output"] - said["alias"],
        code=said["generated_code"],
    )


def _live_at_peak(program: CompiledProgram) -> list[tuple[int, str]]:
    """Return size and type of the temporaries in the chip's main memory when they take most of it.

    Values that share a place are counted once.
    """
    ranges = {}
    for line in program.live_ranges.splitlines():
        if match := _RANGE.match(line):
            # The array that an instruction gives is NAME{} here and NAME among the buffers.
            ranges[match[1].removesuffix("{}")] = int(match[2]), int(match[3])
    places: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    inside = False
    for line in program.buffers.splitlines():
        if line.startswith("allocation "):
            match = _ALLOCATION.match(line)
            inside = match is not None and match[2] in (None, "0")
        elif inside and (match := _VALUE.match(line)) and (name := match[1].removesuffix("{}")) in ranges:
            places.setdefault((int(match[3]), int(match[2])), []).append((*ranges[name], match[4]))
    changes = sorted(
        change
        for (_, size), values in places.items()
        for first, last in _merged([(first, last) for first, last, _ in values])
        for change in ((first, 0, size), (last, 1, -size))
    )
    held = most = 0
    peak = -1
    for time, _, change in changes:
        held += change
        if held > most:
            most, peak = held, time
    return [
        (size, next(type_ for first, last, type_ in values if first <= peak <= last))
        for (_, size), values in places.items()
        if any(first <= peak <= last for first, last, _ in values)
    ]


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans with those that overlap joined."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


def _like_a_parameter(type_: str, parameters: list[list[int]]) -> bool:
    """Return whether an array has the sizes of a parameter, or of one layer of it, in any order."""
    shapes = shapes_of(type_)
    if len(shapes) != 1 or shapes[0].dtype not in ("f32", "bf16") or len(shapes[0].dims) < 2:
        return False
    sizes = sorted(size for size in shapes[0].dims if size > 1)
    return any(sizes in (sorted(size for size in shape[drop:] if size > 1) for drop in (0, 1)) for shape in parameters)

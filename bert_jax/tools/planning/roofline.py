"""Bounds on the time of a step and its memory, from the work of a compiled program; nothing is executed.

Work is products, bytes to and from memory, and the compiler's estimated cycles. Bodies of loops count as often as
they run, which `cost_analysis()` of JAX does not do. The pessimistic bound adds up the compiler's own estimates, or for
cards that were measured each operation at the rate that steps reached, and all transfers between chips, as if nothing
overlapped. The optimistic bound lets each instruction run at a peak of the chip and hides all transfers behind
computation. A step can take longer than the pessimistic bound: BLIND_SPOTS lists what neither of them sees.

The memory of one device is split into parts, with the temporaries at the moment when they are largest.
"""

import collections
import dataclasses
import math
import re
from typing import Any

from bert_jax.config import Phase
from bert_jax.devices.hardware import peak_flops
from bert_jax.models.kernels.choice import cudnn_flops
from bert_jax.models.kernels.gpu import attention_flops
from bert_jax.models.kernels.tpu import kernel_cycles
from bert_jax.tools.planning import hlo
from bert_jax.tools.planning.compiler import CompiledProgram
from bert_jax.tools.planning.topology import HOST_NETWORK, Reached, Topology

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

    `facts`: bytes of parameters, moments, teacher and batch on each device, and the shapes of all parameters.
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
    shapes = hlo.shapes_of(type_)
    if len(shapes) != 1 or shapes[0].dtype not in ("f32", "bf16") or len(shapes[0].dims) < 2:
        return False
    sizes = sorted(size for size in shapes[0].dims if size > 1)
    return any(sizes in (sorted(size for size in shape[drop:] if size > 1) for drop in (0, 1)) for shape in parameters)


FREE = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota"),
    *("partition-id", "replica-id"),
)
NOTABLE_BYTES = 1e6  # an instruction without an estimate that moves less does not matter
_SLICING = ("dynamic-slice", "slice", "gather")


MOST_OPERATIONS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """Instructions that come from one place of the traced step and have results of one shape."""

    origin: str
    """That place, such as jit(step)/transpose(jvp())/dot_general."""
    result: str
    """Type of the first array that results, such as bf16[8,512,1024]."""
    times: int
    cycles: int
    roofline_seconds: float
    flops: int
    bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Work of one device in a step."""

    flops: int
    """Operations of matrix products, those of our kernels included; a multiply-add counts as two."""
    bytes: int
    """Bytes between the chip and its memory."""
    cycles: int
    """Sum of the compiler's estimates, and of our own estimates for our kernels (models/kernels/tpu.py)."""
    roofline_seconds: float
    """Each instruction at the peak of products or of the memory, whichever takes longer, one after the other."""
    reached_seconds: float | None = None
    """Each operation at the rate that was measured on such a card, one after the other; None where none was."""
    without_estimate: dict[str, int]
    """How often an instruction that moves more than a megabyte has no estimate, by its kind."""
    costliest: list[Operation] = dataclasses.field(default_factory=list)
    """Those that take most cycles, the first most; where the compiler states none, those with the longest roofline."""


LAUNCHED = ("fusion", "custom-call", "copy", "transpose", "reduce", "concatenate", "scatter", "sort")


def work_of(program: hlo.Program, peak_flops: float, memory_bandwidth: float, reached: Reached | None = None) -> Work:
    """Return what one device does.

    Args:
      peak_flops: operations/s of matrix products.
      memory_bandwidth: bytes/s.
      reached: what was measured on such a device, if anything.
    """
    missing, operations, seconds = collections.Counter(), collections.defaultdict(list), 0.0
    for computation, each, times in program.scheduled():
        if each.op in FREE or each.op.endswith(("-done", "-update")):
            continue
        own_flops, own_bytes = flops_of(program, computation, each), traffic_of(program, computation, each)
        own_cycles = each.cycles or None
        if not own_cycles and each.op == "custom-call":  # the compiler does not estimate our kernels
            own_cycles = kernel_cycles(each.op_name, _stated(each, "transcendentals"))
        fastest = max(own_flops / peak_flops, own_bytes / memory_bandwidth)
        if reached is not None and each.op in LAUNCHED:
            by_kernel = own_flops > 0 and each.op == "custom-call" and not _of_cublas(each)
            share = reached.kernels if by_kernel else reached.products if own_flops else reached.memory
            seconds += times * (reached.launch_seconds + fastest / share)
        found = (times, times * (own_cycles or 0), times * fastest, times * own_flops, times * own_bytes)
        operations[_origin(program, each), each.type.strip("(").partition("{")[0]].append(found)
        if own_cycles is None and own_bytes > NOTABLE_BYTES and not hlo.is_collective(program, each):
            missing[each.op] += times
    sums = ("times", "cycles", "roofline_seconds", "flops", "bytes")
    alike = [
        Operation(origin=origin, result=result, **dict(zip(sums, map(sum, zip(*found, strict=True)), strict=True)))
        for (origin, result), found in operations.items()
    ]
    return Work(
        flops=sum(each.flops for each in alike),
        bytes=sum(each.bytes for each in alike),
        cycles=sum(each.cycles for each in alike),
        roofline_seconds=sum(each.roofline_seconds for each in alike),
        reached_seconds=None if reached is None else seconds,
        without_estimate=dict(missing),
        costliest=_costliest(alike),
    )


def _origin(program: hlo.Program, each: hlo.Instruction) -> str:
    """Return where an instruction comes from, or a fusion that the compiler gives no place where its root does."""
    inner = program.root(each.calls[0]).op_name if each.op == "fusion" and not each.op_name else each.op_name
    return inner or each.op


def _costliest(operations: list[Operation]) -> list[Operation]:
    estimated = [each for each in operations if each.cycles]
    if estimated:
        return sorted(estimated, key=lambda each: -each.cycles)[:MOST_OPERATIONS]
    known = [each for each in operations if each.roofline_seconds]  # the peaks of a processor are unknown
    return sorted(known, key=lambda each: -each.roofline_seconds)[:MOST_OPERATIONS]


def flops_of(program: hlo.Program, computation: str, each: hlo.Instruction) -> int:
    """Return the operations of a product, or of all products in a fusion."""
    if each.op == "fusion":
        called = each.calls[0]
        return sum(flops_of(program, called, inner) for inner in program.computations[called].values())
    if each.op == "custom-call" and not _of_cublas(each):
        by_cudnn = cudnn_flops(each.attribute(r'custom_call_target="([^"]*)"') or "", each.shapes)
        return _stated(each, "flops") or by_cudnn or attention_flops(each.op_name, each.shapes)
    if each.op not in ("dot", "convolution", "custom-call"):
        return 0
    scope, result = program.computations[computation], each.shapes[0].dims
    left, right = (scope[name].shapes[0].dims for name in each.operands[:2])
    if each.op != "convolution":
        # Of a product that XLA computes, and of one that is cuBLAS's.
        axes = each.attribute(r"lhs_contracting_dims=\{([\d,]*)\}") or each.attribute(
            r'"lhs_contracting_dimensions":\[([\d,"]*)\]'
        )
        contracted = [int(axis) for axis in re.findall(r"\d+", axes or "")]
        return 2 * math.prod(result) * math.prod(left[axis] for axis in contracted)
    return _convolution_flops(each, left, right, result)


def _of_cublas(each: hlo.Instruction) -> bool:
    """Return whether a call is a product by cuBLAS; its second result is room to work, which is not traffic."""
    return each.op == "custom-call" and 'custom_call_target="__cublas' in each.attributes


def _stated(each: hlo.Instruction, what: str) -> int:
    """Return a number of the estimate that whoever wrote a kernel gave with it."""
    return int(each.attribute(rf'"cost_estimate":\{{[^}}]*"{what}":"?(\d+)') or 0)


def _convolution_flops(
    each: hlo.Instruction, left: tuple[Any, ...], right: tuple[Any, ...], result: tuple[Any, ...]
) -> int:
    """Return the operations of a convolution, which is how TPUs write products; padding is not multiplied."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", each.attributes)
    assert labels is not None
    of_left, of_right, of_result = labels.groups()
    window = dict(re.findall(r"(\w+)=([\dx_\-]+)", each.attribute(r"window=\{([^}]*)\}") or ""))

    def entry(name: str, place: int, default: str) -> str:
        return window[name].split("x")[place] if name in window else default

    flops = 2 * result[of_result.index("b")] * result[of_result.index("f")] * right[of_right.index("i")]
    for place in range(len(of_right) - 2):
        out, over = result[of_result.index(str(place))], left[of_left.index(str(place))]
        size, stride, padding = (int(entry(*given).split("_")[0]) for given in (
            ("size", place, "1"), ("stride", place, "1"), ("pad", place, "0_0")))  # fmt: skip
        spread, apart = int(entry("lhs_dilate", place, "1")), int(entry("rhs_dilate", place, "1"))
        positions = (o * stride + k * apart - padding for o in range(out) for k in range(size))
        flops *= sum(at >= 0 and at % spread == 0 and at // spread < over for at in positions)
    return flops


def traffic_of(program: hlo.Program, computation: str, each: hlo.Instruction) -> int:
    """Return the bytes to and from memory; those of collectives and of copies under way are counted elsewhere."""
    if each.op.endswith("-start") or each.op in hlo.BESIDE_COMPUTATION:
        return 0
    scope, written = program.computations[computation], _written(program, each)
    if each.op in _SLICING:
        return 2 * written
    if each.op == "dynamic-update-slice":
        return 2 * sum(shape.bytes for shape in scope[each.operands[1]].shapes)
    read = 0
    for place, name in enumerate(each.operands):
        whole = sum(shape.bytes for shape in scope[name].shapes if not shape.on_chip) if name in scope else 0
        inside = each.op == "fusion" and whole
        read += _read_by_fusion(program, each.calls[0], place, whole) if inside else whole
    return written + read


def _read_by_fusion(program: hlo.Program, called: str, place: int, whole: int) -> int:
    """Return the bytes of operand `place` that a fusion reads: where it only cuts slices out, those of the slices."""
    scope = program.computations[called]
    parameter = next(name for name, each in scope.items() if each.op == "parameter" and each.raw.strip() == str(place))
    return min(whole, _read_of(program, called, parameter, whole))


def _read_of(program: hlo.Program, called: str, name: str, whole: int) -> int:
    total, scope = 0, program.computations[called]
    for each in scope.values():
        if name not in each.operands:
            continue
        if each.op in _SLICING and each.operands[0] == name:
            total += sum(shape.bytes for shape in each.shapes)
        elif each.op == "bitcast":
            total += _read_of(program, called, each.name, whole)
        elif each.op == "fusion":
            places = [place for place, operand in enumerate(each.operands) if operand == name]
            total += max(_read_by_fusion(program, each.calls[0], place, whole) for place in places)
        elif each.op != "dynamic-update-slice" or each.operands[0] != name:
            return whole
    return total


def _written(program: hlo.Program, each: hlo.Instruction) -> int:
    """Return the bytes that are written; of an update in place those of the update."""
    if each.op != "fusion":
        written = each.shapes[:1] if _of_cublas(each) else each.shapes
        return sum(shape.bytes for shape in written if not shape.on_chip)
    called, root = each.calls[0], program.root(each.calls[0])
    names = root.operands if root.op == "tuple" else (root.name,)
    total = 0
    for place, shape in enumerate(each.shapes[:1] if _of_cublas(root) else each.shapes):
        if not shape.on_chip:
            updated = _updated(program, called, names[place]) if place < len(names) else None
            total += shape.bytes if updated is None else min(updated, shape.bytes)
    return total


def _updated(program: hlo.Program, called: str, name: str) -> int | None:
    """Return the bytes of the update if `name` is an update in place, looking through copies and fusions."""
    each = program.computations[called].get(name)
    while each is not None and each.op in ("bitcast", "copy", "fusion"):
        if each.op == "fusion":
            return _updated(program, each.calls[0], program.root(each.calls[0]).name)
        each = program.computations[called].get(each.operands[0]) if each.operands else None
    if each is None or each.op != "dynamic-update-slice":
        return None
    update = program.computations[called].get(each.operands[1])
    return None if update is None else sum(shape.bytes for shape in update.shapes)


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
    "Times of single operations, of which the compiler for GPUs estimates none. The pessimistic bound, of Hopper cards "
    "alone, has the shares of the peaks that steps on one H200 reached (docs/speed.md).",
    "The choice of kernels for products, which needs a card: all are taken to be cuBLAS's, at the peak.",
    "The room that cuDNN works in, where it computes attention.",
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
    """None where the compiler states no cycles and no step was measured on such a card."""
    computing: float | None
    """The part of the pessimistic bound that comes from the compiler's estimates, or from measured rates."""
    links: float
    """The part of the pessimistic bound that is transfers within a slice: one ring in one direction of one link."""
    network: float
    """The part of the pessimistic bound that is transfers between slices."""


def step_time(topology: Topology, work: Work, collectives: list[hlo.Collective]) -> StepTime:
    """Return the bounds of a step on `topology`, whose chips are known."""
    chip = topology.chip
    assert chip is not None
    moved = sum(each.moved for each in collectives if each.kind != hlo.BETWEEN_SLICES)
    across = sum(each.moved for each in collectives if each.kind == hlo.BETWEEN_SLICES)
    network = across * min(chip.per_host, topology.chips_per_slice) / HOST_NETWORK
    links = moved / chip.link_bandwidth
    computing = work.cycles / chip.clock if chip.clock and work.cycles else work.reached_seconds
    return StepTime(
        optimistic=max(work.roofline_seconds, links / chip.links, network),
        pessimistic=None if computing is None else computing + links + network,
        computing=computing,
        links=links,
        network=network,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Throughput:
    """Rates and duration of a phase that follow from the time of a step."""

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

"""What is known of one phase on a machine before it is rented."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from bert_jax.config import Config, Phase, resolve_phases
from bert_jax.devices.hardware import peak_flops
from bert_jax.devices.memory_shortage import Shortage, shortage_of
from bert_jax.models.parameters import FLOAT32
from bert_jax.models.run_costs import computed_flops
from bert_jax.planning.collectives import Collective, Needed, collectives_of, needed
from bert_jax.planning.compilation import compile_phase
from bert_jax.planning.estimate import StepTime, Throughput, step_time, throughput
from bert_jax.planning.hlo import parse_program
from bert_jax.planning.memory import Memory, memory_of
from bert_jax.planning.program_store import CompiledProgram
from bert_jax.planning.roofline import Work, work_of
from bert_jax.planning.topology import Chip, Topology

BY_CLOSED_FORM = "parameters, moments, gradients and activations by closed form"
BY_THE_COMPILER = "arguments and temporaries by the compiler, which does not check the memory of a card"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """One phase on a machine."""

    phase: Phase
    mesh: dict[str, int]
    """Sizes of the axes."""
    remat: str
    """The policy, which compute.remat=auto leaves to the memory of a chip."""
    compiled: bool
    """Whether a compiler has seen it; else memory and time are closed forms."""
    flops: float
    """Operations of a step on one chip by closed form, without what is computed twice and what a teacher computes."""
    memory: Memory | None
    """None if the compiler found that the program does not fit."""
    shortage: Shortage | None
    """What is missing if it does not fit."""
    closed_form_bytes: int
    """Memory that the closed form behind compute.remat=auto expects on a chip."""
    needed: Needed
    """Bytes that data parallelism needs at least, in the type of the products."""
    work: Work | None = None
    collectives: list[Collective] = dataclasses.field(default_factory=list)
    time: StepTime | None = None
    optimistic: Throughput | None = None
    pessimistic: Throughput | None = None
    resharding_warnings: int = 0
    compile_cpu_seconds: float = 0.0

    @property
    def fits(self) -> bool:
        return self.shortage is None

    @property
    def sequences_per_chip(self) -> float:
        return self.phase.batch_size / math.prod(self.mesh.values())


def plan_phase(config: Config, topology: Topology, number: int, stage: Callable[[str], None]) -> PhasePlan:
    """Compile one phase for `topology` and say what follows.

    Args:
      config: options of the run, resolved for the machine.
      topology: the machine.
      number: of the phase.
      stage: is told what is being done, in a few words.

    Raises:
      UserError: the options do not fit the machine.
    """
    phase = resolve_phases(config)[number]
    compiled, facts = compile_phase(config, topology, number, stage)
    mesh = facts["mesh"]
    value_bytes = FLOAT32 if config.compute.dtype == "float32" else FLOAT32 // 2
    plan = PhasePlan(
        phase=phase,
        mesh=mesh,
        remat=facts["remat"],
        compiled=compiled is not None,
        flops=closed_form_flops(config, phase) * phase.batch_size / math.prod(mesh.values()),
        memory=None,
        shortage=None,
        closed_form_bytes=facts["needed_bytes"],
        needed=needed(facts["whole_parameters"] * value_bytes, mesh, facts["whole_teacher"] * value_bytes),
    )
    if compiled is None:
        return _by_closed_form(plan, topology, facts)
    plan = dataclasses.replace(
        plan, resharding_warnings=compiled.resharding_warnings, compile_cpu_seconds=compiled.cpu_seconds
    )
    if compiled.failure:
        return dataclasses.replace(plan, shortage=shortage_of(compiled.failure))
    stage("reading the program")
    return _of_program(plan, topology, compiled, facts)


def closed_form_flops(config: Config, phase: Phase) -> int:
    """Return the operations of one sequence in a training step, on all chips together."""
    return computed_flops(config, phase.sequence_length, phase.max_predictions).total


def _of_program(plan: PhasePlan, topology: Topology, compiled: CompiledProgram, facts: dict[str, Any]) -> PhasePlan:
    """Return `plan` with what the compiled program says."""
    program, chip = parse_program(compiled.text), topology.chip
    peak = peak_flops(chip.kind) if chip else None
    collectives = collectives_of(program, topology.chips_per_slice, topology.slices)
    work = work_of(program, peak or math.inf, chip.memory_bandwidth if chip else math.inf)
    plan = dataclasses.replace(plan, memory=memory_of(compiled, facts), work=work, collectives=collectives)
    if chip is None:
        return plan
    if topology.platform == "gpu":
        plan = _within(plan, chip, BY_THE_COMPILER)
    return _timed(plan, topology, step_time(topology, work, collectives))


def _by_closed_form(plan: PhasePlan, topology: Topology, facts: dict[str, Any]) -> PhasePlan:
    """Return `plan` with estimates for a machine whose programs cannot be compiled here."""
    chip = topology.chip
    assert chip is not None
    state = {part: facts[part] for part in ("parameters", "moments", "teacher")} | {"gradients": facts["parameters"]}
    memory = Memory(
        **state,
        activations=max(0, plan.closed_form_bytes - sum(state.values())),
        batch=facts["batch"],
        padding=0,
        unattributed=0,
        other=0,
        code=0,
    )
    plan = _within(dataclasses.replace(plan, memory=memory), chip, BY_CLOSED_FORM)
    links = plan.needed.within_slice / chip.link_bandwidth
    computed = plan.flops + facts["teacher_flops"] * plan.sequences_per_chip
    fastest = max(computed / (peak_flops(chip.kind) or math.inf), links)
    return _timed(
        plan, topology, StepTime(optimistic=fastest, pessimistic=None, computing=None, links=links, network=0.0)
    )


def _within(plan: PhasePlan, chip: Chip, source: str) -> PhasePlan:
    """Return `plan` with what is missing of the memory of a chip, if it is more than that."""
    needed = plan.memory.total if plan.memory else 0
    fits = needed <= chip.memory_bytes
    return plan if fits else dataclasses.replace(plan, shortage=Shortage(needed, chip.memory_bytes, source))


def _timed(plan: PhasePlan, topology: Topology, time: StepTime) -> PhasePlan:
    """Return `plan` with the two ends of the time of a step and what they mean."""

    def with_steps_of(seconds: float | None) -> Throughput | None:
        return None if seconds is None else throughput(seconds, topology, plan.phase, plan.flops)

    return dataclasses.replace(
        plan, time=time, optimistic=with_steps_of(time.optimistic), pessimistic=with_steps_of(time.pessimistic)
    )

"""The remat policy that makes a phase fit, the largest batch that fits, and the fastest of a few meshes."""

import dataclasses
from collections.abc import Callable, Iterator

from absl import logging

from bert_jax.config import Config, MeshConfig
from bert_jax.planning.advice import STRONGER
from bert_jax.planning.compilation import CompilerFailure
from bert_jax.planning.phase_plan import PhasePlan, plan_phase
from bert_jax.planning.topology import Topology

MOST_DOUBLINGS = 6
"""A batch is not made larger than 64 times what was asked for, nor smaller than a sixty-fourth."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A change of the options of a phase and what comes of it."""

    question: str
    """What is searched for: remat, batch or mesh."""
    change: str
    """The options, as they are written on the command line."""
    plan: PhasePlan
    chosen: bool = False
    """Whether this is the answer to its question."""


def search(config: Config, topology: Topology, first: PhasePlan, stage: Callable[[str], None]) -> list[Candidate]:
    """Return what was tried for the phase of `first`, its plan with the options as they are, and which is best."""
    number, found = first.phase.index, []

    def planned(changed: Config, change: str) -> PhasePlan | None:
        try:
            return plan_phase(changed, topology, number, lambda what: stage(f"{change}: {what}"))
        except CompilerFailure as error:
            logging.warning("%s is left out: %s", change, error)
            return None

    config, base, tried = _fitting_remat(config, first, planned)
    found += tried
    found += _largest_batch(config, base, planned)
    if base.fits:
        found += _fastest_mesh(config, topology, base, planned)
    return found


Planned = Callable[[Config, str], PhasePlan | None]
"""Plans a phase with other options, and their text; None if the compiler has crashed."""


def _fitting_remat(config: Config, first: PhasePlan, planned: Planned) -> tuple[Config, PhasePlan, list[Candidate]]:
    """Return the options with the weakest policy from the given one on that fits, its plan, and what was tried."""
    tried = [Candidate(question="remat", change=f"--compute.remat={first.remat}", plan=first, chosen=first.fits)]
    for policy in () if first.fits else STRONGER[first.remat]:
        stronger = dataclasses.replace(config, compute=dataclasses.replace(config.compute, remat=policy))
        change = f"--compute.remat={policy}"
        plan = planned(stronger, change)
        if plan is None:
            continue
        tried.append(Candidate(question="remat", change=change, plan=plan, chosen=plan.fits))
        config, first = stronger, plan
        if plan.fits:
            break
    return config, first, tried


def _largest_batch(config: Config, base: PhasePlan, planned: Planned) -> list[Candidate]:
    """Double the batch as long as it fits, or halve it until it does; the batch as it is comes first."""
    number = base.phase.index
    unit = base.mesh["slice"] * base.mesh["data"] * base.mesh["fsdp"] * base.phase.micro_batches
    tried = [Candidate(question="batch", change=f"--phases.{number}.batch_size={base.phase.batch_size}", plan=base)]
    for size in _sizes(base.phase.batch_size, unit, grows=base.fits):
        phases = tuple(
            dataclasses.replace(phase, batch_size=size) if index == number else phase
            for index, phase in enumerate(config.phases)
        )
        change = f"--phases.{number}.batch_size={size}"
        plan = planned(dataclasses.replace(config, phases=phases), change)
        if plan is None:
            break
        tried.append(Candidate(question="batch", change=change, plan=plan))
        if plan.fits != base.fits:
            break
    best = max((each for each in tried if each.plan.fits), key=lambda each: each.plan.phase.batch_size, default=None)
    return [dataclasses.replace(each, chosen=each is best) for each in tried]


def _sizes(size: int, unit: int, grows: bool) -> Iterator[int]:
    for _ in range(MOST_DOUBLINGS):
        if not grows and (size % 2 or size // 2 % unit):
            return
        size = size * 2 if grows else size // 2
        yield size


def _fastest_mesh(config: Config, topology: Topology, base: PhasePlan, planned: Planned) -> list[Candidate]:
    """Compare data parallelism with the state split over 4 chips, and over all of a slice."""
    chips, shown = topology.chips_per_slice, dict[str, PhasePlan]()
    for fsdp in sorted({1, min(4, chips), chips, base.mesh["fsdp"]}):
        mesh = MeshConfig(slice=base.mesh["slice"], data=chips // fsdp, fsdp=fsdp)
        change = f"--mesh.data={mesh.data} --mesh.fsdp={fsdp}"
        same = dict(base.mesh) == dataclasses.asdict(mesh)
        plan = base if same else planned(dataclasses.replace(config, mesh=mesh), change)
        if plan is not None:
            shown[change] = plan
    timed = {
        change: end for change, plan in shown.items() if plan.fits and (end := plan.pessimistic or plan.optimistic)
    }
    best = min(timed, key=lambda change: timed[change].step_seconds, default=None)
    return [
        Candidate(question="mesh", change=change, plan=plan, chosen=change == best) for change, plan in shown.items()
    ]

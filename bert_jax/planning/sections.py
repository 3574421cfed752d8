"""A plan as tables of text, which the console and the page show alike."""

import dataclasses
from typing import Any

from bert_jax.planning.estimate import BLIND_SPOTS, OF_A_GPU, WITHOUT_A_COMPILER, StepTime, Throughput, cost
from bert_jax.planning.phase_plan import PhasePlan
from bert_jax.planning.roofline import Operation
from bert_jax.planning.search import Candidate
from bert_jax.planning.topology import Chip, Topology

GIB = 2**30
PARTS = {
    "parameters": "parameters",
    "moments": "moments of the optimizer",
    "teacher": "parameters of the teacher",
    "gradients": "gradients, gathered or cast parameters",
    "activations": "activations and work space",
    "batch": "batch",
    "padding": "padding of the layouts",
    "unattributed": "temporaries not attributed",
    "other": "metrics",
    "code": "program",
}


@dataclasses.dataclass(frozen=True)
class Section:
    """A table with its title and what is to be said below it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()


def sections(topology: Topology, plans: list[PhasePlan], candidates: list[Candidate], price: float) -> list[Section]:
    """Return the tables of a plan.

    Args:
      topology: the machine.
      plans: of the phases, in order.
      candidates: what a search has tried.
      price: of a chip for an hour; 0 if it is unknown.
    """
    costly = [_costliest(topology.chip, plan) for plan in plans if topology.chip and plan.work and plan.work.costliest]
    found = [_memory(topology, plans), _time(topology, plans, price), *costly, *map(_collectives, plans)]
    return found + ([_search(candidates)] if candidates else [])


def _names(plans: list[PhasePlan]) -> tuple[str, ...]:
    return tuple(f"phase {plan.phase.index}" for plan in plans)


def _memory(topology: Topology, plans: list[PhasePlan]) -> Section:
    taught = any(plan.memory and plan.memory.teacher for plan in plans)
    rows = [
        (name, *(_gib(plan.memory and getattr(plan.memory, part)) for plan in plans))
        for part, name in PARTS.items()
        if taught or part != "teacher"
    ]
    rows.append(("together", *(_gib(plan.memory and plan.memory.total) for plan in plans)))
    rows.append(("together, as remat=auto expects", *(_gib(plan.closed_form_bytes) for plan in plans)))
    if topology.chip:
        rows.append(("a program can use", *(_gib(topology.chip.memory_bytes) for _ in plans)))
        rows.append(("fits", *("yes" if plan.fits else "no" for plan in plans)))
    notes = [
        f"Phase {plan.phase.index} does not fit. Needed: {_gib(plan.shortage.needed)} GiB ({plan.shortage.what}); "
        f"available: {_gib(plan.shortage.available)} GiB."
        for plan in plans
        if plan.shortage
    ]
    if not all(plan.compiled for plan in plans):
        notes.append(
            "By closed forms, as the compiler for GPUs is not installed (docs/planning.md). The activations are a "
            "rough estimate."
        )
    return Section("Memory of one chip in GiB", ("part", *_names(plans)), rows, tuple(notes))


def _time(topology: Topology, plans: list[PhasePlan], price: float) -> Section:
    rows = [
        ("sequences × length", *(f"{plan.phase.batch_size:,} × {plan.phase.sequence_length}" for plan in plans)),
        ("sequences on one chip", *(f"{plan.sequences_per_chip:g}" for plan in plans)),
        ("remat", *(plan.remat for plan in plans)),
        ("TFLOP on one chip, closed form", *(f"{plan.flops / 1e12:,.3f}" for plan in plans)),
        ("TFLOP on one chip, compiled", *(f"{plan.work.flops / 1e12:,.3f}" if plan.work else "-" for plan in plans)),
    ]
    timed = [plan for plan in plans if plan.time]
    if timed:
        rows += [
            ("step, ms", *(_bracket(plan, lambda end: end.step_seconds * 1e3, "{:,.1f}") for plan in plans)),
            *(
                (f"  of the longer: {name}, ms", *(_part(plan.time, part) for plan in plans))
                for part, name in (
                    ("computing", "estimates"),
                    ("links", "between chips"),
                    ("network", "between slices"),
                )
            ),
            ("tokens/s", *(_bracket(plan, lambda end: end.tokens_per_second, "{:,.0f}") for plan in plans)),
            ("MFU", *(_bracket(plan, lambda end: end.utilization, "{:.1%}") for plan in plans)),
            (
                "sequences/s from each host",
                *(_bracket(plan, lambda end: end.sequences_per_host, "{:,.0f}") for plan in plans),
            ),
            ("steps", *(f"{plan.phase.steps:,}" for plan in plans)),
            ("days", *(_bracket(plan, lambda end: end.days, "{:,.2f}") for plan in plans)),
        ]
        if price:
            rows.append(
                (
                    "cost",
                    *(_bracket(plan, lambda end: cost(end.days, topology.chips, price), "{:,.0f}") for plan in plans),
                )
            )
    rows.append(("arrays copied whole to move them", *(str(plan.resharding_warnings) for plan in plans)))
    return Section(
        "A step, from the optimistic to the pessimistic bound",
        ("", *_names(plans)),
        rows,
        _said(topology, plans, price),
    )


def _said(topology: Topology, plans: list[PhasePlan], price: float) -> tuple[str, ...]:
    """Return the totals of the run, then what the figures do not see."""
    notes = []
    for name, ends in (("optimistic", [p.optimistic for p in plans]), ("pessimistic", [p.pessimistic for p in plans])):
        if ends and all(ends):
            days = sum(end.days for end in ends if end)
            paid = f", cost {cost(days, topology.chips, price):,.0f}" if price else ""
            notes.append(f"All phases, {name}: {days:,.2f} days on {topology.chips} chips{paid}.")
    missing = {kind: times for plan in plans if plan.work for kind, times in plan.work.without_estimate.items()}
    if missing and topology.platform == "tpu":
        listed = ", ".join(f"{times} × {kind}" for kind, times in sorted(missing.items()))
        notes.append(f"Instructions over 1 MB without an estimate: {listed}.")
    if not any(plan.time for plan in plans):
        return tuple(notes)
    if topology.platform == "gpu":
        spots = OF_A_GPU if all(plan.compiled for plan in plans) else WITHOUT_A_COMPILER
    else:
        spots = BLIND_SPOTS
    return (*notes, *(f"Not seen: {spot}" for spot in spots))


def _collectives(plan: PhasePlan) -> Section:
    rows = [
        (
            *(each.kind, each.dtype, f"{each.times:,}", str(each.group)),
            *(_mb(each.bytes), _mb(each.moved), _mb(each.moved_beside), each.origin[-60:]),
        )
        for each in plan.collectives
    ]
    if plan.compiled:
        sent, beside = sum(each.moved for each in plan.collectives), sum(each.moved_beside for each in plan.collectives)
        rows.append(("together", "", "", "", "", _mb(sent), _mb(beside), ""))
    wanted = plan.needed
    needs = (
        ("gradients", wanted.gradients),
        ("parameters", wanted.parameters),
        ("between slices", wanted.between_slices),
    )
    rows += [(f"needed: {name}", "", "", "", "", _mb(moved), "", "") for name, moved in needs if moved]
    mesh = " × ".join(f"{axis}={size}" for axis, size in plan.mesh.items())
    return Section(
        f"Collectives of phase {plan.phase.index} (mesh {mesh}), MB on one chip",
        ("kind", "type", "times", "of", "arrays", "sent", "during products", "the largest is from"),
        rows,
        (
            "Sent: bytes that a chip sends if the participants form a ring, and those of them that it sends while it "
            "multiplies. Needed: in the type of the products.",
        ),
    )


def _costliest(chip: Chip, plan: PhasePlan) -> Section:
    assert plan.work is not None

    def estimated(each: Operation) -> tuple[str, ...]:
        if not chip.clock or not plan.work:
            return ()
        return f"{each.cycles / chip.clock * 1e3:,.2f}", f"{each.cycles / plan.work.cycles:.1%}"

    rows = [
        (
            *(each.origin[-60:], each.result, f"{each.times:,}", *estimated(each)),
            *(f"{each.roofline_seconds * 1e3:,.2f}", f"{each.flops / 1e9:,.1f}", _mb(each.bytes)),
        )
        for each in plan.work.costliest
    ]
    estimates = ("estimate, ms", "share") if chip.clock else ()
    columns = ("from", "result", "times", *estimates, "roofline, ms", "GFLOP", "MB")
    return Section(f"What takes longest in phase {plan.phase.index}", columns, rows)


def _search(candidates: list[Candidate]) -> Section:
    rows = [
        (
            str(each.plan.phase.index),
            each.question,
            each.change,
            "yes" if each.plan.fits else "no",
            _gib(each.plan.memory and each.plan.memory.total),
            _bracket(each.plan, lambda end: end.step_seconds * 1e3, "{:,.1f}"),
            _bracket(each.plan, lambda end: end.tokens_per_second, "{:,.0f}"),
            "best" if each.chosen else "",
        )
        for each in candidates
    ]
    columns = ("phase", "question", "options", "fits", "GiB per chip", "step, ms", "tokens/s", "")
    return Section("Search", columns, rows, ("Differences below 10 % rank nothing: each row is one compilation.",))


def _bracket(plan: PhasePlan, of: Any, form: str) -> str:
    """Return both ends of a figure of a phase, the smaller first; one of them if there is no other."""
    ends: list[Throughput] = [end for end in (plan.optimistic, plan.pessimistic) if end]
    figures = sorted(of(end) for end in ends)
    return " to ".join(form.format(figure) for figure in figures) or "-"


def _part(time: StepTime | None, part: str) -> str:
    seconds = time and getattr(time, part)
    return "-" if seconds is None else f"{seconds * 1e3:,.1f}"


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / GIB:,.3f}"


def _mb(size: float) -> str:
    return f"{size / 1e6:,.1f}"

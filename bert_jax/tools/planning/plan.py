"""`bert-jax plan`: every phase of a run on a machine before it is rented, printed and written to a file.

The search finds the remat policy that makes a phase fit, the largest batch that fits, and the fastest of a few
meshes. Console and page show the same tables. The page is one HTML file that loads nothing from elsewhere; every text
in it is escaped.
"""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import math
import shlex
from collections.abc import Callable, Iterator
from html import escape as escape_html
from typing import Any

from absl import logging
from rich import box, progress
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bert_jax.config import Config, MeshConfig, Phase, config_of_phase, resolve_phases
from bert_jax.config.checks import check
from bert_jax.config.commands import PlanConfig, check_plan
from bert_jax.config.pretraining import phase_notes
from bert_jax.devices.hardware import Shortage, peak_flops, shortage_of
from bert_jax.files import check_output_place, write_output
from bert_jax.models.costs import computed_flops
from bert_jax.parameters import FLOAT32
from bert_jax.tools.planning import compiler, roofline
from bert_jax.tools.planning.hlo import Collective, Needed, collectives_of, needed, parse_program
from bert_jax.tools.planning.topology import Chip, Topology, find_topology
from bert_jax.training.learner import STRONGER, phase_advice

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
    memory: roofline.Memory | None
    """None if the compiler found that the program does not fit."""
    shortage: Shortage | None
    """Memory that is missing if it does not fit."""
    closed_form_bytes: int
    """Memory that the closed form behind compute.remat=auto expects on a chip."""
    needed: Needed
    """Bytes that data parallelism needs at least, in the type of the products."""
    work: roofline.Work | None = None
    collectives: list[Collective] = dataclasses.field(default_factory=list)
    time: roofline.StepTime | None = None
    optimistic: roofline.Throughput | None = None
    pessimistic: roofline.Throughput | None = None
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
      stage: called with a few words on what is being done.

    Raises:
      UserError: the options do not fit the machine.
    """
    phase = resolve_phases(config)[number]
    compiled, facts = compiler.compile_phase(config, topology, number, stage)
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
    sizes, config = (phase.sequence_length, phase.max_predictions), config_of_phase(config, phase.index)
    return computed_flops(config.model, config.objective, config.compute, *sizes).total


def _of_program(
    plan: PhasePlan, topology: Topology, compiled: compiler.CompiledProgram, facts: dict[str, Any]
) -> PhasePlan:
    """Return `plan` with what the compiled program says."""
    program, chip = parse_program(compiled.text), topology.chip
    peak = peak_flops(chip.kind) if chip else None
    collectives = collectives_of(program, topology.chips_per_slice, topology.slices)
    reached = chip and chip.reached
    work = roofline.work_of(program, peak or math.inf, chip.memory_bandwidth if chip else math.inf, reached)
    plan = dataclasses.replace(plan, memory=roofline.memory_of(compiled, facts), work=work, collectives=collectives)
    if chip is None:
        return plan
    if topology.platform == "gpu":
        plan = _within(plan, chip, BY_THE_COMPILER)
    return _timed(plan, topology, roofline.step_time(topology, work, collectives))


def _by_closed_form(plan: PhasePlan, topology: Topology, facts: dict[str, Any]) -> PhasePlan:
    """Return `plan` with estimates for a machine whose programs cannot be compiled here."""
    chip = topology.chip
    assert chip is not None
    state = {part: facts[part] for part in ("parameters", "moments", "teacher")} | {"gradients": facts["parameters"]}
    memory = roofline.Memory(
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
        plan,
        topology,
        roofline.StepTime(optimistic=fastest, pessimistic=None, computing=None, links=links, network=0.0),
    )


def _within(plan: PhasePlan, chip: Chip, source: str) -> PhasePlan:
    """Return `plan` with what is missing of the memory of a chip, if it is more than that."""
    needed = plan.memory.total if plan.memory else 0
    fits = needed <= chip.memory_bytes
    return plan if fits else dataclasses.replace(plan, shortage=Shortage(needed, chip.memory_bytes, source))


def _timed(plan: PhasePlan, topology: Topology, time: roofline.StepTime) -> PhasePlan:
    """Return `plan` with the two ends of the time of a step and what they mean."""

    def with_steps_of(seconds: float | None) -> roofline.Throughput | None:
        return None if seconds is None else roofline.throughput(seconds, topology, plan.phase, plan.flops)

    return dataclasses.replace(
        plan, time=time, optimistic=with_steps_of(time.optimistic), pessimistic=with_steps_of(time.pessimistic)
    )


MOST_DOUBLINGS = 6
"""A batch is not made larger than 64 times what was asked for, nor smaller than a sixty-fourth."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A change of the options of a phase and what comes of it."""

    question: str
    """Subject of the search: remat, batch or mesh."""
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
        except compiler.CompilerFailure as error:
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
    """A table with its title and the notes below it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()


def sections(topology: Topology, plans: list[PhasePlan], candidates: list[Candidate], price: float) -> list[Section]:
    """Return the tables of a plan.

    Args:
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
                    *(
                        _bracket(plan, lambda end: roofline.cost(end.days, topology.chips, price), "{:,.0f}")
                        for plan in plans
                    ),
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
            paid = f", cost {roofline.cost(days, topology.chips, price):,.0f}" if price else ""
            notes.append(f"All phases, {name}: {days:,.2f} days on {topology.chips} chips{paid}.")
    missing = {kind: times for plan in plans if plan.work for kind, times in plan.work.without_estimate.items()}
    if missing and topology.platform == "tpu":
        listed = ", ".join(f"{times} × {kind}" for kind, times in sorted(missing.items()))
        notes.append(f"Instructions over 1 MB without an estimate: {listed}.")
    if not any(plan.time for plan in plans):
        return tuple(notes)
    if topology.platform == "gpu":
        spots = roofline.OF_A_GPU if all(plan.compiled for plan in plans) else roofline.WITHOUT_A_COMPILER
    else:
        spots = roofline.BLIND_SPOTS
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

    def estimated(each: roofline.Operation) -> tuple[str, ...]:
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
    ends: list[roofline.Throughput] = [end for end in (plan.optimistic, plan.pessimistic) if end]
    figures = sorted(of(end) for end in ends)
    return " to ".join(form.format(figure) for figure in figures) or "-"


def _part(time: roofline.StepTime | None, part: str) -> str:
    seconds = time and getattr(time, part)
    return "-" if seconds is None else f"{seconds * 1e3:,.1f}"


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / GIB:,.3f}"


def _mb(size: float) -> str:
    return f"{size / 1e6:,.1f}"


STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1b1f24 }
table { border-collapse: collapse; margin: .6rem 0 }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #d5d9df; text-align: right }
td { font-variant-numeric: tabular-nums }
th:first-child, td:first-child { text-align: left }
caption { text-align: left; font-weight: 600; font-size: 1.1rem; padding-top: 1rem }
.verdict { font-size: 1.2rem } .notes { color: #4a5460 } pre { background: #f3f5f7; padding: .8rem; overflow: auto }
@media (prefers-color-scheme: dark) { body { background: #14171a; color: #e4e7ea } pre { background: #22272c }
  th, td { border-color: #3a4148 } .notes { color: #a9b2bb } }
"""


def page(title: str, verdict: list[str], tables: list[Section], command: str) -> str:
    """Return the page, with the paragraphs of `verdict` below its heading."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape_html(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape_html(title)}</h1>",
            *(f'<p class="verdict">{escape_html(line)}</p>' for line in verdict),
            *map(_html_table, tables),
            f"<pre>{escape_html(command)}</pre>",
            "</body></html>",
            "",
        ]
    )


def _html_table(section: Section) -> str:
    head = "".join(f"<th>{escape_html(name)}</th>" for name in section.columns)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{escape_html(cell)}</td>" for cell in row) + "</tr>" for row in section.rows
    )
    notes = "".join(f"<li>{escape_html(note)}</li>" for note in section.notes)
    return (
        f"<table><caption>{escape_html(section.title)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>"
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A run on a machine."""

    config: Config
    """Options, resolved for the machine."""
    topology: Topology
    phases: list[PhasePlan]
    candidates: list[Candidate]
    """Changes that a search has tried."""

    @property
    def fits(self) -> bool:
        """Whether every phase fits into the memory of a chip."""
        return all(plan.fits for plan in self.phases)


def run_plan(options: PlanConfig, words: list[str]) -> int:
    """Plan a run, print the plan and write it to `options.output`; return 0 if it fits and 1 if it does not.

    Raises:
      UserError: the options do not fit each other or the machine, there is no such machine, or a compiler is missing.
    """
    check_plan(options)
    if options.output:
        check_output_place(options.output)
    topology, config = find_topology(options.topology), check(options.run)
    compiler.check_compiler(topology)
    if expected := expectation(config, topology, options.search):
        Console(stderr=True, highlight=False).print(expected, markup=False, soft_wrap=True)
    plan = make_plan(config, topology, options.search)
    tables = sections(topology, plan.phases, plan.candidates, options.price_per_chip_hour)
    notes = ((number, phase_notes(config, number)) for number in range(len(config.phases)))
    verdict = [*(f"Phase {number}: {', '.join(told)}." for number, told in notes if told), *_verdict(plan)]
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    for table in tables:
        console.print(_console_table(table))
        for note in table.notes:
            console.print(note, markup=False, soft_wrap=True)
    console.print("", *verdict, sep="\n", markup=False, soft_wrap=True)
    if options.output:
        command = shlex.join(["bert-jax", "plan", *words])
        if options.output.endswith(".json"):
            text = json.dumps(_facts(plan, options, command), indent=2) + "\n"
        else:
            text = page(f"Plan for {topology.name}", [*verdict, _circumstances()], tables, command)
        write_output(options.output, text.encode())
    return 0 if plan.fits else 1


SEARCHED = 10
"""Programs that a search compiles for a phase, more or less."""


def expectation(config: Config, topology: Topology, searches: bool = False) -> str | None:
    """Return how long the compiler will probably take, if that is long, and what would take less time."""
    programs = len(config.phases) * (SEARCHED if searches else 1)
    expected = compiler.expected_minutes(config, topology, programs)
    if expected is None:
        return None
    told = f"{topology.name}: compiling takes {compiler.in_minutes(expected)}, or none for what is stored"
    scan = dataclasses.replace(config, compute=dataclasses.replace(config.compute, layers="scan"))
    quicker = compiler.expected_minutes(scan, topology, programs)
    if quicker is None or quicker == expected:
        return told
    return (
        f"{told}; a run with --compute.layers=scan is planned in {compiler.in_minutes(quicker)}, but it is another "
        "program, which needs more memory and time"
    )


def make_plan(config: Config, topology: Topology, searches: bool = False) -> Plan:
    """Compile every phase of `config` for `topology`.

    Args:
      searches: whether other batches, meshes and remat policies are tried too.

    Raises:
      UserError: the options do not fit the machine.
    """
    config = compiler.resolved(config, topology)
    phases, candidates = [], []
    with _progress() as stage:
        for number in range(len(config.phases)):
            start = f"{topology.name}, phase {number}"
            phases.append(plan_phase(config, topology, number, lambda what, start=start: stage(f"{start}: {what}")))
            if searches:
                candidates += search(config, topology, phases[-1], lambda what, start=start: stage(f"{start}, {what}"))
    return Plan(config=config, topology=topology, phases=phases, candidates=candidates)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show on stderr what is being done: in place and with the time on a terminal, else lines while it compiles."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda what: console.print(what, markup=False, soft_wrap=True) if ": compiling" in what else None
        return
    columns = progress.SpinnerColumn(), progress.TextColumn("{task.description}"), progress.TimeElapsedColumn()
    with progress.Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("")
        yield lambda what: shown.update(task, description=escape(what))


def _verdict(plan: Plan) -> list[str]:
    """Return a sentence on whether the run fits, and what to change if it does not."""
    name = plan.topology.name
    if plan.topology.chip is None:
        return [f"Memory of {name} is that of the machine; compare it with {plan.topology.chips} times the sum above."]
    if plan.fits:
        return [f"The run fits {name}."]
    return [f"The run does not fit {name}. What saves memory:", *(f"- {line}" for line in _advice(plan))]


def _advice(plan: Plan) -> list[str]:
    """Return what helps the phases that do not fit, without repetitions."""
    poor = [phase for phase in plan.phases if not phase.fits]
    return list(dict.fromkeys(line for phase in poor for line in phase_advice(phase.phase, phase.mesh, phase.remat)))


def _console_table(section: Section) -> Table:
    table = Table(title=section.title, title_justify="left", box=box.SIMPLE_HEAD)
    for place, name in enumerate(section.columns):
        table.add_column(name, justify="left" if place == 0 else "right", overflow="fold")
    for row in section.rows:
        table.add_row(*map(escape, row))
    return table


def _facts(plan: Plan, options: PlanConfig, command: str) -> dict[str, Any]:
    """Return the plan as JSON values: bytes, seconds, operations."""
    return {
        "topology": {"name": plan.topology.name, "chips": plan.topology.chips, "hosts": plan.topology.hosts},
        "fits": plan.fits,
        "price_per_chip_hour": options.price_per_chip_hour,
        "phases": [dataclasses.asdict(phase) for phase in plan.phases],
        "search": [dataclasses.asdict(candidate) for candidate in plan.candidates],
        "advice": _advice(plan),
        "made_by": command,
        "circumstances": _circumstances(),
    }


def _circumstances() -> str:
    """Return date and versions."""
    names = ("bert_jax", "jax", "libtpu", *(f"jax-{name}-plugin" for name in compiler.PLUGINS))
    found = [f"{name} {version}" for name in names if (version := _version(name))]
    return f"{datetime.date.today()}, {', '.join(found)}. Nothing was executed: every time is a prediction."


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

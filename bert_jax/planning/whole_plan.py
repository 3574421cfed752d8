"""`bert-jax plan`: every phase of a run on a machine that is not there, printed and written to a file."""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import shlex
from collections.abc import Callable, Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bert_jax.config import Config
from bert_jax.config.checks import check
from bert_jax.config.planning import PlanConfig, check_plan
from bert_jax.errors import UserError
from bert_jax.files import is_remote, write_atomically
from bert_jax.planning.advice import phase_advice
from bert_jax.planning.compilation import check_compiler
from bert_jax.planning.gpu_compiler import PLUGINS
from bert_jax.planning.phase_plan import PhasePlan, plan_phase
from bert_jax.planning.plan_page import page
from bert_jax.planning.search import Candidate, search
from bert_jax.planning.sections import Section, sections
from bert_jax.planning.topology import Topology, find_topology
from bert_jax.planning.traced_step import resolved


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A run on a machine."""

    config: Config
    """Options, resolved for the machine."""
    topology: Topology
    phases: list[PhasePlan]
    candidates: list[Candidate]
    """What a search has tried."""

    @property
    def fits(self) -> bool:
        """Whether every phase fits into the memory of a chip."""
        return all(plan.fits for plan in self.phases)


def run_plan(options: PlanConfig, words: list[str]) -> int:
    """Plan a run, print the plan and write it to `options.output`; return 0 if it fits and 1 if it does not.

    Args:
      options: of the run and of the plan.
      words: of the command line, to be shown on the page.

    Raises:
      UserError: the options do not fit each other or the machine, there is no such machine, or a compiler is missing.
    """
    check_plan(options)
    if options.output:
        _check_place(options.output)
    topology, config = find_topology(options.topology), check(options.run)
    check_compiler(topology)
    plan = make_plan(config, topology, options.search)
    tables = sections(topology, plan.phases, plan.candidates, options.price_per_chip_hour)
    verdict = _verdict(plan)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    for table in tables:
        console.print(_table(table))
        for note in table.notes:
            console.print(note, markup=False, soft_wrap=True)
    console.print("", *verdict, sep="\n", markup=False, soft_wrap=True)
    if options.output:
        command = shlex.join(["bert-jax", "plan", *words])
        if options.output.endswith(".json"):
            text = json.dumps(_facts(plan, options, command), indent=2) + "\n"
        else:
            text = page(f"Plan for {topology.name}", [*verdict, _circumstances()], tables, command)
        try:
            write_atomically(options.output, text.encode())
        except OSError as error:
            raise UserError(f"cannot write output={options.output}: {error.strerror or error}") from None
    return 0 if plan.fits else 1


def make_plan(config: Config, topology: Topology, searches: bool = False) -> Plan:
    """Compile every phase of `config` for `topology`.

    Args:
      config: checked options of a run.
      topology: the machine.
      searches: whether other batches, meshes and remat policies are tried too.

    Raises:
      UserError: the options do not fit the machine.
    """
    config = resolved(config, topology)
    phases, candidates = [], []
    with _progress() as stage:
        for number in range(len(config.phases)):
            start = f"{topology.name}, phase {number}"
            phases.append(plan_phase(config, topology, number, lambda what, start=start: stage(f"{start}: {what}")))
            if searches:
                candidates += search(config, topology, phases[-1], lambda what, start=start: stage(f"{start}, {what}"))
    return Plan(config=config, topology=topology, phases=phases, candidates=candidates)


def _check_place(file: str) -> None:
    """Raise a UserError if there is no directory for a local file, before minutes are spent on what should go there."""
    directory = pathlib.Path(file).parent
    if not is_remote(file) and not (directory.is_dir() and os.access(directory, os.W_OK)):
        raise UserError(
            f"cannot write output={file}: {directory} is not a writable directory; make it or choose another"
        )


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show on stderr what is being done: in place on a terminal, else a line for each compilation."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda what: console.print(what, markup=False) if what.endswith("compiling") else None
        return
    with console.status("") as status:
        yield lambda what: status.update(f"{escape(what)} … (a new program takes minutes)")


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


def _table(section: Section) -> Table:
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
    names = ("bert_jax", "jax", "libtpu", *(f"jax-{name}-plugin" for name in PLUGINS))
    found = [f"{name} {version}" for name in names if (version := _version(name))]
    return f"{datetime.date.today()}, {', '.join(found)}. Nothing was executed: every time is a prediction."


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

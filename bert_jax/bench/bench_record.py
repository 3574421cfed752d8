"""The result of a benchmark as JSON for programs and as a Markdown table for people."""

import dataclasses
import json
import re
import time
from typing import Any

from bert_jax.bench.machine import machine
from bert_jax.bench.paired_ratios import Spread
from bert_jax.devices.software import commit, versions
from bert_jax.files import write_atomically

PEER_PACKAGES = ("torch", "transformers")


@dataclasses.dataclass(frozen=True)
class Report:
    """What a benchmark found."""

    values: dict[str, Any]
    """Everything, for programs."""
    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: list[str]
    """Sentences below the table."""

    @property
    def device(self) -> str | None:
        """What the first contestant that uses a device computed on."""
        facts = (contestant.get("facts", {}) for contestant in self.values["contestants"])
        return next((each["device"] for each in facts if "device" in each), None)

    def markdown(self) -> str:
        """Return the table with its title, where it was measured, and its notes."""
        lines = [
            f"### {self.title}",
            "",
            _where(self.values, self.device),
            "",
            _row(self.header),
            _row(["---"] * len(self.header)),
        ]
        return "\n".join([*lines, *map(_row, self.rows), "", *self.notes]) + "\n"


def recorded(benchmark: str, arguments: list[str], loads: tuple[float, float], **values: Any) -> dict[str, Any]:
    """Return `values` with the machine, the versions and the command.

    Args:
      benchmark: its name.
      arguments: words of the command line.
      loads: load averages before and after.
    """
    return {
        "benchmark": benchmark,
        "command": ["bert-jax", "bench", benchmark, *arguments],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **machine(),
        "load_average": {"before": loads[0], "after": loads[1]},
        "commit": commit(),
        "versions": versions(),
        **values,
    }


def show(report: Report, output: str) -> None:
    """Print the table; write FILE.json and FILE.md if `output` names the first."""
    print(report.markdown(), end="")
    if output:
        values = {"device": report.device, **report.values}
        write_atomically(output, (json.dumps(_plain(values), indent=1) + "\n").encode())
        write_atomically(output.removesuffix(".json") + ".md", report.markdown().encode())
        print(f"\nwritten: {output} and {output.removesuffix('.json')}.md")


def shown(spread: Spread, form: str = ",.0f") -> str:
    """Return a median with its quartiles, as in a table."""
    return f"{spread.median:{form}} ({spread.lower_quartile:{form}} to {spread.upper_quartile:{form}})"


def _where(values: dict[str, Any], device: str | None) -> str:
    load, version, peer = values["load_average"], values["versions"], values["peer"]
    accelerator = f"{device}; " if device and not re.match(r"\d+ × cpu\b", device) else ""
    theirs = "".join(f", {name} {peer[name]}" for name in PEER_PACKAGES) if peer else ""
    return (
        f"{accelerator}{values['processor']}, {values['cores']} cores, {values['memory_gib']} GiB, "
        f"{' '.join(values['instruction_sets']) or 'instruction sets unknown'}; load average {load['before']} before, "
        f"{load['after']} after; {values['date']}, bert_jax {values['commit'] or version['bert_jax']}, "
        f"jax {version['jax']}{theirs}."
    )


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(values: Any) -> Any:
    """Return values as JSON can represent them: dataclasses as objects."""
    if dataclasses.is_dataclass(values) and not isinstance(values, type):
        return _plain(dataclasses.asdict(values))
    if isinstance(values, dict):
        return {key: _plain(value) for key, value in values.items()}
    return [_plain(value) for value in values] if isinstance(values, (list, tuple)) else values

"""A speedrun: how many operations each of several recipes takes to one held-out loss; the standard library only.

The recipes are arms. The first is the reference, whose final loss at length 1 is the target. Every other arm changes
one that was named before it, so that a ladder of arms shows what each change is worth.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from bert_jax.config.commands import NAME, Measure
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.errors import UserError, at_least


@dataclasses.dataclass(frozen=True)
class Share:
    """A number of steps as a share of all steps of a run, which grows with its length."""

    of_run: float
    """From 0 to 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.of_run <= 1:
            raise UserError(f"Share({self.of_run}) must be a share of the steps of a run, from 0 to 1")

    def steps(self, total: int) -> int:
        """Return the number of steps of a run of `total` steps."""
        return round(self.of_run * total)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeedrunArm:
    """A recipe that takes part: what it changes in another one."""

    name: str
    """Name of its directory, of letters, digits and . _ + -"""
    on: str = ""
    """Name of the arm, earlier in the list, whose recipe it changes, and with which it is compared. By default the
    first arm."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of pre-training by the names of the command line; numbers of steps as a `Share`."""
    phases: tuple[Mapping[str, Any], ...] = ()
    """Options of each phase by their names in `PhaseConfig`, in addition to those of the only phase of the reference.
    All but the last have a `Share` of the steps. By default the arm has the phases of `on`."""
    label: str = ""
    """Name in tables and pictures. By default that of the arm."""

    @property
    def title(self) -> str:
        """Name in tables and pictures."""
        return self.label or self.name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speedrun:
    """Recipes and the loss that they run for; what `get_speedrun()` of a speedrun file returns.

    A length is a number of operations in those of the reference with the steps of its configuration. A run of any
    length is whole: its warm-up and its decay are shares of it.
    """

    title: str
    """Heading of table and picture."""
    base: str
    """Configuration of the reference, with one phase: the name of a shipped one, or a file."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of that configuration that are different in all arms; numbers of steps as a `Share`."""
    arms: tuple[SpeedrunArm, ...]
    """The recipes. The first, which changes nothing, is the reference."""
    rates: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Factors of an arm's peak rates, of which it gets the best."""
    lengths: tuple[float, ...] = tuple(2 ** (power / 2) for power in range(-10, 5))
    """Lengths that are tried, ascending; 1 is one of them."""
    seeds: int = 3
    """Number of runs of each arm at each length, with seeds from that of the configuration on."""
    sequence_length: int = 64
    """Tokens per held-out text."""
    sequences: int = 1_024
    """Number of held-out texts on which the loss is measured."""
    tasks: Mapping[str, FinetuneConfig] = dataclasses.field(default_factory=dict)
    """Fine-tunings of the runs of length 1, by name, without init_from and workdir. Paths of their data are below the
    directory that --task_data names."""
    measures: tuple[Measure, ...] = ()
    """Scores of these tasks that are shown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeedrunConfig:
    """Options of `bert-jax speedrun` in addition to those of pre-training and fine-tuning."""

    workdir: str
    """Directory of the speedrun: results.json, table.md, picture.png, and a work directory per run below runs/."""
    seeds: int | None = None
    """Number of runs of each arm at each length. None: the number that the speedrun gives."""
    arms: tuple[str, ...] = ()
    """Names of the arms to run beside the reference, separated by commas. Each has the changes of those between, which
    do not run. By default all of them."""
    scores: bool = False
    """Whether to pre-train every arm with as many operations as the reference, and fine-tune the tasks from there."""
    task_data: str = ""
    """Directory that contains the data of the tasks, such as that of GLUE with SST-2/ and MRPC/ in it. By default the
    current one."""
    dry_run: bool = False
    """Whether to check everything, print the plan and stop there."""
    render: bool = False
    """Whether to write results.json, table and picture from the runs that are finished, without starting any."""


def check_speedrun(speedrun: Speedrun) -> Speedrun:
    """Return `speedrun` if its parts fit together; raise a UserError that says what does not."""
    names = [arm.name for arm in speedrun.arms]
    if not names:
        raise UserError(f"the speedrun {speedrun.title!r} needs at least one arm, the reference")
    for name in (*names, *speedrun.tasks):
        if not NAME.fullmatch(name):
            raise UserError(f"{name!r} names a directory: use letters, digits and . _ + -, a letter or digit first")
    if len(set(names)) < len(names):
        raise UserError(f"two arms have the same name: {', '.join(names)}")
    first = speedrun.arms[0]
    if first.on or first.options or first.phases:
        raise UserError(
            f"the first arm, {first.name}, is the reference and changes nothing; give what all arms share as options "
            "of the speedrun"
        )
    for number, arm in enumerate(speedrun.arms):
        if arm.on and arm.on not in names[:number]:
            raise UserError(
                f"arm {arm.name} changes {arm.on!r}, which is no arm before it: {', '.join(names[:number]) or 'none'}"
            )
        _check_phases(arm)
    at_least(1, seeds=speedrun.seeds, sequences=speedrun.sequences)
    _check_ascending("lengths", speedrun.lengths)
    _check_ascending("rates", speedrun.rates)
    if 1.0 not in speedrun.lengths:
        raise UserError(f"lengths={_shown(speedrun.lengths)} must include 1, the length at which the target is reached")
    if unknown := [each.of for each in speedrun.measures if each.of not in speedrun.tasks]:
        raise UserError(f"a measure is of {unknown[0]!r}; the tasks are {', '.join(speedrun.tasks) or 'none'}")
    return speedrun


def _check_phases(arm: SpeedrunArm) -> None:
    for number, phase in enumerate(arm.phases):
        given, is_last = phase.get("steps"), number == len(arm.phases) - 1
        if is_last and given is not None:
            raise UserError(f"arm {arm.name}: the last phase has the steps that the others leave; leave steps out")
        if not is_last and not isinstance(given, Share):
            raise UserError(f"arm {arm.name}: phase {number} has steps={given}; expected a Share of all steps")
    if sum(phase["steps"].of_run for phase in arm.phases[:-1]) >= 1 and arm.phases:
        raise UserError(f"arm {arm.name}: the shares of its first phases leave no steps for the last one")


def _check_ascending(name: str, values: tuple[float, ...]) -> None:
    ascending = all(low < high for low, high in zip(values, values[1:], strict=False))
    if not values or not ascending or not all(0 < value < math.inf for value in values):
        raise UserError(f"{name}={_shown(values)} must be positive numbers, ascending")


def _shown(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)

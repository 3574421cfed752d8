"""Studies, which compare settings, and speedruns, which compare recipes; the standard library only.

A study trains arms that differ in one thing and shows their figures. A speedrun asks how many operations each of
several recipes takes to one held-out loss. Its recipes are arms, too: the first is the reference, whose final loss at
length 1 is the target, and every other changes one that was named before it, so that a ladder of arms shows what each
change is worth.

The shipped studies share fine-tunings that take seconds on two CPU cores. The directory that --task_data names holds
ud/, the English-EWT treebank of Universal Dependencies (trained on its dev part and measured on its test part, both
of a few thousand sentences), and SST-2/ of GLUE.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.options import metric_scale, option
from bert_jax.config.tasks import SentenceOptions, TaggingDataConfig, TaggingOptions, TaskDataConfig
from bert_jax.errors import UserError, at_least

PARTS_OF_SPEECH = FinetuneConfig(
    task="ner",
    data=TaggingDataConfig(train="ud/en_ewt-ud-dev.conllu", dev="ud/en_ewt-ud-test.conllu"),
    options=TaggingOptions(max_length=64),
    epochs=4,
    learning_rate=1e-3,
    lstm_size=128,
)
SENTIMENT = FinetuneConfig(
    task="sst2",
    data=TaskDataConfig(dir="SST-2"),
    options=SentenceOptions(max_length=64),
    epochs=1,
    batch_size=64,
    learning_rate=5e-4,
)


HELD_OUT, OWN = "held_out", "own"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One of the settings that a study compares: what it changes in the configuration that all arms share."""

    name: str
    """Name of its directory, of letters, digits and . _ + -"""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of pre-training by the names of the command line, such as {"masking.rate": 0.4}. Arms whose pre-training
    is the same share it."""
    task_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of every fine-tuning, such as {"features": "last"}."""
    tasks: tuple[str, ...] | None = None
    """Names of the fine-tunings that it takes part in. None: all of them."""
    label: str = ""
    """Name in tables and pictures. By default that of the arm."""
    x: float | None = None
    """Its place on the axis of the picture, if all arms have one."""
    line: str = ""
    """Name of the line that connects it with others of the picture, if arms have a place there. By default one line
    connects all."""
    panel: str = ""
    """Name of the panel that it is drawn in. By default all arms are in one, for each measure."""

    @property
    def title(self) -> str:
        """Name in tables and pictures."""
        return self.label or self.name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """A figure of every run, and the column of a paper that it is compared with."""

    metric: str
    """Its name in metrics.jsonl, such as mlm_accuracy, or in the results.json of a task, such as accuracy."""
    of: str = HELD_OUT
    """Source of the figure. held_out: held-out texts, cut and masked as in the base configuration, so that arms are
    comparable. own: held-out texts as the arm itself cuts and masks them. Any other value: the task of this name."""
    title: str = ""
    """Heading of its column. By default the two above."""
    beside: str = ""
    """Column of the paper that measures the same; the order of the arms in both is compared."""

    @property
    def heading(self) -> str:
        """Heading of its column."""
        return self.title or f"{self.of} {self.metric}".replace("_", " ")

    @property
    def scale(self) -> int:
        """Factor for display, see `metric_scale`."""
        return metric_scale(self.metric)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """The figures of a paper."""

    source: str
    """Paper, table, size of the model."""
    figures: Mapping[str, Mapping[str, float]]
    """The figures by column, then by the name of the arm. Arms that the paper lacks are left out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A set of pre-trainings and fine-tunings that differ in one thing; what `get_study()` of a study file returns."""

    title: str
    """Heading of table and picture."""
    question: str
    """Question of the study, in a sentence."""
    base: str
    """Configuration that the arms share: the name of a shipped one, or a file, as of `bert-jax pretrain`."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of that configuration that are different in all arms."""
    arms: tuple[Arm, ...]
    """Arms that are compared. Differences are shown from the first."""
    seeds: int = 3
    """Number of runs of each arm, with seeds from that of the configuration on."""
    tasks: Mapping[str, FinetuneConfig] = dataclasses.field(default_factory=dict)
    """Fine-tunings of every pre-trained model by name, without init_from and workdir. Paths of their data are below
    the directory that --task_data names."""
    measures: tuple[Measure, ...]
    """The columns of the table."""
    published: tuple[Published, ...] = ()
    """Figures of papers, shown next to ours."""
    axis: str = ""
    """Name of the axis of the picture on which arms have a place."""
    log_axis: bool = False
    """Whether that axis is logarithmic."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """Options of `bert-jax study` in addition to those of pre-training and fine-tuning."""

    workdir: str
    """Directory of the study: results.json, table.md, picture.png, and a work directory per run below runs/."""
    seeds: int | None = None
    """Number of runs of each arm. None: the number that the study gives."""
    arms: tuple[str, ...] = ()
    """Names of the arms to run, separated by commas. By default all of them. Table and picture show those that have
    been run."""
    task_data: str = ""
    """Directory that contains the data of the study's tasks, such as that of GLUE with SST-2/ and MRPC/ in it. By
    default the current one."""
    pretrainings: str = ""
    """Directory to keep the pre-trained models in, by their options. Studies that share it pre-train what they have in
    common only once. By default each study keeps its own below runs/."""
    dry_run: bool = False
    """Whether to check everything, print the plan and stop there."""
    render: bool = False
    """Whether to write results.json, table and picture from the runs that are finished, without starting any."""


def check_study(study: Study) -> Study:
    """Return `study` if its parts fit together; raise a UserError that says what does not."""
    names = [arm.name for arm in study.arms]
    if not names or not study.measures:
        raise UserError(f"the study {study.title!r} needs at least one arm and one measure")
    _check_names(names, study.tasks)
    for arm in study.arms:
        if unknown := [name for name in arm.tasks or () if name not in study.tasks]:
            raise UserError(
                f"arm {arm.name} takes part in {unknown[0]!r}, but the tasks are {', '.join(study.tasks) or 'none'}"
            )
    at_least(1, seeds=study.seeds)
    if reserved := {HELD_OUT, OWN, "pretraining"} & set(study.tasks):
        raise UserError(f"a task cannot be named {reserved.pop()}, which is another part of a run")
    for measure in study.measures:
        if measure.of not in (HELD_OUT, OWN, *study.tasks):
            known = ", ".join((HELD_OUT, OWN, *study.tasks))
            raise UserError(f"the measure {measure.metric} is of {measure.of!r}; expected one of {known}")
    columns = {column: rows for published in study.published for column, rows in published.figures.items()}
    for measure in study.measures:
        if measure.beside and measure.beside not in columns:
            raise UserError(
                f"the measure {measure.heading} is compared with the column {measure.beside!r}, which no published "
                "table of the study has"
            )
    for column, rows in columns.items():
        if unknown := set(rows) - set(names):
            raise UserError(f"the paper's column {column} has {unknown.pop()!r}, which is no arm: {', '.join(names)}")
    return study


def _check_names(arms: list[str], tasks: Iterable[str]) -> None:
    """Raise a UserError if two arms have one name, or the name of an arm or a task cannot be that of its directory."""
    for name in (*arms, *tasks):
        if not _NAME.fullmatch(name):
            raise UserError(f"{name!r} names a directory: use letters, digits and . _ + -, a letter or digit first")
    if len(set(arms)) < len(arms):
        raise UserError(f"two arms have the same name: {', '.join(arms)}")


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
    rate_factors: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Factors of an arm's peak learning rates, of which it gets the best."""
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
    scores: tuple[str, ...] = ()
    """Names of arms, separated by commas, or `all`: each is pre-trained with as many operations as the reference and
    fine-tuned on the tasks; so are the reference and random weights. By default nothing is."""
    task_data: str = option("", of=("scores",))
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
    _check_names(names, speedrun.tasks)
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
    _check_ascending("rate_factors", speedrun.rate_factors)
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

"""What a study is, and the options of `bert-jax study`, as frozen dataclasses; the standard library only."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.metric_scale import metric_scale
from bert_jax.errors import UserError

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
    for name in (*names, *study.tasks):
        if not _NAME.fullmatch(name):
            raise UserError(f"{name!r} names a directory: use letters, digits and . _ + -, a letter or digit first")
    if len(set(names)) < len(names):
        raise UserError(f"two arms have the same name: {', '.join(names)}")
    for arm in study.arms:
        if unknown := [name for name in arm.tasks or () if name not in study.tasks]:
            raise UserError(
                f"arm {arm.name} takes part in {unknown[0]!r}, but the tasks are {', '.join(study.tasks) or 'none'}"
            )
    if study.seeds < 1:
        raise UserError(f"seeds={study.seeds} must be at least 1")
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

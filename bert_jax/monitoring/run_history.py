"""A work directory as somebody sees it who only reads: also while the run writes, and after a crash has torn files."""

import dataclasses
import functools
import math
import os
from typing import Any

from etils import epath

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.owner import live_owner
from bert_jax.checkpoints.record import Damaged, check_origin, read_record
from bert_jax.config import Config
from bert_jax.config.json_form import from_record, options_recorded
from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.objectives.objective import Term
from bert_jax.objectives.term_records import recorded_terms
from bert_jax.training.events import FILE as EVENTS
from bert_jax.training.events import read_events
from bert_jax.training.sinks import read_rows


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint whose record is whole; its arrays have not been read."""

    step: int
    time: float
    """Seconds since 1970."""
    directory: epath.Path


@dataclasses.dataclass(frozen=True)
class RunHistory:
    """What a work directory says of its run; what it has not written yet, or a crash has torn, is missing."""

    path: epath.Path
    run: dict[str, Any]
    """Contents of run.json; {} if it is missing."""
    settings: dict[str, Any]
    """Contents of config.json; {} if it is missing."""
    rows: list[dict[str, Any]]
    """Rows of metrics.jsonl; of a fine-tuning, those of kind "time" of all its runs, in their order."""
    events: list[dict[str, Any]]
    """Rows of events.jsonl."""
    problems: list[str]
    """Files that are damaged, one line each."""
    home: epath.Path | None = None
    """The work directory of the command that makes this run, if it makes several."""

    @property
    def name(self) -> str:
        return os.path.basename(os.fspath(self.path).rstrip("/"))

    @property
    def is_finetuning(self) -> bool:
        return "finetune" in self.settings

    @property
    def config(self) -> Config | None:
        """Configuration of a pre-training run; None for other directories, and where config.json is damaged."""
        try:
            return _config(self.path, self.settings)
        except UserError:
            return None

    @property
    def starts(self) -> list[dict[str, Any]]:
        """Starts that run.json lists, oldest first."""
        starts = self.run.get("starts")
        return [start for start in starts if isinstance(start, dict)] if isinstance(starts, list) else []

    @functools.cached_property
    def terms(self) -> tuple[Term, ...]:
        """Terms of the objective of pre-training, in its order, as the newest start has recorded them; () of others."""
        recorded = (recorded_terms(start.get("terms")) for start in reversed(self.happened("start")))
        return next(filter(None, recorded), ())

    @property
    def main_loss(self) -> str:
        """Name of the loss by which the best step is kept: of the first term that is trained for."""
        return next((term.loss for term in self.terms if term.weight > 0), "loss")

    @property
    def word_loss(self) -> str | None:
        """Name of the loss of predicted words, in nats per word, with ln V before the first step; None: there is
        none that is trained for."""
        return next((term.loss for term in self.terms if term.of_words and term.weight > 0), None)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the rows of one kind: train, evaluation or time."""
        return [row for row in self.rows if row["kind"] == kind]

    def times(self) -> list[float]:
        """Return when the rows were written, in seconds since 1970."""
        times = [row.get("time", math.nan) for row in self.of_kind("time")]
        return [time for time in times if math.isfinite(time)]

    def happened(self, event: str) -> list[dict[str, Any]]:
        """Return the events of one name."""
        return [row for row in self.events if row["event"] == event]

    def newest_local_save(self) -> dict[str, Any] | None:
        """Return the event of the last save to the hosts' own disks; None if there is none since the last rollback."""
        rows = [row for row in self.events if row["event"] in ("saved_locally", "rollback")][-1:]
        return next((row for row in rows if row["event"] == "saved_locally"), None)

    def owner(self) -> dict[str, Any] | None:
        """Return host and pid of the live process that writes to the directory; None if there is none."""
        return live_owner(self.home or self.path)

    def last_sign(self) -> float | None:
        """Return when the run last wrote a row, in seconds since 1970; None if it has written none."""
        times = [*self.times()[-1:], *(row["time"] for row in self.events[-1:])]
        return max(times, default=None)

    def newest_checkpoint(self) -> Saved | None:
        """Return the newest checkpoint whose record is whole and of this run."""
        for directory in reversed(Checkpoints(self.path / "checkpoints", read_only=True).directories()):
            try:
                content = read_record(directory / "record")
                check_origin(content, int(directory.name.removeprefix("step_")), self.run.get("run_id"))
                return Saved(content["step"], (directory / "record" / "metadata").stat().mtime, directory)
            except (Damaged, UserError, OSError, ValueError, KeyError, TypeError):
                continue
        return None


def read_run(path: str | os.PathLike[str]) -> RunHistory:
    """Read what there is in work directory `path`, local or gs://, of any kind of run.

    Raises:
      UserError: it is not the work directory of a run.
    """
    directory, problems = epath.Path(path).expanduser(), []
    if not any((directory / name).exists() for name in ("run.json", "config.json", "metrics.jsonl")):
        reason = "it has neither run.json nor metrics.jsonl"
        if not directory.is_dir():
            reason = "it is a file" if directory.exists() else "there is no such directory"
        raise UserError(f"{path} is not the work directory of a run: {reason}")
    contents = {}
    for name in ("run.json", "config.json"):
        contents[name] = {}
        if (directory / name).exists():
            try:
                contents[name] = read_object(directory / name, "restore it from a copy")
            except UserError as error:
                problems.append(str(error))
    try:
        _config(directory, contents["config.json"])
    except UserError as error:
        problems.append(str(error))
    events, is_finetuning = read_events(directory / EVENTS), "finetune" in contents["config.json"]
    rows = _time_rows_below(directory) if is_finetuning else read_rows(directory / "metrics.jsonl")
    return RunHistory(directory, contents["run.json"], contents["config.json"], rows, events, problems)


def _config(path: epath.Path, settings: dict[str, Any]) -> Config | None:
    """Return the configuration of a pre-training run, None of others; raise a UserError if it is damaged."""
    if "phases" not in settings:
        return None
    return from_record(Config, options_recorded(settings), f"{path / 'config.json'}")


def _time_rows_below(directory: epath.Path) -> list[dict[str, Any]]:
    """Return what the runs of a fine-tuning say of their time, the oldest first; one stopwatch runs through all."""
    files = [run / "metrics.jsonl" for run in (directory / "runs").glob("*")]
    rows = [row for file in files for row in read_rows(file) if row["kind"] == "time"]
    return sorted((row for row in rows if math.isfinite(row.get("time", math.nan))), key=lambda row: row["time"])

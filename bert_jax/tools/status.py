"""`bert-jax status`: how a run is doing, from its files alone, while it runs or after.

The read-only view of a work directory is safe while the run writes, and reads whatever version wrote it. Alarms name
what deserves a look now, each with the figure seen; nothing here ends or changes the run. Goodput is the share of a
run's wall time that went into training, over all its starts.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import pathlib
import shutil
import statistics
import time
from typing import Any

from etils import epath
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bert_jax.branches import Origin, recorded_origin
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import Damaged, check_origin, read_record
from bert_jax.config import Config, phase_of_step, resolve_phases
from bert_jax.config.finetuning import RESULTS
from bert_jax.config.options import from_record, options_recorded
from bert_jax.config.pretraining import StatusConfig, phase_notes
from bert_jax.errors import UserError, need_cloud_storage
from bert_jax.files import finite_json, is_remote, read_object, write_output
from bert_jax.objectives.objective import Term, recorded_terms
from bert_jax.ownership import live_owner, need_run
from bert_jax.training.events import EVENTS, EVENTS_FILE, read_events
from bert_jax.training.metrics import CATEGORIES, describe, duration, read_rows

LOST = "lost to restarts"
PAUSE_SECONDS = 0.1  # a longer hole between two rows is a restart; clocks that disagree leave shorter ones


@dataclasses.dataclass(frozen=True)
class Goodput:
    """Seconds from the first start of a run to its last row, by what they were spent on."""

    seconds: dict[str, float]
    """By category of `training.metrics.CATEGORIES`, and `LOST`."""
    restarts: int
    """Number of starts, or returns to an earlier checkpoint, that steps of the run follow."""

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def share(self) -> float:
        """Share of training steps that count."""
        return self.seconds["steps"] / self.total if self.total else math.nan


def goodput(rows: list[dict[str, Any]]) -> Goodput | None:
    """Return what the rows of kind "time" add up to; None if there is none yet.

    A resumed run has dropped the rows of steps that it takes again. So the hole between the last row that counts and
    the moment at which the next start began to measure is all that the restart has cost: the steps to be taken
    again, the time without a process, and the start of Python and JAX. Loading what was saved is in `setup`.
    """
    rows = [row for row in rows if row["kind"] == "time" and {"time", *CATEGORIES} <= row.keys()]
    rows = [row for row in rows if all(math.isfinite(row[name]) for name in ("time", *CATEGORIES))]
    if not rows:
        return None
    seconds = {name: math.fsum(row[name] for row in rows) for name in CATEGORIES}
    holes = [
        row["time"] - math.fsum(row[name] for name in CATEGORIES) - before["time"]
        for before, row in itertools.pairwise(rows)
    ]
    holes = [hole for hole in holes if hole > PAUSE_SECONDS]
    return Goodput({**seconds, LOST: math.fsum(holes)}, len(holes))


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint whose record is whole; its arrays have not been read."""

    step: int
    time: float
    """Seconds since 1970."""
    directory: epath.Path


@dataclasses.dataclass(frozen=True)
class RunHistory:
    """Records of a run in its work directory, without what is not yet written or was torn by a crash."""

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
    def origin(self) -> Origin | None:
        """Step of another run that the run has branched off from; None if it began at step 0."""
        return recorded_origin(self.run)

    @property
    def starts(self) -> list[dict[str, Any]]:
        """Starts that run.json lists, oldest first."""
        starts = self.run.get("starts")
        return [start for start in starts if isinstance(start, dict)] if isinstance(starts, list) else []

    @functools.cached_property
    def terms(self) -> tuple[Term, ...]:
        """Terms of the objectives of pre-training, in their order, as the newest start has recorded them; () of
        others."""
        recorded = (recorded_terms(start.get("terms")) for start in reversed(self.happened("start")))
        return next(filter(None, recorded), ())

    @functools.cached_property
    def phase_terms(self) -> tuple[Term, ...]:
        """Terms of the phase that trained last, which are all of a run that has one objective."""
        recorded = (recorded_terms(row.get("terms")) for row in reversed(self.happened("phase")))
        return next(filter(None, recorded), self.terms)

    @property
    def main_loss(self) -> str:
        """Name of the loss by which the best step is kept: of the first term that the phase trains for."""
        return next((term.loss for term in self.phase_terms if term.weight > 0), "loss")

    @property
    def word_loss(self) -> str | None:
        """Name of the loss of predicted words, in nats per word, with ln V before the first step; None: there is
        none that the phase trains for."""
        return next((term.loss for term in self.phase_terms if term.of_words and term.weight > 0), None)

    def of_last_phase(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those of the rows that the phase of the last of them has made, whose figures are comparable."""
        if self.config is None or not rows:
            return rows
        phases = resolve_phases(self.config)
        begin = phases[phase_of_step(self.config, rows[-1]["step"])].begin
        return [row for row in rows if row["step"] > begin]

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
    need_cloud_storage(os.fspath(path))
    directory, problems = epath.Path(path).expanduser(), []
    need_run(path)
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
    events, is_finetuning = read_events(directory / EVENTS_FILE), "finetune" in contents["config.json"]
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


SILENT_SECONDS = 300.0  # evaluations, compilations and saves leave shorter silences
SILENT_INTERVALS = 10
RECENT_STEPS = 1_000
OVERDUE_INTERVALS = 2
FREE_CHECKPOINTS = 2  # an asynchronous save needs room in addition to those that it replaces
FREE_BYTES = 1 << 30


def alarms(run: RunHistory, saved: Saved | None, owner: dict[str, Any] | None, step: int, now: float) -> list[str]:
    """Return one sentence for each thing that is not as it should be, the most urgent first.

    Args:
      saved: newest good checkpoint.
      step: the last step that the run has logged.
      now: seconds since 1970.
    """
    return [
        *_ended(run, owner, step),
        *([] if is_finished(run, step) else _silent(run, owner, now)),
        *_not_finite(run),
        *_recent(run, step),
        *_overdue(run, saved, step),
        *_disk(run, saved),
        *run.problems,
    ]


def is_finished(run: RunHistory, step: int) -> bool:
    """Return whether nothing is left to do."""
    if run.is_finetuning:
        return (run.path / RESULTS).exists()
    config = run.config
    return config is not None and step >= config.total_steps


def _ended(run: RunHistory, owner: dict[str, Any] | None, step: int) -> list[str]:
    if owner is not None or (run.config is None and not run.is_finetuning) or is_finished(run, step):
        return []
    how = _ending(run.events[-1]) if run.events else ""
    how = how or "without a word, as kill -9 or a lost machine end it"
    left = "it is not finished" if run.config is None else f"the run is at step {step:,} of {run.config.total_steps:,}"
    return [f"no process writes here and {left}; it ended {how}"]


def _ending(last: dict[str, Any]) -> str:
    """Return how the last event says that the run has ended; empty if it does not."""
    details = collections.defaultdict(lambda: "?", {name: str(value)[:200] for name, value in last.items()})
    if isinstance(seconds := last.get("seconds"), float):
        details["seconds"] = duration(seconds)
    return EVENTS[last["event"]].ending.format_map(details) if last["event"] in EVENTS else ""


def _silent(run: RunHistory, owner: dict[str, Any] | None, now: float) -> list[str]:
    last = run.last_sign()
    if owner is None or last is None:
        return []
    intervals = [after - before for before, after in itertools.pairwise(run.times()[-50:])]
    usual = statistics.median(intervals) if intervals else 0.0
    if now - last <= max(SILENT_SECONDS, SILENT_INTERVALS * usual):
        return []
    return [
        f"nothing was written for {duration(now - last)} (rows come every {duration(usual)}); a host may hang: see "
        "what it prints"
    ]


def _not_finite(run: RunHistory) -> list[str]:
    rows = run.of_kind("train")[-1:]
    wrong = [name for name in ("loss", "grad_norm") if rows and not math.isfinite(rows[0].get(name, 0.0))]
    return [f"{wrong[0]} is {rows[0][wrong[0]]} at step {rows[0]['step']:,}"] if wrong else []


def _recent(run: RunHistory, step: int) -> list[str]:
    """Return what events.jsonl has of the last steps, which those of a fine-tuning count from 0 in each of its runs."""
    found, since = [], 0
    if run.is_finetuning:
        since = max((row["time"] for row in run.happened("start")), default=0)
        step = max((row["step"] for row in run.events if row["time"] >= since), default=0)
    for event, kind in EVENTS.items():
        rows = [row for row in run.happened(event) if row["step"] > step - RECENT_STEPS and row["time"] >= since]
        if kind.alarm and rows:
            which = next((f", the last of host {row['host']}" for row in rows[-1:] if "host" in row), "")
            last = f"the last at {rows[-1]['step']:,}{which}"
            found.append(f"{len(rows)} {kind.alarm} in the last {RECENT_STEPS:,} steps, {last}")
    return found


def _overdue(run: RunHistory, saved: Saved | None, step: int) -> list[str]:
    if run.config is None or not run.rows:
        return []
    begin = 0 if run.origin is None else run.origin.step
    every, newest = run.config.checkpoint.every_steps, saved.step if saved else begin
    if step - newest <= OVERDUE_INTERVALS * every:
        return []
    last = f"the newest good checkpoint is of step {saved.step:,}" if saved else "there is no good checkpoint"
    return [f"{last}, though one is due every {every:,} steps"]


def _disk(run: RunHistory, saved: Saved | None) -> list[str]:
    if is_remote(run.path):
        return []
    free = shutil.disk_usage(run.path).free
    size = 0 if saved is None else _size(pathlib.Path(saved.directory))
    if free >= max(FREE_BYTES, FREE_CHECKPOINTS * size):
        return []
    return [f"the disk has {free / 1e9:.1f} GB left; a checkpoint takes {size / 1e9:.1f} GB"]


def _size(directory: pathlib.Path) -> int:
    """Return the bytes of all files below `directory`; the run may delete some at any moment."""
    total = 0
    for file in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


RATES = ("tokens_per_second", "token_share", "sequences_per_second", "steps_per_second", "mfu")
NOT_FIGURES = ("kind", "step", "learning_rate", "grad_norm", "skipped", "seconds_left", *RATES)


def run_status(path: str, config: StatusConfig, console: Console | None = None) -> dict[str, Any]:
    """Print how the run in work directory `path` is doing, and return the same facts as JSON values.

    Raises:
      UserError: `path` is not the work directory of a run, or `config.output` cannot be written.
    """
    facts = status(read_run(path), time.time())
    _print(facts, console or Console(highlight=False))
    if config.output:
        write_output(config.output, (json.dumps(facts, indent=2) + "\n").encode())
    return facts


def status(run: RunHistory, now: float) -> dict[str, Any]:
    """Return the facts about a run as JSON values, `now` in seconds since 1970; what is not known is absent."""
    owner, saved, last = run.owner(), run.newest_checkpoint(), run.last_sign()
    facts: dict[str, Any] = {"workdir": os.fspath(run.path), "kind": _kind(run)}
    facts["process"] = None if owner is None else {name: owner.get(name) for name in ("host", "pid", "since")}
    facts |= _of_finetuning(run) if run.is_finetuning else _of_pretraining(run, saved.step if saved else 0)
    if last is not None:
        facts["seconds_since_last_row"] = max(0.0, now - last)
    if saved is not None:
        facts["checkpoint"] = {"step": saved.step, "seconds_old": max(0.0, now - saved.time)}
    if (local := run.newest_local_save()) is not None and (saved is None or local["step"] > saved.step):
        facts["local_save"] = {"step": local["step"], "seconds_old": max(0.0, now - local["time"])}
    if run.starts:
        names = ("time", "host", "hosts", "devices", "device_kind")
        facts["starts"] = len(run.starts)
        facts["last_start"] = {name: run.starts[-1][name] for name in names if name in run.starts[-1]}
    if run.origin is not None:
        facts["branched_from"] = {"path": run.origin.path, "step": run.origin.step}
    if (spent := goodput(run.rows)) is not None and spent.total:
        facts["goodput"] = {"share": spent.share, "restarts": spent.restarts, "seconds": spent.seconds}
    facts["alarms"] = alarms(run, saved, owner, facts.get("step", 0), now)
    return facts


def _kind(run: RunHistory) -> str:
    if run.is_finetuning:
        return "fine-tuning"
    return "pre-training" if "phases" in run.settings or run.rows else "model without a run"


def _of_pretraining(run: RunHistory, saved_step: int) -> dict[str, Any]:
    train, held_out = run.of_kind("train")[-1:], run.of_kind("evaluation")[-1:]
    step = max([saved_step, *(row["step"] for row in [*train, *held_out])])
    facts: dict[str, Any] = {"step": step}
    if run.config is not None:
        facts |= {"total_steps": run.config.total_steps, "finished": is_finished(run, step)}
        if len(run.config.phases) > 1:
            facts["phase"] = _phase(run.config, step)
    for name, rows in (("training", train), ("held_out", held_out)):
        for row in rows:
            facts[name] = {"step": row["step"], **_figures(row)}
    for row in train:
        facts |= _pace(row)
        if step != row["step"]:
            facts.pop("seconds_left", None)
    return facts


def _phase(config: Config, step: int) -> dict[str, Any]:
    """Return the phase that the next step after `step` belongs to, or the last one, and what it changes."""
    phase = resolve_phases(config)[phase_of_step(config, min(step + 1, config.total_steps))]
    facts = {"number": phase.index, "of": len(config.phases), "begin": phase.begin, "end": phase.end}
    return facts | {"length": phase.sequence_length, "notes": list(phase_notes(config, phase.index))}


def _of_finetuning(run: RunHistory) -> dict[str, Any]:
    """Return the task and, for each run below runs/, whether it is finished, and its last figures, on dev too.

    Rates and the time left are those of the run that is not finished: they go one after another.
    """
    options, runs = run.settings["finetune"], {}
    pace = next(map(_pace, run.of_kind("train")[-1:]), {})  # of a run that is looked at by itself
    for directory in sorted((run.path / "runs").glob("*")):
        rows = {row["kind"]: row for row in read_rows(directory / "metrics.jsonl")}
        facts: dict[str, Any] = {"finished": (directory / RESULTS).exists()}
        if row := rows.get("train"):
            facts |= {"step": row["step"], **_figures(row)}
            pace = pace if facts["finished"] else _pace(row)
        runs[directory.name] = facts | _figures(rows.get("evaluation", {}))
    task = options.get("task") if isinstance(options, dict) else None
    return {"task": str(task), "finished": is_finished(run, 0), "runs": runs, **pace}


def _pace(row: dict[str, Any]) -> dict[str, Any]:
    """Return the rates in a row of training and the seconds left at these rates, where present."""
    found: dict[str, Any] = {"rates": {name: finite_json(row[name]) for name in RATES if name in row}}
    return found | {name: finite_json(row[name]) for name in ("seconds_left",) if name in row}


def _figures(row: dict[str, Any]) -> dict[str, float | str]:
    return {name: finite_json(value) for name, value in row.items() if name not in NOT_FIGURES}


def _print(facts: dict[str, Any], console: Console) -> None:
    console.print(Text(f"{facts['kind']} in {facts['workdir']}", "bold"), soft_wrap=True)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in _lines(facts):
        table.add_row(name, Text(value))
    console.print(table)
    if "goodput" in facts:
        console.print(_goodput_table(facts["goodput"]))
    for alarm in facts["alarms"]:
        console.print(Text(f"alarm: {alarm}", "bold red"), soft_wrap=True)


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what is known as pairs of a name and a text, in reading order."""
    lines = [("process", _process(facts))]
    if "step" in facts:
        total = facts.get("total_steps")
        lines.append(("step", f"{facts['step']:,}" + (f" of {total:,} ({facts['step'] / total:.1%})" if total else "")))
    if phase := facts.get("phase"):
        notes = "".join(f", {note}" for note in phase["notes"])
        steps = f"steps {phase['begin'] + 1:,} to {phase['end']:,}"
        lines.append(("phase", f"{phase['number']} (of {phase['of']}): {steps}, length {phase['length']}{notes}"))
    if parent := facts.get("branched_from"):
        lines.append(("branch of", f"{parent['path']} from step {parent['step']:,}"))
    if isinstance(left := facts.get("seconds_left"), float) and facts["process"] and not facts.get("finished"):
        of_run = " in this run" if "runs" in facts else ""
        lines.append(("time left", duration(max(0.0, left - facts.get("seconds_since_last_row", 0.0))) + of_run))
    if rates := " · ".join(describe(_numbers(facts.get("rates", {})))):
        lines.append(("throughput", rates))
    for name in ("training", "held_out"):
        if name in facts:
            figures = {key: value for key, value in facts[name].items() if key != "step"}
            lines.append((name.replace("_", " "), f"{_told(figures)} (step {facts[name]['step']:,})"))
    if "seconds_since_last_row" in facts:
        lines.append(("last row", f"{duration(facts['seconds_since_last_row'])} ago"))
    if saved := facts.get("checkpoint"):
        lines.append(("checkpoint", f"step {saved['step']:,}, {duration(saved['seconds_old'])} old"))
    elif facts["kind"] == "pre-training":
        lines.append(("checkpoint", "none yet"))
    if near := facts.get("local_save"):
        lines.append(("local save", f"step {near['step']:,}, {duration(near['seconds_old'])} old"))
    if start := facts.get("last_start"):
        where = f"{start.get('hosts', 1)} host(s), {start.get('devices', '?')} × {start.get('device_kind', '?')}"
        lines.append(("hosts", where))
        lines.append(("starts", f"{facts['starts']:,}, the last {start.get('time', '?')} on {start.get('host', '?')}"))
    for name, run in facts.get("runs", {}).items():
        state = "finished" if run["finished"] else "unfinished"
        figures = {key: value for key, value in run.items() if key not in ("finished", "step")}
        lines.append((name, f"{state}, step {run.get('step', 0):,}" + (f": {_told(figures)}" if figures else "")))
    return lines


def _process(facts: dict[str, Any]) -> str:
    if owner := facts["process"]:
        return f"{owner['pid']} on {owner['host']} since {owner['since']}"
    return "none; the run is finished" if facts.get("finished") else "none"


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, float)}


def _told(figures: dict[str, float | str]) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in figures.items())


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _goodput_table(spent: dict[str, Any]) -> Table:
    total = sum(spent["seconds"].values())
    table = Table(title=f"goodput {spent['share']:.1%} of {duration(total)}; restarts: {spent['restarts']}")
    table.add_column("spent on")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    for name, seconds in spent["seconds"].items():
        table.add_row(name, duration(seconds), f"{seconds / total:.1%}")
    return table

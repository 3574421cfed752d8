"""What about a run deserves a look now, each with the figure seen; nothing here ends or changes the run."""

import collections
import contextlib
import itertools
import math
import pathlib
import shutil
import statistics
from typing import Any

from bert_jax.config.finetuning import RESULTS
from bert_jax.files import is_remote
from bert_jax.monitoring.run_history import RunHistory, Saved
from bert_jax.training.events import EVENTS
from bert_jax.training.sinks import duration

SILENT_SECONDS = 300.0  # evaluations, compilations and saves leave shorter silences
SILENT_INTERVALS = 10
RECENT_STEPS = 1_000
OVERDUE_INTERVALS = 2
FREE_CHECKPOINTS = 2  # an asynchronous save needs room beside those that it replaces
FREE_BYTES = 1 << 30


def alarms(run: RunHistory, saved: Saved | None, owner: dict[str, Any] | None, step: int, now: float) -> list[str]:
    """Return one sentence for each thing that is not as it should be, the most urgent first.

    Args:
      saved: newest good checkpoint.
      owner: of the live process.
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
    every, newest = run.config.checkpoint.every_steps, saved.step if saved else 0
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

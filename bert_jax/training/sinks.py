"""Destinations of metrics, each with write(step, kind, metrics) and close(): console, metrics.jsonl, TensorBoard."""

import json
import math
import os
import time
from typing import Any

from absl import logging
from etils import epath
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from bert_jax.config.metric_scale import metric_scale
from bert_jax.files import finite_json, is_remote, parse_object, write_atomically
from bert_jax.objectives.objective import Term

BESIDE_BAR = ("tokens_per_second", "seconds_left")
UPLOAD_SECONDS = 60  # an object store cannot append, so the whole file is written again, at most this often


class JsonLines:
    """metrics.jsonl: {"kind": "train" | "evaluation" | "time", "step": …, …} per line; floats read back exactly.

    Rows after `start_step` belong to steps that will be taken again and are dropped, as are a line torn by a crash and,
    unless `evaluated`, the evaluation of that step.
    """

    def __init__(self, file: epath.Path, start_step: int, evaluated: bool = True):
        self._file, self._remote, self._uploaded = file, is_remote(file), time.monotonic()
        old = file.read_bytes() if file.exists() else b""
        kept = b"".join(
            line + b"\n"
            for line in old.splitlines()
            if (row := _row(line))
            and (row["step"] < start_step or row["step"] == start_step and (evaluated or row["kind"] != "evaluation"))
        )
        if kept != old:
            write_atomically(file, kept)
        self._text = kept.decode() if self._remote else ""
        self._stream = None if self._remote else open(file, "a", encoding="utf-8")

    def write(self, step: int, kind: str, metrics: dict[str, float]) -> None:
        figures = {name: finite_json(float(value)) for name, value in metrics.items()}
        line = json.dumps({"kind": kind, "step": int(step), **figures}) + "\n"
        if self._stream is None:
            self._text += line
            if time.monotonic() - self._uploaded > UPLOAD_SECONDS:
                self._upload()
        else:
            self._stream.write(line)
            self._stream.flush()

    def close(self) -> None:
        if self._stream is None:
            self._upload()
        else:
            self._stream.close()

    def _upload(self) -> None:
        self._file.write_text(self._text)
        self._uploaded = time.monotonic()


def read_rows(file: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl in order, without a torn one; numbers are floats, non-finite ones included."""
    path = epath.Path(file)
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [row for line in lines if (row := _row(line))]


class TensorBoard:
    """Event files below `directory`, with tags train/… and evaluation/….

    Events of an earlier start after `start_step` are hidden.
    """

    def __init__(self, directory: epath.Path, start_step: int):
        from tensorboardX import SummaryWriter  # the import takes half a second

        self._writer = SummaryWriter(
            os.fspath(directory), purge_step=start_step + 1 if start_step else None, flush_secs=30
        )

    def write(self, step: int, kind: str, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            if math.isfinite(value):  # tensorboardX draws no others, and warns about each on the console
                self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        self._writer.close()


class ConsoleLines:
    """A live bar on a terminal, elsewhere one line of plain text per written step; evaluations are always lines.

    Args:
      total_steps: last step of the run.
      start_step: step at which the bar starts.
      console: where to print; by default standard output.
      terms: terms of the objective, whose figures are shown.
    """

    def __init__(self, total_steps: int, start_step: int, console: Console | None = None, terms: tuple[Term, ...] = ()):
        self._total, self._terms = total_steps, terms
        self._console = console or Console()
        self._progress = None
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("[bold]step {task.completed:,.0f}/{task.total:,.0f}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[summary]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
                console=self._console,
                expand=True,
            )
            self._task = self._progress.add_task("", total=total_steps, completed=start_step, summary="compiling …")
            self._progress.start()

    def advance(self, step: int) -> None:
        if self._progress is not None:
            self._progress.update(self._task, completed=step)

    def write(self, step: int, kind: str, metrics: dict[str, float]) -> None:
        if self._progress is not None and kind == "train":
            main = self._terms[:1]  # one term and the rates fit beside the bar in 80 columns
            names = [name for term in main if term.label for name in (term.loss, term.accuracy)]
            short = {name: metrics[name] for name in (*names, *BESIDE_BAR) if name in metrics}
            self._progress.update(self._task, completed=step, summary=" · ".join(describe(short, main)))
        else:
            label = f"step {step:,}/{self._total:,}" if kind == "train" else f"{kind} at step {step:,}"
            self._console.print(
                " · ".join([label, *describe(metrics, self._terms)]), highlight=False, markup=False, soft_wrap=True
            )

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


def describe(metrics: dict[str, float], terms: tuple[Term, ...] = ()) -> list[str]:
    """Return the parts of one console line in reading order, for those metrics that are there."""
    parts = [f"loss {metrics['loss']:.4f}"] if "loss" in metrics else []
    parts += [f"{term.perplexity} {metrics[term.perplexity]:.2f}" for term in terms if term.perplexity in metrics]
    for term in terms:
        if term.label and term.loss in metrics:
            accuracy = f" ({metrics[term.accuracy]:.1%})" if term.accuracy in metrics else ""
            parts.append(f"{term.label} {metrics[term.loss]:.4f}{accuracy}")
    for term in terms[:1]:  # of each store of a mixture
        parts += [
            f"{name.rpartition('/')[0]} {metrics[name]:.4f}" for name in metrics if name.endswith(f"/{term.loss}")
        ]
    for name, form in (
        ("learning_rate", "lr {:.2e}"),
        ("grad_norm", "grad {:.2f}"),
        ("tokens_per_second", "{:,.0f} tokens/s"),
        ("token_share", "{:.0%} of the positions"),
        ("mfu", "MFU {:.1%}"),
    ):
        if name in metrics:
            parts.append(form.format(metrics[name]))
    parts += [
        f"{name} {value:.2f}" if metric_scale(name) == 1 else f"{name} {value:.2%}"
        for name, value in metrics.items()
        if name.startswith("dev")
    ]
    if "seconds_left" in metrics:
        parts.append(f"ETA {duration(metrics['seconds_left'])}")
    return parts


def duration(seconds: float) -> str:
    """Return a duration such as 2 d 03 h, 1 h 05 min, 3 min 20 s or 12 s."""
    if not math.isfinite(seconds):
        return "unknown"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def tensorboard(directory: epath.Path, start_step: int) -> list[TensorBoard]:
    """Return the TensorBoard sink, or none where tensorboardX lacks the client library of a remote store."""
    try:
        return [TensorBoard(directory, start_step)]
    except ImportError as error:
        logging.warning("no TensorBoard events below %s: %s", directory, error)
        return []


def _row(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line, or None for a torn or foreign one."""
    try:
        row = parse_object(line)
        kind, step = row.pop("kind"), row.pop("step")
        metrics = {name: float(value) for name, value in row.items()}
    except (ValueError, TypeError, KeyError):
        return None
    return {"kind": kind, "step": step, **metrics} if isinstance(kind, str) and type(step) is int else None

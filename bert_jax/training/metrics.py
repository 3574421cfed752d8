"""Metrics of a run: rates, wall time by use, rows for console, files and trackers, and the picture of a run.

Every row goes to all destinations, each with write(step, kind, metrics) and close(): console, metrics.jsonl,
TensorBoard, trackers. The wall time by use is in rows of metrics.jsonl, which a resumed run continues. Losses,
accuracies and the learning rate over the steps are drawn from metrics.jsonl. All this is for people: none of it can
stop, delay or fail a run.
"""

import contextlib
import functools
import io
import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from etils import epath
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from bert_jax.config.options import metric_scale
from bert_jax.files import LONGEST_LOG, finite_json, is_remote, parse_object, read_bytes, write_atomically
from bert_jax.objectives.objective import Term
from bert_jax.training.trackers import CLOSE_SECONDS, Aside, Destination, Lines, screen

BESIDE_BAR = ("tokens_per_second", "seconds_left")
UPLOAD_SECONDS = 60  # an object store cannot append, so the whole file is written again, at most this often
STILL_SECONDS = 2  # after which a bar says for how long it has not moved
FLUSH_SECONDS = 30  # between two times that TensorBoard can see new events


class JsonLines:
    """metrics.jsonl: {"kind": "train" | "evaluation" | "time", "step": …, …} per line; floats read back exactly.

    Rows after `start_step` belong to steps that will be taken again and are dropped, as are a line torn by a crash and,
    unless `evaluated`, the evaluation of that step.
    """

    def __init__(self, file: epath.Path, start_step: int, evaluated: bool = True):
        old = read_bytes(file, LONGEST_LOG) if file.exists() else b""
        kept = b"".join(
            line + b"\n"
            for line in old.splitlines()
            if (row := _row(line))
            and (row["step"] < start_step or row["step"] == start_step and (evaluated or row["kind"] != "evaluation"))
        )
        self._lines = Lines(file, kept if kept != old or is_remote(file) else None, UPLOAD_SECONDS)

    def write(self, step: int, kind: str, metrics: dict[str, float]) -> None:
        figures = {name: finite_json(float(value)) for name, value in metrics.items()}
        self._lines.add((json.dumps({"kind": kind, "step": int(step), **figures}) + "\n").encode())

    def close(self) -> None:
        self._lines.close()


def read_rows(file: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl in order, without a torn one; numbers are floats, non-finite ones included."""
    path = epath.Path(file)
    lines = read_bytes(path, LONGEST_LOG).splitlines() if path.exists() else []
    return [row for line in lines if (row := _row(line))]


class TensorBoard:
    """Event files below `directory`, with tags train/… and evaluation/….

    Events of an earlier start after `start_step` are hidden. tensorboardX's own writer would wait for ever once its
    thread has met a full disk.
    """

    def __init__(self, directory: epath.Path, start_step: int):
        from tensorboardX.proto.event_pb2 import SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.record_writer import RecordWriter, directory_check

        place = os.fspath(directory)
        directory_check(place)
        # A rollback may begin the next file within the same second.
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{time.monotonic_ns()}"
        self._file, self._flushed = RecordWriter(f"{place}/{name}"), time.monotonic()
        self._add(0, file_version="brain.Event:2")
        if start_step:
            self._add(start_step + 1, session_log=SessionLog(status=SessionLog.START))

    def write(self, step: int, kind: str, metrics: dict[str, float]) -> None:
        from tensorboardX.summary import scalar

        for name, value in metrics.items():
            if math.isfinite(value):  # TensorBoard draws no others
                self._add(step, summary=scalar(f"{kind}/{name}", value))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._file.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        self._file.close()

    def _add(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

        self._file.write(Event(wall_time=time.time(), step=int(step), **content).SerializeToString())


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
        self._console = console or screen()
        self._progress = None
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("[bold]step {task.completed:,.0f}/{task.total:,.0f}"),
                BarColumn(bar_width=None),
                _Summary(table_column=Column(no_wrap=True, overflow="ellipsis")),
                console=self._console,
                expand=True,
            )
            self._task = self._progress.add_task(
                "", total=total_steps, completed=start_step, summary="compiling", moved=time.monotonic()
            )
            self._progress.start()

    def advance(self, step: int) -> None:
        if self._progress is not None:
            self._progress.update(self._task, completed=step, moved=time.monotonic())

    def write(self, step: int, kind: str, metrics: dict[str, float]) -> None:
        if self._progress is not None and kind == "train":
            main = _main(metrics, self._terms)  # one term and the rates fit next to the bar in 80 columns
            names = [name for term in main if term.label for name in (term.loss, term.accuracy)]
            short = {name: metrics[name] for name in (*names, *BESIDE_BAR) if name in metrics}
            self._progress.update(self._task, completed=step, summary=" · ".join(describe(short, main)))
        else:
            label = f"step {step:,}/{self._total:,}" if kind == "train" else f"{kind} at step {step:,}"
            figures = describe(metrics, self._terms) or ["nothing to measure"]
            self._console.print(" · ".join([label, *figures]), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


class _Summary(ProgressColumn):
    """What is known of the last step; where the next one takes long, or an evaluation, for how long it has."""

    def render(self, task: Task) -> Text:
        waited = time.monotonic() - task.fields["moved"]
        return Text(task.fields["summary"] + (f" · for {waited:.0f} s" if waited > STILL_SECONDS else ""))


def describe(metrics: dict[str, float], terms: tuple[Term, ...] = ()) -> list[str]:
    """Return the parts of one console line in reading order, for those metrics that are there."""
    parts = [f"loss {metrics['loss']:.4f}"] if "loss" in metrics else []
    perplexities = dict.fromkeys(term.perplexity for term in terms)  # phases may share the name
    parts += [f"{name} {metrics[name]:.2f}" for name in perplexities if name in metrics]
    for term in terms:
        if term.label and term.loss in metrics:
            accuracy = f" ({metrics[term.accuracy]:.1%})" if term.accuracy in metrics else ""
            parts.append(f"{term.label} {metrics[term.loss]:.4f}{accuracy}")
    for term in _main(metrics, terms):  # of each store of a mixture
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


def _main(metrics: dict[str, float], terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Return the first term that was measured; a phase may have none of another's."""
    return next(((term,) for term in terms if term.loss in metrics), terms[:1])


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


def _row(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line, or None for a torn or foreign one."""
    try:
        row = parse_object(line)
        kind, step = row.pop("kind"), row.pop("step")
        metrics = {name: float(value) for name, value in row.items()}
    except (ValueError, TypeError, KeyError):
        return None
    return {"kind": kind, "step": step, **metrics} if isinstance(kind, str) and type(step) is int else None


CATEGORIES: tuple[str, ...] = ("steps", "input", "evaluation", "checkpoint", "compile", "setup")
"""steps: training; input: waiting for a batch with nothing left to compute; setup: everything before the first batch of
a start (or of a phase) but compiling."""


class WallTime:
    """A stopwatch that always runs for exactly one category, so that the seconds of all add up to the time elapsed.

    What is lost to a restart is found later (`tools.status.goodput`): it is the time between two rows of which neither
    start knows anything.

    Args:
      clock: returns seconds since any moment.
      now: returns the time of day in seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, now: Callable[[], float] = time.time):
        self._clock, self._now = clock, now
        self._category, self._since = "setup", clock()
        self._seconds = dict.fromkeys(CATEGORIES, 0.0)

    def switch(self, category: str) -> str:
        """Let the watch run for `category` from now on; return the previous one."""
        now, before = self._clock(), self._category
        self._seconds[before] += now - self._since
        self._category, self._since = category, now
        return before

    @contextlib.contextmanager
    def spent_on(self, category: str) -> Iterator[None]:
        before = self.switch(category)
        try:
            yield
        finally:
            self.switch(before)

    @contextlib.contextmanager
    def awaiting(self, busy: Callable[[], bool]) -> Iterator[None]:
        """Count the block as waiting for input, unless the device is still `busy` at its end and so has lost nothing.

        A wait that outlasts the device counts as a whole, because nobody knows when the device became idle.
        """
        before = self.switch("input")
        spent = self._seconds["input"]
        try:
            yield
        finally:
            self.switch(before)
            if busy():
                self._seconds[before] += self._seconds["input"] - spent
                self._seconds["input"] = spent

    def take(self) -> dict[str, float]:
        """Return the seconds of each category since the last call, and `time`, the seconds since 1970."""
        self.switch(self._category)
        seconds, self._seconds = self._seconds, dict.fromkeys(CATEGORIES, 0.0)
        return {"time": self._now(), **seconds}


class Rates:
    """Throughput between two reports. Time spent inside `paused()` (evaluating, compiling, saving) does not count.

    Nor does the time before a pause while no step has been counted: parameters are still being created or placed.

    Args:
      peak_flops: FLOP/s of all devices together; None if unknown, which leaves out `mfu`.
      clock: returns seconds since any moment.
      wall_time: called with the reason for each pause; None for one of its own.
    """

    def __init__(
        self,
        peak_flops: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        wall_time: WallTime | None = None,
    ):
        self._peak_flops, self._clock = peak_flops, clock
        self.wall_time: WallTime = wall_time or WallTime(clock)
        self._places_per_second: float | None = None
        self._is_paused = False
        self._restart()

    def count(self, sequences: int, tokens: float, flops: float = 0.0, places: int | None = None) -> None:
        """Add one step: sequences, tokens, model FLOPs and places (sequences × length) of its global batch.

        With `places`, tokens are those that are not padding, and reports have their share of the positions.
        """
        self._steps += 1
        self._places += tokens if places is None else places
        self._has_share = places is not None
        self._sequences += sequences
        self._tokens += tokens
        self._flops += flops

    @contextlib.contextmanager
    def paused(self, category: str) -> Iterator[None]:
        """Leave the block out of the rates, and count it as `category` of CATEGORIES; blocks may nest."""
        start, outermost, self._is_paused = self._clock(), not self._is_paused, True
        try:
            with self.wall_time.spent_on(category):
                yield
        finally:
            if outermost:
                self._is_paused = False
                self._start = self._start + self._clock() - start if self._steps else self._clock()

    def report(self, places_left: float = 0) -> dict[str, float]:
        """Return rates since the last report, `mfu` (fraction of the peak) and `seconds_left` for `places_left`."""
        seconds = self._clock() - self._start
        if not self._steps or seconds <= 0:
            return {}
        rates = {
            name: amount / seconds
            for name, amount in (
                ("steps_per_second", self._steps),
                ("sequences_per_second", self._sequences),
                ("tokens_per_second", self._tokens),
            )
        }
        if self._has_share:
            rates["token_share"] = self._tokens / self._places
        if self._peak_flops:
            rates["mfu"] = self._flops / seconds / self._peak_flops
        # The estimate follows a mean over about ten reports, so that it does not jump.
        now, before = self._places / seconds, self._places_per_second
        self._places_per_second = mean = now if before is None else 0.9 * before + 0.1 * now
        rates["seconds_left"] = places_left / mean
        self._restart()
        return rates

    def _restart(self) -> None:
        self._start, self._steps, self._sequences, self._tokens, self._flops = self._clock(), 0, 0, 0.0, 0.0
        self._places, self._has_share = 0.0, False


class Metrics:
    """Writes rows to the console, `workdir`/metrics.jsonl and `workdir`/tensorboard; on the first host only.

    Args:
      workdir: directory of the run, local or gs://.
      total_steps: last step of the run.
      start_step: the step the run resumes from; rows of later steps from an earlier start are dropped.
      evaluated: whether the evaluation of that step has been made; otherwise its row is dropped as well.
      terms: terms of the objective, whose figures the console shows.
      wall_time: of which a row of kind "time" follows each row of a training step, and the end; None for no such rows.
      trackers: makes the services that get the rows as well.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        *,
        total_steps: int,
        start_step: int = 0,
        evaluated: bool = True,
        terms: tuple[Term, ...] = (),
        wall_time: WallTime | None = None,
        trackers: Callable[[], list[Destination]] = list,
    ):
        self.file: epath.Path = epath.Path(workdir) / "metrics.jsonl"
        self._console, self._step, self._wall_time = None, start_step, wall_time
        self._destinations: list[Destination] = []
        if jax.process_index() == 0:
            self._rows = Destination("metrics.jsonl", self._open_rows(evaluated))
            self._events = Destination("TensorBoard", self._open_events())
            # Room for one picture that waits, and for the end.
            self._pictures = Aside(f"the picture of the curves in {workdir} is not up to date", most=2)
            # Last, because a bar that has started must be stopped even if a signal arrives.
            self._console = ConsoleLines(total_steps, start_step, terms=terms)
            self._destinations = [self._rows, self._events, *trackers()]

    def _open_rows(self, evaluated: bool = True) -> Callable[[], JsonLines]:
        step = self._step

        def start() -> JsonLines:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            return JsonLines(self.file, step, evaluated)

        return start

    def _open_events(self) -> Callable[[], TensorBoard]:
        return functools.partial(TensorBoard, self.file.parent / "tensorboard", self._step)

    def reload(self) -> None:
        """Open the files again after the directory was deleted or renamed (`WorkDirectory.secure`)."""
        if self._console is not None:
            self._rows.restart(self._open_rows())
            self._events.restart(self._open_events())

    def rewind(self, step: int) -> None:
        """Drop the rows of later steps, which will be taken again."""
        self._step = step
        if self._wall_time is not None:
            self._wall_time.take()  # what the newest of them took is lost as well
        self.reload()
        self.advance(step)

    def advance(self, step: int) -> None:
        """Move the live bar; cheap enough for every step."""
        if self._console is not None:
            self._console.advance(step)

    def write(self, step: int, metrics: dict[str, float], kind: str = "train") -> None:
        """Write one row; `kind` is "train" or "evaluation"."""
        self._step = step
        for each in [self._console, *self._destinations]:
            if each is not None:
                each.write(step, kind, metrics)
        if kind == "train":
            self._write_time()

    def show(self, step: int, metrics: dict[str, float]) -> None:
        """Show the figures of a step that has no row."""
        if self._console is not None:
            self._console.write(step, "train", metrics)

    def _write_time(self) -> None:
        if self._wall_time is not None and self._console is not None:
            self._rows.write(self._step, "time", self._wall_time.take())  # the file alone

    def settle(self) -> None:
        """Wait for a moment until metrics.jsonl has every row: a row of a step that is saved is not written again."""
        if self._console is not None:
            self._rows.settle()

    def draw(self, terms: tuple[Term, ...], unigram: dict[str, float] | None = None, title: str = "") -> None:
        """Have the curves of the rows so far drawn next to them; see `draw_curves`."""
        if self._console is not None and not self._pictures.has_more:  # one that waits will read these rows too
            self._pictures.do(self._draw, terms, unigram, title)

    def _draw(self, *arguments: Any) -> None:
        self._rows.settle()
        draw_curves(self.file, self.file.parent / "curves.png", *arguments)

    def close(self) -> None:
        self._write_time()
        if self._console is None:
            return
        self._console.close()
        others, deadline = [*self._destinations, self._pictures], time.monotonic() + CLOSE_SECONDS
        for each in others:  # they all end at the same time
            each.finish()
        for each in others:
            each.close(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


TRAIN, HELD_OUT, BASELINE = "#3b6fb6", "#d1495b", "#8a8a8a"


def draw_curves(
    metrics_file: str | os.PathLike[str],
    picture: str | os.PathLike[str],
    terms: tuple[Term, ...],
    unigram: dict[str, float] | None = None,
    title: str = "",
) -> bool:
    """Write a PNG with the panels of each term and one panel for the learning rate, two per row.

    Args:
      metrics_file: metrics.jsonl of the run.
      picture: file to write.
      terms: terms of the objective.
      unigram: metrics by name of predicting from word frequencies alone, drawn as dashed lines.
      title: heading of the picture.

    Returns:
      True; False, without a picture, if there are fewer than two training rows.
    """
    rows = read_rows(metrics_file)
    train = [row for row in rows if row["kind"] == "train"]
    held_out = [row for row in rows if row["kind"] == "evaluation"]
    if len(train) < 2:
        return False
    # Takes a second to import; this canvas needs no global state and no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [(f"{term.title}: {kind}", *_metric(term, kind)) for term in terms for kind in term.panels]
    rows_of_panels = -(-(len(panels) + 1) // 2)
    height = 3.2 * rows_of_panels
    figure = Figure(figsize=(10, height), facecolor="white")
    # Margins in inches: a layout that Matplotlib computes takes as long as all the rest.
    figure.subplots_adjust(0.075, 0.5 / height, 0.98, 1 - 0.7 / height, wspace=0.2, hspace=0.45)
    FigureCanvasAgg(figure)
    places = list(figure.subplots(rows_of_panels, 2, squeeze=False).flat)
    for axes, (heading, name, unit) in zip(places, panels, strict=False):
        _panel(axes, heading, unit, name, train, held_out, (unigram or {}).get(name))
    _panel(places[len(panels)], "Learning rate", "", "learning_rate", train, [], None)
    for axes in places[len(panels) + 1 :]:
        axes.set_axis_off()
    if title:
        figure.suptitle(title, fontsize=14)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    write_atomically(picture, buffer.getvalue())
    return True


def _metric(term: Term, kind: str) -> tuple[str, str]:
    """Return the name and unit of one metric of a term."""
    return (term.loss, term.unit) if kind == "loss" else (term.accuracy, "%")


def smoothed(values: np.ndarray, reach: int) -> np.ndarray:
    """Return the mean over up to `reach` values on either side; NaNs are skipped.

    A running mean over the past alone would lag behind training, so that held-out figures would look better than it.
    """
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    places = np.arange(len(values))
    low, high = np.maximum(places - reach, 0), np.minimum(places + reach + 1, len(values))
    with np.errstate(invalid="ignore"):
        return (sums[high] - sums[low]) / (counts[high] - counts[low])


def _panel(axes: Any, title: str, unit: str, name: str, train: Any, held_out: Any, baseline: Any) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    steps, values = _series(train, name)
    scale = 100 if unit == "%" else 1
    if name == "learning_rate" and len(values) and values.max() > 0:
        exponent = math.floor(math.log10(values.max()))
        scale, unit = 10.0**-exponent, f"$\\times\\,10^{{{exponent}}}$"
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.set_ylabel(unit)
    axes.set_xlabel("step")
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    if not len(steps):
        axes.text(
            0.5, 0.5, "not measured in this run", transform=axes.transAxes, ha="center", va="center", color=BASELINE
        )
        return
    noisy = name != "learning_rate"
    if noisy:
        axes.plot(steps, scale * values, color=TRAIN, alpha=0.22, linewidth=0.8)
    line = smoothed(values, len(values) // 50) if noisy else values
    axes.plot(steps, scale * line, color=TRAIN, linewidth=1.8, label="training" if noisy else None)
    places, points = _series(held_out, name)
    if len(places):
        axes.plot(places, scale * points, color=HELD_OUT, marker="o", markersize=4, linewidth=1.2, label="held out")
    for number, key in enumerate(sorted({key for row in held_out for key in row if key.endswith(f"/{name}")})):
        places, points = _series(held_out, key)  # of one store of a mixture
        axes.plot(places, scale * points, color=f"C{number + 2}", linewidth=1.0, label=key.rpartition("/")[0])
    if baseline is not None:
        axes.axhline(scale * baseline, color=BASELINE, linestyle="--", linewidth=1.2, label="word frequencies alone")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)


def _series(rows: list[dict[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(row["step"], row[name]) for row in rows if name in row]
    return np.array([step for step, _ in pairs]), np.array([value for _, value in pairs])

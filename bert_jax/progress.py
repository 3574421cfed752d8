"""Progress of long calls: rich's bar on a terminal, one line of text in a notebook, a line twice a minute elsewhere.

In a notebook rich needs ipywidgets and shows nothing if they are not installed; the line needs nothing.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from rich import progress
from rich.console import Console

Unit = Literal["items", "bytes"]
WRITE_SECONDS = 0.5  # between two writes, because a notebook stores all that is written
LOG_SECONDS = 30.0  # from the start, and between two lines, of a log; what is over by then leaves none
WIDTH = 30  # characters of the line's bar


def are_seen() -> bool:
    """Return whether bars are shown at all, for those of other libraries."""
    console = Console(stderr=True)
    return console.is_terminal or console.is_jupyter


@contextlib.contextmanager
def progress_bar(
    description: str, total: int | None, completed: int = 0, unit: Unit = "items", visible: bool = True
) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr during the block; yield a function that moves it to a number of items or bytes.

    `total` is None if it is unknown.
    """
    console = Console(stderr=True)
    if visible and not console.is_terminal:
        line = (_NotebookLine if console.is_jupyter else _Line)(description, total, completed, unit)
        try:
            yield line.move
        finally:
            line.end()
        return
    columns = {
        "items": (progress.MofNCompleteColumn(), progress.TimeElapsedColumn()),
        "bytes": (progress.DownloadColumn(), progress.TransferSpeedColumn()),
    }[unit]
    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        *columns,
        "ETA",
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not visible,
    ) as bar:
        task = bar.add_task(description, total=total, completed=completed)
        yield lambda position: bar.update(task, completed=position)


def track(items: Iterable[Any], description: str, total: int | None, visible: bool = True) -> Iterator[Any]:
    """Yield the items with a bar that counts them."""
    with progress_bar(description, total, visible=visible) as move_to:
        for number, item in enumerate(items, 1):
            yield item
            move_to(number)


class _Line:
    """Lines of text for a log."""

    def __init__(self, description: str, total: int | None, completed: int, unit: Unit):
        self._description, self._total, self._unit = description, total, unit
        self._begin, self._started = completed, time.monotonic()
        self._written = self._started

    def move(self, completed: int) -> None:
        now = time.monotonic()
        if now - self._written >= LOG_SECONDS:
            print(self._text(completed, now), file=sys.stderr, flush=True)
            self._written = now

    def end(self) -> None:
        pass

    def _text(self, completed: int, now: float) -> str:
        return " ".join([self._description, *self._parts(completed, now - self._started)])

    def _parts(self, completed: int, seconds: float) -> list[str]:
        if not self._total:
            return [self._number(completed), f"in {_time(seconds)}"]
        filled = round(WIDTH * min(completed / self._total, 1))
        parts = [
            f"[{'#' * filled}{'-' * (WIDTH - filled)}]",
            f"{self._number(completed)}/{self._number(self._total)}",
            f"in {_time(seconds)}",
        ]
        if self._begin < completed < self._total:
            left = seconds * (self._total - completed) / (completed - self._begin)
            parts.append(f"about {_time(left)} left")
        return parts

    def _number(self, count: int) -> str:
        return f"{count:,}" if self._unit == "items" else f"{count / 1e6:,.1f} MB"


class _NotebookLine(_Line):
    """One line of text that overwrites itself, which every notebook can show."""

    def __init__(self, description: str, total: int | None, completed: int, unit: Unit):
        super().__init__(description, total, completed, unit)
        self._written, self._width = 0.0, 0
        self.move(completed)

    def move(self, completed: int) -> None:
        now = time.monotonic()
        if self._written and now - self._written < WRITE_SECONDS and completed != self._total:
            return
        text = self._text(completed, now)
        print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._written, self._width = now, len(text)

    def end(self) -> None:
        print(file=sys.stderr, flush=True)


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"

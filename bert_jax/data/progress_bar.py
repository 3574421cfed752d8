"""A progress bar over bytes, on a terminal."""

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def byte_progress(description: str, total: int, completed: int = 0, visible: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a bar for the time of the block; yields a function that moves it to a number of bytes."""
    from rich import console, progress

    columns = ("[progress.description]{task.description}", progress.BarColumn(), progress.DownloadColumn(),
               progress.TransferSpeedColumn(), "ETA", progress.TimeRemainingColumn())
    stderr = console.Console(stderr=True)
    # Without a terminal rich would leave an empty line behind.
    with progress.Progress(*columns, console=stderr, transient=True, disable=not (visible and stderr.is_terminal)) as bar:
        task = bar.add_task(description, total=total, completed=completed)
        yield lambda position: bar.update(task, completed=position)

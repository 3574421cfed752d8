"""What a command says on the console before it trains, from the first host alone."""

import jax
from rich.console import Console
from rich.table import Table

from bert_jax.devices import hardware


def say(text: str) -> None:
    """Print one line, however long it is and whatever is in brackets."""
    if jax.process_index() == 0:
        Console(highlight=False).print(text, markup=False, soft_wrap=True)


def say_hardware() -> None:
    """Print what the command runs on, and what is there but cannot be used."""
    say(f"{hardware.hardware()}" + (f"; {note}" if (note := hardware.idle_accelerator()) else ""))


def show(table: Table) -> None:
    """Print a table; a pipe or a log file has no width of its own, and rich would take 80 columns."""
    if jax.process_index() == 0:
        console = Console(highlight=False)
        (console if console.is_terminal else Console(highlight=False, width=200)).print(table)

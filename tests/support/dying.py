"""A run that kills itself at an arbitrary moment after a step, so that nobody kills it too late."""

import os
import pathlib
import signal
import sys
import threading

CODE = """
import sys
sys.path.insert(0, {support!r})
from dying import die_after
die_after({step})
from bert_jax.cli import main
main()
"""


def die_after(step: int) -> None:
    """Have this process end a moment after the metrics of this step are written."""
    from bert_jax.training.metrics import Metrics

    write = Metrics.write

    def write_and_die(self, at, *given, **options):
        write(self, at, *given, **options)
        if at == step:
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGKILL)).start()
        elif at > step + 3:
            threading.Event().wait()  # on a busy machine the timer may be late; nobody gets past it

    Metrics.write = write_and_die


def dying(after_step: int, *words: str) -> list[str]:
    """Return the command `bert-jax WORDS`, whose process ends a moment after this step; with step 0 it lives."""
    if not after_step:
        return [sys.executable, "-m", "bert_jax", *words]
    support = str(pathlib.Path(__file__).parent)
    return [sys.executable, "-c", CODE.format(support=support, step=after_step), *words]

"""bert-jax in a process that kills itself at an arbitrary moment after a step, so that nobody kills it too late."""

import sys

CODE = """
import os, signal, threading
from bert_jax.cli import main
from bert_jax.training.metrics import Metrics
write = Metrics.write
def write_and_die(self, at, *given, **options):
    write(self, at, *given, **options)
    if at == {step}:
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGKILL)).start()
    elif at > {step} + 10 and {step}:
        threading.Event().wait()  # on a busy machine the timer may be late; nobody gets past it
Metrics.write = write_and_die
main()
"""


def dying(after_step: int, *words: str) -> list[str]:
    """Return the command `bert-jax WORDS`, whose process ends a moment after this step; with step 0 it lives."""
    return [sys.executable, "-c", CODE.format(step=after_step), *words]

"""The end of the pipe inside a contestant: a job, then turns. Standard library only.

Ours and the peers' programs use it; those of the peers run where bert_jax is not installed and import this file by its
name alone.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


class Refusal(Exception):
    """The job cannot be done here; the message says why, in one line."""


def serve(
    prepare: Callable[[dict[str, Any]], tuple[Callable[[int], object], dict[str, Any]]],
    refusal: type[Exception] = Refusal,
) -> None:
    """Answer the lines of standard input until it closes, or until one is refused: {"refused": reason}.

    The first line is the job. The answer is {"ready": facts}. Each line {"units": n} after it is answered with the
    seconds that the work took, {"wall": s, "cpu": s}, those of processes that have ended in between included, with the
    most memory so far, {"peak_memory_bytes": n}, and with what the work has found, {"found": …}.

    Args:
      prepare: takes the job, a dict; returns a function that does `units` units of work and waits for the result, and
        a dict of facts. Both may raise `refusal`.
      refusal: what they raise where the job cannot be done here; its message is the reason.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not get between the answers

    def say(**answer: Any):
        print(json.dumps(answer), file=answers, flush=True)

    try:
        work, facts = prepare(json.loads(sys.stdin.readline()))
        say(ready=facts)
        for line in sys.stdin:
            units = json.loads(line)["units"]
            wall, cpu = time.perf_counter(), cpu_seconds()
            found = work(units)
            wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
            say(wall=wall, cpu=cpu, peak_memory_bytes=peak_memory(), found=found)
    except refusal as error:
        say(refused=" ".join(str(error).split()))


def cpu_seconds() -> float:
    """Return the processor time of this process and of those that it has started and waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def peak_memory() -> int:
    """Return the most bytes of memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

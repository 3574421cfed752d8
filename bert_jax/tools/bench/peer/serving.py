"""Serve a job, then turns, at one end of a pipe; a contestant that starts whole processes. Standard library only.

Our programs import this file, and so do those of peers, by its name alone, since bert_jax is not installed there. As a
program it is one of three:

    python serving.py process       a contestant whose unit of work is a whole process, from its start to its end
    python serving.py load MODEL    such a process, which loads a model with transformers of the peer's environment
    python serving.py answer MODEL  such a process, which makes a first vector with its sentence-transformers
"""

import json
import os
import queue
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

# pyright: reportMissingImports=false


BEGAN = time.perf_counter()  # before the imports, which `load` measures


TEXT = "How long does it take until this text has become a vector?"
"""The first text that a loaded model gets."""
Prepared = tuple[Callable[[int], object], dict[str, Any]]
"""A function that does so many units of work and waits for the result, and facts about the process."""


class Refusal(Exception):
    """The job cannot be done here; the message says why, in one line."""


def serve(prepare: Callable[[dict[str, Any]], Prepared], refusal: type[Exception] = Refusal) -> None:
    """Answer the lines of standard input until one is refused: {"refused": reason}. The process ends when it closes.

    The first line is the job. The answer is {"ready": facts}. Each line {"units": n} after it is answered with the
    seconds that the work took, {"wall": s, "cpu": s}, those of processes that have ended in between included, with the
    most memory so far, {"peak_memory_bytes": n}, and with what the work has found, {"found": …}.

    Args:
      prepare: takes the job and returns the work and facts. It and the work may raise `refusal`.
      refusal: what they raise where the job cannot be done here; its message is the reason.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not get between the answers

    def say(**answer: Any):
        print(json.dumps(answer), file=answers, flush=True)

    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    try:
        work, facts = prepare(json.loads(lines.get()))
        say(ready=facts)
        while True:
            units = json.loads(lines.get())["units"]
            wall, cpu = time.perf_counter(), cpu_seconds()
            found = work(units)
            wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
            say(wall=wall, cpu=cpu, peak_memory_bytes=peak_memory(), found=found)
    except refusal as error:
        say(refused=" ".join(str(error).split()))


def _read(lines: "queue.Queue[str]") -> None:
    """Hand on the lines of standard input; end the process when it closes, in the middle of its work too.

    It closes when whoever gives the turns has ended, however that happened, and nobody is left to answer to.
    """
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


def cpu_seconds() -> float:
    """Return the processor time of this process and of those that it has started and waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def peak_memory() -> int:
    """Return the most bytes of memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def whole_process(job: dict[str, Any]) -> Prepared:
    """Prepare runs of the job's program with this interpreter, one after the other.

    What the work has found is the object of numbers that the program prints last, of its last run.
    """

    def work(units: int):
        found = None
        for _ in range(units):
            done = subprocess.run([sys.executable, *job["program"]], capture_output=True, text=True)
            if done.returncode:
                sys.exit((done.stderr.strip().splitlines() or ["it printed nothing"])[-1])
            found = json.loads(done.stdout.splitlines()[-1])
        return found

    try:
        work(1)
    except SystemExit as ended:
        raise Refusal(str(ended)) from None
    return work, {}


def print_loading(began: float, load: Callable[[], Any], add_up: Callable[[Any], float]) -> None:
    """Print the seconds of each part of loading a model, and the memory, as one object; to call after the imports.

    Args:
      began: the clock before the imports.
      load: loads the model.
      add_up: reads every parameter of what `load` returned, and adds them up.
    """
    imported = time.perf_counter()
    model = load()
    loaded = time.perf_counter()
    total = add_up(model)
    read = time.perf_counter()
    parts = {"imports": imported - began, "load": loaded - imported, "load_and_read": read - imported}
    print(json.dumps({**parts, "from_the_start": read - began, "peak_memory_bytes": peak_memory(), "sum": total}))


def print_answering(began: float, load: Callable[[], Any], answer: Callable[[Any], Any]) -> None:
    """Print the seconds until a model has answered for the first time, as one object; to call after the imports.

    Args:
      began: the clock before the imports.
      load: loads the model.
      answer: returns vectors of what `load` returned.
    """
    imported = time.perf_counter()
    model = load()
    loaded = time.perf_counter()
    total = float(answer(model).sum())
    answered = time.perf_counter()
    parts = {"imports": imported - began, "load": loaded - imported, "first_answer": answered - loaded}
    print(json.dumps({**parts, "from_the_start": answered - began, "peak_memory_bytes": peak_memory(), "sum": total}))


def load_with_transformers(path: str) -> None:
    """Load the model in `path`, read every parameter once, and print what that took."""
    import torch
    import transformers
    from transformers import AutoModelForPreTraining

    def add_up(model: Any) -> float:
        with torch.no_grad():  # the file is mapped, and stays on the disk until it is read
            return sum(float(parameter.sum()) for parameter in model.parameters())

    transformers.utils.logging.set_verbosity_error()
    print_loading(BEGAN, lambda: AutoModelForPreTraining.from_pretrained(path, dtype=torch.float32), add_up)


def answer_with_sentence_transformers(path: str) -> None:
    """Load the model in `path`, make the vector of one text, and print what that took."""
    from sentence_transformers import SentenceTransformer

    print_answering(BEGAN, lambda: SentenceTransformer(path), lambda model: model.encode([TEXT]))


if __name__ == "__main__":
    if sys.argv[1] == "load":
        load_with_transformers(sys.argv[2])
    elif sys.argv[1] == "answer":
        answer_with_sentence_transformers(sys.argv[2])
    else:
        serve(whole_process)

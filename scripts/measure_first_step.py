"""CPU and wall seconds from the start of Python to the end of the first training step, part by part.

    python scripts/measure_first_step.py CONFIG --data.path=STORE [--cache=off|cold|warm] [--repeats=3] [OPTIONS]

Each start is a new process that ends after its first step, in a work directory of its own. `--cache=cold` gives each
an empty compilation cache, `--cache=warm` one that an earlier start has filled, `--cache=off` none. The table is that
of the start with the fewest CPU seconds. A part that runs beside others counts where the main thread is.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

START = """
import json, os, resource, sys, time
begun = float(sys.argv.pop(1))
marks = []
def mark(name):
    usage = resource.getrusage(resource.RUSAGE_SELF)
    marks.append((name, usage.ru_utime + usage.ru_stime, time.time() - begun, usage.ru_maxrss / 1024))
def after(owner, name, label):
    function = getattr(owner, name)
    def wrapped(*given, **options):
        try:
            return function(*given, **options)
        finally:
            mark(label)
    setattr(owner, name, wrapped)
from bert_jax.cli.runs import pretrain
import bert_jax.pretraining as pretraining
mark("imports")
from bert_jax.training.phase_duties import PhaseDuties
from bert_jax.training.pretraining_reporter import PhaseReporter
from bert_jax.training.program import Program
after(pretraining, "open_corpus", "options, devices, token store")
after(pretraining, "open_directory", "model described, work directory")
after(pretraining, "_first_state", "initial state")
after(PhaseDuties, "__init__", "held-out data")
after(Program, "prepare", "first batch, step compiled")
def dispatched(self, step, values):
    import jax
    jax.block_until_ready(values)
    mark("first step")
    print("MARKS" + json.dumps(marks), flush=True)
    os._exit(0)
PhaseReporter.dispatched = dispatched
pretrain(sys.argv[1:])
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--cache", default="warm", choices=["off", "cold", "warm"])
    parser.add_argument("--repeats", type=int, default=3)
    own, words = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        if own.cache == "warm":
            _start(words, pathlib.Path(folder), "shared", own.cache)
        starts = [
            _start(words, pathlib.Path(folder), "shared" if own.cache == "warm" else str(number), own.cache)
            for number in range(own.repeats)
        ]
    _show(min(starts, key=lambda marks: marks[-1][1]), [marks[-1][1] for marks in starts])


def _start(words: list[str], folder: pathlib.Path, cache: str, kind: str) -> list[list]:
    """Return the marks (name, CPU seconds, wall seconds, peak MiB so far) of one start."""
    kept = {name: value for name, value in os.environ.items() if "COMPILATION_CACHE" not in name}
    environment = kept | {"XDG_CACHE_HOME": str(folder / f"cache-{cache}")}
    if kind == "off":
        environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    with tempfile.TemporaryDirectory(dir=folder) as workdir:
        command = [sys.executable, "-c", START]
        done = subprocess.run(
            [*command, str(time.time()), *words, f"--workdir={workdir}/run"],
            env=environment,
            capture_output=True,
            text=True,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("MARKS")]
    if not lines:
        sys.exit(done.stdout + done.stderr)
    return json.loads(lines[0].removeprefix("MARKS"))


def _show(marks: list[list], totals: list[float]) -> None:
    print("| part | CPU s | wall s |\n|---|---|---|")
    cpu = wall = 0.0
    for name, spent, elapsed, _ in marks:
        print(f"| {name} | {spent - cpu:.2f} | {elapsed - wall:.2f} |")
        cpu, wall = spent, elapsed
    print(f"| **to the end of the first step** | **{cpu:.2f}** | {wall:.2f} |")
    print(f"peak memory {marks[-1][3]:,.0f} MiB")
    print(f"CPU seconds of all starts: {', '.join(f'{total:.2f}' for total in totals)}")


if __name__ == "__main__":
    main()

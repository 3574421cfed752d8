"""A contestant whose unit of work is a whole process, from its start to its end. Standard library only."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from serving import Refusal, serve


def prepare(job: dict[str, Any]) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Return a function that runs the program of the job so many times, one after the other, and no facts.

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


if __name__ == "__main__":
    serve(prepare)

"""Contestants: processes that wait for their turn, so that only one of them computes at a time."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.devices.host_process import computing_variables
from bert_jax.devices.software import PACKAGE_DIRECTORY
from bert_jax.errors import UserError

REST_SECONDS = 0.3  # between two turns; torch's threads spin for a while after their work
WARM_UP = 2  # units of each contestant before the first round, the second of which is timed
WARM_UP_TURNS = 3  # after them: as many steps as a turn has are in flight at once, and memory grows until all have some


@dataclasses.dataclass(frozen=True)
class Turn:
    """What one turn of a contestant took."""

    units: int
    """Units of work done, such as training steps."""
    wall: float
    """Seconds on the clock."""
    cpu: float
    """Seconds of processor time, summed over the threads of the contestant and the processes that it started."""
    found: Any = None
    """What the work has found beside, if anything."""
    peak_memory_bytes: int = 0
    """The most memory that the contestant has held so far, in this turn or before."""


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A program that can take part: how it is started, and its job."""

    name: str
    command: tuple[str, ...]
    job: dict[str, Any]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    """Variables beside those of this process."""
    is_peer: bool = False
    """Whether it runs in another environment, which must not see our sources."""


def our_program(module: str) -> tuple[str, ...]:
    """Return the command of a contestant of ours, which finds bert_jax by PYTHONPATH before anything else."""
    return (sys.executable, "-P", "-m", f"bert_jax.bench.{module}")


def peer_program(python: str, file: str) -> tuple[str, ...]:
    """Return the command of a peer's contestant, a file of bench/peer/."""
    return (python, str(PACKAGE_DIRECTORY / "bench" / "peer" / file))


class Waiting:
    """A contestant that has been started and waits for its turns."""

    def __init__(self, contestant: Contestant):
        self.name: str = contestant.name
        self.facts: dict[str, Any] = {}
        self._printed = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        try:
            self._process = subprocess.Popen(
                contestant.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._printed,
                text=True,
                env=_environment(contestant),
            )
        except OSError as error:
            self._printed.close()
            raise UserError(f"{contestant.name}: {contestant.command[0]} cannot be started: {error.strerror}") from None
        self._say(contestant.job)

    def get_ready(self) -> None:
        """Wait until it is ready; raise a UserError if it refuses or dies."""
        self.facts = self._answer()["ready"]

    def turn(self, units: int) -> Turn:
        """Let it work, alone; raise a UserError if it refuses or dies."""
        self._say({"units": units})
        answer = self._answer()
        return Turn(units, answer["wall"], answer["cpu"], answer["found"], answer["peak_memory_bytes"])

    def close(self) -> None:
        """End it, in the middle of its work too."""
        self._process.kill()
        self._process.communicate()
        self._printed.close()

    def _say(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died; `_answer` says how
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer = json.loads(line)
            if "refused" in answer:
                raise UserError(f"{self.name}: {answer['refused']}")
            return answer
        status = self._process.wait()
        self._printed.seek(0)
        last = ([line.strip() for line in self._printed.read().splitlines() if line.strip()] or ["it printed nothing"])[
            -1
        ]
        raise UserError(f"{self.name}: its process ended with status {status}: {last:.400}")


@contextlib.contextmanager
def started(contestants: Sequence[Contestant]) -> Iterator[list[Waiting]]:
    """Yield the contestants, started one after another and ready; none of them lives after the block.

    Raises:
      UserError: one of them refuses its job, or dies.
    """
    with contextlib.ExitStack() as closing:
        waiting = []
        for contestant in contestants:
            tell(f"starting {contestant.name}")
            one = Waiting(contestant)
            closing.callback(one.close)
            one.get_ready()
            waiting.append(one)
        yield waiting


def take_turns(
    waiting: Sequence[Waiting], rounds: int, turn_seconds: float, rest: float = REST_SECONDS
) -> list[list[Turn]]:
    """Return the turns of each contestant: A B … A B …, `rounds` times.

    Each contestant does as many units in a turn as it did in `turn_seconds` while it was warmed up, at least one.
    """
    units = []
    for one in waiting:
        tell(f"warming up {one.name}")
        units.append(warm_up(one, turn_seconds))
    turns: list[list[Turn]] = [[] for _ in waiting]
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        for one, count, taken in zip(waiting, units, turns, strict=True):
            time.sleep(rest)
            taken.append(one.turn(count))
    return turns


def warm_up(one: Waiting, turn_seconds: float) -> int:
    """Let a contestant work without counting it, and return the number of units of its turns."""
    warm = [one.turn(1) for _ in range(WARM_UP)][-1]
    units = max(1, round(turn_seconds / max(warm.wall, 1e-9)))
    for _ in range(WARM_UP_TURNS if units > 1 else 0):
        one.turn(units)
    return units


def tell(text: str) -> None:
    """Say on stderr what is being done, since nothing else is seen for minutes."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _environment(contestant: Contestant) -> dict[str, str]:
    """Return the environment of a contestant: that of this process, with our sources for ours and without for a peer.

    On a GPU each gets memory as it needs it: by default the first JAX process would take three quarters.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    own = {"PYTHONPATH": str(PACKAGE_DIRECTORY.parent), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    own["JAX_TRACEBACK_FILTERING"] = "off"  # the last line of a traceback is then the error, and no note about frames
    own |= computing_variables(kept)  # as the commands that are measured
    return kept | ({} if contestant.is_peer else own) | contestant.environment

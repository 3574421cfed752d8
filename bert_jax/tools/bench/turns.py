"""Let contestants take turns, so that only one process computes at a time; compare them, and record what was found."""

import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_jax.config import Config
from bert_jax.config.checks import check
from bert_jax.config.commands import MAKE_PEER, TurnsConfig
from bert_jax.console import parse
from bert_jax.data.preparation.local_run import cores
from bert_jax.devices.hosts import PACKAGE_DIRECTORY, commit, versions
from bert_jax.devices.process import computing_variables, of_first_core
from bert_jax.errors import UserError
from bert_jax.files import write_atomically

REST_SECONDS = 0.3  # between two turns; torch's threads spin for a while after their work
WARM_UP = 2  # units of each contestant before the first round, the second of which is timed
WARM_UP_TURNS = 3  # after them: as many steps as a turn has are in flight at once, and memory grows until all have some
OURS = "bert_jax"  # the contestant with the options as they are given
PEER_PROGRAMS = pathlib.Path(__file__).parent / "peer"
PEER_PACKAGES = ("torch", "transformers")
SENTENCES = "sentence-transformers"
PEER_VERSIONS = (
    "import json, torch, transformers; from importlib.metadata import distributions; found = {'torch': "
    "torch.__version__, 'transformers': transformers.__version__, 'cuda': torch.cuda.is_available()}; "
    "found |= {each.name: each.version for each in distributions(name='sentence-transformers')}; "
    "print(json.dumps(found))"
)
PEER_SECONDS = 120  # importing torch from a cold disk
# Those that decide how fast matrix products are.
INSTRUCTION_SETS = "avx2 fma avx512f avx512_vnni avx512_bf16 avx512_fp16 avx_vnni amx_tile amx_bf16".split()


@dataclasses.dataclass(frozen=True)
class Turn:
    """Time and memory of one turn of a contestant."""

    units: int
    """Units of work done, such as training steps."""
    wall: float
    """Seconds on the clock."""
    cpu: float
    """Seconds of processor time, summed over the threads of the contestant and the processes that it started."""
    found: Any = None
    """Result of the work, if any."""
    peak_memory_bytes: int = 0
    """The most memory that the contestant has held so far, in this turn or before."""


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A program that can take part: how it is started, and its job."""

    name: str
    command: tuple[str, ...]
    job: dict[str, Any]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    """Variables in addition to those of this process."""
    is_peer: bool = False
    """Whether it runs in another environment, which must not see our sources."""


def our_program(*words: str) -> tuple[str, ...]:
    """Return the command of one of our contestants, which finds bert_jax by PYTHONPATH before anything else."""
    return (sys.executable, "-P", "-m", f"{__package__}.contestants", *words)


def peer_program(python: str, *words: str, file: str = "torch_contestants.py") -> tuple[str, ...]:
    """Return the command of a program that needs no bert_jax, with the Python that is to run it."""
    return (python, str(PEER_PROGRAMS / file), *words)


def as_ours(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what a peer computes on: the device that our process has reported, and as many threads."""
    return {"device": "cuda" if "(gpu)" in facts["device"] else "cpu", "threads": cores()}


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


def measured(
    options: TurnsConfig,
    ours: Sequence[Contestant],
    peers: Callable[[dict[str, Any]], Sequence[Contestant]] = lambda facts: (),
) -> tuple[list[Waiting], list[list[Turn]]]:
    """Return all contestants, ours first, and their turns; `peers` are made once our first has reported its facts."""
    with started(ours) as waiting, started(peers(waiting[0].facts)) as others:
        contestants = [*waiting, *others]
        return contestants, take_turns(contestants, options.rounds, options.turn_seconds)


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
    own["JAX_TRACEBACK_FILTERING"] = "off"  # the last line of a traceback is then the error, not a note about frames
    own |= computing_variables(kept)  # as the commands that are measured
    return kept | ({} if contestant.is_peer else own) | contestant.environment


@dataclasses.dataclass(frozen=True)
class Spread:
    """Where several figures lie."""

    median: float
    lower_quartile: float
    upper_quartile: float
    least: float
    most: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Spread":
        """Return the spread of at least one figure; quartiles are interpolated between the figures, ends included."""
        if len(figures) == 1:
            return cls(*[figures[0]] * 5)
        lower, median, upper = statistics.quantiles(figures, n=4, method="inclusive")
        return cls(median, lower, upper, min(figures), max(figures))


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How many times as fast one contestant is as another, by the clock and by processor time."""

    wall: Spread
    """Of the pairs of neighbouring turns."""
    cpu: Spread
    """The same, in processor time."""
    total_cpu: float
    """Processor time of all turns taken together; it tells more where turns differ in length on one side."""


def seconds(turns: Sequence[Turn]) -> tuple[Spread, Spread]:
    """Return the wall and CPU seconds of one unit of work."""
    return Spread.of([turn.wall / turn.units for turn in turns]), Spread.of([turn.cpu / turn.units for turn in turns])


def total_cpu_seconds(turns: Sequence[Turn]) -> float:
    """Return the CPU seconds of one unit of work, over all turns taken together."""
    return sum(turn.cpu for turn in turns) / sum(turn.units for turn in turns)


def ratio(ours: Sequence[Turn], theirs: Sequence[Turn], our_unit: float = 1.0, their_unit: float = 1.0) -> Ratio:
    """Return how many times as fast one contestant is as another; turns of the same round are compared.

    Args:
      ours: turns of the one.
      theirs: as many turns of the other.
      our_unit: how much a unit of the one achieves, such as useful tokens of a step.
      their_unit: how much a unit of the other achieves.
    """

    def of(clock: str) -> Spread:
        each = lambda turn, unit: getattr(turn, clock) / turn.units / unit
        pairs = zip(ours, theirs, strict=True)
        return Spread.of([each(theirs, their_unit) / each(ours, our_unit) for ours, theirs in pairs])

    total = (total_cpu_seconds(theirs) / their_unit) / (total_cpu_seconds(ours) / our_unit)
    return Ratio(of("wall"), of("cpu"), total)


def peer_versions(options: TurnsConfig) -> dict[str, str | bool] | None:
    """Return the versions of torch and transformers in the peer's environment, and whether torch can use a GPU there.

    That of sentence-transformers is among them if it is there. None if no peer was asked for.

    Raises:
      UserError: `peer_python` cannot be started, or lacks one of them.
    """
    if options.peer == "none":
        return None
    python = options.peer_python
    try:
        done = subprocess.run([python, "-c", PEER_VERSIONS], capture_output=True, text=True, timeout=PEER_SECONDS)
    except OSError as error:
        raise UserError(f"peer_python={python} cannot be started ({error.strerror}); {MAKE_PEER}") from None
    except subprocess.TimeoutExpired:
        late = f"did not import torch within {PEER_SECONDS} seconds"
        raise UserError(f"peer_python={python} {late}; {MAKE_PEER}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
        raise UserError(f"peer_python={python} has no torch with transformers ({last:.200}); {MAKE_PEER}")
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise UserError(
            f"peer_python={python} is no Python: it printed “{done.stdout.strip():.40}”; {MAKE_PEER}"
        ) from None


def varied(config: Config, words: str) -> tuple[Config, dict[str, str]]:
    """Return the options and the environment of a variant: "compute.dtype=bfloat16 XLA_FLAGS=--flag".

    Raises:
      UserError: there is no such option.
    """
    options, environment = [], {}
    for word in shlex.split(words):
        name, equals, value = word.removeprefix("--").partition("=")
        if equals and re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            environment[name] = value
        else:
            options.append(f"--{name}{equals}{value}")
    return check(parse(config, options, "bert-jax bench step")), environment


def unpacked(config: Config) -> Config:
    """Return `config` with one text, or pair, in each row."""
    return dataclasses.replace(config, data=dataclasses.replace(config.data, packing="off"))


@dataclasses.dataclass(frozen=True)
class Report:
    """Results of a benchmark."""

    values: dict[str, Any]
    """Everything, for programs."""
    title: str
    columns: Mapping[str, Callable[[dict[str, Any]], str]]
    """The cell of each of the contestants in `values`, by the heading of its column."""
    notes: list[str]
    """Sentences below the table."""

    @property
    def device(self) -> str | None:
        """Device of the first contestant that uses one."""
        facts = (contestant.get("facts", {}) for contestant in self.values["contestants"])
        return next((each["device"] for each in facts if "device" in each), None)

    def markdown(self) -> str:
        """Return the table with its title, where it was measured, and its notes."""
        lines = [
            f"### {self.title}",
            "",
            _where(self.values, self.device),
            "",
            _row(self.columns),
            _row(["---"] * len(self.columns)),
        ]
        rows = [_row(cell(entry) for cell in self.columns.values()) for entry in self.values["contestants"]]
        return "\n".join([*lines, *rows, "", *self.notes]) + "\n"


def recorded(benchmark: str, arguments: list[str], loads: tuple[float, float], **values: Any) -> dict[str, Any]:
    """Return `values` with the machine, the versions, the command, and the load averages before and after."""
    return {
        "benchmark": benchmark,
        "command": ["bert-jax", "bench", benchmark, *arguments],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **machine(),
        "load_average": {"before": loads[0], "after": loads[1]},
        "commit": commit(),
        "versions": versions(),
        **values,
    }


def show(report: Report, output: str) -> None:
    """Print the table; write FILE.json and FILE.md if `output` names the first."""
    print(report.markdown(), end="")
    if output:
        values = {"device": report.device, **report.values}
        write_atomically(output, (json.dumps(values, indent=1, default=dataclasses.asdict) + "\n").encode())
        write_atomically(output.removesuffix(".json") + ".md", report.markdown().encode())
        print(f"\nwritten: {output} and {output.removesuffix('.json')}.md")


def shown(spread: Spread, form: str = ",.0f", scale: float = 1.0) -> str:
    """Return a median with its quartiles, each times `scale`, as in a table."""
    quartiles = f"{scale * spread.lower_quartile:{form}} to {scale * spread.upper_quartile:{form}}"
    return f"{scale * spread.median:{form}} ({quartiles})"


def _where(values: dict[str, Any], device: str | None) -> str:
    load, version, peer = values["load_average"], values["versions"], values["peer"]
    accelerator = f"{device}; " if device and not re.match(r"\d+ × cpu\b", device) else ""
    theirs = "".join(f", {name} {peer[name]}" for name in PEER_PACKAGES) if peer else ""
    return (
        f"{accelerator}{values['processor']}, {values['cores']} cores, {values['memory_gib']} GiB, "
        f"{' '.join(values['instruction_sets']) or 'instruction sets unknown'}; load average {load['before']} before, "
        f"{load['after']} after; {values['date']}, bert_jax {values['commit'] or version['bert_jax']}, "
        f"jax {version['jax']}{theirs}."
    )


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def machine() -> dict[str, Any]:
    """Return the processor, the cores that this process may use, memory in GiB, and the system."""
    return {
        "processor": processor(),
        "cores": cores(),
        "instruction_sets": [flag for flag in INSTRUCTION_SETS if flag in of_first_core("flags").split()],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def processor() -> str:
    """Return the processor by its name and, because clouds shorten names, by its family and model."""
    name, family, model = (of_first_core(key) for key in ("model name", "cpu family", "model"))
    if not name:
        return platform.processor() or platform.machine()
    return f"{name} (family {family}, model {model})" if family and model else name


def load_average() -> float:
    """Return how many threads wanted to run, on average over the last minute."""
    return round(os.getloadavg()[0], 2)

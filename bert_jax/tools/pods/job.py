"""The command line of `bert-jax pretrain` that a launch starts, checked beforehand; its wheel and its restarts.

Workers install the wheel that is given, or one built from the checkout that this code is in. A run that ended early
is started again, a bounded number of times in a row and after ever longer waits, unless its exit code is final. The
programs that do the work (gcloud, kubectl, sbatch) are started without a shell.
"""

import dataclasses
import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from bert_jax import __version__
from bert_jax.config import Config
from bert_jax.config.checks import training_paths
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Job:
    """A pre-training run that other processes will start."""

    source: str
    """CONFIG as it was given: the name of a shipped configuration, or a file."""
    words: tuple[str, ...]
    """The options of pretrain after it, as they were given."""
    config: Config
    """The options that result, checked."""

    def __post_init__(self) -> None:
        if not training_paths(self.config):
            raise UserError("--data.path is missing: give the token store that bert-jax prepare wrote")
        if not self.config.workdir:
            raise UserError("--workdir is missing: give a directory for checkpoints and metrics")

    @property
    def file(self) -> pathlib.Path | None:
        """The configuration file, or None for a shipped configuration, which every installation has."""
        path = pathlib.Path(self.source)
        return path if path.is_file() else None

    def command(self, *program: str) -> list[str]:
        """Return the words of the command that starts the run, with `program` in place of bert-jax."""
        return [*program, "pretrain", self.source, *self.words]

    def words_elsewhere(self, directory: str = "") -> list[str]:
        """Return the words after bert-jax on a machine that has the configuration file, if any, in `directory`."""
        source = self.source if self.file is None else os.path.join(directory, self.file.name)
        return ["pretrain", source, *self.words]

    def need_bucket(self, reason: str) -> None:
        """Raise a UserError, with the `reason`, if what the run reads and writes is on the disk of this machine."""
        if not self.config.workdir.startswith("gs://"):
            raise UserError(
                f"--workdir={self.config.workdir} is not in a bucket: {reason}; give --workdir=gs://BUCKET/DIRECTORY"
            )
        paths, taught = training_paths(self.config), self.config.objective.taught
        for name, path in (
            *(("data.path" if path == self.config.data.path else "data.mixture", path) for path in paths),
            ("data.eval_path", self.config.data.eval_path),
            ("init_from", self.config.init_from),
            ("branch_from", self.config.branch_from),
            ("objective.distillation.teacher", "" if taught is None else taught.teacher),
        ):
            if path and not path.startswith(("gs://", "hf://", "/")):
                raise UserError(
                    f"--{name}={path} is a path of this machine, which the workers cannot read; copy it to a bucket "
                    f"(gcloud storage cp --recursive {path} gs://BUCKET/) and give --{name}=gs://BUCKET/…"
                )

    def need_slices(self, slices: int) -> None:
        """Raise a UserError if the mesh of the run has another number of slices; -1 takes as many as there are."""
        if self.config.mesh.slice not in (slices, -1):
            raise UserError(
                f"--slices={slices} but mesh.slice={self.config.mesh.slice}; add --mesh.slice={slices}, with which the "
                "gradients are added up within each slice first"
            )


def need_name(name: str) -> None:
    """Raise a UserError if Google Cloud and Kubernetes would not take this name."""
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", name):
        raise UserError(
            f"--name={name} must be at most 40 lower-case letters, digits and hyphens, beginning with a letter and not "
            "ending with a hyphen"
        )


def at_least(options: Any, **minima: int) -> None:
    """Raise a UserError if one of these options is below its minimum."""
    for name, minimum in minima.items():
        if getattr(options, name) < minimum:
            raise UserError(f"--{name}={getattr(options, name)} must be at least {minimum}")


FINAL = (0, 2, 130)
"""Exit codes that end a launch: finished, bad input, Ctrl-C. Every other end (preemption, a crash, a host that hung)
is followed by a restart, which resumes."""
PREEMPTED = 143
"""Exit code of a run that SIGTERM has stopped, after it saved."""
FIRST_SECONDS = 10.0
"""Wait before the first restart; each further one doubles it."""
LONGEST_SECONDS = 300.0
HEALTHY_SECONDS = 3600.0
"""A start that has lived this long clears the count: a spot slice may be preempted any number of times in weeks."""


def exit_code(returned: int) -> int:
    """Return what a shell reports for `subprocess`'s return code: 128 + N for a process that signal N has ended."""
    return 128 - returned if returned < 0 else returned


def meaning(code: int) -> str:
    """Return what an exit code of `bert-jax pretrain` says, for a message."""
    known = {0: "finished", 2: "bad input", 75: "a host died or hung", 130: "interrupted", 137: "killed"}
    known[PREEMPTED] = "stopped by SIGTERM, saved"
    return f"exit code {code} ({known[code]})" if code in known else f"exit code {code}"


class Restarts:
    """Counts up to `most` restarts in a row, of which none lives for HEALTHY_SECONDS, and waits longer before each."""

    def __init__(self, most: int, say: Callable[[str], None]):
        self._most, self._say = most, say
        self._count = 0
        self._started: float | None = None

    def begin(self) -> None:
        """Note that the run has started now; the wait for machines before that is not part of its life."""
        self._started = time.monotonic()

    def wait(self, why: str) -> bool:
        """Wait, then return True if the run may be started again; return False at once if the bound is reached."""
        if self._started is not None and time.monotonic() - self._started >= HEALTHY_SECONDS:
            self._count = 0
        self._started = None
        if self._count >= self._most:
            self._say(f"{why}; not started again, after {self._count} restarts in a row (--max_restarts={self._most})")
            return False
        seconds = min(FIRST_SECONDS * 2**self._count, LONGEST_SECONDS)
        self._count += 1
        self._say(f"{why}; restart {self._count} of at most {self._most} in {seconds:.0f} s")
        time.sleep(seconds)
        return True


class CallError(UserError):
    """Raised when a program reports a failure.

    Attributes:
      said: what it printed to its standard error.
    """

    def __init__(self, words: Sequence[str], code: int, said: str):
        lines = [line for line in said.splitlines() if line.strip()]
        reason = " ".join(" ".join(lines[-4:]).split())[-600:] or "it printed no reason"
        super().__init__(f"{' '.join(words[:5])} … failed with exit code {code}: {reason}")
        self.said = said


def say(line: str) -> None:
    """Print a line at once, also into a file or a pipe."""
    print(line, flush=True)


def need_program(name: str, remedy: str) -> None:
    """Raise a UserError with the `remedy` if there is no program of this name."""
    if shutil.which(name) is None:
        raise UserError(f"{name} is not installed, or not on PATH; {remedy}")


def call(words: Sequence[str], text: str | None = None) -> str:
    """Run a program to its end, with `text` as its standard input; return its standard output.

    Raises:
      CallError: its exit code is not 0.
    """
    done = subprocess.run(words, input="" if text is None else text, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise CallError(words, done.returncode, done.stderr or done.stdout)
    return done.stdout


def stream(words: Sequence[str], line: Callable[[str], None]) -> None:
    """Run a program to its end, however that is, and pass on every line of its standard output at once."""
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            for printed in process.stdout:
                line(printed.rstrip("\n"))
        except BaseException:
            process.terminate()
            raise


def shown(words: Sequence[str], text: str | None = None) -> str:
    """Return the command as one would paste it into a shell."""
    command = shlex.join(words)
    return command if text is None else f"{command} <<'END_OF_INPUT'\n{text}END_OF_INPUT"


PACKAGE = pathlib.Path(__file__).resolve().parents[2]


def find_wheel(given: str) -> tuple[pathlib.Path, list[str]]:
    """Return the file of the wheel, and the command that has to build it first, which is empty if it is `given`.

    Raises:
      UserError: `given` is no wheel, or none is given and this code is not in a checkout.
    """
    if given:
        file = pathlib.Path(given)
        if not file.is_file() or file.suffix != ".whl":
            raise UserError(f"--wheel={given} is not a wheel: give the .whl file of bert_jax that the workers install")
        return file, []
    checkout = PACKAGE.parent
    if not (checkout / "pyproject.toml").is_file():
        raise UserError(
            "bert_jax is installed without its source, so there is nothing to build a wheel from; give --wheel=FILE"
        )
    directory = checkout / "build" / "launch"
    # Without isolation the build needs no network; hatchling comes with `make install`.
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation]
    return directory / f"bert_jax-{__version__}-py3-none-any.whl", [*build, f"--wheel-dir={directory}", str(checkout)]

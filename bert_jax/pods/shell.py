"""Calls of the programs that do the work: gcloud, kubectl, sbatch. They are started without a shell."""

import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence

from bert_jax.errors import UserError


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
    """Run a program to its end; return its standard output.

    Args:
      words: the program and its arguments.
      text: standard input; by default there is none.

    Raises:
      CallError: its exit code is not 0.
    """
    done = subprocess.run(
        words,
        input="" if text is None else text,
        capture_output=True,
        text=True,
        errors="replace",
    )
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

"""The command line in a process of its own or in this one."""

import pathlib
import subprocess
import sys

from processes import SECONDS

from bert_jax import cli

ROOT = pathlib.Path(__file__).parents[2]


def bert_jax(*words, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "bert_jax", *words], capture_output=True, text=True, cwd=ROOT, timeout=SECONDS, **kwargs
    )


def status(*words) -> int:
    """Run a command in this process; return its exit status."""
    return cli._run(["bert-jax", *map(str, words)])


def succeed(*words) -> None:
    """Run a command in this process, which must succeed."""
    assert status(*words) == 0


def refusal(capture, *words) -> str:
    """Run a command that is refused: the one line that it prints to stderr; `capture` is capsys or capfd."""
    capture.readouterr()
    assert status(*words) == 2
    error = capture.readouterr().err
    assert error.startswith("error: ") and error.endswith("\n") and error.count("\n") == 1, error
    return error

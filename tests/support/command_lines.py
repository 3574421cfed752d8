"""Command lines, and what refused ones say.

`@` in a command stands for the directory that a fixture such as `family_inputs` has written.
"""

import dataclasses
import logging
import pathlib
import re

import fresh
from fresh import ROOT

from bert_jax import cli


def bert_jax(*words: str, env: dict[str, str] | None = None) -> fresh.Ended:
    """Run a command in a process of its own."""
    return fresh.run(fresh.COMMAND, *words, cwd=ROOT, env=env)


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


# The lock of a work directory names who held it last, refused or not, and Python keeps what it compiles of a file.
UNCHECKED = {"owner.json", "__pycache__"}


def snapshot(place: pathlib.Path) -> dict[str, bytes | None]:
    """Contents of every file below `place` by name; None for a directory."""
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else None
        for path in sorted(place.rglob("*"))
        if UNCHECKED.isdisjoint(path.parts)
    }


@dataclasses.dataclass(frozen=True)
class Case:
    """A command, `@` standing for the directory with its inputs, and what its one line must say."""

    name: str
    command: str
    says: tuple[str, ...]


def cases(table: str) -> list[Case]:
    """Return the cases of lines `NAME: COMMAND -> WORDS | WORDS`; one that begins with a space goes on from before."""
    lines = re.sub(r"\n +", " ", re.sub(r"(?m)^#.*\n", "", table)).strip().splitlines()
    parts = [re.fullmatch("(.*?): (.*) -> (.*)", line).groups() for line in lines]
    return [Case(name, command, tuple(says.split(" | "))) for name, command, says in parts]


def refused(case: Case, place: pathlib.Path, capfd, caplog) -> None:
    """Run a command and check what it says and leaves."""
    before = snapshot(place)
    error = refusal(capfd, *(word.replace("@", str(place)) for word in case.command.split()))
    assert not [words for words in case.says if words not in error], error
    assert snapshot(place) == before
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


SMALL = (
    "--data.path=@/store --workdir=@/new --model.max_position_embeddings=64 --sequence_length=32 --batch_size=8 "
    "--steps=2 --warmup_steps=0"
)
STUDENT = f"pretrain distilbert_mini {SMALL} --model.hidden_size=32 --model.num_heads=2 --model.intermediate_size=48"
TEACHER = "--objective.distillation.teacher"
TAUGHT = f"{STUDENT} {TEACHER}=@/teacher"


def pretrain(name: str, *options: str) -> str:
    return " ".join(("pretrain", name, SMALL, *options))

"""Commands that are refused: in one line, with exit status 2, and without a trace among the files they were given."""

import dataclasses
import logging
import pathlib

from command_lines import refusal

UNCHECKED = {"owner.json"}  # the lock of a work directory names who held it last, refused or not


def snapshot(place: pathlib.Path) -> dict[str, bytes | None]:
    """Contents of every file below `place` by name; None for a directory."""
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else None
        for path in sorted(place.rglob("*"))
        if path.name not in UNCHECKED
    }


@dataclasses.dataclass(frozen=True)
class Case:
    """A command, `@` standing for the directory with its inputs, and what its one line must say."""

    name: str
    command: str
    says: tuple[str, ...]


def refused(case: Case, place: pathlib.Path, capfd, caplog) -> None:
    """Run a command and check what it says and leaves."""
    before = snapshot(place)
    error = refusal(capfd, *(word.replace("@", str(place)) for word in case.command.split()))
    assert not [words for words in case.says if words not in error], error
    assert snapshot(place) == before
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []

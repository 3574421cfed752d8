"""A program for PATH that keeps what it is called with, and answers as a test has said."""

import json
import pathlib
import sys

STUB = """#!{python} -SE
import json, pathlib, sys
place = pathlib.Path({place!r})
with (place / "calls").open("a") as calls:
    calls.write(json.dumps([{name!r}, *sys.argv[1:]]) + "\\n")
(place / "input").write_text(sys.stdin.read())
answers, asked = json.loads((place / "answers").read_text()), {name!r} + " " + sys.argv[1]
code, out, err = answers.get(asked, [0, "", ""])
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


class Recorder:
    """Programs in a directory that the test puts on PATH."""

    def __init__(self, place: pathlib.Path, *names: str):
        self.place, self.bin = place, place / "bin"
        self.bin.mkdir(parents=True)
        for name in names:
            (self.bin / name).write_text(STUB.format(python=sys.executable, place=str(place), name=name))
            (self.bin / name).chmod(0o755)
        (place / "calls").touch()
        self.answers()

    def answers(self, **programs: tuple[int, str, str]) -> None:
        """Say how calls end: exit code, output and errors by program and first word, as in kubectl_apply."""
        answers = {name.replace("_", " ", 1): answer for name, answer in programs.items()}
        (self.place / "answers").write_text(json.dumps(answers))

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.place / "calls").read_text().splitlines()]

    @property
    def input(self) -> str:
        """What the last call was given to read."""
        return (self.place / "input").read_text()

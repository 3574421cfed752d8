"""Programs that a launch calls and that do not run: they keep what they are called with, and answer as a test says."""

import pathlib
import subprocess
import types

import pytest

from bert_jax.tools.pods import job


class Recorder:
    """Programs of these names, which are found on PATH."""

    def __init__(self, patch: pytest.MonkeyPatch, place: pathlib.Path, *names: str):
        self.calls: list[list[str]] = []
        self.input = ""
        self._answers: dict[str, tuple[int, str, str]] = {}
        place.mkdir()
        for name in names:
            (place / name).touch(0o755)
        patch.setenv("PATH", str(place), prepend=":")
        patch.setattr(job, "subprocess", types.SimpleNamespace(run=self._run))

    def answers(self, **programs: tuple[int, str, str]) -> None:
        """Say how calls end: exit code, output and errors by program and first word, as in kubectl_apply."""
        self._answers = {name.replace("_", " ", 1): answer for name, answer in programs.items()}

    def _run(self, words: list[str], input: str, **options: bool | str) -> subprocess.CompletedProcess:
        self.calls.append(list(words))
        self.input = input  # of the last call
        return subprocess.CompletedProcess(words, *self._answers.get(" ".join(words[:2]), (0, "", "")))

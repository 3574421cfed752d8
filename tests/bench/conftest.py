"""Share a tiny configuration as a file, the peer's programs as a module, and contestants that are no processes."""

import importlib
import json
import subprocess
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
from small_pretraining import TINY

from bert_jax.config import commands
from bert_jax.config.options import to_dict
from bert_jax.tools.bench import contestants, turns
from bert_jax.tools.bench.peer import serving
from bert_jax.tools.bench.turns import PEER_PROGRAMS, Contestant, Turn


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory) -> str:
    """The path of a configuration with two phases."""
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_text(json.dumps(to_dict(TINY)))
    return str(path)


@pytest.fixture
def torch_contestants(monkeypatch) -> types.ModuleType:
    """The peer's programs; torch is needed by those that compute alone."""
    monkeypatch.syspath_prepend(PEER_PROGRAMS)
    return importlib.import_module("torch_contestants")


class Here:
    """One of our contestants, which works in this process; the clocks are those that it reads in its own."""

    def __init__(self, contestant: Contestant):
        assert contestant.command[1:4] == ("-P", "-m", contestants.__name__)
        self.name = contestant.name
        job = json.loads(json.dumps(contestant.job))  # as it reaches a process
        self._work, self.facts = contestants.KINDS[contestant.command[4]](job)

    def get_ready(self) -> None:
        pass

    def turn(self, units: int) -> Turn:
        wall, cpu = time.perf_counter(), serving.cpu_seconds()
        found = self._work(units)
        wall, cpu = time.perf_counter() - wall, serving.cpu_seconds() - cpu
        return Turn(units, wall, cpu, found, serving.peak_memory())

    def close(self) -> None:
        pass


@pytest.fixture
def in_this_process(monkeypatch) -> None:
    """Let our contestants work in this process, with its environment."""
    monkeypatch.setattr(turns, "Waiting", Here)


@pytest.fixture(params=["here", pytest.param("in processes", marks=pytest.mark.slow)])
def here_and_in_processes(request) -> None:
    """Let our contestants work in this process, and then in processes of their own."""
    if request.param == "here":
        request.getfixturevalue("in_this_process")


@pytest.fixture
def pythons(monkeypatch) -> Callable[..., None]:
    """Say what `peer_python` answers, by its name; there are no others."""

    def answer(**programs: dict[str, Any]) -> None:
        def run(words: list[str], **options: Any) -> subprocess.CompletedProcess:
            if words[0] not in programs:
                raise FileNotFoundError(2, "No such file or directory")
            assert words[1:] == ["-c", turns.PEER_VERSIONS]
            ended = {"returncode": 0, "stdout": "", "stderr": ""} | programs[words[0]]
            return subprocess.CompletedProcess(words, **ended)

        started = types.SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
        monkeypatch.setattr(turns, "subprocess", started)
        monkeypatch.setattr(commands.shutil, "which", {name: name for name in programs}.get)

    return answer

"""The environment in which commands compute, as files of the system ask for it, and in processes of their own."""

import json
import os
import subprocess
import sys

import pytest

from bert_jax.devices import process as host_process
from tests.support.processes import SECONDS

KEEPING = {"GLIBC_TUNABLES": host_process.KEEPING}
# The command `demo` is replaced by one that uses 64 MiB twice and prints the page faults of the second time.
REPORT = """
import ctypes, json, os, resource, sys
from bert_jax import cli
from bert_jax.devices import process as host_process

PAGES = 16_384  # 64 MiB

def touch():
    place = libc.malloc(PAGES * 4096)
    ctypes.memset(place, 1, PAGES * 4096)
    libc.free(place)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def report(words):
    "demo"
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    first = touch()
    keeps = touch() - first < PAGES / 50
    print(json.dumps([os.getpid(), words, os.environ.get("GLIBC_TUNABLES"), keeps, "jax" in sys.modules]))
    return 0

host_process.PLENTY = 0
libc = ctypes.CDLL(None)
cli.COMMANDS |= {"demo": report, "config": report}
cli.main()
"""


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Returns a function from the memory, the quota and the environment to the variables."""
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.36", raising=False)

    def variables(memory=0, quota=None, **environment):
        path = tmp_path / "cpu.max"
        if quota is not None:
            path.write_text(quota)
        return host_process.computing_variables(environment, memory, path)

    return variables


@pytest.mark.parametrize(("gib", "expected"), [(64, KEEPING), (20, KEEPING), (19, {}), (4, {})])
def test_memory_is_kept_where_there_is_plenty(system, gib, expected):
    assert system(gib << 30) == expected


def test_the_memory_of_a_container_is_its_limit(tmp_path, monkeypatch):
    for content, expected in (("1073741824\n", {}), ("max\n", KEEPING)):
        (tmp_path / "memory.max").write_text(content)
        monkeypatch.setattr(host_process, "LIMIT", tmp_path / "memory.max")
        monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PHYS_PAGES": 1 << 24, "SC_PAGE_SIZE": 1 << 12}[name])
        monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.36", raising=False)
        assert host_process.computing_variables({}, quota=tmp_path / "none") == expected


@pytest.mark.parametrize("library", ["glibc 2.17", "musl", None])
def test_a_c_library_that_cannot_is_not_asked(system, monkeypatch, library):
    monkeypatch.setattr(os, "confstr", lambda name: library, raising=False)
    assert system(1 << 40) == {}


@pytest.mark.parametrize("name", ["GLIBC_TUNABLES", "MALLOC_ARENA_MAX"])
def test_settings_of_the_allocator_in_the_environment_come_first(system, name):
    assert system(1 << 40, **{name: ""}) == {}


@pytest.mark.parametrize(
    ("quota", "threads"),
    [("200000 100000\n", "2"), ("150000 100000", "2"), ("20000 100000", "1"), ("max 100000", None), ("odd", None)],
)
def test_a_container_gets_as_many_threads_as_its_quota_has_cores(system, quota, threads):
    assert system(quota=quota).get("NPROC") == threads
    assert system(quota=quota, NPROC="7") == {}


def started(command, **environment):
    """What REPORT prints, and the number of the process that was started."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    words = [sys.executable, "-c", REPORT, command, "a word", "--debug"]
    with subprocess.Popen(words, env=own | environment, stdout=subprocess.PIPE, text=True) as process:
        printed, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    return json.loads(printed), process.pid


@pytest.mark.skipif(not host_process.computing_variables({}, 1 << 40), reason="needs glibc")
def test_a_command_that_computes_starts_itself_anew_once():
    (number, words, tunables, keeps, jax_is_there), started_number = started("demo")
    assert number == started_number  # whoever waits for the process still does
    assert (words, tunables) == (["a word"], host_process.KEEPING)
    assert keeps and not jax_is_there


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("command", "environment"), [("config", {}), ("demo", {"GLIBC_TUNABLES": "", "NPROC": "1"})])
def test_other_commands_and_processes_with_settings_stay_as_they_are(command, environment):
    (number, words, tunables, keeps, _), started_number = started(command, **environment)
    assert number == started_number and words == ["a word"]
    assert (tunables, keeps) == (environment.get("GLIBC_TUNABLES"), False)

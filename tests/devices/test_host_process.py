"""The environment in which commands compute, as files of the system ask for it, and in processes of their own."""

import json
import os
import subprocess
import sys

import pytest

from bert_jax.devices.host_process import computing_variables
from tests.support.processes import SECONDS

LARGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
ON_REQUEST, ALWAYS, NEVER = "always [madvise] never\n", "[always] madvise never\n", "always madvise [never]\n"
# The command `demo` is replaced by one that allocates 64 MiB and prints what the process has become.
REPORT = """
import ctypes, json, os, re, sys
from bert_jax import cli

def report(words):
    "demo"
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    place = libc.malloc(64 << 20)
    maps = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", open("/proc/self/smaps").read())
    spans = [tuple(int(edge, 16) for edge in part.split(" ")[0].split("-")) for part in maps[1:]]
    flags = next(part for span, part in zip(spans, maps[1:]) if span[0] <= place < span[1])
    large = " hg" in re.search("VmFlags:.*", flags)[0]
    print(json.dumps([os.getpid(), words, os.environ.get("GLIBC_TUNABLES"), large, "jax" in sys.modules]))
    return 0

cli.COMMANDS |= {"demo": report, "config": report}
cli.main()
"""


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Returns a function from the contents of the two files, and an environment, to the variables."""
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.36", raising=False)

    def variables(pages=None, quota=None, **environment):
        paths = tmp_path / "enabled", tmp_path / "cpu.max"
        for path, content in zip(paths, (pages, quota), strict=True):
            if content is not None:
                path.write_text(content)
        return computing_variables(environment, *paths)

    return variables


@pytest.mark.parametrize(("pages", "expected"), [(ON_REQUEST, LARGE), (ALWAYS, {}), (NEVER, {}), (None, {})])
def test_large_pages_are_asked_for_where_the_system_waits_for_that(system, pages, expected):
    assert system(pages) == expected


@pytest.mark.parametrize("library", ["glibc 2.34", "musl", None])
def test_a_c_library_that_cannot_is_not_asked(system, monkeypatch, library):
    monkeypatch.setattr(os, "confstr", lambda name: library, raising=False)
    assert system(ON_REQUEST) == {}


@pytest.mark.parametrize("name", ["GLIBC_TUNABLES", "MALLOC_ARENA_MAX"])
def test_settings_of_the_allocator_in_the_environment_come_first(system, name):
    assert system(ON_REQUEST, **{name: ""}) == {}


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


@pytest.mark.skipif(LARGE.items() - computing_variables({}).items() != set(), reason="no large pages on request here")
def test_a_command_that_computes_starts_itself_anew_once():
    (number, words, tunables, large, jax_is_there), started_number = started("demo")
    assert number == started_number  # whoever waits for the process still does
    assert (words, tunables) == (["a word"], LARGE["GLIBC_TUNABLES"])
    assert large and not jax_is_there


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("command", "environment"), [("config", {}), ("demo", {"GLIBC_TUNABLES": "", "NPROC": "1"})])
def test_other_commands_and_processes_with_settings_stay_as_they_are(command, environment):
    (number, words, tunables, large, _), started_number = started(command, **environment)
    assert number == started_number and words == ["a word"]
    assert (tunables, large) == (environment.get("GLIBC_TUNABLES"), False)

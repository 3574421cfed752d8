"""Settings of the process, made in processes of their own: page faults of memory that is freed and allocated again."""

import json
import os
import subprocess
import sys

import pytest

from bert_jax.devices.host_process import allowed_threads, reuse_memory
from tests.support.processes import SECONDS

PAGES = 16_384  # 64 MiB
FAULTS = """
import ctypes, json, resource, sys
sys.argv = ["bert-jax", *json.loads(sys.argv[1])]
{settings}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def touch():
    place = libc.malloc({pages} * 4096)
    ctypes.memset(place, 1, {pages} * 4096)
    libc.free(place)

touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
touch()
print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, "jax" in sys.modules]))
"""
COMMAND = """
from bert_jax import cli
from bert_jax.errors import UserError

try:
    cli._run(sys.argv)
except UserError:
    pass
"""


def faults_of_the_second_use(settings, words=(), **environment):
    """Page faults of 64 MiB that were used and freed before, and whether jax has been imported by then."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(settings=settings, pages=PAGES), json.dumps(words)],
        env=own | environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


needs_glibc = pytest.mark.skipif(
    not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="settings of glibc"
)


@needs_glibc
def test_a_command_that_computes_uses_its_memory_again():
    faults, _ = faults_of_the_second_use(COMMAND, ["finetune", "no such task"])
    assert faults < PAGES / 50


@needs_glibc
@pytest.mark.parametrize(
    ("settings", "words", "environment"),
    [
        ("import bert_jax, bert_jax.cli", [], {}),
        (COMMAND, ["config", "show", "bert_tiny"], {}),
        (COMMAND, ["finetune", "no such task"], {"MALLOC_ARENA_MAX": "2"}),
        (COMMAND, ["finetune", "no such task"], {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}),
    ],
    ids=["import", "a command that does not compute", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"],
)
def test_otherwise_the_process_stays_as_it_is(settings, words, environment):
    faults, _ = faults_of_the_second_use(settings, words, **environment)
    assert faults >= PAGES


@needs_glibc
def test_the_settings_come_before_jax_makes_its_threads():
    settings = "from bert_jax.devices.host_process import prepare_host_process\nprepare_host_process()"
    faults, jax_is_there = faults_of_the_second_use(settings)
    assert faults < PAGES / 50 and not jax_is_there


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(os, "confstr", lambda name: None)
    assert not reuse_memory()


@pytest.mark.parametrize(
    ("content", "threads"),
    [("200000 100000\n", 2), ("150000 100000", 2), ("20000 100000", 1), ("max 100000", None), ("nonsense", None)],
)
def test_a_container_may_run_as_many_threads_as_its_quota_says(tmp_path, content, threads):
    quota = tmp_path / "cpu.max"
    quota.write_text(content)
    assert allowed_threads(quota) == threads


def test_no_quota_is_no_limit(tmp_path):
    assert allowed_threads(tmp_path / "missing") is None

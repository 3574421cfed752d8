"""Processes that stand in for hosts: what is printed, how they end together."""

import dataclasses
import os
import shlex
import signal
import sys
import threading
import time

import pytest
from command_lines import refusal, succeed

from bert_jax.config.commands import LocalConfig
from bert_jax.tools.pods import job as restarts
from bert_jax.tools.pods import launch

HOST = "import os, signal, sys, time; host = os.environ.get('JAX_PROCESS_ID', '0'); "
READY = "print('ready', flush=True); "
NAPS = "[time.sleep(0.1) for _ in range(36000)]"  # a signal that comes just before a sleep is answered after it


@dataclasses.dataclass
class Python:
    """Stands in for a job: every host runs this code in place of pretrain."""

    code: str

    def command(self, *program):
        return [sys.executable, "-c", HOST + self.code]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(restarts, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(launch, "CRASHED_SECONDS", 0.1)


def test_each_host_is_told_who_it_is_and_its_lines_say_so(capsys, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0")
    names = "('JAX_PROCESS_ID', 'JAX_NUM_PROCESSES', 'JAX_PLATFORMS', 'XLA_FLAGS')"
    job = Python(f"print(*(os.environ[name] for name in {names})); print(os.environ['JAX_COORDINATOR_ADDRESS'])")
    assert launch.run_local(job, LocalConfig(hosts=3, devices_per_host=2)) == 0
    lines = capsys.readouterr().out.splitlines()
    flags = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=2"
    said = [f"[host {host}] {host} 3 cpu {flags}" for host in range(3)]
    assert sorted(line for line in lines if "127.0.0.1" not in line) == said
    assert len({line.split()[2] for line in lines if "127.0.0.1" in line}) == 1  # all go to the same first host


def test_a_single_host_joins_nothing(capsys):
    assert launch.run_local(Python("print('JAX_NUM_PROCESSES' in os.environ)"), LocalConfig(hosts=1)) == 0
    assert capsys.readouterr().out == "[host 0] False\n"


def test_an_error_that_all_hosts_report_is_printed_once(capsys):
    job = Python("print('error: no store'); print('error: host', host); print('the rest'); sys.exit(2)")
    assert launch.run_local(job, LocalConfig(hosts=2)) == 2
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("error: no store") for line in lines) == 1
    rest = {f"[host {host}] {line}" for host in range(2) for line in (f"error: host {host}", "the rest")}
    assert len(lines) == 5 and rest < set(lines)


@pytest.mark.parametrize("ends, code", [("sys.exit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", 137)])
def test_all_end_when_one_dies_with_the_code_of_the_first(ends, code):
    """The others would run for an hour."""
    assert launch.run_local(Python(f"{ends} if host == '1' else time.sleep(3600)"), LocalConfig(hosts=3)) == code


def test_hosts_that_are_saving_are_given_the_time(capsys):
    """A host that SIGTERM has stopped is not ahead of others that crashed: they are not killed while they save."""
    job = Python("sys.exit(143) if host == '0' else (time.sleep(1), print('saved'), sys.exit(143))")
    assert launch.run_local(job, LocalConfig(hosts=2)) == 143
    assert "[host 1] saved" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_every_host_once_and_end_the_launch(number, capsys, monkeypatch):
    handles = f"signal.signal({int(number)}, lambda *_: (print('told', flush=True), sys.exit({128 + number}))); "
    job, ready, write = Python(handles + READY + NAPS), threading.Semaphore(0), sys.stdout.write

    def watched(text):
        write(text)
        if "ready" in text:
            ready.release()

    def send():
        for _ in range(2):
            ready.acquire()
        os.kill(os.getpid(), number)

    monkeypatch.setattr(sys.stdout, "write", watched)
    sender = threading.Thread(target=send)
    sender.start()
    assert launch.run_local(job, LocalConfig(hosts=2, max_restarts=5)) == 128 + number  # nothing is started again
    sender.join()
    expected = ["[host 0] told", "[host 1] told"]
    assert sorted(line for line in capsys.readouterr().out.splitlines() if "told" in line) == expected


@pytest.mark.parametrize(
    "code, bound, starts",
    [(0, 3, 1), (2, 3, 1), (1, 0, 1), (1, 2, 3), (143, 1, 2), (137, 1, 2)],
    ids="finished bad_input unbounded crash preempted killed".split(),
)
def test_restarts_follow_what_may_heal_up_to_the_bound(code, bound, starts, tmp_path, capsys):
    job = Python(f"open({str(tmp_path / 'starts')!r}, 'a').write('x'); sys.exit({code})")
    assert launch.run_local(job, LocalConfig(hosts=1, max_restarts=bound)) == code
    assert len((tmp_path / "starts").read_text()) == starts
    assert capsys.readouterr().out.count("; restart ") == starts - 1


def test_a_host_that_ends_all_others_is_followed_by_a_restart():
    from bert_jax.devices.hosts import EXIT_CODE

    assert EXIT_CODE not in restarts.FINAL
    assert restarts.meaning(EXIT_CODE) == "exit code 75 (a host died or hung)"


def test_a_start_that_has_lived_long_clears_the_count(monkeypatch):
    lines, now = [], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    counted = restarts.Restarts(1, lines.append)
    # The last two, which do not begin, are hours in a queue for machines, and in vain.
    for lived, allowed in ((10, True), (4000, True), (10, False), (-9000, False), (-9000, False)):
        if lived > 0:
            counted.begin()
        now[0] += abs(lived)
        assert counted.wait("exit code 1") == allowed
    assert lines[2] == "exit code 1; not started again, after 1 restarts in a row (--max_restarts=1)"


def test_waits_double_up_to_five_minutes(monkeypatch):
    waited = []
    monkeypatch.setattr(restarts, "FIRST_SECONDS", 10.0)
    monkeypatch.setattr(time, "sleep", waited.append)
    counted = restarts.Restarts(8, lambda line: None)
    assert all(counted.wait("x") for _ in range(8)) and not counted.wait("x")
    assert waited == [10, 20, 40, 80, 160, 300, 300, 300]


def test_a_dry_run_prints_commands_of_a_shell_and_runs_nothing(tmp_path, capsys):
    words = ["launch", "local", "bert_tiny", "--data.path=a b", f"--workdir={tmp_path / 'run'}", "--hosts=2"]
    succeed(*words, "--dry_run")
    *hosts, last = capsys.readouterr().out.splitlines()
    assert last == "wait" and len(hosts) == 2 and not (tmp_path / "run").exists()
    for host, line in enumerate(hosts):
        split = shlex.split(line)
        assert f"JAX_PROCESS_ID={host}" in split and "--data.path=a b" in split and split[-1] == "&"


@pytest.mark.parametrize(
    "words, message",
    [
        ("launch locl bert_tiny", "unknown platform 'locl'; platforms: "),
        ("launch", "usage: bert-jax launch "),
        ("launch local", "CONFIG comes first"),
        ("launch local bert_tny --workdir=x", "no configuration file 'bert_tny'; perhaps you meant bert_tiny"),
        ("launch local bert_tiny --workdir=x", "--data.path is missing"),
        ("launch local bert_tiny --data.path=x", "--workdir is missing"),
        ("launch local bert_tiny --host=3", "unknown option --host; perhaps you meant --hosts"),
        ("launch local bert_tiny --data.pth=3", "unknown option --data.pth; perhaps you meant --data.path"),
        ("launch local bert_tiny --data.path=x --workdir=x --hosts=0", "--hosts=0 must be at least 1"),
        ("launch local bert_tiny --data.path=x --workdir=x --max_restarts=-1", "--max_restarts=-1 must be at least 0"),
        ("launch local bert_tiny --data.path=x --workdir=x --hosts=two", "parsing --hosts: invalid literal"),
        ("launch local bert_tiny --batch_size=0 --data.path=x --workdir=x", "phases.0.batch_size=0 must be positive"),
        (
            "pretrain bert_tiny --data.path=x --workdir=x --simulate_hosts=-1",
            "simulate_hosts=-1 must be a number of hosts",
        ),
        ("pretrain bert_tiny --simulate_hosts=2 --workdir=x", "--data.path is missing"),
    ],
)
def test_bad_input_is_one_line_and_starts_nothing(words, message, capsys, monkeypatch):
    monkeypatch.setattr(launch.subprocess, "Popen", None)
    assert message in refusal(capsys, *words.split())

"""Processes that stand in for hosts: what is printed, how they end together."""

import functools
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

import pytest
from command_lines import refusal, succeed

from bert_jax.config.commands import LocalConfig
from bert_jax.tools.pods import job as restarts
from bert_jax.tools.pods import launch

Environment = Mapping[str, str]


class Job:
    """Stands in for a run of pretrain."""

    def command(self, *program: str) -> list[str]:
        return [*program, "pretrain"]


class Host:
    """A host that is a thread: `does(environment, say, told)` prints with `say` and returns what `subprocess` would.

    `told` is an event, which a signal or the end of the launch sets.
    """

    def __init__(self, does, environment: Environment):
        self.signals: list[int] = []
        self._told = threading.Event()
        self._ended: int | None = None
        place, end = os.pipe()
        self.stdout = open(place)

        def work() -> None:
            with open(end, "w") as printed:
                self._ended = does(environment, functools.partial(print, file=printed, flush=True), self._told)

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else self._ended

    def wait(self) -> None:
        self._thread.join()

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        self._told.set()

    def kill(self) -> None:
        self._told.set()


@pytest.fixture
def run_hosts(monkeypatch):
    """Run these hosts, each the same function: the exit code of the launch, and the hosts."""

    def run(does, **options: int) -> tuple[int, list[Host]]:
        hosts: list[Host] = []

        def start(command: list[str], env: Environment, **given: object) -> Host:
            assert command == [sys.executable, "-m", "bert_jax", "pretrain"]
            assert given["start_new_session"] and given["stderr"] == subprocess.STDOUT
            hosts.append(Host(does, env))
            return hosts[-1]

        with monkeypatch.context() as patch:
            patch.setattr(launch.subprocess, "Popen", start)
            return launch.run_local(Job(), LocalConfig(**options)), hosts

    return run


def number_of(environment: Environment) -> int:
    return int(environment["JAX_PROCESS_ID"])


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(restarts, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(launch, "CRASHED_SECONDS", 0.1)


def test_each_host_is_told_who_it_is_and_its_lines_say_so(run_hosts, capsys, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0")

    def does(environment, say, told):
        say(*(environment[name] for name in ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_PLATFORMS", "XLA_FLAGS")))
        say(environment["JAX_COORDINATOR_ADDRESS"])
        return 0

    assert run_hosts(does, hosts=3, devices_per_host=2)[0] == 0
    lines = capsys.readouterr().out.splitlines()
    flags = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=2"
    said = [f"[host {host}] {host} 3 cpu {flags}" for host in range(3)]
    assert sorted(line for line in lines if "127.0.0.1" not in line) == said
    assert len({line.split()[2] for line in lines if "127.0.0.1" in line}) == 1  # all go to the same first host


def test_a_single_host_joins_nothing(run_hosts, capsys):
    assert run_hosts(lambda environment, say, told: say("JAX_NUM_PROCESSES" in environment) or 0, hosts=1)[0] == 0
    assert capsys.readouterr().out == "[host 0] False\n"


def test_an_error_that_all_hosts_report_is_printed_once(run_hosts, capsys):
    def does(environment, say, told):
        say(f"error: no store\nerror: host {number_of(environment)}\nthe rest")
        return 2

    assert run_hosts(does, hosts=2)[0] == 2
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("error: no store") for line in lines) == 1
    rest = {f"[host {host}] {line}" for host in range(2) for line in (f"error: host {host}", "the rest")}
    assert len(lines) == 5 and rest < set(lines)


@pytest.mark.parametrize("ends, code", [(7, 7), (-signal.SIGKILL, 137)])
def test_all_end_when_one_dies_with_the_code_of_the_first(run_hosts, ends, code):
    """The others would run until they are told."""

    def does(environment, say, told):
        if number_of(environment) == 1:
            return ends
        told.wait()
        return -signal.SIGKILL

    found, hosts = run_hosts(does, hosts=3)
    assert found == code and not any(host.signals for host in hosts)


def test_hosts_that_are_saving_are_given_the_time(run_hosts, capsys):
    """A host that SIGTERM has stopped is not ahead of others that crashed: they are not killed while they save."""

    def does(environment, say, told):
        if number_of(environment) == 1:
            if told.wait(5 * launch.CRASHED_SECONDS):
                return -signal.SIGKILL
            say("saved")
        return 143

    assert run_hosts(does, hosts=2)[0] == 143
    assert "[host 1] saved" in capsys.readouterr().out


def test_a_signal_reaches_every_host_once_and_ends_the_launch(run_hosts):
    ready = threading.Semaphore(0)

    def does(environment, say, told):
        ready.release()
        told.wait()
        return 128 + signal.SIGTERM

    sender = threading.Thread(target=send_when_ready, args=(ready, signal.SIGTERM))
    sender.start()
    code, hosts = run_hosts(does, hosts=2, max_restarts=5)
    sender.join()
    assert code == 128 + signal.SIGTERM  # nothing is started again
    assert [host.signals for host in hosts] == [[signal.SIGTERM]] * 2


def send_when_ready(ready: threading.Semaphore, number: int) -> None:
    """Send a signal to this process when two hosts are ready."""
    for _ in range(2):
        ready.acquire()
    os.kill(os.getpid(), number)


HOST = f"""
import os, signal, sys, time
signal.signal({int(signal.SIGINT)}, lambda *_: (print("told", flush=True), sys.exit({128 + signal.SIGINT})))
print("ready", os.environ["JAX_PROCESS_ID"], os.getsid(0) == os.getpid(), flush=True)
for _ in range(36000): time.sleep(0.1)  # a signal that comes just before a sleep is answered after it
"""


@pytest.mark.slow
def test_hosts_are_processes_which_ctrl_c_reaches_once(capsys, monkeypatch):
    ready, write = threading.Semaphore(0), sys.stdout.write

    class Processes:
        def command(self, *program: str) -> list[str]:
            return [sys.executable, "-c", HOST]

    def watched(text: str) -> None:
        write(text)
        if "ready" in text:
            ready.release()

    monkeypatch.setattr(sys.stdout, "write", watched)
    sender = threading.Thread(target=send_when_ready, args=(ready, signal.SIGINT))
    sender.start()
    assert launch.run_local(Processes(), LocalConfig(hosts=2, max_restarts=5)) == 128 + signal.SIGINT
    sender.join()
    expected = [f"[host {host}] {said}" for host in range(2) for said in (f"ready {host} True", "told")]
    assert sorted(capsys.readouterr().out.splitlines()) == expected


@pytest.mark.parametrize(
    "code, bound, starts",
    [(0, 3, 1), (2, 3, 1), (1, 0, 1), (1, 2, 3), (143, 1, 2), (137, 1, 2)],
    ids="finished bad_input unbounded crash preempted killed".split(),
)
def test_restarts_follow_what_may_heal_up_to_the_bound(code, bound, starts, run_hosts, capsys):
    found, hosts = run_hosts(lambda environment, say, told: code, hosts=1, max_restarts=bound)
    assert (found, len(hosts)) == (code, starts)
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
        (
            "launch local bert_tiny --data.path=x --workdir=x --hosts=two",
            "'two' is not a whole number",
        ),
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

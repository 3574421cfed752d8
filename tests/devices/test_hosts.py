"""Several hosts: their processes, what they tell one another, and the watchdog."""

import atexit
import concurrent.futures
import dataclasses
import importlib.util
import inspect
import json
import os
import sys
import threading
import types

import fresh
import jax
import pytest
from clock import Clock
from pod import run_on_two_hosts
from processes import SECONDS as PEERS_SECONDS
from processes import wait_until

from bert_jax.config import Config, DataConfig, MeshConfig, OptimizerConfig, PhaseConfig
from bert_jax.config.options import differing_options, to_dict
from bert_jax.devices import hosts as peers
from bert_jax.devices import hosts as watching
from bert_jax.devices import process as host_process
from bert_jax.devices.hosts import (
    END,
    EXIT_CODE,
    LINGER_SECONDS,
    Ended,
    Peers,
    any_failure,
    check_alike,
    ending_together,
    from_first,
    refuse_differences,
    sources,
    where,
)
from bert_jax.devices.signals import BEYOND_SLOWEST_SECONDS, FIRST_STEPS, PATIENCE_SECONDS, Progress
from bert_jax.training.reporter import Guard

CONFIG = Config(data=DataConfig(path="/data/store"))
OTHERS = {
    "seed is 0 on host 0 and 7 on host 2": {"seed": 7},
    "mesh.fsdp is 1 on host 0 and 2 on host 2": {"mesh": MeshConfig(fsdp=2)},
    "optimizer.name is adamw on host 0 and lamb on host 2": {"optimizer": OptimizerConfig(name="lamb")},
    "phases.0.batch_size is 256 on host 0 and 64 on host 2": {"phases": (PhaseConfig(batch_size=64),)},
    "data.held_out is 0.01 on host 0 and 0.1 on host 2": {"data": DataConfig(path="/elsewhere", held_out=0.1)},
}


@pytest.mark.parametrize("said", OTHERS)
def test_the_first_difference_is_named_with_both_values_and_the_host(said):
    facts = [to_dict(config) for config in (CONFIG, CONFIG, dataclasses.replace(CONFIG, **OTHERS[said]))]
    with pytest.raises(Ended, match=f"^the hosts do not run the same thing: {said}. Start the same command"):
        refuse_differences(facts, differing_options(Config))


def test_where_the_same_data_lie_and_how_they_are_read_may_differ():
    data = DataConfig(path="/mnt/copy", cache="/scratch", loader="plain", prefetch=1)
    facts = [to_dict(config) for config in (CONFIG, dataclasses.replace(CONFIG, data=data, init_from="/elsewhere"))]
    refuse_differences(facts, differing_options(Config))
    with pytest.raises(Ended, match="store_fingerprint is abc on host 0 and abd on host 1"):
        refuse_differences(
            [{**fact, "store_fingerprint": value} for fact, value in zip(facts, ("abc", "abd"))],
            differing_options(Config),
        )


def test_one_process_has_nobody_to_ask():
    check_alike(lambda: pytest.fail("facts were gathered for nobody"))
    assert from_first("value") == "value" and any_failure("problem") == "problem"


@pytest.mark.parametrize("library, stacks", [("tensorflow.python", False), ("jaxlib", True)])
def test_a_bucket_out_of_reach_ends_all_hosts_without_a_traceback(monkeypatch, capsys, library, stacks):
    ended = []
    monkeypatch.setattr(peers, "is_watching", lambda: True)
    monkeypatch.setattr(peers, "end_process", lambda *given: ended.append(given) or sys.exit(peers.EXIT_CODE))
    failure = type("NoRoute", (Exception,), {"__module__": library})

    @ending_together
    def run():
        raise failure("no route to\n gs://bucket/store")

    with pytest.raises(SystemExit):
        run()
    ((reason, whether),) = ended
    assert whether == stacks and ("Traceback" in capsys.readouterr().err) == stacks
    if not stacks:
        assert reason.startswith("Google Cloud Storage: no route to gs://bucket/store; check the name of the bucket")


def test_a_changed_source_file_is_known_by_its_name(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "chunks.py").write_text("one")
    before = sources(tmp_path)
    (tmp_path / "data" / "chunks.py").write_text("two")
    (tmp_path / "notes.txt").write_text("not code")
    with pytest.raises(Ended, match=r"code.data/chunks.py is [0-9a-f]{64} on host 0 and [0-9a-f]{64} on host 1"):
        refuse_differences([{"code": before}, {"code": sources(tmp_path)}])
    assert "devices/hosts.py" in sources() and "data/chunks.py" in sources()


def answers(hosts: types.ModuleType, host: int) -> dict:
    """Return what a host, which has loaded the module `hosts`, is told at one meeting after the other."""

    @hosts.ending_together
    def failing_on(which: int, meet: types.FunctionType):
        if host == which:
            raise FileNotFoundError(f"nothing there on {host}")
        meet()

    def said(function: types.FunctionType, *arguments: object):
        try:
            return function(*arguments)
        except Exception as error:
            return [type(error).__name__, str(error)]

    return {
        "from_first": hosts.from_first({"é": [host, None]}),
        "alike": said(hosts.check_alike, lambda: {"seed": 3, "path": host}, ("path",)),
        "different": said(hosts.check_alike, lambda: {"seed": host}),
        "any_failure": hosts.any_failure("torn" if host == 1 else None),
        "no_failure": hosts.any_failure(None),
        "second_fails": said(failing_on, 1, lambda: hosts.check_alike(dict)),
        "first_fails": said(failing_on, 0, lambda: hosts.from_first(None)),
        "other_ways": said(hosts.from_first, 1) if host else said(hosts.check_alike, dict),
        "after_all": hosts.from_first(host + 5),
    }


HOST = f"""
import json, types
from bert_jax.devices import hosts
{inspect.getsource(answers)}
print(json.dumps(answers(hosts, host)))
"""


def in_threads() -> list[dict]:
    """Let two threads be the hosts, each with a copy of the module for what a process has once."""
    service = Service()

    def ask(host: int) -> dict:
        spec = importlib.util.find_spec(peers.__name__)
        copy = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(copy)
        copy.global_state = types.SimpleNamespace(num_processes=2, process_id=host, client=service)
        return answers(copy, host)

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        return list(threads.map(ask, range(2)))


@pytest.fixture(scope="module", params=["threads", pytest.param("processes", marks=pytest.mark.slow)])
def two_hosts(request) -> list[dict]:
    if request.param == "threads":
        return in_threads()
    return [json.loads(printed) for printed in run_on_two_hosts(HOST)]


@pytest.mark.parametrize(
    "what, said",
    [
        ("from_first", {"é": [0, None]}),
        ("alike", None),
        ("no_failure", None),
        ("after_all", 5),
        (
            "different",
            [
                "Ended",
                "the hosts do not run the same thing: seed is 0 on host 0 and 1 on host 1. Start the same command "
                "on every host, with the same data, code and library versions",
            ],
        ),
        (
            "other_ways",
            [
                "Ended",
                "the hosts do not run the same thing: host 0 is in check_alike, host 1 in from_first. Start the "
                "same command on every host, with the same kinds of files",
            ],
        ),
    ],
)
def test_all_hosts_get_the_same_answer(two_hosts, what, said):
    assert [host[what] for host in two_hosts] == [said, said]


def test_a_failure_of_one_host_ends_the_others_with_its_words(two_hosts):
    assert [host["any_failure"] for host in two_hosts] == ["host 1: torn", "torn"]
    own = [["FileNotFoundError", f"nothing there on {host}"] for host in (0, 1)]
    others = [["Ended", f"host {host} has stopped: nothing there on {host}"] for host in (0, 1)]
    assert [host["second_fails"] for host in two_hosts] == [others[1], own[1]]
    assert [host["first_fails"] for host in two_hosts] == [own[0], others[0]]


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
    ended = fresh.run(REPORT, command, "a word", "--debug", env=own | environment)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), ended.pid


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


class Service:
    """The calls of JAX's coordination client that hosts use, with its errors."""

    def __init__(self):
        self.values: dict[str, str] = {}

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        if key in self.values and not allow_overwrite:
            raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: {key}")
        self.values[key] = value

    def key_value_try_get(self, key: str) -> str:
        if key not in self.values:
            raise jax.errors.JaxRuntimeError(f"NOT_FOUND: {key}")
        return self.values[key]

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        wait_until(lambda: key in self.values)
        return self.values[key]

    def key_value_dir_get(self, prefix: str) -> list[tuple[str, str]]:
        return [(key, value) for key, value in self.values.items() if key.startswith(prefix + "/")]


@pytest.fixture
def job():
    """A clock and three hosts, which count one as dead after 40 s."""
    service, clock = Service(), Clock()
    return clock, [Peers(service, host, 40.0, clock) for host in range(3)]


def pass_time(clock: Clock, peers, seconds: int) -> list[str | None]:
    """Let these hosts look every second; return why each of them would end, at the last look."""
    reasons = []
    for _ in range(seconds):
        clock.now += 1
        reasons = [each.look() for each in peers]
    return reasons


def test_hosts_that_send_heartbeats_live(job):
    clock, peers = job
    assert pass_time(clock, peers, 500) == [None] * 3
    assert sorted(peers[0].heartbeats) == [0, 1, 2] and peers[1].heartbeats == {}
    assert {beat["left"] for beat in peers[0].heartbeats.values()} == {False}


def test_a_host_leaves_though_the_service_does_not_answer(monkeypatch):
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watching, "LINGER_SECONDS", 0.1)
    service, called, cut = Service(), threading.Event(), threading.Event()

    def silent(key: str) -> str:
        called.set()
        cut.wait()
        raise jax.errors.JaxRuntimeError("UNAVAILABLE")

    monkeypatch.setattr(service, "key_value_try_get", silent)
    host = Peers(service, 1, 1e9)
    host.start()
    try:
        assert called.wait(PEERS_SECONDS)
        host.stop()
        assert service.values == {}
    finally:
        cut.set()
        atexit.unregister(host.stop)


def test_a_silent_host_is_named_within_the_bound_and_everybody_told(job):
    clock, peers = job
    pass_time(clock, peers, 100)
    silent_since = clock.now
    while not any(reasons := pass_time(clock, peers[:2], 1)):
        assert clock.now < silent_since + 40, "too late"
    assert clock.now >= silent_since + 0.7 * 40, "too early"
    assert reasons[0].startswith("host 2 (") and "has sent no heartbeat for 3" in reasons[0]
    assert reasons[1] == peers[2].look() == f"host 0: {reasons[0]}"


def test_a_host_that_has_left_in_good_order_is_not_missed(job):
    clock, peers = job
    pass_time(clock, peers, 10)
    peers[2].stop()
    assert pass_time(clock, peers[:2], 200) == [None, None]


def test_the_first_host_stays_until_those_that_live_have_left(job, monkeypatch):
    clock, peers = job
    pass_time(clock, peers, 10)
    pass_time(clock, peers[:2], 32)  # the third is dead
    ends = iter([None, peers[1].farewell])  # the second reads why, and ends, a moment later
    monkeypatch.setattr("time.sleep", lambda seconds: (end := next(ends)) and end())
    peers[0].farewell()
    assert peers[0].heartbeats[1]["left"] and next(ends, "both") == "both"


def test_the_first_host_does_not_wait_for_ever(job, monkeypatch):
    clock, peers = job
    pass_time(clock, peers, 10)
    monkeypatch.setattr("time.sleep", lambda seconds: pass_time(clock, peers[1:], 1))
    begun = clock.now
    peers[0].farewell()
    assert clock.now - begun == LINGER_SECONDS


def test_a_host_that_has_not_started_is_not_missed(job):
    clock, peers = job  # JAX waits for it, with a bound of its own
    assert pass_time(clock, peers[:2], 200) == [None, None]


def test_the_first_reason_counts(job):
    _, peers = job
    peers[1].tell("no progress")
    peers[2].tell("a collective operation has failed")
    assert [each.look() for each in peers] == ["host 1: no progress"] * 3


def test_facts_come_with_the_next_heartbeat(job):
    clock, peers = job
    peers[2].publish(input_seconds=0.25, step=7)
    pass_time(clock, peers, 20)
    assert (peers[0].heartbeats[2]["input_seconds"], peers[0].heartbeats[2]["step"]) == (0.25, 7)
    assert "input_seconds" not in peers[0].heartbeats[1] and peers[0].heartbeats[1]["place"]


def test_a_service_that_is_gone_is_an_error_of_its_own(job):
    _, peers = job

    def gone(key):
        raise jax.errors.JaxRuntimeError("UNAVAILABLE: Socket closed")

    peers[1]._client.key_value_try_get = gone
    with pytest.raises(jax.errors.JaxRuntimeError, match="UNAVAILABLE"):
        peers[1].look()
    peers[1].tell("anything")  # to nobody, without an error
    assert json.loads(peers[1]._client.values[END])["host"] == 1


def patience(progress: Progress) -> float:
    """Seconds after which the run counts as stuck, if nothing happens from now on."""
    seconds = 0
    while not progress.tick(1):
        seconds += 1
    return seconds


def after(*durations: float, timeout: float | None = None) -> Progress:
    """A run that has taken steps of these seconds."""
    progress = Progress(timeout)
    for seconds in durations:
        progress.tick(seconds)
        progress.step()
    return progress


def test_a_step_may_take_five_minutes_more_than_the_slowest():
    assert BEYOND_SLOWEST_SECONDS == 300
    assert patience(after(1, 40, 2, 3)) == 340
    assert patience(after(*[1] * FIRST_STEPS)) == 301
    assert patience(after(*[1] * (FIRST_STEPS - 1))) == PATIENCE_SECONDS  # nobody knows yet what is slow


def test_a_given_bound_holds_from_the_second_step_on():
    assert patience(after(timeout=20)) == PATIENCE_SECONDS
    assert patience(after(5, timeout=20)) == 20
    assert patience(after(5, 90, timeout=20)) == 20


def test_compiling_and_saving_have_their_own_time():
    progress = after(1, 1, 1, 1)
    progress.begin("compilation")
    assert patience(progress) == PATIENCE_SECONDS

    progress = after(1, 1, 1, 1, timeout=20)
    progress.tick(19)
    progress.begin("save")
    assert patience(progress) == PATIENCE_SECONDS  # the first
    progress.waited = 50.0
    progress.step()
    assert patience(progress) == 20  # a step again, whatever a save takes
    progress.step()
    progress.begin("save")
    assert patience(progress) == 350


STUCK = """
import sys, time
from bert_jax.devices import signals as watchdog
watchdog.TICK_SECONDS = 0.05
with watchdog.Watchdog(float(sys.argv[1])) as dog:
    watchdog.REPORT_SECONDS = 0.5
    def report(seconds, place):
        print(f"reported {seconds > 1} {place}", flush=True)
        time.sleep(float(sys.argv[2]))  # the disk hangs too
    dog.report = report
    for _ in range(3):
        dog.step()
    def waits_for_ever():
        time.sleep(float(sys.argv[2]))
    waits_for_ever()
print("left")
"""


def test_a_stuck_process_ends_with_its_stacks():
    done = fresh.run(STUCK, "2", "10_000")  # seconds that no busy machine takes for the steps before it is stuck
    assert done.returncode == EXIT_CODE, done.stderr
    assert done.stdout == "reported True code outside bert_jax\n"
    assert "error: no progress for" in done.stderr and "Start the job again" in done.stderr
    assert "in waits_for_ever" in done.stderr  # the stack


def test_a_process_that_is_not_watched_takes_its_time():
    done = fresh.run(STUCK, "0", "1")
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


def test_the_exit_code_is_that_of_sysexits():
    """EX_TEMPFAIL: neither 2 (a mistake) nor 130 and 143 (signals), after which nobody should start again."""
    assert EXIT_CODE == os.EX_TEMPFAIL


def test_the_place_is_the_innermost_line_of_the_package():
    reached, go_on = threading.Event(), threading.Event()

    class Losses(list):
        def __iter__(self):
            reached.set()
            go_on.wait()
            return super().__iter__()

    thread = threading.Thread(target=Guard, args=(None, {"losses": Losses()}))
    thread.start()
    try:
        assert reached.wait(PEERS_SECONDS)
        assert where(thread).startswith("bert_jax/training/reporter.py:") and where(thread).endswith(" in __init__")
        assert where(threading.current_thread()).endswith(" in where")
    finally:
        go_on.set()
        thread.join()
    assert where(thread) == "code outside bert_jax"

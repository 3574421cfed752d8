"""A host dies, is stopped or cut off, hangs or crashes: the others end in time and say why."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import cut_network
import pytest
from pod import COMMAND, STARTED, finish, launch, logs
from processes import EXHAUSTIVE, SECONDS, free_port, wait_until
from small_pretraining import nothing_held_out, rows, run_config

from bert_jax.checkpoints.record import read_record
from bert_jax.config import CheckpointConfig, FaultsConfig, MeshConfig, PhaseConfig
from bert_jax.config.commands import LocalConfig
from bert_jax.config.options import to_dict
from bert_jax.devices.hosts import EXIT_CODE
from bert_jax.tools.pods.launch import host_variables

pytestmark = pytest.mark.slow

DEAD, HUNG = 12, 15
STEPS = 40
FEW = 3 if EXHAUSTIVE else 2
"""Hosts of the runs whose end alone is looked at; of those that go on there are always three."""
BUSY = 60
"""Seconds that a busy machine may add to a bound."""
AT_STEP = """
import time
from bert_jax.cli import main
from bert_jax.devices import sharding
place, calls = sharding.to_global, []
def stuck_or_broken(*given):
    calls.append(1)
    if len(calls) == 40:  # more than are placed before the first step
        {what}
    return place(*given)
sharding.to_global = stuck_or_broken
main()
"""


@pytest.fixture(autouse=True)
def no_host_outlives_its_test():
    yield
    while STARTED:
        process = STARTED.pop()
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def config_of(store, workdir, steps: int):
    return run_config(
        store,
        workdir,
        mesh=MeshConfig(data=-1),
        phases=(PhaseConfig(steps=steps, sequence_length=32, batch_size=12, learning_rate=1e-3, warmup_steps=2),),
        checkpoint=CheckpointConfig(every_steps=4, keep_last=5),
        data=nothing_held_out(store),
        faults=FaultsConfig(peer_timeout_seconds=DEAD, step_timeout_seconds=HUNG),
    )


def lose(processes, lost: int, number: signal.Signals, config) -> None:
    """Send a signal to one host after the second save: the others end in time, with the code to start them again."""
    wait_until(
        lambda: (pathlib.Path(config.workdir) / "checkpoints/step_000000008").exists(),
        lambda: processes[lost].poll() is None,
        lambda: logs(config),
    )
    processes[lost].send_signal(number)
    begun = time.monotonic()
    others = [process for host, process in enumerate(processes) if host != lost]
    wait_until(lambda: all(process.poll() is not None for process in others), said=lambda: logs(config))
    seconds, codes = time.monotonic() - begun, [process.returncode for process in others]
    print(f"{number.name} of host {lost}: the others ended after {seconds:.1f} s with {codes}")
    print(logs(config))
    assert seconds < DEAD + BUSY
    # JAX itself aborts (134) when the process of the first host, and with it the connection, is gone.
    aborts = {-signal.SIGABRT} if (lost, number) == (0, signal.SIGKILL) else set()
    assert set(codes) <= {EXIT_CODE, *aborts}, logs(config)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP] if EXHAUSTIVE else [signal.SIGKILL])
def test_the_others_end_when_the_first_dies_or_is_stopped(small_store, tmp_path, number):
    config = config_of(small_store, tmp_path / "run", 100_000)
    lose(launch(config, FEW), 0, number, config)


@pytest.fixture(scope="module")
def whole(small_store, tmp_path_factory):
    """A run of three hosts that nothing happened to."""
    config = config_of(small_store, tmp_path_factory.mktemp("whole") / "run", STEPS)
    assert finish(launch(config, 3), config) == [0, 0, 0], logs(config)
    return config


def assert_goes_on_exactly(lost, whole) -> None:
    """Start the three hosts again; in the end there is nothing by which the run differs from the whole one."""
    before = len(rows(lost.workdir))
    assert before < STEPS, "the run had ended before its host was lost"
    assert finish(launch(lost, 3), lost) == [0, 0, 0], logs(lost)
    assert rows(lost.workdir) == rows(whole.workdir) and len(rows(whole.workdir)) == STEPS
    records = [read_record(pathlib.Path(e.workdir) / f"checkpoints/step_{STEPS:09}/record") for e in (whole, lost)]
    assert records[0]["arrays"] == records[1]["arrays"]


def test_the_others_end_when_one_dies_and_go_on_exactly(small_store, tmp_path, whole):
    lost = config_of(small_store, tmp_path / "run", STEPS)
    lose(launch(lost, 3), 2, signal.SIGKILL, lost)
    assert_goes_on_exactly(lost, whole)


def test_the_others_end_when_one_is_stopped(small_store, tmp_path):
    config = config_of(small_store, tmp_path / "run", 100_000)
    lose(launch(config, FEW), 1, signal.SIGSTOP, config)


HANGS, CRASHES = ("time.sleep(10_000)", "no progress for"), ("1 / 0", "ZeroDivisionError")


@pytest.mark.parametrize("what, said", [HANGS, CRASHES] if EXHAUSTIVE else [HANGS])
def test_a_host_that_hangs_or_crashes_ends_all_with_its_stack(small_store, tmp_path, what, said):
    config = config_of(small_store, tmp_path / "run", 100_000)
    processes = launch(config, FEW, {1: (sys.executable, "-c", AT_STEP.format(what=what))})
    assert finish(processes, config) == [EXIT_CODE] * FEW, logs(config)
    log = {
        host: pathlib.Path(config.workdir).with_suffix(f".{host}.log" if host else ".log").read_text()
        for host in range(FEW)
    }
    assert all(said in text for text in log.values())
    assert "in stuck_or_broken" in log[1]  # the stack of the one that is stuck, or the traceback


@pytest.mark.skipif(
    subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True).returncode != 0
    or shutil.which("ip") is None,
    reason="this machine does not let tests make network namespaces (unshare --net --mount, as root)",
)
@pytest.mark.parametrize("host", [0, 2] if EXHAUSTIVE else [0])
def test_all_end_when_one_is_cut_off(small_store, tmp_path, whole, host):
    config = config_of(small_store, tmp_path / "run", STEPS)
    (tmp_path / "run.json").write_text(json.dumps(to_dict(config)))
    logs_of = ",".join(str(tmp_path / name) for name in ("run.log", "run.1.log", "run.2.log"))
    ready = str(tmp_path / "run/checkpoints/step_000000008")
    job = [*COMMAND, "pretrain", str(tmp_path / "run.json")]
    helper = [sys.executable, cut_network.__file__, ready, str(host), logs_of, *job]
    environment = {**os.environ, **host_variables(LocalConfig(hosts=3, devices_per_host=1), 0, free_port())}
    done = subprocess.run(
        ["unshare", "--net", "--mount", *helper], env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr + logs(config)
    result = json.loads(done.stdout)
    print(f"network of host {host} cut: all three ended after {result['seconds']:.1f} s with {result['codes']}")
    print(logs(config))
    assert result["seconds"] < DEAD + BUSY
    # Those without the service may be ended by JAX, if their watchdog is not first.
    assert result["codes"][0] == EXIT_CODE and set(result["codes"]) <= {EXIT_CODE, -signal.SIGABRT}, logs(config)
    if EXHAUSTIVE and host == 0:  # which writes the files; the end of another one is as above
        assert_goes_on_exactly(config, whole)

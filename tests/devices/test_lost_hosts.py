"""One host of three dies, is stopped, hangs or crashes: the others end in time and say why."""

import pathlib
import signal
import sys
import time

import pytest
from pod import STARTED, finish, launch, logs
from processes import wait_until
from small_pretraining import run_config

from bert_jax.config import CheckpointConfig, EvaluationConfig, FaultsConfig, MeshConfig, PhaseConfig
from bert_jax.devices.hardware import JAX_LATER_SECONDS
from bert_jax.devices.peers import EXIT_CODE

pytestmark = pytest.mark.slow

DEAD, HUNG = 12, 15
BUSY = 60
"""Seconds that a busy machine may add to a bound."""
AT_STEP = """
import time
from bert_jax.cli import main
from bert_jax.devices import sharding
place, calls = sharding.to_global, []
def stuck_or_broken(*given):
    calls.append(1)
    if len(calls) == 6:
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
        mesh=MeshConfig(data=3),
        phases=(PhaseConfig(steps=steps, sequence_length=32, batch_size=12, learning_rate=1e-3, warmup_steps=2),),
        checkpoint=CheckpointConfig(every_steps=4, keep_last=5),
        evaluation=EvaluationConfig(every_steps=0, sequences=12, batch_size=12),
        faults=FaultsConfig(peer_timeout_seconds=DEAD, step_timeout_seconds=HUNG),
    )


def end_of(processes, lost: int, config) -> tuple[float, list[int]]:
    """Seconds until all but one host have ended, and their exit codes."""
    begun = time.monotonic()
    others = [process for host, process in enumerate(processes) if host != lost]
    wait_until(lambda: all(process.poll() is not None for process in others), said=lambda: logs(config))
    return time.monotonic() - begun, [process.returncode for process in others]


@pytest.mark.parametrize("host, number", [(2, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_the_others_end_when_one_dies_or_is_stopped(small_store, tmp_path, host, number):
    config = config_of(small_store, tmp_path / "run", 100_000)
    processes = launch(config, 3)
    wait_until(
        lambda: (tmp_path / "run/checkpoints/step_000000008").exists(),
        lambda: processes[host].poll() is None,
        lambda: logs(config),
    )
    processes[host].send_signal(number)
    seconds, codes = end_of(processes, host, config)
    print(f"{number.name} of host {host}: the others ended after {seconds:.1f} s with {codes}")
    print(logs(config))
    assert seconds < DEAD + JAX_LATER_SECONDS + BUSY
    # Without its service nobody can be told: JAX itself aborts (134) when the first host is gone.
    assert set(codes) <= ({EXIT_CODE, -signal.SIGABRT} if host == 0 else {EXIT_CODE}), logs(config)


@pytest.mark.parametrize("what, said", [("time.sleep(10_000)", "no progress for"), ("1 / 0", "ZeroDivisionError")])
def test_a_host_that_hangs_or_crashes_ends_all_with_its_stack(small_store, tmp_path, what, said):
    config = config_of(small_store, tmp_path / "run", 100_000)
    processes = launch(config, 3, {1: (sys.executable, "-c", AT_STEP.format(what=what))})
    assert finish(processes, config) == [EXIT_CODE] * 3, logs(config)
    log = {
        host: pathlib.Path(config.workdir).with_suffix(f".{host}.log" if host else ".log").read_text()
        for host in range(3)
    }
    assert all(said in text for text in log.values())
    assert "in stuck_or_broken" in log[1]  # the stack of the one that is stuck, or the traceback

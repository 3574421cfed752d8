"""A pod stood in for by two processes of two virtual devices each, over gloo on this machine."""

import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from bert_jax.checkpoint import Checkpoints
from bert_jax.config import CheckpointConfig, MeshConfig, PhaseConfig, to_dict
from test_pretraining import rows, run_config, wait_for_row

pytestmark = pytest.mark.slow
DEVICES = "--xla_force_host_platform_device_count={}"


def launch(config, hosts: int) -> list[subprocess.Popen]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file = pathlib.Path(config.workdir).with_suffix(".json")
    file.write_text(json.dumps(to_dict(config)))
    processes = []
    for host in range(hosts):
        environment = {**os.environ, "XLA_FLAGS": DEVICES.format(4 // hosts)}
        if hosts > 1:
            environment |= {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": str(hosts), "JAX_PROCESS_ID": str(host)}
        with open(pathlib.Path(config.workdir).with_suffix(f".{host}.log" if host else ".log"), "w") as log:
            processes.append(subprocess.Popen([sys.executable, "-m", "bert_jax", "pretrain", str(file)], env=environment,
                                              stdout=log, stderr=subprocess.STDOUT))
    return processes


def logs(config) -> str:
    return "\n".join(path.read_text() for path in pathlib.Path(config.workdir).parent.glob("*.log"))


def finish(processes, config, seconds: float = 240) -> list[int]:
    try:
        return [process.wait(seconds) for process in processes]
    except subprocess.TimeoutExpired:
        raise AssertionError(logs(config)) from None
    finally:
        for process in processes:
            process.kill()


def pod_config(store, workdir, **changes):
    return run_config(store, workdir, mesh=MeshConfig(data=2, fsdp=2), checkpoint=CheckpointConfig(every_steps=4, keep_last=5), **changes)


def test_two_hosts_train_as_one(small_store, tmp_path):
    """Only the first host writes; losses are those of one process with four devices up to the order of float32 sums."""
    one, two = (pod_config(small_store, tmp_path / name) for name in ("one", "two"))
    assert finish(launch(one, 1), one) == [0], logs(one)
    assert finish(launch(two, 2), two) == [0, 0], logs(two)
    assert [row["step"] for row in rows(two.workdir)] == list(range(1, 13))
    for ours, theirs in zip(rows(two.workdir), rows(one.workdir), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=2e-5)


def test_a_preempted_host_stops_both_at_one_step_and_another_slice_goes_on(small_store, tmp_path):
    phase = PhaseConfig(steps=100_000, sequence_length=32, batch_size=16, learning_rate=1e-3)
    config = pod_config(small_store, tmp_path / "preempted", phases=(phase,))
    config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, every_steps=0))
    processes = launch(config, 2)
    wait_for_row(config, 3, processes[0])
    processes[1].send_signal(signal.SIGTERM)
    assert finish(processes, config, 180) == [143, 143], logs(config)
    stopped = Checkpoints(tmp_path / "preempted" / "checkpoints", read_only=True).latest_step()
    assert stopped == rows(config.workdir)[-1]["step"]

    shorter = dataclasses.replace(config, phases=(dataclasses.replace(phase, steps=stopped + 3),))
    assert finish(launch(shorter, 1), shorter) == [0], logs(config)
    assert [row["step"] for row in rows(config.workdir)] == list(range(1, stopped + 4))

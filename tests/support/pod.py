"""Hosts of a pod: processes of this machine, and two of one program."""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

from processes import SECONDS, compiler_flags, free_port

from bert_jax.config.commands import LocalConfig
from bert_jax.config.options import to_dict
from bert_jax.tools.pods.launch import host_variables

STARTED: list[subprocess.Popen] = []


COMMAND = (sys.executable, "-m", "bert_jax")


def launch(config, hosts: int, commands: Mapping[int, Sequence[str]] = {}) -> list[subprocess.Popen]:
    file = pathlib.Path(config.workdir).with_suffix(".json")
    file.write_text(json.dumps(to_dict(config)))
    return start(["pretrain", str(file)], config.workdir, hosts, commands=commands)


def start(
    arguments: list[str],
    workdir: str,
    hosts: int,
    last: tuple[str, ...] = (),
    commands: Mapping[int, Sequence[str]] = {},
    devices: int = 4,
) -> list[subprocess.Popen]:
    """Run one command of bert-jax on every host, the last one with options `last`; the hosts share the devices.

    A host in `commands` runs something else in place of `bert_jax`, with the same arguments.
    """
    port = free_port()
    processes = []
    for host in range(hosts):
        simulated = LocalConfig(hosts=hosts, devices_per_host=devices // hosts)
        environment = {**os.environ, **host_variables(simulated, host, port)}
        with open(pathlib.Path(workdir).with_suffix(f".{host}.log" if host else ".log"), "w") as log:
            own = last if host == hosts - 1 else ()
            processes.append(
                subprocess.Popen(
                    [*commands.get(host, COMMAND), *arguments, *own],
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    STARTED.extend(processes)
    return processes


def logs(config) -> str:
    return "\n".join(path.read_text() for path in pathlib.Path(config.workdir).parent.glob("*.log"))


def finish(processes, config, seconds: float = SECONDS) -> list[int]:
    try:
        return [process.wait(seconds) for process in processes]
    except subprocess.TimeoutExpired:
        raise AssertionError(logs(config)) from None
    finally:
        for process in processes:
            process.kill()
            process.wait()


JOIN = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
port, host, *arguments = sys.argv[1:]
host = int(host)
jax.distributed.initialize(f"127.0.0.1:{port}", 2, host, heartbeat_timeout_seconds=60)
"""
LEAVE = """
jax.distributed.shutdown()
"""


def run_on_two_hosts(code: str, *arguments: str) -> list[str]:
    """Run `code`, which finds `host` (0 or 1) and `arguments`, on both hosts; return what each of them printed."""
    port = str(free_port())
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN + code + LEAVE, port, host, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"XLA_FLAGS": compiler_flags(), "JAX_PLATFORMS": "cpu"},
        )
        for host in "01"
    ]
    try:
        said = [host.communicate(timeout=SECONDS) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    assert [host.returncode for host in hosts] == [0, 0], "\n".join(part for parts in said for part in parts)
    return [printed for printed, _ in said]

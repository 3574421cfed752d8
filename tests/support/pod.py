"""Commands of bert-jax on several hosts: processes that share four virtual devices, over gloo on this machine."""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

from processes import SECONDS, free_port

from bert_jax.config.commands import LocalConfig
from bert_jax.config.json_form import to_dict
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

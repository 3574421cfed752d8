"""`bert-jax launch`: reads the words of the command; `RUN` has the platforms, of which `local` is here.

The processes of `local` simulate the hosts of a pod on this machine. They are started together and ended together.
"""

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from bert_jax.config.checks import check
from bert_jax.config.commands import PLATFORMS, LocalConfig
from bert_jax.console import asks_for_help, described, divided, load_config, parse, positional, usage
from bert_jax.errors import UserError
from bert_jax.tools.pods.clusters import run_gke, run_slurm
from bert_jax.tools.pods.job import FINAL, PREEMPTED, Job, Restarts, at_least, exit_code, meaning, say, shown
from bert_jax.tools.pods.tpu import run_tpu

SAVING_SECONDS = 60.0
"""How long the other hosts may take to end by themselves after one has ended in good order (a signal, bad input)."""
CRASHED_SECONDS = 10.0
"""The same after a crash, when the others wait in vain for the host that is gone."""
LOOK_SECONDS = 0.05
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_local(job: Job, options: LocalConfig) -> int:
    """Run the job as `options.hosts` processes until it ends for good; return its exit code.

    Returns:
      0 if all hosts have finished, else the exit code of the first host that failed.
    """
    command = job.command(sys.executable, "-m", "bert_jax")
    if options.dry_run:
        port = _free_port()
        for host in range(options.hosts):
            variables = [f"{name}={value}" for name, value in host_variables(options, host, port).items()]
            print(shown(["env", *variables, *command]), "&")
        print("wait")
        return 0
    hosts, restarts = _Hosts(), Restarts(options.max_restarts, say)
    with hosts:
        while True:
            restarts.begin()
            code = hosts.run(command, options)
            if code in FINAL or hosts.told or not options.max_restarts:
                return code
            if not restarts.wait(meaning(code)):
                return code


def host_variables(options: LocalConfig, host: int, port: int) -> dict[str, str]:
    """Return the environment variables of one host of a simulated pod, of which the first listens on `port`."""
    others = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
    devices = f"--xla_force_host_platform_device_count={options.devices_per_host}"
    variables = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join([*others.split(), devices]), "PYTHONUNBUFFERED": "1"}
    if options.hosts > 1:
        variables |= {
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "JAX_NUM_PROCESSES": str(options.hosts),
            "JAX_PROCESS_ID": str(host),
        }
    return variables


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class _Hosts:
    """The processes of one start; inside the `with` block, signals to this process are passed on to them."""

    def __init__(self):
        self._starts, self._signal = False, 0
        self._processes: list[subprocess.Popen[str]] = []
        self._errors: dict[str, int] = {}
        self._handlers: dict[int, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> "_Hosts":
        heard = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup sets it
        self._handlers = {number: signal.signal(number, self._forward) for number in heard}
        return self

    def __exit__(self, *unused: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _forward(self, number: int, frame: object) -> None:
        if not self._starts:
            sys.exit(128 + number)
        self._signal = number
        for process in self._processes:
            process.send_signal(number)  # which does nothing to one that has been waited for

    @property
    def told(self) -> bool:
        """Whether this process has received a signal, after which nothing is started again."""
        return self._signal != 0

    def run(self, command: list[str], options: LocalConfig) -> int:
        """Start all hosts, print what they print, and return the exit code of the first that failed, else 0."""
        self._starts, port, readers = True, _free_port(), []
        try:
            for host in range(options.hosts):
                process = subprocess.Popen(
                    command,
                    env={**os.environ, **host_variables(options, host, port)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    start_new_session=True,  # Ctrl-C in a terminal comes to them once, from `_forward`
                )
                self._processes.append(process)
                if self._signal:  # which came before this one could be told
                    process.send_signal(self._signal)
                readers.append(threading.Thread(target=self._copy, args=(process, host), daemon=True))
                readers[-1].start()
            return self._wait()
        finally:
            for process in self._processes:
                process.kill()
                process.wait()
            for reader in readers:
                reader.join()
            self._starts = False
            self._processes.clear()
            self._errors.clear()

    def _wait(self) -> int:
        """Wait until all have ended or, some time after one has failed, without those that have not."""
        first, deadline = 0, float("inf")
        while None in (codes := [process.poll() for process in self._processes]) and time.monotonic() < deadline:
            if not first and any(codes):
                first = next(exit_code(code) for code in codes if code)
                orderly = first in (*FINAL, PREEMPTED)
                deadline = time.monotonic() + (SAVING_SECONDS if orderly else CRASHED_SECONDS)
            time.sleep(LOOK_SECONDS)
        return first or next((exit_code(code) for code in codes if code), 0)

    def _copy(self, process: subprocess.Popen[str], host: int) -> None:
        """Print each line of a process behind the number of its host; an error that several report, once."""
        assert process.stdout is not None  # as it was started
        with process.stdout as lines:
            for line in lines:
                if line.startswith("error: ") and self._errors.setdefault(line, host) != host:
                    continue
                sys.stdout.write(f"[host {host}] {line.rstrip()}\n")  # one write: the lines of two hosts do not mix
                sys.stdout.flush()


RUN = {"tpu": run_tpu, "gke": run_gke, "slurm": run_slurm, "local": run_local}


def planned(platform: str, words: list[str]) -> tuple[Job, Any]:
    """Return the run that the words of `bert-jax launch` ask for, checked, and the options of its platform.

    The numbers of `local` are checked too; the other platforms check theirs when they run.

    Args:
      platform: a name in PLATFORMS.
      words: CONFIG, and options of the platform and of pretrain.

    Raises:
      UserError: an unknown platform, or options that cannot work; nothing has been started.
    """
    if platform not in PLATFORMS:
        raise UserError(f"unknown platform {platform!r}; platforms: {', '.join(PLATFORMS)}")
    cls = PLATFORMS[platform]
    if asks_for_help(words):
        parse(cls, ["--help"], *described(cls))  # which exits
    path, words = positional(words, usage(cls), "CONFIG")
    default = load_config(path)
    own, others = divided(words, [field.name for field in dataclasses.fields(cls)], default)
    options = parse(cls, own, *described(cls))
    if isinstance(options, LocalConfig):
        at_least(options, hosts=1, devices_per_host=1, max_restarts=0)
    config = check(parse(default, others, *described(cls)))
    if os.environ.get("JAX_ENABLE_COMPILATION_CACHE") == "false":  # --no_compilation_cache, taken from every command
        others = [*others, "--no_compilation_cache"]
    return Job(path, tuple(others), config), options

"""Compiling a step ahead of time, in a process of its own.

libtpu reads its environment when it is loaded and keeps a lock file until the process ends, the CPU gets its virtual
devices when jax starts, and a compilation cannot be interrupted: all of that stays in the child, which ends when its
parent does. The child never starts a TPU backend, it only asks for descriptions of the chips.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax.config import Config
from bert_jax.config.json_form import to_dict
from bert_jax.errors import UserError, need_extra
from bert_jax.files import cache_directory
from bert_jax.planning.program_store import CompiledProgram, load_program
from bert_jax.planning.topology import Topology

# Without these libtpu asks the metadata server of Google Cloud where it is, and waits minutes for an answer.
WITHOUT_A_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # another process may be compiling, or training on the chips of this machine
    "TPU_STDERR_LOG_LEVEL": "2",
    "TPU_MIN_LOG_LEVEL": "2",
}
OF_THIS_MACHINE = ("TPU_", "MEGASCALE_", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "CLOUD_TPU_")


class CompilerFailure(UserError):
    """Raised when the compiler has crashed, which other options may avoid."""


def check_compiler(topology: Topology) -> None:
    """Raise a UserError if the compiler for `topology` is not installed."""
    if topology.platform == "tpu":
        need_extra("libtpu", "plan", f"planning for {topology.name}", "it needs no TPU")


def compile_phase(
    config: Config, topology: Topology, phase: int, stage: Callable[[str], None]
) -> tuple[CompiledProgram | None, dict[str, Any]]:
    """Compile the step of a phase for `topology`, or take it from those compiled before.

    Args:
      config: options of the run, resolved for the machine.
      topology: the machine.
      phase: its number.
      stage: is told what the child is doing, in a few words.

    Returns:
      The program (None for GPUs whose compiler is not installed), and what is known without it: bytes on each device.

    Raises:
      UserError: the options do not fit the machine, or the program cannot be stored.
      CompilerFailure: the compiler has crashed.
    """
    request = {"config": to_dict(config), "topology": topology.name, "phase": phase}
    facts: dict[str, Any] = {}
    with _child(request, topology) as lines:
        for line in lines:
            if "stage" in line:
                stage(line["stage"])
            else:
                facts |= line
    if "error" in facts:
        raise UserError(facts["error"])
    if "key" not in facts:
        return None, facts
    program = load_program(facts["key"])
    if program is None:
        raise UserError(
            f"the compiled program could not be written to {cache_directory()}; make room there, or set XDG_CACHE_HOME"
        )
    return program, facts


@contextlib.contextmanager
def _child(request: dict[str, Any], topology: Topology) -> Iterator[Iterator[dict[str, Any]]]:
    """Yield what a child says about `request`, line by line; it is dead when the block ends, however that ends."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        child = subprocess.Popen(
            [sys.executable, "-m", "bert_jax.planning.compiler"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
            text=True,
            env=_environment(topology),
            start_new_session=True,  # Ctrl-C reaches the parent alone, which ends the child
        )
        assert child.stdin is not None and child.stdout is not None
        try:
            with child.stdin, child.stdout:
                child.stdin.write(json.dumps(request) + "\n")
                child.stdin.flush()
                yield (json.loads(line) for line in child.stdout)
                status = child.wait()
        finally:
            child.kill()
            child.wait()
        if status < 0:
            raise CompilerFailure(_crash(topology, signal.Signals(-status)))
        if status:
            printed.seek(0)
            raise RuntimeError(f"the process that compiles has failed: {printed.read()[-2000:].strip()}")


def _crash(topology: Topology, number: signal.Signals) -> str:
    if number == signal.SIGKILL:
        return f"the compiler for {topology.name} was killed, as a machine does that runs out of memory; free some"
    return (
        f"the compiler for {topology.name} has crashed ({number.name}), which is a fault of the compiler; another "
        "--batch_size, --mesh or --compute.layers gives it another program"
    )


def _environment(topology: Topology) -> dict[str, str]:
    """Return this process's environment without what belongs to a job of several hosts, prepared for `topology`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_THIS_MACHINE)}
    flags = kept.pop("XLA_FLAGS", "").split()
    flags = [flag for flag in flags if not flag.startswith("--xla_force_host_platform_device_count")]
    if topology.platform != "tpu":
        flags.append(f"--xla_force_host_platform_device_count={topology.chips}")
    return kept | WITHOUT_A_TPU | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)}

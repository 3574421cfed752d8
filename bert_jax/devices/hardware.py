"""The hardware of this process: devices, peak rates, memory and its shortage, joining a pod.

Also here: the error message when a compiler or an allocator runs out of a device's memory.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from absl import logging

from bert_jax.devices import hosts
from bert_jax.devices.process import PROCESS_COUNTS, has_tpu_chips, on_tpu
from bert_jax.errors import UserError

# Dense bfloat16 FLOP/s of one JAX device (not with sparsity), by the start of its device_kind; first match wins. TPU:
# "peak compute per chip" in docs.cloud.google.com/tpu/docs (v2, v3, v4, v5e, v5p, v6e, tpu7x). On v2, v3 and TPU7x a
# JAX device is one of the two cores of a chip, so it has half of that figure. NVIDIA: "Tensor Core" rows of the data
# sheets, halved if they give the figure with sparsity; V100, T4: float16.
PEAK_FLOPS = (
    (r"TPU v2", 45e12 / 2),
    (r"TPU v3", 123e12 / 2),
    (r"TPU v4 lite", None),
    (r"TPU v4", 275e12),
    (r"TPU v5( lite|e)", 197e12),
    (r"TPU v5p?", 459e12),
    (r"TPU v6( lite|e)", 918e12),
    (r"TPU7x", 2307e12 / 2),
    (r"NVIDIA GB200", 2500e12),
    (r"NVIDIA B200", 2250e12),
    (r"NVIDIA (H100|H200) NVL", 835e12),
    (r"NVIDIA H100 PCIe", 756e12),
    (r"NVIDIA (H100|H200|GH200)", 989e12),
    (r"NVIDIA A100", 312e12),
    (r"NVIDIA A40", 149.7e12),
    (r"NVIDIA A10G", 70e12),
    (r"NVIDIA A10", 125e12),
    (r"NVIDIA L40S", 362e12),
    (r"NVIDIA L40", 181e12),
    (r"NVIDIA L4", 121e12),
    (r"NVIDIA GeForce RTX 4090", 165.2e12),
    (r"NVIDIA GeForce RTX 3090", 71e12),
    (r"Tesla V100", 125e12),
    (r"Tesla T4", 65e12),
)

JAX_LATER_SECONDS = 15
"""Time after which JAX, later than hosts.py, also considers a host dead, and aborts."""


@dataclasses.dataclass(frozen=True)
class Hardware:
    platform: str
    """cpu, gpu or tpu."""
    kind: str
    """Device kind as the driver names it."""
    num_devices: int
    num_local_devices: int
    num_processes: int
    peak_flops: float | None
    """Dense bfloat16 FLOP/s of one device; None if unknown, and on CPU."""
    memory_bytes: int | None
    """Memory of one device; None if the driver does not report it, and on CPU."""

    def __str__(self) -> str:
        where = f" on {self.num_processes} hosts" if self.num_processes > 1 else ""
        if self.platform == "cpu":
            return f"{self.num_devices} × {self.kind}{where}"
        peak = (
            "peak FLOP/s unknown"
            if self.peak_flops is None
            else f"peak {self.peak_flops / 1e12:.0f} TFLOP/s bfloat16 per device"
        )
        memory = "" if self.memory_bytes is None else f", {self.memory_bytes / 2**30:.1f} GiB per device"
        return f"{self.num_devices} × {self.kind} ({self.platform}){where}: {peak}{memory}"


def all_devices() -> list[Any]:
    """Return the devices of all processes; this starts JAX's backend if nothing has yet.

    Raises:
      UserError: JAX finds no device, or none of the kind that JAX_PLATFORMS names.
    """
    try:
        return jax.devices()
    except (AssertionError, RuntimeError) as error:  # the former, without a word, where it sees no NVIDIA GPU
        if isinstance(error, RuntimeError) and hosts.is_watching():
            raise  # another host may have died as all of them started
        platforms = os.environ.get("JAX_PLATFORMS")
        found = f"JAX_PLATFORMS={platforms}, but JAX finds no such device here" if platforms else "JAX finds no device"
        reason = " ".join(str(error).partition(" (set JAX_PLATFORMS")[0].split())[:300]
        raise UserError(
            f"{found}{f' ({reason})' if reason else ''}; install jax with support for it on a machine that has one, or "
            + ("unset JAX_PLATFORMS" if platforms else "set JAX_PLATFORMS=cpu")
        ) from error


def hardware(devices: Sequence[Any] | None = None) -> Hardware:
    """Describe these devices, by default those of all processes (`all_devices`)."""
    devices = all_devices() if devices is None else devices
    own = [device for device in devices if device.process_index == jax.process_index()]
    device = (own or jax.local_devices())[0]
    stats = device.memory_stats() or {}
    return Hardware(
        platform=device.platform,
        kind=device.device_kind,
        num_devices=len(devices),
        num_local_devices=len(own),
        num_processes=len({device.process_index for device in devices}),
        peak_flops=peak_flops(device.device_kind),
        memory_bytes=stats.get("bytes_limit"),
    )


def peak_flops(kind: str) -> float | None:
    """Return the dense bfloat16 FLOP/s of one JAX device of this kind, or None; then no utilization is reported."""
    return next((peak for pattern, peak in PEAK_FLOPS if re.match(pattern + r"(?![0-9A-Za-z])", kind)), None)


def idle_accelerator() -> str | None:
    """Return a sentence if this machine has an accelerator that JAX does not use, else None."""
    if jax.default_backend() != "cpu" or os.environ.get("JAX_PLATFORMS", "") == "cpu":
        return None
    for present, name, extra in ((_has_nvidia_gpu(), "an NVIDIA GPU", "cuda"), (has_tpu_chips(), "a TPU", "tpu")):
        if present:
            return (
                f"this machine has {name} but JAX runs on the CPU; install the support for it with "
                f"pip install 'bert_jax[{extra}]', or set JAX_PLATFORMS=cpu to silence this"
            )
    return None


def _has_nvidia_gpu() -> bool:
    return any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"))


def initialize_distributed(peer_timeout_seconds: int = 60) -> None:
    """Join the processes of one job before any device is used; do nothing when called again.

    On a TPU this always happens, even with one host, because the preemption notice comes through the coordination
    service. Elsewhere it only happens if a launcher says that there are several processes (JAX_COORDINATOR_ADDRESS with
    JAX_NUM_PROCESSES and JAX_PROCESS_ID, Slurm, Open MPI); a laptop or a single GPU machine is left alone.

    Raises:
      UserError: a coordinator is named but not the number of processes or which one this is, or a launcher has
        started several processes that JAX cannot join.
    """
    if jax.distributed.is_initialized():
        return
    if os.environ.get("JAX_COORDINATOR_ADDRESS"):
        missing = [name for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID") if not os.environ.get(name, "").isdigit()]
        if missing:
            raise UserError(
                f"JAX_COORDINATOR_ADDRESS={os.environ['JAX_COORDINATOR_ADDRESS']} is set, but "
                f"{' and '.join(missing)} is not a number; set all three in every process, or none to run as one"
            )
        jax.distributed.initialize(
            num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
            process_id=int(os.environ["JAX_PROCESS_ID"]),
            heartbeat_timeout_seconds=heartbeat_timeout(peer_timeout_seconds),
        )
    elif launcher := next((name for name in PROCESS_COUNTS if int(os.environ.get(name) or 1) > 1), None):
        try:
            jax.distributed.initialize(heartbeat_timeout_seconds=heartbeat_timeout(peer_timeout_seconds))
        except ValueError:  # Open MPI 5 and later, whose variables JAX does not know
            raise UserError(
                f"{launcher}={os.environ[launcher]}, but JAX cannot tell where the other processes are; set "
                "JAX_COORDINATOR_ADDRESS=HOST:PORT, JAX_NUM_PROCESSES and JAX_PROCESS_ID in every "
                "process"
            ) from None
    elif on_tpu():
        try:
            jax.distributed.initialize(heartbeat_timeout_seconds=heartbeat_timeout(peer_timeout_seconds))
        except ValueError as error:  # no cluster found: a TPU inside a notebook service, always a single host
            logging.warning("running as a single process: %s", error)


def heartbeat_timeout(peer_timeout_seconds: int) -> int:
    """Return a timeout for JAX's own heartbeats by which hosts.py finds a dead host first.

    JAX sends one every half of it, and so finds a host dead between a half and the whole of it after its last moment.
    """
    return 2 * (peer_timeout_seconds + JAX_LATER_SECONDS)


DOES_NOT_FIT = "RESOURCE_EXHAUSTED"
"""How the messages of compilers and allocators begin when memory runs out."""
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Shortage:
    """A program that does not fit."""

    needed: int
    """Bytes that the program needs, as far as the compiler reports them."""
    available: int
    """Bytes that are available."""
    what: str
    """What the needed bytes are for: HLO temporaries, or the whole program."""


def shortage_of(failure: str) -> Shortage:
    """Return what the compiler's message about a program that does not fit says."""
    match = re.search(
        r"memory required for (.*?) \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)", failure
    )
    if match:
        return Shortage(_bytes(match[2], match[3]), _bytes(match[4], match[5]), match[1])
    match = re.search(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", failure)
    if match:
        return Shortage(_bytes(match[1], match[2]), _bytes(match[3], match[4]), "the program")
    return Shortage(0, 0, failure.splitlines()[0][:200])


def tells_of_memory(error: Exception) -> bool:
    """Return whether an error says that the memory of a device has run out."""
    return re.search(f"{DOES_NOT_FIT}|Out of memory", str(error)) is not None  # the latter alone where a CPU had begun


def memory_error(error: Exception, what: str, remedies: Sequence[str]) -> Exception:
    """Return a UserError with `remedies` if `error` says that `what` does not fit into memory, else `error` itself."""
    if not tells_of_memory(error):
        return error
    shortage = shortage_of(str(error))
    missing = (
        f"{shortage.what} needs {shortage.needed / 2**30:.2f} GiB, {shortage.available / 2**30:.2f} GiB are there"
        if shortage.needed
        else shortage.what
    )
    return UserError(f"{what} does not fit into the memory of a device ({missing}); what helps: {'; '.join(remedies)}")


@contextlib.contextmanager
def memory_advice(what: str, remedies: Sequence[str]) -> Iterator[None]:
    """Raise `memory_error` in place of the error of a device whose memory runs out within."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        answer = memory_error(error, what, remedies)
        if answer is error:
            raise
        raise answer from error


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * UNITS[unit])

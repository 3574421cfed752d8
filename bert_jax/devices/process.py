"""The environment of a process that computes on the CPU: memory kept for reuse, and as many threads as it may run.

Both settings are read when a process starts, so a command restarts itself with them; importing bert_jax, or
`bert_jax.load`, changes nothing.
"""

import glob
import importlib.util
import math
import os
import pathlib
import re
import sys
from collections.abc import Mapping

QUOTA, LIMIT = (pathlib.Path("/sys/fs/cgroup") / name for name in ("cpu.max", "memory.max"))
CPUINFO = pathlib.Path("/proc/cpuinfo")
PLENTY = 20 << 30  # bytes; a bert-base with batches of 8 × 128 was seen to hold up to 12 GiB, instead of 4
TUNABLES = "GLIBC_TUNABLES"
# One heap, as only the first can grow to such sizes; nothing mapped apart; nothing given back.
KEEPING = (
    "glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=68719476736:"
    "glibc.malloc.top_pad=268435456"
)

# Launchers set these for every process of a job: Slurm's srun, Open MPI's mpirun.
PROCESS_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")


def start_anew(environment: Mapping[str, str]) -> None:
    """Replace this process by one with `computing_variables`, unless it has them; before any work, and any thread."""
    if missing := computing_variables(environment):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**environment, **missing})


def computing_variables(
    environment: Mapping[str, str], memory: int | None = None, quota: pathlib.Path = QUOTA
) -> dict[str, str]:
    """Return the variables that `environment` lacks for computing on the CPU at full speed.

    GLIBC_TUNABLES: a step allocates hundreds of MiB and frees them again, and the system clears every page of them
    again; glibc then keeps them for the next step, which may take two to three times the memory. So it is only asked to
    on machines with plenty. NPROC: XLA starts a thread for each core that the process may be placed on, also where a
    container may use the time of fewer. What the environment says already about either comes first (MALLOC_… too).

    Args:
      memory: bytes that the process may use; None: those of the machine or the container.
      quota: where Linux says how much time a container may use.
    """
    found = {}
    if not any(name == TUNABLES or name.startswith("MALLOC_") for name in environment):
        if _glibc() >= (2, 26) and (machine_memory() if memory is None else memory) >= PLENTY:
            found[TUNABLES] = KEEPING
    if "NPROC" not in environment and (limit := re.fullmatch(r"(\d+) (\d+)\s*", _content(quota))):
        found["NPROC"] = str(max(1, math.ceil(int(limit[1]) / int(limit[2]))))
    return found


def may_have_peers() -> bool:
    """Return whether this may be one of several processes, which end together only after they have met."""
    counts = any(os.environ.get(name, "1") != "1" for name in PROCESS_COUNTS)
    return bool(os.environ.get("JAX_COORDINATOR_ADDRESS")) or counts or on_tpu()


def on_tpu() -> bool:
    """Return whether JAX will use TPUs, without starting its backend (which must not happen before joining)."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    wanted = not platforms or "tpu" in platforms.split(",")
    return wanted and has_tpu_chips() and importlib.util.find_spec("libtpu") is not None


def has_tpu_chips() -> bool:
    """Return whether this machine has TPUs."""
    # v2 to v4 appear as /dev/accel0 …, later ones as numbered VFIO groups.
    return bool(glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*"))


def machine_memory() -> int:
    """Return the bytes of memory of the machine, or of the container if that may use less."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _content(LIMIT).strip()
    return min(there, int(limit)) if limit.isdigit() else there


def of_first_core(key: str) -> str:
    """Return what Linux says of the first core under `key`, such as "flags"; "" elsewhere."""
    found = re.search(rf"^{re.escape(key)}\s*: *(.*)$", _content(CPUINFO), re.MULTILINE)
    return found[1].strip() if found else ""


def multiplies_bfloat16() -> bool:
    """Return whether the processor has instructions that multiply bfloat16, which XLA then uses."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(of_first_core("flags").split())


def _content(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _glibc() -> tuple[int, ...]:
    """Return the version of glibc; (0,) where the C library is another one."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return tuple(map(int, version.split("."))) if name == "glibc" else (0,)
    except (AttributeError, ValueError, OSError):  # Windows; macOS and musl, which do not know the name
        return (0,)

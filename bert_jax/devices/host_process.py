"""Settings of the process for computing on the CPU: memory that is used again, and as many threads as it may run.

Both belong to a whole process, so the commands make them; importing bert_jax, or `bert_jax.load`, changes nothing.
"""

import ctypes
import math
import os
import pathlib

# Parameters of mallopt, from glibc's malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
KEPT_BYTES, STEP_BYTES = 2**31 - 1, 256 << 20
QUOTA = pathlib.Path("/sys/fs/cgroup/cpu.max")


def prepare_host_process() -> None:
    """Make the settings that speed up computing on the CPU; call it before JAX starts its threads, at its first use.

    Those that the environment makes already (MALLOC_…, GLIBC_TUNABLES, NPROC) are left alone, each by itself.
    """
    reuse_memory()
    if "NPROC" not in os.environ and (threads := allowed_threads(QUOTA)):
        os.environ["NPROC"] = str(threads)  # read by XLA, which otherwise counts the cores it may be placed on


def reuse_memory() -> bool:
    """Have glibc keep freed memory for the next step instead of returning it to the system; return whether it does.

    The buffers of a step are hundreds of MiB. By default each step maps them anew, and the system clears every page of
    them. For buffers to be kept there must be one heap, as the others cannot grow to that size. It costs memory: the
    largest of what the process ever needed stays, with the gaps between.
    """
    if not _glibc() or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    chosen = {ARENA_MAX: 1, MMAP_MAX: 0, TRIM_THRESHOLD: KEPT_BYTES, TOP_PAD: STEP_BYTES}
    return all(mallopt(parameter, value) == 1 for parameter, value in chosen.items())


def allowed_threads(quota: pathlib.Path) -> int | None:
    """Return how many cores' time a container may use, at least 1; None where `quota`, a cpu.max, sets no limit."""
    try:
        limit, period = quota.read_text().split()
        return None if limit == "max" else max(1, math.ceil(int(limit) / int(period)))
    except (OSError, ValueError):
        return None


def _glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):  # Windows; macOS and musl, which do not know the name
        return False

"""The environment of a process that computes on the CPU: memory in large pages, and as many threads as it may run.

Both are read when a process starts, so a command starts itself anew with them; importing bert_jax, or `bert_jax.load`,
changes nothing.
"""

import math
import os
import pathlib
import re
import sys
from collections.abc import Mapping

LARGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
QUOTA = pathlib.Path("/sys/fs/cgroup/cpu.max")
TUNABLES = "GLIBC_TUNABLES"


def start_anew(environment: Mapping[str, str]) -> None:
    """Replace this process by one with `computing_variables`, unless it has them; before any work, and any thread."""
    if missing := computing_variables(environment):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**environment, **missing})


def computing_variables(
    environment: Mapping[str, str], large_pages: pathlib.Path = LARGE_PAGES, quota: pathlib.Path = QUOTA
) -> dict[str, str]:
    """Return the variables that `environment` lacks for computing on the CPU at full speed.

    GLIBC_TUNABLES: a step allocates hundreds of MiB and frees them again, and the system clears every page of them
    anew. In pages of 2 MiB that takes a fraction of the time. NPROC: XLA starts a thread for each core that the process
    may be placed on, also where a container may use the time of fewer. What the environment says already about either
    comes first (MALLOC_… too); where the system does not offer large pages on request, nothing is changed.

    Args:
      environment: of the process.
      large_pages: where Linux says when it gives large pages.
      quota: where it says how much time a container may use.
    """
    found = {}
    if not any(name == TUNABLES or name.startswith("MALLOC_") for name in environment):
        if _glibc() >= (2, 35) and "[madvise]" in _content(large_pages):
            found[TUNABLES] = "glibc.malloc.hugetlb=1"
    if "NPROC" not in environment and (limit := re.fullmatch(r"(\d+) (\d+)\s*", _content(quota))):
        found["NPROC"] = str(max(1, math.ceil(int(limit[1]) / int(limit[2]))))
    return found


def _content(path: pathlib.Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _glibc() -> tuple[int, ...]:
    """Return the version of glibc; (0,) where the C library is another one."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return tuple(map(int, version.split("."))) if name == "glibc" else (0,)
    except (AttributeError, ValueError, OSError):  # Windows; macOS and musl, which do not know the name
        return (0,)

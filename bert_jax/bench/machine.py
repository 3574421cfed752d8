"""The machine that a benchmark ran on: its processor by name, memory, and what else ran there."""

import os
import pathlib
import platform
import re
from typing import Any

from bert_jax.data.preparation.workers import cores

# Instruction sets that decide how fast matrix products are.
FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16")


def machine() -> dict[str, Any]:
    """Return the processor, the cores that this process may use, memory in GiB, and the system."""
    return {
        "processor": processor(),
        "cores": cores(),
        "instruction_sets": [flag for flag in FLAGS if flag in _of_first_core("flags").split()],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def processor() -> str:
    """Return the processor by its name and, because clouds shorten names, by its family and model."""
    name, family, model = (_of_first_core(key) for key in ("model name", "cpu family", "model"))
    if not name:
        return platform.processor() or platform.machine()
    return f"{name} (family {family}, model {model})" if family and model else name


def load_average() -> float:
    """Return how many threads wanted to run, on average over the last minute."""
    return round(os.getloadavg()[0], 2)


def _of_first_core(key: str) -> str:
    """Return what Linux says of the first core; "" elsewhere."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(rf"^{re.escape(key)}\s*: *(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""

"""The command line in a process of its own or in this one."""

import pathlib
import subprocess
import sys

from processes import SECONDS

ROOT = pathlib.Path(__file__).parents[2]


def bert_jax(*words, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "bert_jax", *words], capture_output=True, text=True, cwd=ROOT, timeout=SECONDS, **kwargs
    )

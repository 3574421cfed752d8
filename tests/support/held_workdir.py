"""A work directory that a process of its own holds, and the files that make it a work directory."""

import pathlib

HOLD = """
import sys, time
from etils import epath
from bert_jax.ownership import Owner
held = Owner(epath.Path(sys.argv[1]))
print(flush=True)
time.sleep(3600)
"""


def contents(path) -> dict:
    """Of the files that make it a work directory; owner.json changes as it is renewed."""
    files = (file for file in pathlib.Path(path).rglob("*") if file.is_file() and "owner.json" not in file.name)
    return {file: file.read_bytes() for file in files}


def no_locks(*unused):
    """In place of fcntl.flock, on a file system without locks."""
    raise OSError("no locks here")

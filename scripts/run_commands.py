"""Runs commands of bert-jax one after the other in one process, which imports JAX once; for compare_commits.py.

    python scripts/run_commands.py COMMANDS.json

COMMANDS.json is a list of [name, words of the command, work directory or null]. Prints a JSON object per command: its
name, the seconds it took, and type, shape and hash of every array of `bert_jax.load(work directory)`. What the commands
print themselves goes to stderr.
"""

import hashlib
import json
import os
import pathlib
import sys
import time

import numpy as np


def run(words: list[str]) -> None:
    from bert_jax.cli import main  # the entry point of the command, which every commit has

    sys.argv = ["bert-jax", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def arrays(workdir: str) -> dict[str, list]:
    """Return, by path, type, shape and hash of every parameter that `load` finds."""
    import bert_jax

    def walk(tree, path=""):
        for name, value in tree.items():
            if isinstance(value, dict):
                yield from walk(value, f"{path}/{name}")
            else:
                yield f"{path}/{name}", np.asarray(value)

    found = walk(bert_jax.load(workdir).params)
    return {
        path: [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
        for path, array in found
    }


def main() -> None:
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name, words, workdir in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        begin = time.monotonic()
        run(words)
        done = {"name": name, "arrays": arrays(workdir) if workdir else {}, "seconds": time.monotonic() - begin}
        print(json.dumps(done), file=report, flush=True)


if __name__ == "__main__":
    main()

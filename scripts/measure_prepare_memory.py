"""Runs `bert-jax prepare` and reports the most memory that its processes held together, and the speed.

    python scripts/measure_prepare_memory.py --input=$WIKI --vocab=vocab.txt --output=/tmp/store [--workers=2 …]

Linux only. Two sums over the process tree, sampled twice a second: resident memory (pages shared by several
processes counted in each) and, where the kernel tells, proportional memory (counted once).
"""

import pathlib
import subprocess
import sys
import time


def main() -> int:
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "bert_jax", "prepare", *sys.argv[1:]])
    peaks = {"Rss": 0, "Pss": 0}
    while process.poll() is None:
        tree = descendants(process.pid)
        for kind in peaks:
            peaks[kind] = max(peaks[kind], sum(memory(pid, kind) for pid in tree))
        time.sleep(0.5)
    print(
        f"peak of all processes: {peaks['Rss'] / 1e6:,.0f} MB resident, {peaks['Pss'] / 1e6:,.0f} MB proportional; "
        f"{time.monotonic() - started:,.1f} s with start-up"
    )
    return process.returncode


def descendants(root: int) -> list[int]:
    parents = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass  # ended meanwhile
    tree = [root]
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid]
    return tree


def memory(pid: int, kind: str) -> int:
    """Bytes of `kind` (Rss or Pss) of one process; 0 if it has ended."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{kind}:")), 0)


if __name__ == "__main__":
    sys.exit(main())

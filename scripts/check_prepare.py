"""Prepares one corpus by several roads, killed on the way or not, and compares the SHA-256 of the stores.

    python scripts/check_prepare.py TEXT.txt.gz vocab.txt DIRECTORY local:1 local:2 beam:1 beam:2 killed:10

A road is a runner with its number of workers, or `killed:N`: the local runner, which gets SIGKILL at N points of the
output, evenly spaced, and is started again each time. DIRECTORY gets one store per road; those that are already there
are only hashed. The hash is that of the names and SHA-256 of all files of a store, `manifest.json` among them.
"""

import hashlib
import json
import pathlib
import resource
import signal
import subprocess
import sys
import time

DEADLINE = 3600


def digest(store: pathlib.Path) -> str:
    """Return one SHA-256 over the names and contents of all files of a store."""
    lines = []
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.relative_to(store)}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def written(store: pathlib.Path) -> int:
    """Return the bytes of ids that a store has so far."""
    return sum(path.stat().st_size for path in store.glob("shard-*.tokens"))


def kill_at(process: subprocess.Popen[bytes], store: pathlib.Path, size: int) -> None:
    """Send SIGKILL to a preparation once its store has `size` bytes of ids.

    Raises:
      RuntimeError: it ended before that, or not within the deadline.
    """
    deadline = time.monotonic() + DEADLINE
    while written(store) < size:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the preparation ended with {process.returncode} before it was killed")
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if (store / "manifest.json").exists():
        raise RuntimeError("the store was finished before its preparation was killed")


def prepare(command: list[str], store: pathlib.Path, road: str, whole: int) -> None:
    """Make the store by a road; `whole`: bytes of ids of the finished store."""
    kind, _, number = road.partition(":")
    if kind != "killed":
        subprocess.run([*command, f"--runner={kind}", f"--workers={number}"], check=True, stdout=subprocess.DEVNULL)
        return
    for point in range(1, int(number) + 1):
        kill_at(subprocess.Popen(command, stdout=subprocess.DEVNULL), store, whole * point // (int(number) + 1))
        progress = json.loads((store / "progress.json").read_text())
        print(f"  killed at {written(store):,} bytes of ids; the record has {progress['position']['offset']:,} of text")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main(text: str, vocab: str, directory: str, roads: list[str]) -> int:
    digests, whole = {}, 0
    for road in roads:
        store = pathlib.Path(directory) / road.replace(":", "_")
        command = [sys.executable, "-m", "bert_jax", "prepare", f"--input={text}", f"--vocab={vocab}"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        if not (store / "manifest.json").exists():
            prepare([*command, f"--output={store}"], store, road, whole)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        whole = written(store)
        digests[road] = digest(store)
        spent = "" if road.startswith("killed") else f", {seconds:,.0f} s of processor time"  # that of the dead is lost
        print(f"{road}: {digests[road]}{spent}", flush=True)
    same = len(set(digests.values())) == 1
    print("one SHA-256" if same else "THE STORES DIFFER")
    return int(not same)


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:4], sys.argv[4:]))

"""Prepares one corpus in several ways, killed in between or not, and compares the SHA-256 of the stores.

    python scripts/check_prepare.py TEXT.txt.gz vocab.txt DIRECTORY \\
        local:1 local:2 killed:10 beam:2 beam-killed:5 --clean.unicode=repair --clean.deduplicate=near

A way is a runner with its number of workers; or `killed:N`, the local runner, or `beam-killed:N`, which get SIGKILL at
N points of what they write, evenly spaced, and are started again each time. Options that begin with -- are those of
`bert-jax prepare`, and apply to all. DIRECTORY, which is empty, gets one store per way. The hash is that of the names
and SHA-256 of all files of a store, `manifest.json` among them.
"""

import hashlib
import pathlib
import resource
import signal
import subprocess
import sys
import time

DEADLINE = 3600

FILES = {
    "local": ("duplicates/*", "shard-*.tokens"),
    "beam": ("beam/records/*/*.npz", "beam/blocks/*/*.npz"),
}
"""What each runner writes, in this order: records in which duplicates are searched, then ids."""


def digest(store: pathlib.Path) -> str:
    """Return one SHA-256 over the names and contents of all files of a store."""
    lines = []
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.relative_to(store)}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def written(store: pathlib.Path, kind: str) -> int:
    """Return the bytes that a store has so far in its files of one kind."""
    try:
        return sum(path.stat().st_size for path in store.glob(kind))
    except FileNotFoundError:  # removed meanwhile
        return 0


def prepare(command: list[str], store: pathlib.Path, kinds: tuple[str, ...]) -> dict[str, int]:
    """Make a store and return the most bytes that it had of each kind on the way."""
    most = dict.fromkeys(kinds, 0)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = {kind: max(size, written(store, kind)) for kind, size in most.items()}
            time.sleep(0.02)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return most


def kill_at(process: subprocess.Popen[bytes], store: pathlib.Path, kind: str, size: int) -> None:
    """Send SIGKILL to a preparation once its store has `size` bytes in files of a kind.

    Raises:
      RuntimeError: it ended before that, or not within the deadline.
    """
    deadline = time.monotonic() + DEADLINE
    while written(store, kind) < size:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the preparation ended with {process.returncode} before it was killed")
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if (store / "manifest.json").exists():
        raise RuntimeError("the store was finished before its preparation was killed")
    print(f"  killed with {size:,} bytes in {kind}")


def points(most: dict[str, int], number: int) -> list[tuple[str, int]]:
    """Return so many points, evenly spaced, as kinds of files and their bytes; files of one kind follow the other."""
    found = []
    for point in range(1, number + 1):
        place = sum(most.values()) * point // (number + 1)
        for kind, size in most.items():
            if place < size:
                found.append((kind, max(place, 1)))
                break
            place -= size
    return found


def seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(text: str, vocab: str, directory: str, *words: str) -> int:
    options = [word for word in words if word.startswith("--")]
    digests, most = {}, {}
    for way in (word for word in words if word not in options):
        kind, _, number = way.partition(":")
        runner = kind.removesuffix("killed").removesuffix("-") or "local"
        store = pathlib.Path(directory) / way.replace(":", "_")
        command = [sys.executable, "-m", "bert_jax", "prepare", f"--input={text}", f"--vocab={vocab}", *options]
        command += [f"--output={store}", f"--runner={runner}"]
        before, killed = seconds_of_children(), kind != runner
        if killed and runner not in most:
            sys.exit(f"{way} must come after a run of {runner} that makes the same store without being killed")
        for files, size in points(most[runner], int(number)) if killed else ():
            kill_at(subprocess.Popen(command, stdout=subprocess.DEVNULL), store, files, size)
        sizes = prepare(command if killed else [*command, f"--workers={number}"], store, FILES[runner])
        most.setdefault(runner, sizes)
        digests[way] = digest(store)
        spent = "" if killed else f", {seconds_of_children() - before:,.0f} s of processor time"  # the dead's is lost
        print(f"{way}: {digests[way]}{spent}", flush=True)
    same = len(set(digests.values())) == 1
    print("one SHA-256" if same else "THE STORES DIFFER")
    return int(not same)


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))

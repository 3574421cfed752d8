"""How long the hosts of a run take to save and leave on SIGTERM, wherever in its work the signal finds them.

    python scripts/measure_leaving.py CONFIG --after=2,5,10,20,30 [OPTIONS of bert-jax pretrain]

The run is started once for each of these numbers of seconds, and resumes what the one before has saved. With
--simulate_hosts=N it is several processes, all of which get the signal. The table has the last line of each.
"""

import signal
import subprocess
import sys
import tempfile
import time


def leave(command: list[str], seconds: float) -> tuple[float, int, list[str]]:
    """Send SIGTERM to a run after so many seconds; return how long it then ran, its exit code and its last lines."""
    with tempfile.TemporaryFile("w+") as said, subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT) as run:
        time.sleep(seconds)
        before = _lines(said)
        if run.poll() is not None:
            sys.exit(f"the run ended with {run.returncode} before the signal: {before[-1]}")
        sent = time.monotonic()
        run.send_signal(signal.SIGTERM)
        code = run.wait()
        return time.monotonic() - sent, code, [before[-1], _lines(said)[-1]]


def _lines(file) -> list[str]:
    file.seek(0)
    return ["nothing", *(line for line in file.read().split("\n") if line.strip())]


def main() -> None:
    after = [word.partition("=")[2] for word in sys.argv[1:] if word.startswith("--after=")]
    options = [word for word in sys.argv[1:] if not word.startswith("--after=")]
    if not after or not options:
        sys.exit(__doc__)
    print("| signal after, s | left within, s | exit code | last line before it | last line |\n|---|---|---|---|---|")
    for seconds in after[0].split(","):
        left, code, (before, last) = leave([sys.executable, "-m", "bert_jax", "pretrain", *options], float(seconds))
        print(f"| {seconds} | {left:.1f} | {code} | {before:.60} | {last:.60} |", flush=True)


if __name__ == "__main__":
    main()

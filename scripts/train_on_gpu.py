#!/usr/bin/env python3
"""Pre-train the best small encoder that one GPU makes of a token store in a few minutes, and export it.

    python scripts/train_on_gpu.py STORE HELD_OUT WORK OUTPUT [--seconds=240] [--steps=3000] [OPTIONS OF pretrain]

STORE and HELD_OUT are token stores of `bert-jax prepare` with one vocabulary, of about 12,000 words. WORK is a new
directory for the run and the model. OUTPUT gets what is worth carrying away: log.tar.gz (metrics.jsonl with the
held-out loss, events.jsonl with the times, what the commands printed), and the model for transformers, in bfloat16, in
parts of less than 16 MiB that `cat OUTPUT/model.tar.gz.* | tar xz` joins.

The rate falls in a straight line to 0 at the last step, so a run should end neither before its time nor after it. It
begins with --steps. Once its steps per second are known and these steps do not fit into --seconds, which count from the
start of this script, it is stopped, and the same command continues it with a number that does.
"""

import argparse
import io
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import time

import ml_dtypes
from safetensors.numpy import load_file, save_file

from bert_jax.training.metrics import read_rows

START = time.monotonic()
RECIPE = (
    *("--model.num_layers=8", "--model.hidden_size=512", "--model.num_heads=8", "--model.intermediate_size=1024"),
    *("--model.local_window=None", "--model.scaled_outputs=True", "--model.max_position_embeddings=512"),
    *("--sequence_length=128", "--batch_size=512", "--masking.rate=0.25"),
    *("--optimizer.name=muon", "--learning_rate=3e-3", "--optimizer.weight_decay=0.1", "--optimizer.clip_norm=1"),
    *("--schedule.name=linear_after_warmup", "--schedule.cooldown_steps=0", "--schedule.cooldown=linear"),
    *("--warmup_steps=100",),
    *("--evaluation.batch_size=256", "--checkpoint.keep_last=1", "--checkpoint.keep_best=0"),
)
"""Added to `modernbert_mini`: 27.5 million parameters with 12,288 words, all layers global, packed rows of 128."""
LOGGED, EVALUATIONS = 20, 12  # steps between two rows of metrics; held-out figures in a run
SETTLED = 3  # rows until the steps per second are known
NEAR = (0.95, 1.2)  # possible steps, as a share of the planned ones, that are not worth a new start
EXPORTING, ENDING = 20, 8  # seconds kept for the export, and for the last evaluation and save of a run
PART = 15 << 20


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "bert_jax", *map(str, words)]


def train(options: list[str], work: pathlib.Path, log: io.TextIOBase, steps: int, end: float) -> None:
    """Train until `end`, in seconds since the start of this script, however many steps that makes."""
    process, began, settled = begin(options, work, log, steps), time.monotonic(), False
    while process.poll() is None:
        time.sleep(0.2)
        left = START + end - time.monotonic()
        rows = [row for row in read_rows(work / "metrics.jsonl") if row["kind"] == "train"]
        if left < ENDING / 2:
            stop(process)
        elif not settled and len(rows) >= SETTLED:
            taken, rate = int(rows[-1]["step"]), rows[-1]["steps_per_second"]
            fitting = steps_that_fit(steps, taken, rate, left, time.monotonic() - began - taken / rate)
            say(log, f"{rate:.2f} steps per second: {fitting:,} steps, and {steps:,} were planned")
            settled = True
            if fitting != steps:
                stop(process)
                process = begin(options, work, log, fitting)
    if process.returncode not in (0, 128 + signal.SIGTERM):
        raise SystemExit(f"bert-jax pretrain ended with {process.returncode}; {log.name} says why")


def steps_that_fit(steps: int, taken: int, rate: float, left: float, starting: float) -> int:
    """Return `steps`, if they end well, or as many as a new start leaves time for.

    Args:
      steps: those of the run.
      taken: its steps so far.
      rate: steps per second.
      left: seconds.
      starting: seconds until the first step of a new start.
    """
    possible = taken + rate * (left - ENDING)
    if NEAR[0] <= possible / steps <= NEAR[1]:
        return steps
    return taken + max(int(0.97 * rate * (left - ENDING - starting)), 1)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a run, which saves its state."""
    process.send_signal(signal.SIGTERM)
    process.wait()


def begin(options: list[str], work: pathlib.Path, log: io.TextIOBase, steps: int) -> subprocess.Popen[bytes]:
    say(log, f"training to step {steps:,}")
    often = (f"--log_every_steps={LOGGED}", f"--evaluation.every_steps={max(steps // EVALUATIONS, 1)}")
    words = command("pretrain", "modernbert_mini", *options, *often, f"--steps={steps}", f"--workdir={work}")
    return subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)


def say(log: io.TextIOBase, text: str) -> None:
    print(f"[{time.monotonic() - START:.0f} s] {text}", flush=True)
    print(f"[{time.monotonic() - START:.0f} s] {text}", file=log, flush=True)


def halve(directory: pathlib.Path) -> None:
    """Write the arrays of a directory of Hugging Face in bfloat16, in half of the bytes."""
    file, config = directory / "model.safetensors", directory / "config.json"
    arrays = {name: array.astype(ml_dtypes.bfloat16) for name, array in load_file(file).items()}
    save_file(arrays, file, metadata={"format": "pt"})
    config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "bfloat16"}, indent=2) + "\n")
    card = directory / "README.md"
    card.write_text(card.read_text().replace("parameters in float32", "parameters in bfloat16"))


def pack(paths: list[pathlib.Path]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=3) as archive:
        for path in paths:
            archive.add(path, path.name)
    return packed.getvalue()


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    for name in ("store", "held_out", "work", "output"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--steps", type=int, default=3_000)
    asked, options = parser.parse_known_args()
    for directory in (asked.work, asked.output):
        directory.mkdir(parents=True, exist_ok=True)
    work, model = asked.work / "run", asked.work / "encoder"
    data = [f"--data.path={asked.store}", f"--data.eval_path={asked.held_out}", "--data.held_out=0"]
    with open(asked.work / "log.txt", "a", encoding="utf-8") as log:
        train([*RECIPE, *data, *options], work, log, asked.steps, asked.seconds - EXPORTING)
        say(log, "exporting")
        words = command("convert", work, model, "--to=huggingface")
        subprocess.run(
            words, check=True, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "JAX_PLATFORMS": "cpu"}
        )
        halve(model)
        whole = pack([model])
        for number in range(math.ceil(len(whole) / PART)):
            part = whole[number * PART : (number + 1) * PART]
            (asked.output / f"model.tar.gz.{number}").write_bytes(part)
        say(log, f"{len(whole):,} bytes of model")
    names = ("metrics.jsonl", "events.jsonl", "config.json", "run.json", "curves.png")
    logs = [asked.work / "log.txt", *(work / name for name in names if (work / name).exists())]
    (asked.output / "log.tar.gz").write_bytes(pack(logs))


if __name__ == "__main__":
    main()

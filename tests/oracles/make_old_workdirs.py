"""Writes old_workdirs.tar.gz: work directories of an earlier version, which test_old_workdirs.py opens with this one.

    python tests/oracles/make_old_workdirs.py CHECKOUT

CHECKOUT is a checkout of the earlier version (the archive here is of commit 3256ffa), whose command line makes
everything in a temporary directory, on one CPU device:

store/, texts/   a token store, and texts with labels
pretraining/     a run of six steps that has kept the states of steps 4 and 6
finetuned/       a finished command of fine-tuning
finetuning/      the same command, stopped by a signal in its second epoch

Paths are relative to that directory. Host names, the path of the program and what only people look at are taken out,
and the script refuses to write an archive in which it still finds the name of this machine or of the directory.
"""

import gzip
import io
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import small_corpus

ARCHIVE = pathlib.Path(__file__).with_name("old_workdirs.tar.gz")
CONFIG = {
    "model": {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "max_position_embeddings": 32},
    "data": {"path": "store", "held_out": 0.1, "loader": "plain"},
    "workdir": "pretraining",
    "log_every_steps": 1,
    "phases": [{"steps": 6, "sequence_length": 32, "batch_size": 8, "learning_rate": 1e-3, "warmup_steps": 2}],
    "evaluation": {"every_steps": 3, "sequences": 16, "batch_size": 16},
    "checkpoint": {"every_steps": 4, "keep_last": 2, "keep_best": 0},
}
FINETUNE = ("finetune", "text", "--init_from=pretraining", "--data.dir=texts", "--options.max_length=16") + tuple(
    f"--{option}" for option in ("batch_size=8", "epochs=20", "learning_rate=3e-3", "log_every_steps=1")
)
STOP_AFTER = 8  # of the 5 steps of each of 20 epochs


def main(checkout: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        command = [sys.executable, "-m", "bert_jax"]
        environment = {**os.environ, "PYTHONPATH": os.path.abspath(checkout), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}

        def run(*words: str) -> None:
            subprocess.run([*command, *words], cwd=place, env=environment, check=True)

        small_corpus.write(place / "corpus.txt", 40)
        (place / "texts").mkdir()
        (place / "texts/train.tsv").write_text(labelled(range(40)))
        (place / "texts/dev.tsv").write_text(labelled(range(100, 116)))
        (place / "config.json").write_text(json.dumps(CONFIG))
        run("train-vocab", "--input=corpus.txt", "--output=vocab.txt", "--size=120")
        run("prepare", "--input=corpus.txt", "--vocab=vocab.txt", "--output=store", "--sentences=lines", "--workers=1")
        run("pretrain", "config.json")
        run(*FINETUNE, "--workdir=finetuned")
        process = subprocess.Popen([*command, *FINETUNE, "--workdir=finetuning"], cwd=place, env=environment)
        while (
            sum(len(log.read_text().splitlines()) for log in place.glob("finetuning/runs/*/metrics.jsonl")) < STOP_AFTER
        ):
            assert process.poll() is None, "it ended by itself"
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143

        for file in ("corpus.txt", "config.json", "vocab.txt"):
            (place / file).unlink()
        for directory in ("pretraining", "finetuned", "finetuning"):
            scrub(place / directory)
        check_scrubbed(place, checkout)
        write(place)


def labelled(numbers) -> str:
    """Return a table of sentences whose label is what they are about."""
    rows = ["text\tlabel"]
    for number in numbers:
        topic, (nouns, verbs) = list(small_corpus.TOPICS.items())[number % 2]
        place = small_corpus.PLACES[number // 2 % 5]
        rows.append(f"The {nouns[number // 10 % 5]} {verbs[number // 3 % 5]} {place}.\t{topic}")
    return "\n".join(rows) + "\n"


def scrub(workdir: pathlib.Path) -> None:
    for name in ("tensorboard", "curves.png", "owner.json"):
        for found in workdir.rglob(name):
            shutil.rmtree(found) if found.is_dir() else found.unlink()
    for file in workdir.rglob("commit_success.txt"):
        file.write_text("committed")  # for the path in it
    values = json.loads((workdir / "run.json").read_text())
    for start in values["starts"]:
        start |= {"host": "host", "command": f"bert-jax --workdir={workdir.name}"}
    (workdir / "run.json").write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def check_scrubbed(place: pathlib.Path, checkout: str) -> None:
    names = (
        json.dumps(socket.gethostname()),
        str(place),
        os.path.abspath(checkout),
        sys.prefix,
        str(pathlib.Path.home()) + "/",
    )
    for file in (file for file in place.rglob("*") if file.is_file()):
        for name in names:
            if name.encode() in file.read_bytes() or name in file.name:
                raise SystemExit(f"{file.relative_to(place)} has {name} in it")


def write(place: pathlib.Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for file in sorted(place.rglob("*")):
            member = archive.gettarinfo(file, str(file.relative_to(place)))
            member.uid = member.gid = member.mtime = 0
            member.uname = member.gname = ""
            with open(file, "rb") if file.is_file() else io.BytesIO() as content:
                archive.addfile(member, content if file.is_file() else None)
    ARCHIVE.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1])

"""Writes runs_VERSION.tar.xz: runs that this version began and did not end, which later versions have to resume.

    python tests/oracles/make_runs_to_resume.py          # at the tag of a release; the JAX that it uses is in run.json

It holds, with paths as seen from one directory and text of our own:

    corpus.txt, vocab.txt, store/, data/
    pretraining/      two phases, killed in the second, with a save in each
    finetuning/       a seed that is finished, and another that was killed in its second epoch
    later.json        what both models answered, and the losses and scores that the same commands went on to
"""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import documents
import small_finetuning
from dying import dying

from bert_jax import __version__, load
from bert_jax.training.metrics import read_rows

PATH = pathlib.Path(__file__).with_name(f"runs_{__version__}.tar.xz")
PRETRAIN = (
    "pretrain bert_base --data.path=store --data.held_out=0.1 --workdir=pretraining --model.hidden_size=8 "
    "--model.num_layers=2 --model.num_heads=2 --model.intermediate_size=16 --model.max_position_embeddings=32 "
    "--phases.0.steps=4 --phases.0.sequence_length=16 --phases.0.batch_size=8 --phases.0.max_predictions=3 "
    "--phases.1.steps=6 --phases.1.sequence_length=32 --phases.1.batch_size=8 --phases.1.max_predictions=5 "
    "--phases.0.learning_rate=1e-2 --phases.1.learning_rate=1e-2 --phases.0.warmup_steps=2 --evaluation.every_steps=5 "
    "--evaluation.sequences=16 --evaluation.batch_size=16 --checkpoint.every_steps=1 --checkpoint.keep_last=1 "
    "--checkpoint.keep_best=0 --log_every_steps=1 --compute.dtype=float32 --compute.layers=scan"
)
FINETUNE = (
    "finetune text --init_from=pretraining --data.dir=data --workdir=finetuning --learning_rate=1e-2 --epochs=2 "
    "--batch_size=8 --options.max_length=16 --compute.dtype=float32 --compute.layers=scan --log_every_steps=1 "
    "--save_every_steps=1"
)
TEXTS = ["The gull sails before noon.", "A rose."]
LEFT_OUT = ("tensorboard", "curves.png", "owner.json", "checkpoint-tmp")  # for people, of the process, and half saved


def command(line: str, home: pathlib.Path, dies_after: int = 0) -> None:
    """Run `bert-jax LINE` in `home`; it must end well, or with `dies_after` be killed after that step."""
    code = subprocess.run(dying(dies_after, *line.split()), cwd=home).returncode
    assert code == (-signal.SIGKILL if dies_after else 0), code


def begin(home: pathlib.Path) -> None:
    """Make the data, and begin both runs."""
    documents.write(home / "corpus.txt", 40)
    (home / "data").mkdir()
    for name, count in {"train": 64, "dev": 16}.items():
        (home / "data" / f"{name}.tsv").write_text(small_finetuning.sentences(count, seed=len(name)))
    command("train-vocab --input=corpus.txt --output=vocab.txt --size=100", home)
    command("prepare --input=corpus.txt --vocab=vocab.txt --output=store --sentences=lines --workers=1", home)
    command(PRETRAIN, home, dies_after=8)
    command(f"{FINETUNE} --seeds=1", home)
    command(f"{FINETUNE} --seeds=2", home, dies_after=13)


def later(home: pathlib.Path) -> dict[str, object]:
    """Run both to their ends, the task first, since it starts from the other; return what the test compares."""
    models = {name: load(home / name) for name in ("pretraining", "finetuning")}
    vectors = {name: {text: model.embed(text)[0].tolist() for text in TEXTS} for name, model in models.items()}
    command(f"{FINETUNE} --seeds=2", home)
    command(PRETRAIN, home)
    runs = json.loads((home / "finetuning" / "results.json").read_text())["runs"]
    return {
        "vectors": vectors,
        "pretraining": losses(home / "pretraining"),
        "finetuning": {run["run"]: losses(home / "finetuning" / "runs" / run["run"]) for run in runs},
        "metrics": {run["run"]: run["metrics"] for run in runs},
    }


def losses(workdir: pathlib.Path) -> list[dict[str, float]]:
    """Everything that is called a loss in the metrics of a run, in turn."""
    return [
        {name: value for name, value in row.items() if name in ("step", "kind") or name.endswith("loss")}
        for row in read_rows(workdir / "metrics.jsonl")
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        home, ended = pathlib.Path(place, "begun"), pathlib.Path(place, "ended")
        home.mkdir()
        begin(home)
        shutil.copytree(home, ended)
        (home / "later.json").write_text(json.dumps(later(ended)))
        with tarfile.open(PATH, "w:xz") as archive:
            archive.add(home, ".", filter=lambda entry: None if entry.name.endswith(LEFT_OUT) else entry)
    print(PATH, PATH.stat().st_size)


if __name__ == "__main__":
    main()

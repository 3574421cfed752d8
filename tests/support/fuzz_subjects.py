"""Directories to be damaged, written by the program's own writers, and everything that reads each of them.

A reader returns what must not change: whatever answers or training depend on and the file has a checksum for. Without
one (config.json of Hugging Face, vocab.txt, the arrays of safetensors and torch, run.json, metrics, results) another
valid content is another model or another report, and the reader returns what independent code reads there.
"""

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import io
import json
import pathlib
import shutil
import unittest.mock

import jax
import numpy as np
import safetensors.numpy
import synthetic_store
import torch_form
import workdirs
from etils import epath

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.checkpoints.workdir import WorkDirectory, id_below, open_workdir, write_json
from bert_jax.cli.evaluate import default_config
from bert_jax.config import Config, DataConfig, HeadConfig, MeshConfig, ModelConfig, PhaseConfig
from bert_jax.config.commands import ResultsConfig
from bert_jax.config.finetuning import RESULTS, task_defaults
from bert_jax.config.options import to_dict
from bert_jax.console import load_config
from bert_jax.data.store import open_store
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.finetuning import run as finetune_workdir
from bert_jax.finetuning.loop import FINETUNING
from bert_jax.finetuning.results import best, earlier_predictions, finished_runs, run_results, show, summary
from bert_jax.formats.conversion import convert
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.task import BertForTask
from bert_jax.objectives.masked_words import MASKED_WORDS, NEXT_SENTENCE
from bert_jax.ownership import Owner
from bert_jax.pretrained.model import load
from bert_jax.tasks.task_data import recorded_config, recorded_options, recorded_task
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tokenization.wordpiece import WordPiece
from bert_jax.training.metrics import JsonLines, draw_curves, read_rows
from bert_jax.training.optimizers import optimizer
from bert_jax.training.state import abstract_state
from bert_jax.training_data import Examples

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog bird sat ran flew on in mat tree house . , ##s ##t big old new"
).split()
"""25 entries, for no table is padded to as many rows: one with a line less is refused."""
TOKENIZER = Tokenizer(WordPiece(WORDS, lowercase=True))
SIZES = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "intermediate_size": 12, "max_position_embeddings": 16}
CONFIG = Config(
    model=ModelConfig(vocab_size=len(WORDS), **SIZES, activation="gelu_tanh"),
    phases=(PhaseConfig(steps=4, sequence_length=16, batch_size=4),),
    data=DataConfig(path="store", held_out=0.1),
)
HEAD = HeadConfig(labels=("no", "yes"))
TASK = dataclasses.replace(task_defaults("sst2"), init_from="pretrained", workdir="finetuned")


def drawn(shapes, seed: int):
    """Random arrays in the place of ShapeDtypeStructs."""
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: (100 * random.standard_normal(leaf.shape)).astype(leaf.dtype), shapes)


@functools.cache
def one_device() -> jax.sharding.Mesh:
    return sharding.make_mesh(MeshConfig(), jax.local_devices()[:1])


@functools.cache
def abstract():
    model = BertForPreTraining(CONFIG.model)
    return abstract_state(model, optimizer(CONFIG.optimizer, model.parameters), one_device())


def bits(tree) -> str:
    digest = hashlib.sha256()
    for path, leaf in sorted(leaf_paths(tree).items()):
        digest.update(f"{path} {leaf.dtype} {leaf.shape}".encode() + np.asarray(leaf).tobytes())
    return digest.hexdigest()


def write_pretraining(directory: pathlib.Path) -> None:
    """Steps 2 and 4 of a run that has drawn its state instead of learning it."""
    with workdirs.opened(directory, TOKENIZER, CONFIG) as workdir:
        with Checkpoints(workdir.checkpoints, CONFIG.checkpoint, run_id=workdir.run_id) as checkpoints:
            for step in (2, 4):
                checkpoints.save(
                    step,
                    drawn(abstract(), step),
                    position={"phase": 0, "examples_seen": 4 * step},
                    config=to_dict(CONFIG),
                    metrics={"mlm_loss": 4.0 - step},
                )
        log = JsonLines(workdir.path / "metrics.jsonl", 0)
        for step in range(1, 5):
            log.write(step, "train", {"mlm_loss": 5 / step, "learning_rate": 1e-4, "grad_norm": float("nan")})
        log.write(4, "evaluation", {"mlm_loss": 1.2, "perplexity": 3.3})
        log.close()


def resume(directory: pathlib.Path, damaged: str):
    with workdirs.opened(directory, TOKENIZER, CONFIG) as workdir:
        with Checkpoints(workdir.checkpoints, CONFIG.checkpoint, run_id=workdir.run_id) as checkpoints:
            restored = checkpoints.restore(abstract())
    return None if restored is None else (restored.step, restored.position, bits(restored.state))


def load_model(directory: pathlib.Path, damaged: str):
    model = _with_tokenizer(directory)
    return bits(model.params), to_dict(model.config), model.tokenizer.fingerprint, model.history["step"]


def _with_tokenizer(directory: pathlib.Path):
    """The model; without a vocabulary it can be looked into, but whoever gives it text is refused."""
    model = load(directory)
    if model.tokenizer is None:
        model.encode("the cat")
    return model


def settings(directory: pathlib.Path, damaged: str):
    """What is changed in config.json is for `resume` to refuse."""
    load_config(str(directory / "config.json"))
    default_config(str(directory))


def log(directory: pathlib.Path, damaged: str):
    """Lines that are whole stay as they are and keep their order."""
    if damaged != "metrics.jsonl":
        return
    file, rows = directory / "metrics.jsonl", read_rows(directory / "metrics.jsonl")
    whole = written_rows(directory)
    assert [text for row in rows if (text := json.dumps(row)) in whole] == whole
    assert all(type(row["kind"]) is str and type(row["step"]) is int for row in rows)
    assert all(type(value) is float for row in rows for name, value in row.items() if name not in ("kind", "step"))
    draw_curves(file, directory / "curves.png", (MASKED_WORDS, NEXT_SENTENCE))
    JsonLines(epath.Path(file), 3).close()
    assert [row["step"] for row in read_rows(file) if json.dumps(row) in whole] == [
        json.loads(row)["step"] for row in whole if json.loads(row)["step"] <= 3
    ]


def written_rows(directory: pathlib.Path) -> list[str]:
    """Those of the rows that `write_pretraining` wrote whose lines are as they were, as JSON."""
    lines = (directory / "metrics.jsonl").read_bytes().split(b"\n") if (directory / "metrics.jsonl").exists() else []
    rows = []
    for step in range(1, 5):
        row = {"kind": "train", "step": step, "mlm_loss": 5 / step, "learning_rate": 1e-4, "grad_norm": "nan"}
        if json.dumps(row).encode() in lines:
            rows.append(json.dumps(row | {"grad_norm": float("nan")}))
    return rows


def owner(directory: pathlib.Path, damaged: str):
    """While another process holds the directory, and on a file system without locks."""
    if damaged != "owner.json":
        return
    with contextlib.suppress(OSError), open(directory / "owner.json") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            Owner(epath.Path(directory)).release()
        except UserError as error:
            assert "is being written by" in str(error)
        else:
            raise AssertionError("two owners")
    with unittest.mock.patch("fcntl.flock", side_effect=OSError("no locks")):
        Owner(epath.Path(directory)).release()


FINETUNED = {"model": to_dict(CONFIG.model), "head": to_dict(HEAD), "finetune": to_dict(TASK), "pairs": False}


def _opened_finetuning(directory: pathlib.Path) -> WorkDirectory:
    identity = {
        "features_fingerprint": "features-1",
        "init_from_fingerprint": "parameters-1",
        "tokenizer_fingerprint": TOKENIZER.fingerprint,
        "teacher": None,
    }
    return open_workdir(directory, FINETUNING, identity, FINETUNED, TOKENIZER)


def write_finetuned(directory: pathlib.Path) -> None:
    """Two finished runs, the second one chosen."""
    config = FINETUNED
    params = jax.eval_shape(BertForTask(CONFIG.model, HEAD).init, jax.random.key(0))
    with _opened_finetuning(directory) as workdir:
        for seed in (0, 1):
            run = workdir.path / "runs" / f"batch32_seed{seed}"
            run_id = id_below(workdir.run_id, run.name)
            with Checkpoints(run / "checkpoints", finetune_workdir.LATEST, run_id=run_id) as checkpoints:
                checkpoints.save(
                    6,
                    {"params": drawn(params, seed)},
                    position={"step": 6},
                    config=config | {"run": run.name},
                    metrics={"accuracy": 0.5 + seed / 4},
                )
            write_json(
                run / RESULTS,
                {
                    "run": run.name,
                    "setting": "batch32",
                    "seed": seed,
                    "metrics": {"accuracy": 0.5 + seed / 4},
                    "collapsed": None,
                    "step": 6,
                    "steps": 6,
                    "training_loss": 0.4,
                    "init_from_step": 4,
                    "epochs": [{"epoch": 1, "accuracy": 0.5}],
                    "keep": "best",
                    "hyperparameters": {"batch_size": 32, "learning_rate": 5e-5},
                    "seconds_since_last_start": 2.5,
                },
            )
        records = finished_runs(workdir.path / "runs", "accuracy")
        finetune_workdir.publish(workdir, records[1], one_device())
        write_json(
            directory / RESULTS,
            summary(
                TASK,
                records,
                "accuracy",
                {"tests": {}, "predictions": {"test_fingerprint": "test-1", "files": []}, "labels": list(HEAD.labels)},
            ),
        )


def finish(directory: pathlib.Path, damaged: str):
    """What `bert-jax finetune` does once every run is finished."""
    with _opened_finetuning(directory) as workdir:
        records = finished_runs(workdir.path / "runs", "accuracy")
        if len(records) < 2 and damaged.startswith("runs/"):
            return bits(load(directory).params)  # the run is trained again
        chosen = best(records, "accuracy")
        params = finetune_workdir.publish(workdir, chosen, one_device())
        with contextlib.redirect_stdout(io.StringIO()):
            show(summary(TASK, records, "accuracy", {"tests": {}, "predictions": {}}))
        for record in records:
            finetune_workdir.keep(workdir, "best", record, chosen, TOKENIZER)
        earlier_predictions(workdir.path / RESULTS)
    return bits(params)


def load_finetuned(directory: pathlib.Path, damaged: str):
    model = _with_tokenizer(directory)
    task = recorded_task(model.history)
    return (
        bits(model.params),
        to_dict(model.config),
        to_dict(model.head),
        model.tokenizer.fingerprint,
        task,
        to_dict(recorded_config(model.history, task)),
        to_dict(recorded_options(model.history, task, 16)),
    )


def table(directory: pathlib.Path, damaged: str):
    with contextlib.redirect_stdout(io.StringIO()):
        run_results([str(directory)], ResultsConfig())


def write_store(directory: pathlib.Path) -> None:
    synthetic_store.write_store(synthetic_store.SyntheticStore(synthetic_store.random_documents(12)), directory, 7)


def batches(directory: pathlib.Path, damaged: str):
    store = open_store(directory)
    examples = Examples(store, dataclasses.replace(CONFIG, data=DataConfig(path=str(directory), held_out=0.0)))
    return examples.num_examples(0), bits(examples.batch(np.arange(64))), store.fingerprint


def write_huggingface(directory: pathlib.Path) -> None:
    _convert(directory, "huggingface")


def write_tf1(directory: pathlib.Path) -> None:
    _convert(directory, "tf1")


def _convert(directory: pathlib.Path, to: str) -> None:
    source = directory.parent / f"source of {directory.name}"
    write_pretraining(source)
    with contextlib.redirect_stdout(io.StringIO()):
        convert(source, directory, to=to)
    shutil.rmtree(source)


def write_torch(directory: pathlib.Path) -> None:
    write_huggingface(directory)
    arrays = directory / "model.safetensors"
    torch_form.write(directory / "pytorch_model.bin", safetensors.numpy.load_file(arrays))
    arrays.unlink()


def load_huggingface(directory: pathlib.Path, damaged: str):
    return _same_words(load(directory), safetensors.numpy.load_file(directory / "model.safetensors"))


def load_torch(directory: pathlib.Path, damaged: str):
    return _same_words(load(directory), torch_form.storages(directory / "pytorch_model.bin"))


def _same_words(model, theirs: dict):
    assert model.tokenizer is not None
    assert sorted(_words(model.params)) == sorted(_words(theirs))
    return sorted(leaf_paths(model.params)), model.tokenizer.tokens


def _words(tree) -> list[int]:
    """The bits of every number."""
    return np.concatenate(
        [np.asarray(leaf, np.float32).view(np.uint32).ravel() for leaf in leaf_paths(tree).values()]
    ).tolist()


def load_tf1(directory: pathlib.Path, damaged: str):
    model = load(directory)
    if damaged == "vocab.txt" and model.tokenizer is not None:
        lines = (directory / "vocab.txt").read_bytes().decode().removesuffix("\n").split("\n")
        while len(lines) > len(WORDS) and not lines[-1].strip():  # the table has no row for them
            lines.pop()
        assert model.tokenizer.tokens == [line.strip(" \t\r") for line in lines]
    return bits(model.params)


@dataclasses.dataclass(frozen=True)
class Subject:
    write: object
    readers: tuple
    older: str = ""
    """What an equally right directory lacks: the newest step, which may give way to the one before it."""


SUBJECTS = {
    "pretraining": Subject(write_pretraining, (load_model, settings, log, owner, resume), "checkpoints/step_000000004"),
    "finetuned": Subject(write_finetuned, (load_finetuned, table, finish)),
    "store": Subject(write_store, (batches,)),
    "huggingface": Subject(write_huggingface, (load_huggingface,)),
    "torch": Subject(write_torch, (load_torch,)),
    "tf1": Subject(write_tf1, (load_tf1,)),
}

"""A model of seconds to fine-tune, data to fine-tune it on, and the weights that come out."""

import dataclasses
import pathlib

import documents
import jax
import numpy as np
from pretrained_model import every_array
from small_pretraining import SCANNED

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.config import ModelConfig, TrainVocabConfig
from bert_jax.config.finetuning import FinetuneConfig, task_defaults
from bert_jax.config.options import to_dict
from bert_jax.config.tasks import SentenceOptions
from bert_jax.data.preparation.vocabularies import run_train_vocab
from bert_jax.formats.opening import open_stored
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import pretraining_parts
from bert_jax.tokenization.tokenizer import load_tokenizer
from bert_jax.training.step import Program

MODEL = ModelConfig(
    hidden_size=32, num_layers=2, num_heads=2, intermediate_size=32, max_position_embeddings=32, initializer_range=0.1
)


FAST = {
    "options": SentenceOptions(max_length=16),
    "batch_size": 16,
    "learning_rate": 2e-3,
    "epochs": 2,
    "log_every_steps": 1,
    "bucket_window": 1,
    "compute": SCANNED,
}


def sentences(count, seed, topics=2):
    """TSV of sentences about gardens and harbours (and kitchens): the topic is the class."""
    random, rows = np.random.default_rng(seed), ["text\tlabel"]
    for _ in range(count):
        name, (nouns, verbs) = list(documents.TOPICS.items())[random.integers(topics)]
        noun, verb, place_ = (words[random.integers(5)] for words in (nouns, verbs, documents.PLACES))
        rows.append(f"The {noun} {verb} {place_}.\t{name}")
    return "\n".join(rows) + "\n"


def write(home: pathlib.Path, model: ModelConfig = MODEL) -> pathlib.Path:
    """Write pretrained/ (a work directory with fresh weights) and data/ (train, dev and an unlabelled test)."""
    corpus = documents.write(home / "corpus.txt", 100)
    run_train_vocab(TrainVocabConfig(input=str(corpus), output=str(home / "vocab.txt"), size=150))
    tokenizer = load_tokenizer(home / "vocab.txt")
    model = dataclasses.replace(model, vocab_size=tokenizer.vocab_size)
    params = jax.jit(BertForPreTraining(model, parts=pretraining_parts(model)).init)(jax.random.key(5))
    with Checkpoints(home / "pretrained" / "checkpoints") as checkpoints:
        checkpoints.save(0, {"params": params}, position={}, config={"model": to_dict(model)})
    tokenizer.save(home / "pretrained" / "tokenizer")
    (home / "data").mkdir()
    for name, text in {"train": sentences(320, 0), "dev": sentences(40, 1)}.items():
        (home / "data" / f"{name}.tsv").write_text(text)
    (home / "data" / "test.tsv").write_text(
        "\n".join(row.split("\t")[0] for row in sentences(20, 2).splitlines()) + "\n"
    )
    return home


def task_config(task: str, init_from, workdir, files: dict, **changes) -> FinetuneConfig:
    """Return the usual configuration of a task on these files, or with `dir` those of a directory."""
    usual = task_defaults(task)
    data = dataclasses.replace(usual.data, **{name: str(file) for name, file in files.items()})
    given = {"init_from": str(init_from), "workdir": str(workdir), "data": data}
    return dataclasses.replace(usual, **given | changes)


def run_config(home, workdir, **changes) -> FinetuneConfig:
    """Return the usual run, in rows of their own: a step is compiled for each of several shapes of shared rows."""
    usual = task_config("text", home / "pretrained", workdir, {"dir": home / "data"}, packing="off", **FAST)
    return dataclasses.replace(usual, **changes)


def weights(workdir):
    """Every parameter of the model in a directory, by path."""
    return every_array(open_stored(workdir))


def assert_same_weights(one, other):
    one, other = weights(one), weights(other)
    assert one.keys() == other.keys()
    for path in one:
        np.testing.assert_array_equal(one[path], other[path], err_msg=path)


class Killed(BaseException):
    pass


def killed_before(monkeypatch, *counts: int) -> list[int]:
    """Raise Killed in place of the training steps of these numbers, from 1 on; return where each step begins."""
    call, begun = Program.__call__, []

    def interrupted(program, state, batch, *rate_and_seed):
        if rate_and_seed:  # a step of training
            begun.append(int(state.step))
            if len(begun) in counts:
                raise Killed
        return call(program, state, batch, *rate_and_seed)

    monkeypatch.setattr(Program, "__call__", interrupted)
    return begun

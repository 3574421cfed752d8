"""Models of tasks, their batches and features."""

import numpy as np
import pytest
from model_variants import variant
from pretrained_model import CONFIG, SMALL, TOKENIZER, loaded, random_params, stored_model

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.config import DisentangledConfig, HeadConfig, ModelConfig
from bert_jax.config.finetuning import task_defaults
from bert_jax.config.options import to_dict
from bert_jax.data.sequences import Features
from bert_jax.models.task import BertForTask
from bert_jax.tasks.glue import GLUE_TASKS
from bert_jax.tasks.task_data import family_of

LABELS = {
    "mnli": ("entailment", "neutral", "contradiction"),
    "rte": ("entailment", "not_entailment"),
    "text": ("a", "b"),
    "qnli": ("entailment", "not_entailment"),
    "ner": ("O", "B-X", "I-X"),
}


def write_model(directory, task: str, shape=CONFIG, **recorded):
    """What fine-tuning on `task` leaves, with random parameters; `recorded` is added to the record."""
    head = family_of(task).head(task, LABELS.get(task, ()))
    pairs = len(GLUE_TASKS[task].columns) == 2 if task in GLUE_TASKS else False if task == "text" else None
    facts = {"model": to_dict(shape), "head": to_dict(head), "finetune": to_dict(task_defaults(task)), "pairs": pairs}
    TOKENIZER.save(directory / "tokenizer")
    with Checkpoints(directory / "checkpoints") as checkpoints:
        checkpoints.save(0, {"params": random_params(BertForTask(shape, head))}, position={}, config=facts | recorded)
    return directory


ROWS, LENGTH = 16, 12
MODEL = ModelConfig(vocab_size=41, hidden_size=16, num_layers=2, num_heads=2, max_position_embeddings=LENGTH)
HEADS = {
    "classification": HeadConfig(labels=("a", "b", "c"), dropout=0.0),
    "multilabel": HeadConfig(kind="multilabel", labels=("a", "b", "c"), dropout=0.0),
    "tagging": HeadConfig(kind="tagging", labels=("O", "B-X", "I-X"), crf=True, dropout=0.0),
}


def make_batch(kind: str, seed: int) -> dict[str, np.ndarray]:
    """Rows that say very different amounts; the last three only fill the batch."""
    random = np.random.default_rng(seed)
    lengths = random.integers(4, LENGTH + 1, ROWS)[:, None]
    real = np.arange(LENGTH) < lengths
    if kind == "classification":
        labels = random.integers(0, 3, ROWS)
    elif kind == "multilabel":
        labels = random.random((ROWS, 3)) < 0.4
    else:  # class << 2, the first word of its sentence | 1, the last | 2
        labels = random.integers(0, 3, (ROWS, LENGTH)) << 2
        labels[:, 0] |= 1
        labels[np.arange(ROWS), lengths[:, 0] - 1] |= 2
        labels = np.where(real, labels, -1)
    arrays = {
        "input_ids": random.integers(1, MODEL.vocab_size, (ROWS, LENGTH)),
        "token_type_ids": np.zeros((ROWS, LENGTH)),
        "attention_mask": real,
        "labels": labels,
    }
    batch = {name: np.asarray(array, np.int32) for name, array in arrays.items()}
    if kind == "multilabel":
        batch["labels"] = batch["labels"].astype(np.float32)
    return batch | {"weights": (np.arange(ROWS) < ROWS - 3).astype(np.float32)}


WINDOWS = {"positions": "rope", "local_window": 2, "global_every": 2, "norm_position": "pre"}
FAMILIES = {
    "bert": {},
    "albert": {"sharing": "all"},
    "modernbert": WINDOWS,
    "alibi": {"positions": "alibi"},
    "left_to_right": {"direction": "left_to_right"},
    "deberta": {"positions": "none", "disentangled": DisentangledConfig(terms="c2p+p2c", max_distance=5)},
    "xlnet": {"positions": "xlnet", "pair_head": False},
}


def model_of(family: str):
    parts = ("mlm",) if family == "xlnet" else ("pooler", "mlm", "next_sentence")
    return loaded(stored_model(variant(SMALL, **FAMILIES[family]), parts))


def families() -> list:
    """The names; those whose heads are computed like another's are slow tests."""
    alike = ("albert", "alibi", "left_to_right")
    return [pytest.param(name, marks=pytest.mark.slow) if name in alike else name for name in FAMILIES]


def make_features(size=103, kind="classification", max_length=100):
    """Sequence i is i + 1 times the number i + 1, up to max_length; every array tells where it came from."""
    random = np.random.default_rng(0)
    lengths = np.minimum(random.geometric(0.05, size) + 2, max_length)
    ids = [np.full(length, index + 1, np.int32) for index, length in enumerate(lengths)]
    types = [(np.arange(length) >= 2).astype(np.int32) for length in lengths]
    labels = {
        "classification": np.arange(size, dtype=np.int32),
        "regression": np.arange(size, dtype=np.float32) / 2,
        "span": np.stack([np.arange(size), np.arange(size) + 1], 1).astype(np.int32),
        "choice": np.arange(size, dtype=np.int32),
        "tagging": [np.where(np.arange(n) % 2, index, -1).astype(np.int32) for index, n in enumerate(lengths)],
    }[kind]
    if kind == "choice":
        ids, types = ([[entry[:2], entry] for entry in entries] for entries in (ids, types))
    return Features(ids, types, labels, np.arange(size, dtype=np.int32), max_length)

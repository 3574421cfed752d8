"""Directories as transformers would have saved them, of a small model of random weights."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import random_bert
import safetensors.numpy

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.huggingface_export import write_huggingface

SIZES = random_bert.sizes("tiny")
DRAWN = random_bert.draw_parameters(SIZES)
STATE = random_bert.to_hugging_face(DRAWN)
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(86)), *"abc", "##a", "##b", "##c"]
ENCODER = {name: value for name, value in STATE.items() if name.startswith("bert.") and "pooler" not in name}
POOLER = {name: value for name, value in STATE.items() if "pooler" in name}
MLM = {name: value for name, value in STATE.items() if name.startswith("cls.predictions")}
PAIRS = {name: value for name, value in STATE.items() if name.startswith("cls.seq")}
HEAD = {
    "classifier.weight": np.random.RandomState(1).standard_normal((3, 32)).astype(np.float32),
    "classifier.bias": np.arange(3, dtype=np.float32),
}
SPAN = {name.replace("classifier", "qa_outputs"): value[:2] for name, value in HEAD.items()}
ONE = {name: value[:1] for name, value in HEAD.items()}


def directory(place, state=STATE, tokens=TOKENS, **config):
    """`state` in a new directory as transformers would have saved it, by the library's own writer."""
    place.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file(state, place / "model.safetensors", {"format": "pt"})
    (place / "config.json").write_text(json.dumps(random_bert.config_json(SIZES, "gelu_erf") | config))
    if tokens:
        (place / "vocab.txt").write_text("\n".join(tokens) + "\n")
    return place


def of_rows(place, rows: int, tokens=TOKENS):
    """A directory whose word table has been cut or padded to `rows`."""
    tables = {
        name: np.resize(value, (rows, *value.shape[1:]))
        for name, value in STATE.items()
        if name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias")
    }
    assert len(tables) == 2
    return directory(place, STATE | tables, tokens, vocab_size=rows)


def refusal(place) -> str:
    """The message with which `place` is refused: one line."""
    with pytest.raises(UserError) as caught:
        open_huggingface(place)
    return str(caught.value)


def exported(stored, place, tree=None) -> dict[str, np.ndarray]:
    """Every array as we write it, by its name there: of `stored`, or of `tree`, which is like its parameters."""
    if tree is not None:
        leaves = leaf_paths(jax.device_get(tree))
        arrays = {path: StoredArray(leaf.shape, leaf.dtype, leaf.__getitem__) for path, leaf in leaves.items()}
        stored = dataclasses.replace(stored, arrays=arrays)
    place.mkdir()
    write_huggingface(stored, place, "small")
    return safetensors.numpy.load_file(place / "model.safetensors")


def sharded(place, names=("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"), extra=None):
    """`STATE` in two files and an index."""
    directory(place)
    (place / "model.safetensors").unlink()
    home = {name: names[i % 2] for i, name in enumerate(STATE)}
    for file in names:
        if "/" not in file:
            safetensors.numpy.save_file({name: STATE[name] for name in STATE if home[name] == file}, place / file)
    (place / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": home | (extra or {})})
    )
    return place

"""A model loaded from random parameters, and its outputs for one text at a time in float64 NumPy."""

import dataclasses

import jax
import numpy as np
import numpy_bert
from pretrained_model import CONFIG, PARTS, TOKENIZER, random_params

from bert_jax.config import ComputeConfig, MeshConfig
from bert_jax.devices import sharding
from bert_jax.formats.opening import place
from bert_jax.models.bert import BertForPreTraining
from bert_jax.pretrained.model import PretrainedModel

SMALL = dataclasses.replace(CONFIG, num_layers=2)
TEXTS = [
    "the cat sat on the mat.",
    ("a big dog", "ran in the house"),
    "birds",
    "old cats, old dogs flew on the old tree.",
]


def loaded(stored) -> PretrainedModel:
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    return PretrainedModel(stored, place(stored, mesh), mesh, ComputeConfig(dtype="float32", layers="scan"))


def compilations(model: PretrainedModel, function: str) -> int:
    """For how many shapes and options the runner has compiled its function of that name."""
    return getattr(model._runner, function)._jitted._cache_size()


def original_pieces(text) -> list[list[int]]:
    """[CLS] A [SEP] (B [SEP]), as ids."""
    first, second = text if isinstance(text, tuple) else (text, None)
    segments = [[TOKENIZER.cls_id, *TOKENIZER.encode(first), TOKENIZER.sep_id]]
    return segments if second is None else [*segments, [*TOKENIZER.encode(second), TOKENIZER.sep_id]]


ABOVE = {name: tree for name, tree in random_params(BertForPreTraining(CONFIG)).items() if name in PARTS}


def row_by_row(model, text) -> dict:
    """One text, not padded, in float64 NumPy; where the model lacks a part, with any other."""
    segments = original_pieces(text)
    ids = np.array([sum(segments, [])])
    batch = {
        "input_ids": ids,
        "token_type_ids": np.repeat(np.arange(len(segments)), [len(s) for s in segments])[None],
        "attention_mask": np.ones_like(ids),
        "masked_positions": np.array([[0]]),
    }
    return numpy_bert.forward(ABOVE | jax.device_get(model.params), model.config, batch)

"""How attention is computed, as a run announces it."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.training.announcement import attention_of

MODEL = ModelConfig(vocab_size=60, hidden_size=256, num_layers=2, num_heads=4)


def mesh(platform: str):
    """What is asked of a mesh of one device, which need not be here."""
    axes = dict.fromkeys(("slice", "data", "fsdp", "tensor"), 1)
    return SimpleNamespace(shape=axes, devices=np.array([SimpleNamespace(platform=platform)]))


@pytest.mark.parametrize(
    "platform, changes, layers, told",
    [
        ("cpu", {}, "loop", "xla"),
        ("tpu", {}, "scan", "pallas"),
        ("tpu", {}, "loop", "pallas; where only some states of the last layer are read, that layer by xla"),
        (
            "tpu",
            {"local_window": 8, "global_tokens": 1},
            "scan",
            "xla, not pallas: it has no tokens that",
        ),
    ],
)
def test_what_is_announced_is_what_is_computed(platform, changes, layers, told):
    model = dataclasses.replace(MODEL, **changes)
    found = attention_of(model, ComputeConfig(layers=layers), mesh(platform), 8, 128)
    assert found == told or (told.startswith("xla, ") and found.startswith(told))

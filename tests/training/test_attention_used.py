"""How attention is computed, as a run announces it and as its memory is estimated."""

from types import SimpleNamespace

import numpy as np
import pytest
from model_variants import variant

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.training.learner import attention_of, keeps_no_probabilities

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
        ("tpu", {"positions": "xlnet"}, "scan", "xla, not pallas: scores have a bias that depends on queries and keys"),
        ("gpu", {"positions": "xlnet"}, "scan", "xla"),
    ],
)
def test_what_is_announced_is_what_is_computed(platform, changes, layers, told):
    model = variant(MODEL, **changes)
    found = attention_of(model, ComputeConfig(layers=layers), mesh(platform), 8, 128)
    assert found == told or (told.startswith("xla, ") and found.startswith(told))


@pytest.mark.parametrize(
    "platform, changes, length, fused",
    [
        ("tpu", {}, 128, True),
        ("tpu", {}, 100, False),
        ("cpu", {}, 128, False),
        ("tpu", {"local_window": 64}, 512, True),
        ("tpu", {"local_window": 64, "global_tokens": 1}, 4096, False),  # blocks in JAX keep theirs
        ("tpu", {"layer": "lstm", "positions": "none"}, 128, False),
        ("tpu", {"positions": "xlnet"}, 128, False),
    ],
)
def test_probabilities_are_not_kept_where_every_layer_has_a_fused_kernel(platform, changes, length, fused):
    model = variant(MODEL, **changes)
    assert keeps_no_probabilities(model, ComputeConfig(), mesh(platform), 8, length) == fused

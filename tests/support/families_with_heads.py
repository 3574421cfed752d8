"""Small models of every family with attention heads."""

import pytest
from loaded_model import SMALL, loaded
from model_variants import variant
from pretrained_model import stored_model

from bert_jax.config import DisentangledConfig

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

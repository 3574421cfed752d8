"""What the benchmarks' tests share: a tiny configuration as a file."""

import json

import pytest

from bert_jax.config import Config, ModelConfig, PhaseConfig
from bert_jax.config.json_form import to_dict

TINY = Config(
    model=ModelConfig(hidden_size=16, num_layers=1, num_heads=2, vocab_size=64, max_position_embeddings=32),
    phases=(PhaseConfig(steps=10, sequence_length=16, batch_size=8), PhaseConfig(steps=10, sequence_length=32)),
)


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory) -> str:
    """The path of a configuration with two phases."""
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_text(json.dumps(to_dict(TINY)))
    return str(path)

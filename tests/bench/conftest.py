"""What the benchmarks' tests share: a tiny configuration as a file."""

import json

import pytest
from two_phases import TINY

from bert_jax.config.json_form import to_dict


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory) -> str:
    """The path of a configuration with two phases."""
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_text(json.dumps(to_dict(TINY)))
    return str(path)

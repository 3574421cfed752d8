"""Share a tiny configuration as a file, and the peer's programs as a module."""

import importlib
import json
import types

import pytest
from small_pretraining import TINY

from bert_jax.config.options import to_dict
from bert_jax.tools.bench.turns import PEER_PROGRAMS


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory) -> str:
    """The path of a configuration with two phases."""
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_text(json.dumps(to_dict(TINY)))
    return str(path)


@pytest.fixture
def torch_contestants(monkeypatch) -> types.ModuleType:
    """The peer's programs; torch is needed by those that compute alone."""
    monkeypatch.syspath_prepend(PEER_PROGRAMS)
    return importlib.import_module("torch_contestants")

"""What says that it needs the extra `tensorflow`, where that is not installed."""

import importlib.util
import types

import pytest

from bert_jax.corpus import datasets
from bert_jax.errors import UserError
from bert_jax.formats import tf1
from bert_jax.tasks import readers


@pytest.fixture(autouse=True)
def no_tensorflow(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    "call",
    [
        lambda: datasets.files("tfds:wiki40b/en:train"),
        lambda: readers.dataset_examples("squad", "train"),
        lambda: tf1.write_tf_checkpoint(types.SimpleNamespace(), "nowhere"),
    ],
    ids=["corpus", "task", "TF1 format"],
)
def test_the_error_names_the_extra(call, monkeypatch):
    monkeypatch.setattr(tf1, "_check_expressible", lambda stored: None)
    with pytest.raises(UserError, match=r"needs tensorflow, .* pip install 'bert_jax\[tensorflow\]'"):
        call()

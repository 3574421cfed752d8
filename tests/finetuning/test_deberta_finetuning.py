"""A DeBERTa through the same commands: fine-tuned, answering, exported with its own kind of head."""

import dataclasses
import json

import numpy as np
import pytest
from deberta_model import FIRST, THIRD
from one_device import finetune
from processes import EXHAUSTIVE
from small_finetuning import run_config, write

import bert_jax
from bert_jax.formats.conversion import convert


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deberta-v2", *(["deberta"] if EXHAUSTIVE else [])])
def test_a_deberta_is_fine_tuned_and_exported(tmp_path, name):
    sizes = dict(hidden_size=32, num_layers=2, num_heads=2, initializer_range=0.1, max_position_embeddings=32)
    home = write(tmp_path, dataclasses.replace({"deberta": FIRST, "deberta-v2": THIRD}[name], **sizes))
    found = finetune(run_config(home, tmp_path / "tuned", epochs=1, layer_decay=0.9))
    assert found.results["metrics"]["accuracy"] > 0.8
    tuned = bert_jax.load(tmp_path / "tuned")
    convert(tmp_path / "tuned", tmp_path / "theirs", to="huggingface")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["model_type"] == name and config["architectures"][0].endswith("ForSequenceClassification")
    texts = ["The garden.", "A ship at sea."]
    ours, theirs = (each.predict(texts) for each in (tuned, bert_jax.load(tmp_path / "theirs")))
    assert [label.name for label in ours] == [label.name for label in theirs]
    np.testing.assert_allclose(*([*label.probabilities.values()] for label in (ours[0], theirs[0])), rtol=1e-5)

"""A modern encoder through the same commands: fine-tuned, answering, exported with its own kind of head."""

import dataclasses
import json

import numpy as np
import pytest
from modern_model import MODERN
from one_device import finetune
from small_finetuning import run_config, write

import bert_jax
from bert_jax.formats.conversion import convert


@pytest.mark.slow
def test_a_modern_encoder_is_fine_tuned_and_exported(tmp_path):
    model = dataclasses.replace(
        MODERN, hidden_size=32, num_layers=4, num_heads=2, initializer_range=0.1, max_position_embeddings=32
    )
    home = write(tmp_path, dataclasses.replace(model, pair_head=False))
    found = finetune(run_config(home, tmp_path / "tuned", epochs=1))
    assert found.results["metrics"]["accuracy"] > 0.8
    tuned = bert_jax.load(tmp_path / "tuned")
    assert tuned.params["head"].keys() == {"dense", "norm", "kernel", "bias"} and "pooler" not in tuned.params
    assert "attention_norm" not in tuned.layers[0].params and "attention_norm" in tuned.layers[1].params
    convert(tmp_path / "tuned", tmp_path / "theirs", to="huggingface")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("modernbert", ["ModernBertForSequenceClassification"])
    texts = ["The garden.", "A ship at sea."]  # shorter than the 16 tokens that fine-tuning reads
    ours, theirs = (each.predict(texts) for each in (tuned, bert_jax.load(tmp_path / "theirs")))
    assert [label.name for label in ours] == [label.name for label in theirs]
    np.testing.assert_allclose(*([*label.probabilities.values()] for label in (ours[0], theirs[0])), rtol=1e-5)
    states = tuned.encode(texts, layers="all")
    above, real = tuned.layers[0](states.hidden_states[0], states.attention_mask), states.attention_mask > 0
    np.testing.assert_allclose(np.asarray(above)[real], states.hidden_states[1][real], atol=1e-5)

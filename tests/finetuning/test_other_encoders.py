"""A modern encoder and a DeBERTa through the same commands: fine-tuned, answering, exported with their own heads."""

import dataclasses
import json

import numpy as np
import pytest
from deberta_model import FIRST, THIRD
from modern_model import MODERN
from one_device import finetune
from processes import EXHAUSTIVE
from small_finetuning import run_config, write

import bert_jax
from bert_jax.formats.conversion import convert

MODELS = {  # model type: model, layers, class of the export, options of the fine-tuning
    "modernbert": (MODERN, 4, "ModernBertForSequenceClassification", {}),
    "deberta-v2": (THIRD, 2, "DebertaV2ForSequenceClassification", {"layer_decay": 0.9}),
    "deberta": (FIRST, 2, "DebertaForSequenceClassification", {"layer_decay": 0.9}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["modernbert", "deberta-v2", *(["deberta"] if EXHAUSTIVE else [])])
def test_it_is_fine_tuned_and_exported(tmp_path, name):
    model, layers, of_class, options = MODELS[name]
    sizes = dict(hidden_size=32, num_layers=layers, num_heads=2, initializer_range=0.1, max_position_embeddings=32)
    home = write(tmp_path, dataclasses.replace(model, **sizes, pair_head=False))
    found = finetune(run_config(home, tmp_path / "tuned", epochs=1, **options))
    assert found.results["metrics"]["accuracy"] > 0.8
    tuned = bert_jax.load(tmp_path / "tuned")
    convert(tmp_path / "tuned", tmp_path / "theirs", to="huggingface")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == (name, [of_class])
    texts = ["The garden.", "A ship at sea."]  # shorter than the 16 tokens that fine-tuning reads
    ours, theirs = (each.predict(texts) for each in (tuned, bert_jax.load(tmp_path / "theirs")))
    assert [label.name for label in ours] == [label.name for label in theirs]
    np.testing.assert_allclose(*([*label.probabilities.values()] for label in (ours[0], theirs[0])), rtol=1e-5)
    if name == "modernbert":
        assert tuned.params["head"].keys() == {"dense", "norm", "kernel", "bias"} and "pooler" not in tuned.params
        assert "attention_norm" not in tuned.layers[0].params and "attention_norm" in tuned.layers[1].params
        states = tuned.encode(texts, layers="all")
        above, real = tuned.layers[0](states.hidden_states[0], states.attention_mask), states.attention_mask > 0
        np.testing.assert_allclose(np.asarray(above)[real], states.hidden_states[1][real], atol=1e-5)

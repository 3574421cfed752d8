"""Models that no class of transformers computes: the refusal names the options that stand in the way."""

import dataclasses

import pytest
from deberta_model import FIRST
from model_type_exports import FORMS, make
from model_variants import variant
from modern_model import MODERN
from pretrained_model import CONFIG, stored_model

from bert_jax.config.presets import roberta_config
from bert_jax.errors import UserError
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.formats.model_types import obstacles, type_to_write

STATIC = dict(layer="none", num_layers=0, positions="none", type_vocab_size=0)
MODELS = {  # configuration, everything that is said of its options
    "MosaicBERT": (
        variant(dataclasses.replace(CONFIG, feed_forward="geglu"), positions="alibi"),
        "none has model.positions=alibi; nearest are bert, xlnet without model.feed_forward=geglu",
    ),
    "NeoBERT": (
        dataclasses.replace(MODERN, feed_forward="swiglu", norm="rms_norm", norm_bias=True),
        "none has model.norm=rms_norm and model.feed_forward=swiglu",
    ),
    "shared attention": (dataclasses.replace(CONFIG, sharing="attention"), "none has model.sharing=attention"),
    "GPT": (dataclasses.replace(CONFIG, direction="left_to_right"), "none has model.direction=left_to_right"),
    "GPT of modern parts": (
        dataclasses.replace(MODERN, direction="left_to_right"),
        "none has model.direction=left_to_right",
    ),
    "ELMo": (variant(CONFIG, layer="lstm"), "none has model.layer=lstm"),
    "skip-gram": (
        variant(CONFIG, **STATIC),
        "none has model.layer=none; nearest are deberta-v2 without model.disentangled.terms=none, and xlnet "
        "without model.positions=none",
    ),
    "pre-norm": (dataclasses.replace(CONFIG, norm_position="pre"), "nearest are bert without model.norm_position=pre"),
    "RoBERTa of another GELU": (
        dataclasses.replace(roberta_config("tiny"), activation="gelu_tanh"),
        "nearest are bert without model.padding_id=1, and roberta, xlm-roberta, camembert without "
        "model.activation=gelu_tanh",
    ),
    "DeBERTa between its versions": (
        dataclasses.replace(FIRST, disentangled=dataclasses.replace(FIRST.disentangled, table_norm=True)),
        "nearest are deberta without model.disentangled.table_norm=True, and deberta-v2 without "
        "model.disentangled.key_bias=False",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_options_that_stand_in_the_way_are_named(name):
    config, says = MODELS[name]
    assert type_to_write(config) is None
    assert obstacles(config) == says


@pytest.mark.parametrize("name", FORMS)
def test_nothing_stands_in_the_way_of_a_type(name):
    assert type_to_write(make(name, "encoder").model, name).name == name


def test_a_refused_export_says_so_in_one_line(tmp_path):
    config, says = MODELS["MosaicBERT"]
    with pytest.raises(UserError) as refusal:
        write_huggingface(stored_model(config, ("mlm",)), tmp_path, "model")
    assert says in str(refusal.value) and "no model type of transformers" in str(refusal.value)
    assert "--to=bert_jax" in str(refusal.value) and "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())

"""ModernBERT directories of transformers: its numbers, its names in both directions, what is refused."""

import dataclasses
import json
import math
import re

import jax
import jax.numpy as jnp
import modernbert_cases
import numpy as np
import oracle_directory
import pytest
import safetensors.numpy
from huggingface_directory import exported, refusal, whole
from model_variants import variant
from modern_model import MODERN
from small_model import FLOAT32, compiled

import bert_jax
from bert_jax.config import HeadConfig
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.model_types import type_to_write
from bert_jax.formats.opening import place
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.task import BertForTask

FILE = "model.safetensors"


@pytest.fixture(scope="module")
def oracle(request) -> dict[str, np.ndarray]:
    return dict(np.load(request.config.rootpath / "tests" / "oracles" / "modernbert_oracle.npz"))


def model_of(stored, case):
    """The model of a case, and its logits at every position, or its states, as a function of parameters and batch."""
    if stored.head is not None:
        model = BertForTask(stored.model, stored.head, FLOAT32)
        return model, lambda params, batch: model.apply(params, oracle_directory.asked(case, batch))
    model = BertForPreTraining(stored.model, FLOAT32, stored.parts)
    if not stored.parts:
        return model, lambda params, batch: model.encode(params, *batch.values()).last_hidden_state

    def logits(params, batch):
        rows, length = batch["input_ids"].shape
        positions = jnp.tile(jnp.arange(length, dtype=jnp.int32), (rows, 1))
        return model.mlm_logits(params, batch | {"masked_positions": positions})

    return model, logits


QUICK = ("words", "mean", "first", "tags")
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in modernbert_cases.CASES]


@pytest.mark.parametrize("name", CASES)
def test_states_attentions_logits_and_gradients_are_those_of_transformers(oracle, tmp_path, name):
    stored = open_huggingface(oracle_directory.save(oracle, name, tmp_path / "theirs"))
    model, logits = model_of(stored, modernbert_cases.CASES[name])
    ids, mask = (array.astype(np.int32) for array in modernbert_cases.inputs(name))
    real, batch = mask.astype(bool), {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": mask}

    def loss(params):
        found = logits(params, batch)
        found = found[real] if found.shape[:2] == real.shape else found
        return jnp.sum(jnp.sin(found)), (found, model.encode(params, *batch.values(), collect=True))

    (_, (found, output)), gradient = compiled(jax.value_and_grad(loss, has_aux=True))(place(stored))
    for index, state in enumerate((*output.hidden_states[:-1], output.last_hidden_state)):
        np.testing.assert_allclose(np.asarray(state)[real], oracle[f"{name}/states/{index}"], atol=2e-5)
    for index, weights in enumerate(output.attentions):
        rows, expected = (np.moveaxis(each, 1, 2)[real] for each in (weights, oracle[f"{name}/attentions/{index}"]))
        np.testing.assert_allclose(rows, expected, atol=2e-5)
    np.testing.assert_allclose(found, oracle[f"{name}/logits"].reshape(found.shape), atol=2e-5)
    written = exported(stored, tmp_path / "gradients", gradient)
    oracle_directory.check_gradients(written, oracle[f"{name}/gradients"])


def test_rows_may_be_longer_than_config_json_says(oracle, tmp_path):
    """Rotary positions have no table, so the states do not depend on max_position_embeddings, as in transformers."""
    directory = oracle_directory.save(oracle, "words", tmp_path / "theirs")
    config = json.loads((directory / "config.json").read_text()) | {"max_position_embeddings": 8}
    (directory / "config.json").write_text(json.dumps(config))
    ids, mask = modernbert_cases.inputs("words")
    types = np.ones_like(ids)  # a model without segments ignores them
    found = bert_jax.load(directory).encode_ids(ids, mask, types)
    for index, state in enumerate(found.hidden_states):
        np.testing.assert_allclose(state[mask.astype(bool)], oracle[f"words/states/{index}"], atol=2e-5)


def test_rows_of_ids_have_the_states_of_transformers(oracle, tmp_path):
    model = bert_jax.load(oracle_directory.save(oracle, "words", tmp_path / "theirs"))
    ids, mask = modernbert_cases.inputs("words")
    found = model.encode_ids(ids, mask)
    for index, state in enumerate(found.hidden_states):
        np.testing.assert_allclose(state[mask.astype(bool)], oracle[f"words/states/{index}"], atol=2e-5)
    for layers, index in (("last", -1), ([1, 0], 1)):
        np.testing.assert_array_equal(
            model.encode_ids(ids, mask, layers=layers).hidden_states[0], found.hidden_states[index]
        )


@pytest.mark.parametrize(
    "architecture, rows, kind",
    [
        ("ModernBertForQuestionAnswering", 2, "span"),
        ("ModernBertForMultipleChoice", 1, "choice"),
        ("ModernBertForSequenceClassification", 1, "regression"),
    ],
)
def test_the_other_heads_are_read_by_their_class(oracle, tmp_path, architecture, rows, kind):
    theirs = oracle_directory.save(
        oracle, "tags", tmp_path / "theirs", architectures=[architecture], id2label=None, label2id=None
    )
    state = oracle_directory.state_of(oracle, "tags")
    state |= {name: state[name][:rows] for name in ("classifier.weight", "classifier.bias")}
    safetensors.numpy.save_file(state, theirs / FILE)
    stored = open_huggingface(theirs)
    assert stored.head is not None and stored.head.kind == kind
    there = exported(stored, tmp_path / "ours")
    assert there.keys() == state.keys()
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == [architecture]


ROUND_TRIPS = [
    pytest.param(name, marks=pytest.mark.slow if name.startswith("other") else ()) for name in modernbert_cases.CASES
]


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_what_was_read_is_written_with_the_same_names_and_bits(oracle, tmp_path, name):
    stored = open_huggingface(oracle_directory.save(oracle, name, tmp_path / "theirs"))
    assert stored.ignored == () and set(stored.arrays) == set(stored.parameters)
    there = exported(stored, tmp_path / "ours")
    original = oracle_directory.state_of(oracle, name)
    assert there.keys() == original.keys()
    for key, value in original.items():
        np.testing.assert_array_equal(there[key], value, err_msg=key)
    again = open_huggingface(tmp_path / "ours")
    assert (again.model, again.head) == (stored.model, stored.head)
    ours, theirs = (json.loads((tmp_path / side / "config.json").read_text()) for side in ("ours", "theirs"))
    chosen = ("model_type", "architectures", "layer_types", "norm_bias", "attention_bias", "classifier_pooling")
    assert {key: ours[key] for key in chosen if key in ours} == {key: theirs[key] for key in chosen if key in ours}


def test_the_options_of_older_files_and_of_newer_ones_are_the_same_model(oracle, tmp_path):
    new = open_huggingface(oracle_directory.save(oracle, "words", tmp_path / "new"))
    older = {"layer_types": None, "rope_parameters": None, "global_attn_every_n_layers": 3}
    bases = {"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}
    old = open_huggingface(oracle_directory.save(oracle, "words", tmp_path / "old", **older, **bases))
    assert old.model == new.model
    assert new.model.windows == (None, 3, 3, None, 3)
    assert (new.model.rope_theta, new.model.rope_local_theta) == (160_000.0, 10_000.0)
    scaled = {"rope_parameters": {"full_attention": {"type": "linear", "factor": 2.5}}}  # bases and the rest by default
    found = open_huggingface(oracle_directory.save(oracle, "words", tmp_path / "scaled", **scaled))
    assert found.model == variant(new.model, rope_scale=2.5)


def test_layers_may_all_be_local(oracle, tmp_path):
    kinds = {"layer_types": ["sliding_attention"] * 5}
    stored = open_huggingface(oracle_directory.save(oracle, "words", tmp_path / "theirs", **kinds))
    assert stored.model.windows == (3,) * 5
    exported(stored, tmp_path / "ours")
    written = json.loads((tmp_path / "ours/config.json").read_text())
    assert written["layer_types"] == kinds["layer_types"]
    assert open_huggingface(tmp_path / "ours").model == stored.model


def test_a_bare_encoder_has_names_without_prefix(oracle, tmp_path):
    stored = open_huggingface(oracle_directory.save(oracle, "words", tmp_path / "whole"))
    bare = dataclasses.replace(stored, arrays={p: a for p, a in stored.arrays.items() if not p.startswith("mlm/")})
    names = exported(bare, tmp_path / "bare")
    assert "embeddings.tok_embeddings.weight" in names and "layers.0.attn_norm.weight" not in names
    again = open_huggingface(tmp_path / "bare")
    assert again.parts == ()
    for path, array in again.arrays.items():
        np.testing.assert_array_equal(whole(array), whole(stored.arrays[path]), err_msg=path)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"attention_bias": True}, "attention_bias=True, mlp_bias=False, classifier_bias=False; only all of them or"),
        ({"decoder_bias": False}, "decoder_bias=False"),
        ({"layer_types": ["sliding_attention"] * 4 + ["full_attention"]}, "layer_types=.*only every n-th layer"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_parameters=.*yarn.*'linear'"),
        ({"rope_parameters": {"full_attention": {"type": "yarn"}}}, "rope_parameters=.*yarn.*'linear'"),
        ({"rope_parameters": {"sliding_attention": {"type": "linear", "factor": 2}}}, "rope_parameters=.*sliding"),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear"}}}, "factor=None"),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": math.inf}}}, "factor=inf"),
        ({"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}}, "'partial_rotary_factor' in full_"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 500}}, "'rope_type' in rope_parameters"),
        ({"rope_parameters": "default"}, "rope_parameters='default' where an object"),
        ({"rope_parameters": {"sliding_attention": [1]}}, r"sliding_attention=\[1\] where an object"),
        ({"rope_parameters": None, "local_rope_theta": 0}, "rope_theta=0 of rotary positions"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "rope_scaling="),
        ({"tie_word_embeddings": 0}, "tie_word_embeddings=0 where true or false"),
        ({"num_attention_heads": 6}, "heads of 5 features, which rotary positions cannot turn"),
        ({"local_attention": 0}, "local_attention=0"),
        ({"hidden_activation": "relu"}, "hidden_activation='relu'; supported are gelu"),
        ({"classifier_activation": "gelu_new"}, "classifier_activation='gelu_new' and hidden_activation='gelu'"),
        ({"classifier_pooling": "max"}, "classifier_pooling='max'; supported are cls, mean"),
        ({"intermediate_size": 24}, r"Wi:0.weight is \[23, 30\] where \[24, 30\] is expected"),
    ],
)
def test_what_our_encoder_does_not_have_is_refused_by_name(oracle, tmp_path, changes, message):
    assert re.search(message, refusal(oracle_directory.save(oracle, "words", tmp_path / "theirs", **changes)))


@pytest.mark.parametrize(
    "changes",
    [{"feed_forward": "swiglu"}, {"norm": "rms_norm"}, {"positions": "alibi"}, {"first_attention_norm": True}],
)
def test_a_model_of_other_parts_has_no_type_there(changes):
    assert type_to_write(MODERN) is not None
    assert type_to_write(variant(MODERN, **changes)) is None


def test_head_of_the_oracle(oracle, tmp_path):
    stored = open_huggingface(oracle_directory.save(oracle, "mean", tmp_path / "theirs"))
    assert stored.head == HeadConfig(labels=("no", "yes", "so"), dropout=0.0, pooling="mean")
    assert (stored.model.rope_scale, stored.model.use_bias, stored.model.activation) == (2.5, True, "gelu_tanh")

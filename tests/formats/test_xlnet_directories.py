"""XLNet directories of transformers: its numbers, its names in both directions, what is refused."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle_directory
import pytest
import xlnet_cases
from huggingface_directory import exported, refusal, whole
from small_model import FLOAT32, compiled

import bert_jax
from bert_jax.config import HeadConfig
from bert_jax.config.presets import xlnet_config
from bert_jax.errors import UserError
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.model_types import type_to_write
from bert_jax.formats.model_types.xlnet import XLNET
from bert_jax.formats.opening import place
from bert_jax.models.bert import BertForPreTraining, extended_memory, with_memory
from bert_jax.models.task import BertForTask
from bert_jax.models.xlnet import Permutation


@pytest.fixture(scope="module")
def oracle(request) -> dict[str, np.ndarray]:
    return dict(np.load(request.config.rootpath / "tests" / "oracles" / "xlnet_oracle.npz"))


def outputs(stored, name):
    """The function of the parameters that returns logits, at every position or of every target, and all states.

    A bare encoder has its states in place of logits.
    """
    given = {
        key: value if value.ndim == 3 else value.astype(np.int32) for key, value in xlnet_cases.inputs(name).items()
    }
    batch = {key: given[key] for key in ("input_ids", "token_type_ids", "attention_mask")}
    rows, length = batch["input_ids"].shape
    if stored.head is not None:
        model = BertForTask(stored.model, stored.head, FLOAT32)
        asked = oracle_directory.asked(xlnet_cases.CASES[name], batch)
        return lambda params: (model.apply(params, asked), model.encode(params, *batch.values(), collect=True))
    model, permutation = BertForPreTraining(stored.model, FLOAT32, stored.parts), None
    positions = np.tile(np.arange(length), (rows, 1))
    if "order" in given:
        permutation = Permutation(given["order"], given["targets"])
        positions = np.tile(length + np.arange(given["targets"].shape[1]), (rows, 1))

    def of(params):
        output = model.encode(params, *batch.values(), collect=True, permutation=permutation)
        if not stored.parts:
            return output.last_hidden_state, output
        return model.mlm_logits(params, {"masked_positions": jnp.asarray(positions)}, output), output

    return of


CORE = ("orders", "texts", "choices")  # both streams and both sides of padding; the other heads take as long


@pytest.mark.parametrize(
    "name", [name if name in CORE else pytest.param(name, marks=pytest.mark.slow) for name in xlnet_cases.CASES]
)
def test_states_attentions_logits_and_gradients_are_those_of_transformers(oracle, tmp_path, name):
    stored = open_huggingface(oracle_directory.save(oracle, name, tmp_path / "theirs"))
    of, real = outputs(stored, name), xlnet_cases.inputs(name)["attention_mask"].astype(bool)
    length = real.shape[1]

    def loss(params):
        found, output = of(params)
        found = found[real] if found.shape[:2] == real.shape else found
        return jnp.sum(jnp.sin(found)), (found, output)

    (_, (found, output)), gradient = compiled(jax.value_and_grad(loss, has_aux=True))(place(stored))
    for index, state in enumerate(output.hidden_states):
        np.testing.assert_allclose(np.asarray(state)[:, :length][real], oracle[f"{name}/states/{index}"], atol=2e-5)
        if state.shape[1] > length:
            np.testing.assert_allclose(state[:, length:], oracle[f"{name}/targets/{index}"], atol=2e-5)
    for index, weights in enumerate(output.attentions):
        theirs = oracle[f"{name}/attentions/{index}"]
        rows, expected = (np.moveaxis(each, 1, 2)[real] for each in (np.asarray(weights)[:, :, :length], theirs))
        np.testing.assert_allclose(rows, expected, atol=2e-5)
        if weights.shape[2] > length:
            np.testing.assert_allclose(weights[:, :, length:], oracle[f"{name}/target_attentions/{index}"], atol=2e-5)
    np.testing.assert_allclose(found, oracle[f"{name}/logits"].reshape(found.shape), atol=2e-5)
    written = exported(stored, tmp_path / "gradients", gradient)
    oracle_directory.check_gradients(written, oracle[f"{name}/gradients"])


ROUND_TRIPS = [
    pytest.param(name, marks=pytest.mark.slow if name.startswith("other") else ()) for name in xlnet_cases.CASES
]


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_what_was_read_is_written_with_the_same_names_and_bits(oracle, tmp_path, name):
    stored = open_huggingface(oracle_directory.save(oracle, name, tmp_path / "theirs"))
    assert stored.ignored == () and set(stored.arrays) == set(stored.parameters)
    there, original = exported(stored, tmp_path / "ours"), oracle_directory.state_of(oracle, name)
    assert there.keys() == original.keys()
    for key, value in original.items():
        np.testing.assert_array_equal(there[key], value, err_msg=key)
    again = open_huggingface(tmp_path / "ours")
    assert (again.model, again.head) == (stored.model, stored.head)
    ours, theirs = (json.loads((tmp_path / side / "config.json").read_text()) for side in ("ours", "theirs"))
    chosen = ("model_type", "architectures", "d_head", "d_inner", "ff_activation", "summary_type", "dropout")
    assert {key: ours[key] for key in chosen} == {key: theirs[key] for key in chosen}


def test_heads_are_those_of_their_classes(oracle, tmp_path):
    labels = ("no", "yes", "so")
    expected = {
        "texts": HeadConfig(labels=labels),
        "tags": HeadConfig(kind="tagging", labels=labels),
        "answers": HeadConfig(kind="span"),
        "choices": HeadConfig(kind="choice"),
    }
    for name, head in expected.items():
        assert open_huggingface(oracle_directory.save(oracle, name, tmp_path / name)).head == head


def test_a_bare_encoder_has_names_without_prefix(oracle, tmp_path):
    stored = open_huggingface(oracle_directory.save(oracle, "words", tmp_path / "whole"))
    bare = dataclasses.replace(stored, arrays={p: a for p, a in stored.arrays.items() if not p.startswith("mlm/")})
    names = exported(bare, tmp_path / "bare")
    assert {"mask_emb", "word_embedding.weight", "layer.1.rel_attn.o"} <= names.keys()
    again = open_huggingface(tmp_path / "bare")
    assert again.parts == ()
    for path, array in again.arrays.items():
        np.testing.assert_array_equal(whole(array), whole(stored.arrays[path]), err_msg=path)


def test_rows_of_ids_have_the_states_of_transformers(oracle, tmp_path):
    model = bert_jax.load(oracle_directory.save(oracle, "words", tmp_path / "theirs"))
    given = xlnet_cases.inputs("words")
    found = model.encode_ids(given["input_ids"], given["attention_mask"], given["token_type_ids"])
    for index, state in enumerate(found.hidden_states):
        real = given["attention_mask"].astype(bool)
        np.testing.assert_allclose(state[real], oracle[f"words/states/{index}"], atol=2e-5)


def test_segments_read_one_after_the_other_have_the_states_of_transformers(oracle, tmp_path):
    """With a memory that is longer than a segment, cut at both ends, and states of padding in it."""
    model = bert_jax.load(oracle_directory.save(oracle, "words", tmp_path / "theirs"))
    options, memory = xlnet_cases.MEMORY["words"], None
    for number, given in enumerate(xlnet_cases.segments("words")):
        inputs = given["input_ids"], given["attention_mask"], given["token_type_ids"]
        found = model.encode_ids(*inputs, attentions=True, memory=memory)
        real = given["attention_mask"].astype(bool)
        for index, state in enumerate(found.hidden_states):
            expected = oracle[f"words/memory/{number}/states/{index}"]
            np.testing.assert_allclose(state[real], expected[real], atol=2e-5)
        forgetful = model.encode_ids(*inputs).last_hidden_state
        assert (np.abs(forgetful - found.last_hidden_state).max() > 1e-2) == (number > 0)
        memory = extended_memory(memory, found.hidden_states, options["mem_len"], options["reuse_len"])
    for index, weights in enumerate(found.attentions):
        rows, expected = (
            np.moveaxis(each, 1, 2)[real] for each in (weights, oracle[f"words/memory/attentions/{index}"])
        )
        np.testing.assert_allclose(rows, expected, atol=2e-5)
    assert len(memory) == model.config.num_layers
    for index, state in enumerate(memory):
        np.testing.assert_allclose(state, oracle[f"words/memory/kept/{index}"], atol=2e-5)


def test_both_streams_see_a_memory_and_no_gradient_flows_through_it(oracle, tmp_path):
    stored = open_huggingface(oracle_directory.save(oracle, "orders", tmp_path / "theirs"))
    model = BertForPreTraining(stored.model, FLOAT32, stored.parts)
    before, given = xlnet_cases.segments("orders")
    first, last = (
        [each[name].astype(np.int32) for name in ("input_ids", "token_type_ids", "attention_mask")]
        for each in (before, given)
    )
    permutation = Permutation(*(given[name].astype(np.int32) for name in ("order", "targets")))

    def loss(params):
        memory = jnp.stack(extended_memory(None, model.encode(params, *first, collect=True).hidden_states))
        output = with_memory(model, memory).encode(params, *last, collect=True, permutation=permutation)
        return jnp.sum(jnp.sin(output.last_hidden_state[:, 0])), output.hidden_states

    (_, states), gradient = compiled(jax.value_and_grad(loss, has_aux=True))(place(stored))
    seen = np.concatenate([given["attention_mask"], np.ones_like(given["targets"])], axis=1).astype(bool)
    for index, state in enumerate(states):
        expected = oracle[f"orders/memory/1/states/{index}"]
        np.testing.assert_allclose(np.asarray(state)[seen], expected[seen], atol=2e-5)
    written = exported(stored, tmp_path / "gradients", gradient)
    oracle_directory.check_gradients(written, oracle["orders/memory/gradients"])


@pytest.mark.parametrize(
    "memory, message",
    [
        ([np.zeros((2, 3, 12))], r"memory has 1 arrays \(\[2, 3, 12\]\); expected one for each of 2 layers"),
        ([np.zeros((1, 3, 12))] * 2, r"expected one for each of 2 layers, all \[2, states, 12\]"),
        ([np.zeros((2, 3, 12)), np.zeros((2, 4, 12))], r"\(\[2, 3, 12\], \[2, 4, 12\]\)"),
        ([np.zeros(12)] * 2, "expected one for each of 2 layers"),
        ([], "memory has 0 arrays"),
    ],
)
def test_a_memory_of_another_shape_is_refused(oracle, tmp_path, memory, message):
    model = bert_jax.load(oracle_directory.save(oracle, "words", tmp_path / "theirs"))
    with pytest.raises(UserError, match=message):
        model.encode_ids(xlnet_cases.inputs("words")["input_ids"], memory=memory)


def test_a_memory_of_no_length_is_refused():
    with pytest.raises(UserError, match="memory_length=0 must be positive"):
        extended_memory(None, [np.zeros((1, 2, 4))] * 3, 0)


def test_words_are_predicted_without_seeing_what_is_there(oracle, tmp_path):
    model = bert_jax.load(oracle_directory.save(oracle, "words", tmp_path / "theirs"))
    given = {key: value.astype(np.int32) for key, value in xlnet_cases.inputs("words").items()}
    batch = given | {"masked_positions": np.array([[1, 4], [0, 9]], np.int32)}
    found = model.mlm_logits(batch)
    ids = batch["input_ids"].copy()
    np.put_along_axis(ids, batch["masked_positions"], 40, 1)
    np.testing.assert_array_equal(model.mlm_logits(batch | {"input_ids": ids}), found)
    ids[0, 2] = (ids[0, 2] + 1) % 41
    other = model.mlm_logits(batch | {"input_ids": ids})
    assert (other[0] != found[0]).any() and (other[1] == found[1]).all()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"attn_type": "uni"}, "attn_type='uni'.*only 'bi' is supported"),
        ({"bi_data": True}, "bi_data=True"),
        ({"clamp_len": 8}, "clamp_len=8.*only -1"),
        ({"same_length": True}, "same_length=True"),
        ({"summary_type": "first"}, "summary_type='first'.*only 'last'"),
        ({"summary_activation": None, "summary_use_proj": False}, "summary_use_proj=False"),
        ({"d_head": 7}, "d_head=7; only d_model / n_head = 10"),
        ({"ff_activation": "relu"}, "ff_activation='relu'; supported are gelu"),
        ({"d_inner": 24}, r"layer_1.weight is \[23, 30\] where \[24, 30\] is expected"),
        ({"n_head": 5, "d_head": 6}, r"r_w_bias is \[3, 10\] where \[5, 6\] is expected"),
    ],
)
def test_what_our_encoder_does_not_have_is_refused_by_name(oracle, tmp_path, changes, message):
    assert re.search(message, refusal(oracle_directory.save(oracle, "orders", tmp_path / "theirs", **changes)))


@pytest.mark.parametrize("changes", [{"hidden_dropout": 0.2}, {"norm": "rms_norm"}, {"feed_forward": "geglu"}])
def test_a_model_of_other_parts_has_no_type_there(changes):
    config = xlnet_config("mini")
    assert type_to_write(config) is XLNET
    assert type_to_write(dataclasses.replace(config, **changes)) is None

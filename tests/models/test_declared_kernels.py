"""Attention kernels that declare what they support: what is missing is computed elsewhere or refused, never ignored."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_model import FLOAT32, LENGTH, SMALL, make_batch, perturbed

from bert_jax.errors import UserError
from bert_jax.models.architecture import bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.kernels import choice, gpu, plain, tpu, windowed
from bert_jax.models.kernels.plain import EVERYTHING, WORDS, AttentionMask, Kernel, call_of


def careless(query, key, value, mask, dropout_key=None, rate=0.0, collect=False):
    """Attention that reads the padding alone: what else it is given it would ignore."""
    return plain.attention(query, key, value, AttentionMask(padding=mask.padding))


ROWS, PLACES = 2, 6
QUERY, KEY, VALUE = np.random.default_rng(0).standard_normal((3, ROWS, PLACES, 2, 4)).astype(np.float32)
PADDING = np.array([[1] * 6, [1] * 4 + [0] * 2], np.int32)
ASKED = {  # feature → what asks for it, of the mask and of the call
    "segments": ({"segments": np.array([[1, 1, 1, 2, 2, 2]] * 2)}, {}),
    "window": ({"window": 1}, {}),
    "traced_window": ({"window": np.int32(1)}, {}),
    "global_tokens": ({"window": 1, "global_positions": np.array([[0]], np.int32)}, {}),
    "bias": ({"bias": np.arange(72, dtype=np.float32).reshape(1, 2, 6, 6) / 9}, {}),
    "distances": ({"distance_bias": lambda distance: -jnp.abs(distance)[None].astype(jnp.float32)}, {}),
    "queries": ({"window": 1, "queries": np.array([[1, 5]] * 2, np.int32)}, {}),
    "dropout": ({}, {"dropout_key": jax.random.key(1), "rate": 0.5}),
    "probabilities": ({}, {"collect": True}),
}


def test_every_feature_is_asked_for_here():
    assert set(ASKED) == EVERYTHING == set(WORDS)


@pytest.mark.parametrize("feature", ASKED)
def test_what_a_kernel_does_not_support_is_refused_by_name_or_computed_by_plain_attention(feature):
    restricted, given = ASKED[feature]
    query = QUERY[:, [1, 5]] if feature == "queries" else QUERY
    inputs = query, KEY, VALUE, AttentionMask(padding=PADDING, **restricted)
    expected = plain.attention(*inputs, **given)
    # The function alone would return something else, or nothing, and say no word.
    alone = careless(*inputs, **given)
    assert (alone[1] is None) == (expected[1] is not None) or not np.allclose(alone[0], expected[0], atol=1e-3)

    others = EVERYTHING - {feature}
    with pytest.raises(UserError) as caught:
        Kernel(careless, supports=others)(*inputs, **given)
    assert str(caught.value).startswith(
        f"the attention kernel careless cannot compute this call: it has no {WORDS[feature]}"
    )
    found = Kernel(careless, supports=others, otherwise=plain.attention)(*inputs, **given)
    np.testing.assert_array_equal(found[0], expected[0])
    supported = Kernel(plain.attention, supports=EVERYTHING)(*inputs, **given)
    np.testing.assert_array_equal(supported[0], expected[0])
    needs = call_of(query, KEY, inputs[3], given.get("dropout_key"), given.get("rate", 0.0), "collect" in given).needs
    assert needs == {feature} | ({"window"} if feature in ("global_tokens", "queries") else set())


def test_a_call_that_asks_for_nothing_is_computed_by_any_kernel():
    calls = []
    kernel = Kernel(lambda *given: calls.append(1) or careless(*given), supports=())
    mask = AttentionMask(padding=PADDING)
    np.testing.assert_array_equal(kernel(QUERY, KEY, VALUE, mask)[0], plain.attention(QUERY, KEY, VALUE, mask)[0])
    kernel(QUERY, KEY, VALUE, mask, jax.random.key(0), 0.0)  # a rate of 0 drops nothing
    kernel(QUERY, KEY, VALUE, mask, None, 0.5)  # nor does a rate without a key
    assert len(calls) == 3


def test_an_obstacle_is_a_reason_like_a_missing_feature():
    even = Kernel(careless, (), lambda call: f"length {call.length} is odd" if call.length % 2 else None)
    odd = QUERY[:, :5], KEY[:, :5], VALUE[:, :5], AttentionMask(padding=PADDING[:, :5])
    even(QUERY, KEY, VALUE, AttentionMask(padding=PADDING))
    with pytest.raises(UserError, match="careless cannot compute this call: length 5 is odd; set otherwise"):
        even(*odd)
    found = dataclasses.replace(even, otherwise=plain.attention)(*odd)
    np.testing.assert_array_equal(found[0], plain.attention(*odd)[0])


def test_a_declaration_names_features():
    with pytest.raises(UserError, match="supports=speed: attention has no such features; choose from segments, window"):
        Kernel(careless, supports=("window", "speed"))


def model_with(attend, config=SMALL) -> BertForPreTraining:
    def architecture(*given):
        usual = bert_architecture(*given)
        return dataclasses.replace(usual, stack=dataclasses.replace(usual.stack, attend=attend))

    return BertForPreTraining(config, FLOAT32, (), architecture)


def test_a_function_without_a_declaration_is_refused():
    with pytest.raises(UserError, match="attend=careless does not say what it supports; make it a value: Kernel"):
        model_with(careless).parameters


def test_packed_rows_and_dropout_are_not_ignored_by_a_kernel_from_outside():
    batch = make_batch()
    ids, real = batch["input_ids"], batch["attention_mask"]
    packed = AttentionMask(padding=real, segments=np.sort(np.arange(LENGTH)[None] % 2).repeat(len(ids), 0))
    usual = BertForPreTraining(SMALL, FLOAT32, ())
    params = perturbed(usual)
    dropping = {"dropout_key": jax.random.key(3)}
    for mask, given, word in ((packed, {}, "segments"), (real, dropping, "dropout")):
        expected = usual.encode(params, ids, 0 * ids, mask, **given).last_hidden_state
        with pytest.raises(UserError, match=f"careless cannot compute this call: it has no {word}"):
            model_with(Kernel(careless, supports=())).encode(params, ids, 0 * ids, mask, **given)
        replaced = model_with(Kernel(careless, supports=(), otherwise=plain.attention))
        found = replaced.encode(params, ids, 0 * ids, mask, **given).last_hidden_state
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "kernel, lacking",
    [
        (tpu.KERNEL, {"global_tokens", "queries", "probabilities"}),
        (gpu.KERNEL, {"global_tokens", "queries", "probabilities"}),
        (choice.KERNEL, {"queries", "dropout", "probabilities"}),
        (windowed.KERNEL, {"traced_window", "bias", "queries", "probabilities"}),
    ],
    ids=["pallas", "triton", "cudnn", "windowed"],
)
def test_kernels_of_the_package_make_the_same_declaration(kernel, lacking):
    assert EVERYTHING - set(kernel.supports) == lacking

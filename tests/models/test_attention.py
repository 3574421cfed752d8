"""Attention: formulas, kernels that are declared, and padded positions."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_variants import variant
from small_model import FLOAT32, SMALL, compiled, make_batch, perturbed
from small_model import LENGTH as DECLARED_LENGTH

from bert_jax.config import ComputeConfig, Config, DataConfig, ModelConfig, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.errors import UserError
from bert_jax.models import costs
from bert_jax.models.architecture import bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import bert_parameters, pretraining_parts
from bert_jax.models.kernels import choice, gpu, plain, tpu, windowed
from bert_jax.models.kernels.plain import EVERYTHING, WORDS, AttentionMask, Kernel, attention, call_of
from bert_jax.models.layers import PackedTexts
from bert_jax.pretrained.initialization import position_sources

BATCH, LENGTH, HEADS, SIZE = 2, 7, 3, 4


def projections(seed=0):
    """query, key, value [B, L, A, D]."""
    return np.random.default_rng(seed).standard_normal((3, BATCH, LENGTH, HEADS, SIZE)).astype(np.float32)


RESTRICTIONS = {
    "segments": np.array([[1, 1, 1, 2, 2, 2, 2], [5, 5, 6, 6, 6, 7, 7]], np.int32),
    "window": np.int32(2),
    "bias": np.random.default_rng(3).standard_normal((1, HEADS, LENGTH, LENGTH)).astype(np.float32),
}
PADDING = np.array([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0, 0]], np.int32)


def numpy_attention(query, key, value, restrictions):
    """One pair of positions at a time, float64: output [B, L, A, D], probabilities [B, A, L, L], blind positions."""
    segments, window = restrictions.get("segments"), restrictions.get("window", LENGTH)
    bias = np.broadcast_to(restrictions.get("bias", np.zeros((1, 1, 1, 1))), (BATCH, HEADS, LENGTH, LENGTH))
    weights = np.zeros((BATCH, HEADS, LENGTH, LENGTH))
    for b, a, i, j in np.ndindex(weights.shape):
        seen = PADDING[b, j] and abs(i - j) <= window and (segments is None or segments[b, i] == segments[b, j])
        score = query[b, i, a].astype(float) @ key[b, j, a] / math.sqrt(SIZE) + bias[b, a, i, j]
        weights[b, a, i, j] = np.exp(score - (0 if seen else 10_000))
    # A position that may attend to nothing attends as if nothing were forbidden.
    blind = weights.sum(-1) == 0
    for b, a, i in np.argwhere(blind):
        weights[b, a, i] = np.exp(query[b, i, a].astype(float) @ key[b, :, a].T / math.sqrt(SIZE) + bias[b, a, i])
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("baij,bjad->biad", weights, value.astype(float)), weights, blind


@pytest.mark.parametrize("names", [n for s in range(4) for n in itertools.combinations(RESTRICTIONS, s)], ids="+".join)
def test_every_combination_of_restrictions_equals_numpy(names):
    restrictions = {name: RESTRICTIONS[name] for name in names}
    mask = AttentionMask(padding=PADDING, **restrictions)
    output, weights = attention(*projections(), mask, collect=True)
    assert attention(*projections(), mask)[1] is None
    expected_output, expected_weights, blind = numpy_attention(*projections(), restrictions)
    assert blind.any() == ("segments" in names)
    # Near -10000, where all scores of a blind position are, float32 has steps of 0.001.
    error = np.abs(weights - expected_weights).max(-1)
    assert error[~blind].max() < 1e-6 and error.max() < 2e-3
    error = np.abs(output - expected_output).max(-1).swapaxes(1, 2)
    assert error[~blind].max() < 1e-5 and error.max() < 5e-3


def test_a_row_alone_has_the_bits_that_it_has_in_a_batch():
    """Answers of a server do not depend on who else asks. The sizes are those of published models."""
    length = 192
    query, key, value = np.random.default_rng(5).standard_normal((3, 2, length, 12, 32)).astype(np.float32)
    padding = np.arange(length)[None] < np.array([[length - 5], [length]])

    @jax.jit
    def attended(query, key, value, padding):
        return attention(query, key, value, AttentionMask(padding=padding), None, 0.1, collect=True)  # as models do

    for alone, both in zip(
        attended(query[:1], key[:1], value[:1], padding[:1]), attended(query, key, value, padding), strict=True
    ):
        assert alone.shape[0] == 1 and np.array_equal(alone, both[:1])


def test_gradients_of_queries_and_of_a_bias_equal_finite_differences():
    query, key, value = projections()
    shared = np.random.default_rng(4).standard_normal((1, 1, LENGTH, LENGTH)).astype(np.float32)

    def loss(query, bias):
        mask = AttentionMask(padding=PADDING, window=2, bias=bias)
        return jnp.sum(jnp.sin(attention(query, key, value, mask)[0]))

    def numpy_loss(query, bias):
        return np.sin(numpy_attention(query, key, value, {"window": 2, "bias": bias})[0]).sum()

    gradients = compiled(jax.grad(loss, argnums=(0, 1)))(query, shared)
    places = [[(0, 1, 2, 3), (1, 4, 0, 0)], [(0, 0, 1, 3), (0, 0, 5, 4), (0, 0, 2, 0)]]
    for position, indices in enumerate(places):
        for index in indices:
            ahead, behind = ([query.astype(float), shared.astype(float)] for _ in range(2))
            ahead[position][index] += 1e-5
            behind[position][index] -= 1e-5
            slope = (numpy_loss(*ahead) - numpy_loss(*behind)) / 2e-5
            assert gradients[position][index] == pytest.approx(slope, rel=1e-3, abs=1e-5)
    assert gradients[1][0, 0, 2, 6] == 0  # too far away, and padding


def test_a_window_as_long_as_the_sequence_restricts_nothing():
    plain, wide = (attention(*projections(), AttentionMask(padding=PADDING, window=w))[0] for w in (None, LENGTH - 1))
    np.testing.assert_array_equal(plain, wide)


def careless(query, key, value, mask, dropout_key=None, rate=0.0, collect=False):
    """Attention that reads the padding alone: what else it is given it would ignore."""
    return plain.attention(query, key, value, AttentionMask(padding=mask.padding))


ROWS, PLACES = 2, 6
QUERY, KEY, VALUE = np.random.default_rng(0).standard_normal((3, ROWS, PLACES, 2, 4)).astype(np.float32)
DECLARED_PADDING = np.array([[1] * 6, [1] * 4 + [0] * 2], np.int32)
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
    inputs = query, KEY, VALUE, AttentionMask(padding=DECLARED_PADDING, **restricted)
    others = EVERYTHING - {feature}
    replaced, supporting = Kernel(careless, others, otherwise=plain.attention), Kernel(plain.attention, EVERYTHING)
    roads = plain.attention, careless, replaced, supporting
    expected, alone, found, supported = compiled(lambda: [road(*inputs, **given) for road in roads])()
    # The function alone would return something else, or nothing, and say no word.
    assert (alone[1] is None) == (expected[1] is not None) or not np.allclose(alone[0], expected[0], atol=1e-3)

    with pytest.raises(UserError) as caught:
        Kernel(careless, supports=others)(*inputs, **given)
    said = f"the attention kernel careless cannot compute this call: it has no {WORDS[feature]}"
    assert str(caught.value).startswith(said)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(supported[0], expected[0])
    needs = call_of(query, KEY, inputs[3], given.get("dropout_key"), given.get("rate", 0.0), "collect" in given).needs
    assert needs == {feature} | ({"window"} if feature in ("global_tokens", "queries") else set())


def test_a_call_that_asks_for_nothing_is_computed_by_any_kernel():
    calls = []
    kernel = Kernel(lambda *given: calls.append(1) or careless(*given), supports=())
    mask = AttentionMask(padding=DECLARED_PADDING)
    np.testing.assert_array_equal(kernel(QUERY, KEY, VALUE, mask)[0], plain.attention(QUERY, KEY, VALUE, mask)[0])
    kernel(QUERY, KEY, VALUE, mask, jax.random.key(0), 0.0)  # a rate of 0 drops nothing
    kernel(QUERY, KEY, VALUE, mask, None, 0.5)  # nor does a rate without a key
    assert len(calls) == 3


def test_an_obstacle_is_a_reason_like_a_missing_feature():
    even = Kernel(careless, (), lambda call: f"length {call.length} is odd" if call.length % 2 else None)
    odd = QUERY[:, :5], KEY[:, :5], VALUE[:, :5], AttentionMask(padding=DECLARED_PADDING[:, :5])
    even(QUERY, KEY, VALUE, AttentionMask(padding=DECLARED_PADDING))
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
    packed = AttentionMask(padding=real, segments=np.sort(np.arange(DECLARED_LENGTH)[None] % 2).repeat(len(ids), 0))
    usual = BertForPreTraining(SMALL, FLOAT32, ())
    params = perturbed(usual)
    dropping = {"dropout_key": jax.random.key(3)}
    for mask, given, word in ((packed, {}, "segments"), (real, dropping, "dropout")):
        states = lambda model, mask=mask, given=given: (
            model.encode(params, ids, 0 * ids, mask, **given).last_hidden_state
        )
        without = model_with(Kernel(careless, supports=()))
        with pytest.raises(UserError, match=f"careless cannot compute this call: it has no {word}"):
            jax.eval_shape(functools.partial(states, without))
        replaced = model_with(Kernel(careless, supports=(), otherwise=plain.attention))
        both = compiled(lambda models=(replaced, usual), states=states: list(map(states, models)))
        np.testing.assert_array_equal(*both())


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


PADDED_SMALL = variant(
    ModelConfig(vocab_size=40, hidden_size=12, num_layers=1, num_heads=3, max_position_embeddings=18, pair_head=False),
    padding_id=1,
)
BASE = variant(
    ModelConfig(vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1, pair_head=False), padding_id=1
)
LARGE = dataclasses.replace(BASE, hidden_size=1_024, num_layers=24, num_heads=16)


@pytest.mark.parametrize(
    "config, encoder, whole",
    [(BASE, 124_055_040, 124_697_433), (LARGE, 354_310_144, 355_412_057)],
    ids=["base", "large"],
)
def test_parameter_counts_are_those_of_transformers(config, encoder, whole):
    counts = costs.parameter_counts(bert_parameters(config))
    assert (counts.encoder, counts.pretraining) == (encoder, whole)
    model = BertForPreTraining(config, ComputeConfig(), pretraining_parts(config))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == whole


def test_packed_texts_have_the_states_they_have_alone():
    model = BertForPreTraining(PADDED_SMALL, ComputeConfig(dtype="float32"), ("mlm",))
    params = perturbed(model)
    ids = np.random.RandomState(0).randint(2, 40, (1, 16)).astype(np.int32)
    ids[0, 13:] = 1
    text_ids = np.repeat([[1, 2, 0]], [6, 7, 3], axis=1).astype(np.int32)
    real, zeros = (ids != 1).astype(np.int32), np.zeros_like(ids)
    texts, encode = PackedTexts(text_ids, np.array([[0, 6]])), compiled(model.encode)
    packed = encode(params, ids, zeros, real, texts=texts).last_hidden_state
    for begin, end in ((0, 6), (6, 13)):
        part = ids[:, begin:end]
        alone = encode(params, part, zeros[:, begin:end], np.ones_like(part)).last_hidden_state
        np.testing.assert_allclose(packed[:, begin:end], alone, atol=1e-6)


def test_a_longer_table_repeats_no_row_of_padding_or_of_the_first_token():
    found = position_sources(6, 12, first=2)
    assert list(found.pieces) == [0, 1, 2, 3, 4, 5, 3, 4, 5, 3, 4, 5]
    assert list(position_sources(4, 9).pieces) == [0, 1, 2, 3, 1, 2, 3, 1, 2]


def run(**model) -> Config:
    data = DataConfig(path="store", sentence_pairs="none")
    phases = (PhaseConfig(steps=1, sequence_length=16, batch_size=1),)
    return Config(model=variant(PADDED_SMALL, **model), data=data, phases=phases, workdir="work")


def test_the_longest_sequence_leaves_out_the_rows_of_padding():
    assert check(run()).model.longest_sequence == 16
    with pytest.raises(UserError, match="sequence_length=16.*max_position_embeddings=17 less 2"):
        check(run(max_position_embeddings=17))
    with pytest.raises(UserError, match="padding_id=17.*RoBERTa has 1"):
        check(run(padding_id=17))
    with pytest.raises(UserError, match="data.sentence_pairs=nsp needs .* model.pair_head=False"):
        check(dataclasses.replace(run(), data=DataConfig(path="store")))

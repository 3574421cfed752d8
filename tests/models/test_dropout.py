"""Dropout and the bits that it draws."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from small_model import FLOAT32, SMALL, compiled, encode, loss_function, make_batch, perturbed

from bert_jax.config import MeshConfig
from bert_jax.devices import sharding
from bert_jax.models import layers
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.kernels import plain
from bert_jax.models.kernels.plain import AttentionMask


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_statistics(rate):
    x = np.ones((64, 32, 65), np.float32)
    dropped = np.asarray(layers.dropout(x, rate, jax.random.key(0)))
    kept = dropped != 0
    spread = math.sqrt(rate * (1 - rate) / x.size)
    assert abs(kept.mean() - (1 - rate)) < 4 * spread
    np.testing.assert_allclose(dropped[kept], 1 / (1 - rate), rtol=1e-6)
    flat = kept.reshape(-1, 65)
    correlation = np.corrcoef(flat.T) - np.eye(65)
    assert np.abs(correlation).max() < 5.5 / math.sqrt(len(flat))
    assert np.abs(flat.mean(axis=0) - (1 - rate)).max() < 5 * math.sqrt(rate * (1 - rate) / len(flat))
    assert not np.array_equal(kept, np.asarray(layers.dropout(x, rate, jax.random.key(1))) != 0)
    assert layers.dropout(x, rate, None) is x and layers.dropout(x, 0.0, jax.random.key(0)) is x


def test_dropout_of_attention_falls_on_probabilities():
    query, key = (jax.random.normal(jax.random.key(i), (2, 8, 3, 8)) for i in (0, 1))
    mask = AttentionMask(padding=jnp.ones((2, 8), jnp.int32))
    # Its product with the probabilities is the probabilities.
    identity = jnp.tile(jnp.eye(8)[None, :, None, :], (2, 1, 3, 1))
    attend = compiled(lambda *given: plain.attention(*given, mask, jax.random.key(2), 0.25, collect=True))
    dropped, weights = attend(query, key, identity)
    dropped, weights = np.swapaxes(dropped, 1, 2), np.asarray(weights)
    zero = dropped == 0
    assert 0.15 < zero.mean() < 0.35
    np.testing.assert_allclose(dropped[~zero], weights[~zero] / 0.75, rtol=1e-4)


def test_dropout_of_embeddings_and_residual_branches():
    """Each of three sites drops single elements and scales the rest; pre-LN with one silent branch shows each alone."""
    config = dataclasses.replace(SMALL, norm_position="pre", num_layers=2, hidden_dropout=0.3, attention_dropout=0.0)
    model, batch = BertForPreTraining(config, FLOAT32), make_batch()
    params = perturbed(model)
    clean, masks = encode(model, params, batch, collect=True).hidden_states[0], []
    embedded = np.asarray(encode(model, params, batch, jax.random.key(0), collect=True).hidden_states[0])
    masks.append(embedded == 0)
    np.testing.assert_allclose(embedded[~masks[0]], np.asarray(clean)[~masks[0]] / 0.7, rtol=1e-3)
    for silent in ("attention", "feed_forward"):
        muted = jax.tree.map(np.copy, params)
        muted["encoder"][silent]["output"] = jax.tree.map(np.zeros_like, muted["encoder"][silent]["output"])
        states = encode(model, muted, batch, jax.random.key(0), collect=True).hidden_states
        masks += [np.asarray(after == before) for before, after in zip(states, states[1:])]
    assert all(0.22 < mask.mean() < 0.38 for mask in masks)
    agreement = [np.mean(a == b) for i, a in enumerate(masks) for b in masks[:i]]
    assert max(agreement) < 0.66  # 0.58 for independent masks: no site or layer repeats another's key


def test_no_key_means_no_dropout_and_a_key_decides_everything():
    batch = make_batch()
    model, without = (
        BertForPreTraining(config, FLOAT32)
        for config in (SMALL, dataclasses.replace(SMALL, hidden_dropout=0.0, attention_dropout=0.0))
    )
    params = perturbed(model)
    loss = compiled(loss_function(model, batch))
    assert loss(params) == compiled(loss_function(without, batch))(params, jax.random.key(0))
    first, again, other = (loss(params, jax.random.key(seed)) for seed in (1, 1, 2))
    assert first == again and first != other and first != loss(params)


@pytest.mark.parametrize("rates", [dict(hidden_dropout=0.0), dict(attention_dropout=0.0)])
def test_each_kind_of_dropout_reaches_the_model(rates):
    model, batch = BertForPreTraining(dataclasses.replace(SMALL, **rates), FLOAT32), make_batch()
    params = perturbed(model)
    dropped, clean = (encode(model, params, batch, key).last_hidden_state for key in (jax.random.key(0), None))
    assert np.mean(np.asarray(dropped) != np.asarray(clean)) > 0.9


SIZE = 2**15
KINDS = "keys that differ in one bit", "keys that count up", "keys with the same high bits", "layers of steps"
HUGE = 6.0  # standard deviations; one of a million fair comparisons would reach 5


keeps = jax.jit(layers.keeps, static_argnums=1)


def standardized(words: np.ndarray, rate: float) -> np.ndarray:
    """Which words [..., N] are kept, as numbers of mean 0 and variance 1 if the words are fair."""
    kept = np.asarray(keeps(words, layers.drop_threshold(rate)))
    return (kept - (1 - rate)) / math.sqrt(rate * (1 - rate))


def first_words(state: layers.Stream) -> np.ndarray:
    """The first SIZE words of every stream [S]: [S, SIZE]."""
    return np.asarray(jax.jit(jax.vmap(lambda one: layers.array_words(one, (SIZE,))))(state))


@jax.jit
def streams(names: np.ndarray) -> layers.Stream:
    """The streams [S] that are named by S pairs of words."""
    start = layers.Stream(jnp.uint32(1), jnp.uint32(2))
    return jax.vmap(lambda one: layers.substream(layers.substream(start, one[0]), one[1]))(names)


@functools.cache
def states() -> dict[str, layers.Stream]:
    """Streams whose names are as much alike as two may be."""
    bit = np.uint32(1) << np.arange(32, dtype=np.uint32)
    zero, count = np.zeros(32, np.uint32), np.arange(48, dtype=np.uint32)
    one_bit = np.concatenate([np.zeros((1, 2), np.uint32), np.stack([bit, zero], 1), np.stack([zero, bit], 1)])
    return {
        "keys that differ in one bit": streams(one_bit),
        "keys that count up": streams(np.stack([0 * count, count], 1)),
        "keys with the same high bits": streams(np.stack([0xABCD0000 + count, 0 * count + 7], 1)),
        "layers of steps": jax.jit(lambda: jax.vmap(layers.counter_stream)(layer_keys()))(),
    }


def layer_keys() -> jax.Array:
    """The keys of 6 layers in each of 8 steps, as the training step and the stack make them."""
    steps = [jax.random.fold_in(jax.random.key(12), step) for step in range(8)]
    return jnp.concatenate([jax.random.split(step, 6) for step in steps])


@pytest.mark.parametrize("rate", [0.1, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_streams_that_are_alike_are_independent(kind, rate):
    """Every mean and every correlation of fair words has a standard deviation of 1/√N."""
    fair = standardized(first_words(states()[kind]), rate)
    count = len(fair)
    assert np.abs(fair.mean(1)).max() < HUGE / math.sqrt(SIZE)
    correlations = (fair @ fair.T / SIZE)[np.triu_indices(count, 1)]
    assert np.abs(correlations).max() < HUGE / math.sqrt(SIZE)
    # Not only none too large, but as large as chance makes them: permuted or repeated masks would spread them.
    assert correlations.std() * math.sqrt(SIZE) == pytest.approx(1, abs=5 / math.sqrt(2 * len(correlations)))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_neighbours_are_independent(rate):
    """Elements at all distances that rows, heads and blocks make, and next to each other in four dimensions."""
    fair = standardized(first_words(states()["layers of steps"]), rate)
    for distance in (*range(1, 17), 31, 32, 33, 63, 64, 96, 127, 128, 256, 384, 512, 768, 1024, 4096):
        products = fair[:, distance:] * fair[:, :-distance]
        assert np.abs(products.mean(1)).max() < HUGE / math.sqrt(products.shape[1])
    words = jax.jit(lambda: layers.array_words(layers.counter_stream(jax.random.key(3)), (16, 16, 32, 32)))()
    fair = standardized(words, rate)
    for axis in range(4):
        products = np.take(fair, range(1, fair.shape[axis]), axis) * np.take(fair, range(fair.shape[axis] - 1), axis)
        assert abs(products.mean()) < HUGE / math.sqrt(products.size)
    # Whole rows, columns, heads and batch rows are hit no more unevenly than a fair coin would.
    for axis in range(4):
        means = fair.mean(tuple(other for other in range(4) if other != axis))
        assert np.abs(means).max() < HUGE / math.sqrt(fair.size / fair.shape[axis])


@pytest.mark.parametrize("distance", [1, pytest.param(2, marks=pytest.mark.slow), 128, 1 << 14])
def test_no_stream_is_another_with_its_elements_exchanged(distance):
    """The flaw of `hash(index ^ seed)`: two seeds with equal high bits permute each other's words."""
    count = np.arange(64, dtype=np.uint32)
    place = np.arange(SIZE) ^ distance
    fair = standardized(first_words(streams(np.stack([0 * count, count], 1))), 0.1)
    exchanged = np.abs(fair @ fair[:, place].T / SIZE)
    assert exchanged.max() < HUGE / math.sqrt(SIZE)
    # The comparison would see it: with one word of state, 2^15 seeds have nothing but such pairs.
    flawed = layers.Stream(np.uint32(0xABCD0000) + np.uint32([0, distance]), np.zeros(2, np.uint32))
    fair = standardized(first_words(flawed), 0.1)
    assert fair[0] @ fair[1, place] / SIZE > 0.9


def test_bits_of_words_are_fair():
    """Each of the high 24 bits is set in half of the words, and changes half of the time with each bit of the index."""
    state = layers.counter_stream(jax.random.key(4))
    index = np.random.default_rng(0).integers(0, 2**32, SIZE, np.uint32)
    words_of = jax.jit(layers.words)
    words = np.asarray(words_of(state, index))
    bits = np.arange(8, 32, dtype=np.uint32)
    spread = HUGE * 0.5 / math.sqrt(SIZE)
    assert np.abs((words[:, None] >> bits & 1).mean(0) - 0.5).max() < spread
    for changed in range(32):
        other = np.asarray(words_of(state, index ^ np.uint32(1 << changed)))
        # Two rounds are not a cipher: lowbias32 itself is off by up to 0.006 for the highest bits of an index.
        assert np.abs(((words ^ other)[:, None] >> bits & 1).mean(0) - 0.5).max() < spread + 0.02, changed


def test_words_by_hand():
    """Python's integers, and the shape: an element of four dimensions counts in its own matrix."""

    def mixed(x):
        x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
        x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
        return x ^ x >> 16

    first, second = 17, 2**32 - 3
    for index in (2, 1):
        first = mixed(first ^ index)
        second = mixed(((second ^ 0x9E3779B9) + first) % 2**32)
    x = first ^ (3 * 5 + 4)
    x = ((x ^ x >> 16) * 0x7FEB352D + second) % 2**32
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    start = layers.Stream(jnp.uint32(17), jnp.uint32(2**32 - 3))
    words = jax.device_get(jax.jit(layers.array_words, static_argnums=1)(start, (3, 2, 4, 5)))
    assert words.shape == (3, 2, 4, 5) and words.dtype == jnp.uint32
    assert int(words[2, 1, 3, 4]) == x


def test_arrays_of_more_than_two_to_the_32_elements_repeat_nothing():
    """65,537² elements in one matrix: every row then has a stream of its own. Nothing of that size is computed."""
    shape = (2, 65537, 65537)
    start = layers.counter_stream(jax.random.key(0))
    state = jax.eval_shape(lambda start: layers.leading_streams(start, shape)[0], start)
    assert state.first.shape == (2, 65537, 1)
    assert layers.leading_streams(start, (1, 65536, 65536))[1] == 2


def test_rates_are_kept_to_the_last_bit_and_no_rate_drops_everything():
    assert layers.drop_threshold(0.1) == 429_496_730
    assert layers.drop_threshold(1.0) == 2**32 - 1
    word = np.array([0, 429_496_729, 429_496_730, 2**31, 2**32 - 1], np.uint32)
    assert keeps(word, 429_496_730).tolist() == [False, False, True, True, True]
    assert keeps(word, 2**32 - 1).tolist() == [False] * 4 + [True]


SHAPE = (8, 4, 6, 16)
MESHES = {
    "data": (MeshConfig(data=8), P(sharding.BATCH_AXES)),
    "fsdp": (MeshConfig(data=1, fsdp=8), P(sharding.BATCH_AXES)),
    "slice": (MeshConfig(slice=2, data=4), P(sharding.BATCH_AXES)),
    "tensor over heads": (MeshConfig(data=2, tensor=4), P(sharding.BATCH_AXES, "tensor")),
    "tensor over queries": (MeshConfig(data=4, tensor=2), P(sharding.BATCH_AXES, None, "tensor")),
    "tensor over keys": (MeshConfig(data=1, fsdp=2, tensor=4), P(sharding.BATCH_AXES, None, None, "tensor")),
}


@pytest.mark.parametrize("name", MESHES)
def test_the_same_element_is_dropped_on_every_mesh_and_no_device_makes_the_whole_mask(name):
    config, spec = MESHES[name]
    x, key = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32), jax.random.key(7)

    def both(x, key):
        dropped, back = jax.vjp(lambda x: layers.dropout(x, 0.3, key), x)
        return dropped, back(jnp.ones_like(x))[0]

    expected = jax.jit(both)(x, key)
    mesh = sharding.make_mesh(config)
    place = NamedSharding(mesh, spec)
    program = jax.jit(both, in_shardings=(place, None), out_shardings=place).lower(x, key).compile()
    jax.tree.map(np.testing.assert_array_equal, program(jax.device_put(x, place), key), expected)
    text = program.as_text()
    assert not re.search(r"\[8,4,6,16\]", text)
    assert not any(word in text for word in ("all-gather", "all-to-all", "collective-permute", "all-reduce"))

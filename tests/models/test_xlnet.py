"""XLNet's attention and its two streams: what is seen, and that a prediction is the conditional that it stands for."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_bert import softmax
from small_model import FLOAT32, compiled, perturbed

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.config.presets import xlnet_config
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.costs import training_flops
from bert_jax.models.kernels.plain import AttentionMask
from bert_jax.models.layers import PackedTexts
from bert_jax.models.task import BertForTask
from bert_jax.models.xlnet import Permutation, distance_encodings, hidden_unless, shifted
from bert_jax.objectives.autoregressive import PermutationObjective
from bert_jax.parameters import total_size

SIZES = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 20, "max_position_embeddings": 32}
SMALL = dataclasses.replace(xlnet_config("mini"), vocab_size=37, **SIZES)
TARGET = 36  # an id that no text has; below, its row of the table is what predicted tokens begin with
ORDER = np.array([[0, 3, 0, 1, 0, 5, 2, 0, 4], [2, 0, 0, 3, 0, 1, 0, 0, 0]], np.int32)
TARGETS = np.array([[1, 3, 6, 8], [0, 3, 5, 5]], np.int32)  # place 5 of the first row is a special token
REAL = np.array([[1] * 9, [1] * 7 + [0] * 2], np.int32)


@pytest.fixture(scope="module")
def model():
    return BertForPreTraining(SMALL, FLOAT32, ("mlm",))


@pytest.fixture(scope="module")
def params(model):
    params = perturbed(model)
    params["embeddings"]["word"]["table"][TARGET] = params["embeddings"]["target"][0, 0]
    return params


@pytest.fixture(scope="module")
def batch():
    ids = np.random.default_rng(3).integers(0, TARGET, ORDER.shape).astype(np.int32)
    types = np.array([[0] * 5 + [1] * 4, [0] * 3 + [1] * 6], np.int32)
    targets = {"order": ORDER, "masked_positions": TARGETS, "masked_ids": np.take_along_axis(ids, TARGETS, 1)}
    weights = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.float32)
    inputs = {"input_ids": ids, "token_type_ids": types, "attention_mask": REAL}
    return inputs | targets | {"masked_weights": weights}


INPUTS = ("input_ids", "token_type_ids", "attention_mask")


def states(model, params, batch, texts=None) -> np.ndarray:
    """Those of the tokens, then those that predict the targets."""
    return _states(model)(params, batch, texts)


@functools.cache
def _states(model):
    def states(params, batch, texts):
        inputs = tuple(batch[name] for name in INPUTS)
        return model.encode(params, *inputs, texts=texts, permutation=Permutation.of(batch)).last_hidden_state

    return compiled(states)


@pytest.mark.parametrize("length, remembered", [(1, 0), (2, 0), (7, 0), (4, 7), (1, 3)])
def test_the_shift_is_the_distance_of_every_pair(length, remembered):
    keys = remembered + length
    scores = np.random.default_rng(length).standard_normal((2, 3, length, length + keys)).astype(np.float32)
    found = np.asarray(jax.jit(shifted)(scores))
    assert found.shape[2:] == (length, keys)
    for i, j in itertools.product(range(length), range(keys)):
        np.testing.assert_array_equal(found[..., i, j], scores[..., i, length - i + j])
    # The row of pair (i, j) encodes their distance.
    encodings = np.asarray(jax.jit(distance_encodings, static_argnums=(0, 1, 2))(length, remembered, 6))
    for i, j in itertools.product(range(length), range(keys)):
        angles = [(remembered + i - j) * 10_000.0 ** (-2 * k / 6) for k in range(3)]
        expected = [*map(math.sin, angles), *map(math.cos, angles)]
        np.testing.assert_allclose(encodings[length - i + j], expected, atol=1e-6)


@pytest.mark.parametrize("given", range(4))
def test_in_every_order_of_four_tokens_nobody_sees_what_comes_later(given):
    """`given` tokens come first and see each other; the others are predicted in turn."""
    for sequence in itertools.permutations(range(4)):
        order = np.zeros((1, 4), np.int32)
        order[0, list(sequence[given:])] = 1 + np.arange(4 - given)
        targets = np.array([sequence[given:]], np.int32)
        permutation = Permutation(order, targets)
        tokens, predicted = permutation.seen_by_tokens()[0], permutation.seen_by_targets()[0]
        for place, token in enumerate(sequence):
            own = set(sequence[:given]) if place < given else set(sequence[: place + 1])
            assert set(np.flatnonzero(tokens[token])) == own
        for slot, token in enumerate(sequence[given:]):
            assert set(np.flatnonzero(predicted[slot])) == set(sequence[: given + slot])
            assert token not in np.flatnonzero(predicted[slot])


def test_both_streams_give_the_conditional_of_each_target(model, params, batch):
    """One target at a time: in a single stream, it begins as the target vector and sees what comes before it."""
    length, losses = ORDER.shape[1], []
    found = states(model, params, batch)

    @compiled
    def alone(params, ids, types, real, seen):
        return model.encode(params, ids, types, AttentionMask(padding=real, bias=hidden_unless(seen))).last_hidden_state

    for row, slot in zip(*np.nonzero(batch["masked_weights"]), strict=True):
        target, order = TARGETS[row, slot], ORDER[row]
        ids = batch["input_ids"][[row]].copy()
        ids[0, target] = TARGET
        seen = np.array([order < order[i] if i == target else order <= order[i] for i in range(length)])
        state = alone(params, ids, batch["token_type_ids"][[row]], REAL[[row]], seen[None])[0, target]
        np.testing.assert_allclose(found[row, length + slot], state, atol=1e-5)
        logits = state @ params["embeddings"]["word"]["table"].T + params["mlm"]["bias"]
        losses.append(-np.log(softmax(logits)[batch["masked_ids"][row, slot]]))
    sums = compiled(lambda p: PermutationObjective(model).sums(p, batch)["permutation"])(params)
    np.testing.assert_allclose(float(sums.loss), sum(losses), rtol=1e-5)
    assert float(sums.weight) == len(losses) == 7


def test_a_text_of_a_packed_row_is_computed_as_if_it_stood_alone(model, params, batch):
    """The second row's seven tokens after four of the first one's, with one order of both."""
    whole = dataclasses.replace(SMALL, pair_head=True)
    pooled, lengths = BertForPreTraining(whole, FLOAT32, ("mlm", "pooler")), (9, 7)
    params = perturbed(pooled)
    joined = {name: np.concatenate([batch[name][[0], :9], batch[name][[1], :7]], 1) for name in (*INPUTS, "order")}
    joined["order"][0, 9:] = np.where(ORDER[1, :7], 2 * ORDER[1, :7], 0)  # places of both texts, mixed
    joined["masked_positions"] = np.concatenate([TARGETS[[0]], 9 + TARGETS[[1], :3]], 1)
    texts = PackedTexts(np.array([[1] * 9 + [2] * 7], np.int32), np.array([[0, 9]], np.int32))
    inputs = tuple(joined[name] for name in INPUTS)
    packed = compiled(lambda p: pooled.encode(p, *inputs, texts=texts, permutation=Permutation.of(joined)))(params)
    for row, start in enumerate((0, 9)):
        cut = {name: batch[name][[row], : lengths[row]] for name in (*INPUTS, "order")}
        cut["masked_positions"] = TARGETS[[row], : 4 - row]
        inputs = tuple(cut[name] for name in INPUTS)
        permutation = Permutation.of(cut)
        own = compiled(lambda p, *x, order=permutation: pooled.encode(p, *x, permutation=order))(params, *inputs)
        tokens = packed.last_hidden_state[0, start : start + lengths[row]]
        targets = packed.last_hidden_state[0, 16 + 4 * row : 20 + 3 * row]
        np.testing.assert_allclose(np.concatenate([tokens, targets]), own.last_hidden_state[0], atol=1e-5)
        np.testing.assert_allclose(packed.pooled[0, row], own.pooled[0], atol=1e-5)


@pytest.mark.parametrize(
    "name, encoder, with_head", [("base", 116_718_336, 116_750_336), ("large", 360_268_800, 360_300_800)]
)
def test_published_parameter_counts(name, encoder, with_head):
    config = dataclasses.replace(xlnet_config(name), vocab_size=32_000)
    model = BertForPreTraining(config, FLOAT32, ("mlm",))
    made = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(made)) == total_size(model.parameters) == with_head
    hidden, wide, layers = config.hidden_size, 4 * config.hidden_size, config.num_layers
    attention = 5 * hidden**2 + 3 * hidden + 2 * hidden + 2 * hidden
    block = attention + 2 * hidden * wide + wide + hidden + 2 * hidden
    assert total_size(bert_parameters(config, ())) == 32_000 * hidden + hidden + layers * block == encoder


def test_operations_count_both_streams():
    """By hand: every state has queries, output and feed-forward network; tokens alone have keys and values."""
    length, targets, hidden, layers = 24, 4, 16, 2
    states = length + targets
    kernels = layers * (states * (2 * hidden**2 + 2 * hidden * 20) + length * 2 * hidden**2)
    attention = layers * states * length * 3 * hidden  # content, distance, value
    table = bert_parameters(SMALL)
    expected = 6 * (kernels + attention + targets * 37 * hidden)
    assert training_flops(SMALL, table, length, targets).total == expected
    head = HeadConfig(labels=("a", "b"))
    of_task = training_flops(SMALL, bert_parameters(SMALL, (), head), length, 1).total
    tokens = layers * length * (4 * hidden**2 + 2 * hidden * 20 + length * 3 * hidden)
    assert of_task == 6 * (tokens + 2 * hidden + hidden**2)


def test_a_classifier_reads_the_last_token_on_either_side_of_padding():
    model = BertForTask(SMALL, HeadConfig(labels=("a", "b", "c")), FLOAT32)
    params, random = perturbed(model), np.random.default_rng(1)
    ids = random.integers(0, 37, (1, 6)).astype(np.int32)
    rows = [np.pad(ids, ((0, 0), sides)) for sides in ((0, 3), (3, 0), (0, 0))]
    masks = [np.pad(np.ones_like(ids), ((0, 0), sides)) for sides in ((0, 3), (3, 0), (0, 0))]
    apply = compiled(model.apply)
    right, left, bare = (
        apply(params, {"input_ids": row, "token_type_ids": 0 * row, "attention_mask": mask})
        for row, mask in zip(rows, masks, strict=True)
    )
    np.testing.assert_allclose(right, bare, atol=1e-5)
    np.testing.assert_allclose(left, bare, atol=1e-5)


def test_another_model_refuses_a_permutation(batch):
    bert = BertForPreTraining(ModelConfig(vocab_size=37, hidden_size=16, num_layers=1, num_heads=2), FLOAT32)
    with pytest.raises(UserError, match="model.positions=learned has no second stream .* set model.positions=xlnet"):
        bert.encode({}, *(batch[name] for name in INPUTS), permutation=Permutation.of(batch))


def test_words_are_filled_in_without_being_seen(model, params, batch):
    """Both hidden tokens are predicted from the others, not one from the other."""
    positions = np.array([[2, 6], [0, 0]], np.int32)
    hidden = compiled(model.hidden_logits)
    found = hidden(params, batch | {"masked_positions": positions})
    ids = batch["input_ids"].copy()
    ids[0, [2, 6]], ids[1, 0] = 7, 7
    np.testing.assert_array_equal(hidden(params, batch | {"masked_positions": positions, "input_ids": ids}), found)
    order = np.zeros_like(ids)
    order[0, 2], order[0, 6], order[1, 0] = 1, 2, 1  # in turn, the first one sees neither as well
    turns = {"order": order, "masked_positions": positions}
    table, places = params["embeddings"]["word"]["table"], ORDER.shape[1] + np.arange(2)
    logits = states(model, params, batch | turns)[:, places] @ table.T + params["mlm"]["bias"]
    np.testing.assert_allclose(logits[0, 0], found[0, 0], atol=1e-5)
    np.testing.assert_allclose(logits[1], found[1], atol=1e-5)
    assert np.abs(logits[0, 1] - found[0, 1]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("layers, remat", [("scan", "sel"), ("scan", "none"), ("loop", "full")])
def test_losses_and_gradients_are_the_same_however_layers_run(model, params, batch, layers, remat):
    other = BertForPreTraining(SMALL, dataclasses.replace(FLOAT32, layers=layers, remat=remat), ("mlm",))

    def both(of_model):
        loss = lambda p: PermutationObjective(of_model).sums(p, batch, jax.random.key(0))["permutation"].loss
        return compiled(jax.value_and_grad(loss))(params)

    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4), both(other), both(model))


def test_states_keep_the_type_of_the_computation(params, batch):
    half = BertForPreTraining(SMALL, ComputeConfig(dtype="bfloat16", layers="scan"), ("mlm",))
    found = states(half, params, batch)
    assert found.dtype == jnp.bfloat16
    exact = states(BertForPreTraining(SMALL, FLOAT32, ("mlm",)), params, batch)
    np.testing.assert_allclose(found.astype(np.float32), exact, atol=0.15)  # of values up to 3; bfloat16 has 8 bits

"""Recurrent layers in place of Transformer blocks: what each direction sees, and how they are trained."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import Config, DataConfig, ModelConfig, ObjectiveConfig, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.data.examples.next_words import NextWords
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives.objective_choice import default_objective

CLS, SEP, LENGTH, VOCABULARY = 2, 3, 10, 40
SIZES = ModelConfig(
    vocab_size=VOCABULARY,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    max_position_embeddings=LENGTH,
    layer="lstm",
    positions="none",
    type_vocab_size=0,
    pair_head=False,
)
CONFIG = Config(
    model=SIZES,
    objective=ObjectiveConfig(name="two_directions"),
    data=DataConfig(sentence_pairs="none"),
    phases=(PhaseConfig(sequence_length=LENGTH, batch_size=2),),
)
TEXT = np.array([CLS, 10, 11, 12, 13, SEP], np.int32)


@pytest.fixture(scope="module")
def model():
    return BertForPreTraining(SIZES, parts=("mlm", "pooler"))


@pytest.fixture(scope="module")
def params(model):
    params = model.init(jax.random.key(0))
    keys = iter(jax.random.split(jax.random.key(1), 100))
    return jax.tree.map(lambda x: x + 0.3 * jax.random.normal(next(keys), x.shape), params)


@pytest.fixture(scope="module")
def encode(model, params):
    run = jax.jit(lambda ids: model.encode(params, ids, jnp.zeros_like(ids), (ids > 0).astype(jnp.int32)))
    return lambda text: run(np.pad(text, (0, LENGTH - len(text)))[None])


def test_each_direction_sees_the_tokens_on_its_side_alone(encode):
    changed = TEXT.copy()
    changed[2] = 30
    moved = np.abs(np.asarray(encode(TEXT).last_hidden_state - encode(changed).last_hidden_state)[0, :6])
    left, right = moved[:, :8].max(axis=1) > 0, moved[:, 8:].max(axis=1) > 0
    np.testing.assert_array_equal(left, [False, False, True, True, True, True])
    np.testing.assert_array_equal(right, [True, True, True, False, False, False])


def test_the_losses_are_those_of_each_word_given_one_side_alone(model, params, encode):
    ids = np.pad(TEXT, (0, LENGTH - len(TEXT)))[None]
    batch = NextWords(LENGTH - 1, CLS)(ids, ids > 4, np.array([len(TEXT)]), np.zeros(1, np.uint64))
    batch |= {"attention_mask": (ids > 0).astype(np.int32), "token_type_ids": 0 * ids}
    found = default_objective(model, CONFIG).sums(params, batch)
    halves = jnp.arange(16) < 8

    def loss(text, place, half, word):
        """Of `word`, from the state of one direction at a place of a text that has nothing of the other side."""
        output = encode(text)
        output = output._replace(last_hidden_state=jnp.where(half, output.last_hidden_state, 0))
        logits = model.mlm_logits(params, {"masked_positions": np.array([[place]])}, output)
        return -float(jax.nn.log_softmax(logits[0, 0])[word])

    left = sum(loss(TEXT[: place + 1], place, halves, TEXT[place + 1]) for place in range(5))
    right = sum(loss(TEXT[place:], 0, ~halves, TEXT[place - 1]) for place in range(1, 6))
    np.testing.assert_allclose(float(found["next_word"].loss), left, rtol=1e-5)
    np.testing.assert_allclose(float(found["previous_word"].loss), right, rtol=1e-5)
    assert float(found["next_word"].weight) == float(found["previous_word"].weight) == 5


def test_the_pooler_reads_the_end_of_each_direction(params, encode):
    output, pooler = encode(TEXT), params["pooler"]
    read = np.concatenate([output.last_hidden_state[0, 5, :8], output.last_hidden_state[0, 0, 8:]])
    np.testing.assert_allclose(output.pooled[0], np.tanh(read @ pooler["kernel"] + pooler["bias"]), rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer": "transformer", "positions": "learned"}, "would see the answer; set model.layer=lstm"),
        ({"positions": "rope"}, "model.positions=rope belongs to Transformer layers.* set model.positions=none or"),
        ({"feed_forward": "geglu"}, "model.feed_forward=geglu belongs to Transformer layers"),
        ({"hidden_size": 15, "num_heads": 1}, "model.hidden_size=15 cannot be divided between the two directions"),
    ],
)
def test_what_recurrent_layers_cannot_have_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check(dataclasses.replace(CONFIG, model=dataclasses.replace(SIZES, **changes)))


def test_the_operations_of_a_step_are_those_of_its_products(model):
    size, places, words = 8, LENGTH - 1, 16 * VOCABULARY
    layers = LENGTH * 2 * 2 * (size * 4 * size + size * 4 * size)  # layers, directions: from the input, from the state
    head = places * 2 * (16 * 16 + words)
    assert model.training_flops(LENGTH, places) == 3 * 2 * (layers + head + 16 * 16)  # and the pooler


def test_packed_rows_are_refused():
    packed = dataclasses.replace(CONFIG, data=DataConfig(sentence_pairs="none", packing="on"))
    with pytest.raises(UserError, match="would pass from one text of a packed row to the next; set data.packing=off"):
        check(packed)

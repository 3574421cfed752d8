"""Recurrent layers and BiLSTMs."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pretrained_model
import pytest
from model_variants import variant
from small_model import compiled, perturbed
from small_model import encode as encode_once

from bert_jax.config import ComputeConfig, Config, DataConfig, LeftToRight, PhaseConfig, TwoDirections
from bert_jax.config.checks import check
from bert_jax.config.heads import HeadConfig
from bert_jax.config.model import ModelConfig
from bert_jax.console import parse
from bert_jax.data.masking import NextWords
from bert_jax.errors import UserError
from bert_jax.finetuning.programs import fitting_head
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.layers import PackedTexts, dropout
from bert_jax.models.lstm import BiLstmHead, Lstm, orthogonal
from bert_jax.models.protocol import arrays
from bert_jax.models.task import BertForTask
from bert_jax.objectives.objective import mean_loss
from bert_jax.pretraining import default_objective

CLS, SEP, LENGTH, VOCABULARY = 2, 3, 10, 40
SIZES = ModelConfig(vocab_size=VOCABULARY, hidden_size=16, num_layers=2, num_heads=2, max_position_embeddings=LENGTH)
SIZES = variant(dataclasses.replace(SIZES, type_vocab_size=0, pair_head=False), layer="lstm", positions="none")
CONFIG = Config(
    model=SIZES,
    objective=TwoDirections(),
    data=DataConfig(sentence_pairs="none"),
    phases=(PhaseConfig(sequence_length=LENGTH, batch_size=2),),
)
TEXT = np.array([CLS, 10, 11, 12, 13, SEP], np.int32)


@pytest.fixture(scope="module")
def model():
    return BertForPreTraining(SIZES, parts=("mlm", "pooler"))


@pytest.fixture(scope="module")
def params(model):
    return perturbed(model)


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


@pytest.fixture(scope="module")
def batch():
    ids = np.pad(TEXT, (0, LENGTH - len(TEXT)))[None]
    made = NextWords(LENGTH - 1, CLS)(ids, ids > 4, np.array([len(TEXT)]), np.zeros(1, np.uint64))
    return made | {"attention_mask": (ids > 0).astype(np.int32), "token_type_ids": 0 * ids}


def test_the_losses_are_those_of_each_word_given_one_side_alone(model, params, encode, batch):
    found = jax.jit(default_objective(model, CONFIG).sums)(params, batch)
    halves = jnp.arange(16) < 8

    @jax.jit
    def shares(output, place, half):
        output = output._replace(last_hidden_state=jnp.where(half, output.last_hidden_state, 0))
        return jax.nn.log_softmax(model.mlm_logits(params, {"masked_positions": place[None, None]}, output)[0, 0])

    def loss(text, place, half, word):
        """Of `word`, from the state of one direction at a place of a text that has nothing of the other side."""
        return -float(np.asarray(shares(encode(text), np.int32(place), half))[word])

    left = sum(loss(TEXT[: place + 1], place, halves, TEXT[place + 1]) for place in range(5))
    right = sum(loss(TEXT[place:], 0, ~halves, TEXT[place - 1]) for place in range(1, 6))
    np.testing.assert_allclose(float(found["next_word"].loss), left, rtol=1e-5)
    np.testing.assert_allclose(float(found["previous_word"].loss), right, rtol=1e-5)
    assert float(found["next_word"].weight) == float(found["previous_word"].weight) == 5


def test_each_direction_has_a_weight_in_the_sum_that_is_minimized(model, params, batch):
    def loss(**weights):
        options = check(dataclasses.replace(CONFIG, objective=dataclasses.replace(CONFIG.objective, **weights)))
        objective = default_objective(model, options)
        return mean_loss(objective.terms, objective.sums(params, batch), objective.denominators(batch))

    left, right, both = jax.jit(
        lambda: (
            loss(previous_word_weight=0.0),
            loss(next_word_weight=0.0),
            loss(next_word_weight=0.5, previous_word_weight=3.0),
        )
    )()
    assert left != right
    assert float(both) == pytest.approx(0.5 * float(left) + 3 * float(right), rel=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("next_word_weight=0 previous_word_weight=0", "leave nothing to learn; the paper's weights are 1"),
        ("previous_word_weight=-1", "objective.previous_word_weight=-1.0 must be 0 or a positive number"),
    ],
)
def test_weights_without_a_loss_of_theirs_are_refused(words, message):
    with pytest.raises(UserError, match=message):
        check(parse(CONFIG, [f"--objective.{word}" for word in words.split()], "pretrain"))


def test_the_pooler_reads_the_end_of_each_direction(params, encode):
    output, pooler = encode(TEXT), params["pooler"]
    read = np.concatenate([output.last_hidden_state[0, 5, :8], output.last_hidden_state[0, 0, 8:]])
    np.testing.assert_allclose(output.pooled[0], np.tanh(read @ pooler["kernel"] + pooler["bias"]), rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layer": "transformer", "positions": "learned", "num_heads": 2},
            "would see the answer; set model.layer=lstm",
        ),
        ({"positions": "rope"}, "model.positions='rope' must be one of learned, none"),
        ({"feed_forward": "geglu"}, "model.feed_forward=geglu belongs to .*, not to model.layer=lstm"),
        ({"recurrent_dropout": 1.0}, "model.recurrent_dropout=1.0 must be between 0 and 1, 1 not included"),
        (
            {"layer": "transformer", "positions": "learned", "direction": "left_to_right", "recurrent_dropout": 0.5},
            "model.recurrent_dropout=0.5 belongs to model.layer=lstm, not to model.layer=transformer",
        ),
        ({"hidden_size": 15}, "model.hidden_size=15 cannot be divided between the two directions"),
    ],
)
def test_what_recurrent_layers_cannot_have_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check(dataclasses.replace(CONFIG, model=variant(SIZES, **changes)))


def _looped(x, mask, kernel, recurrent, bias):
    """Of one row [L, I], token by token in float64: what an LSTM computes with these weights throughout."""
    hidden = cell = np.zeros(len(recurrent))
    states = []
    for token, real in zip(x.astype(np.float64), mask):
        into, forget, new, out = np.split(token @ kernel + bias + hidden @ recurrent, 4)
        if real:
            cell = cell / (1 + np.exp(-forget)) + np.tanh(new) / (1 + np.exp(-into))
            hidden = np.tanh(cell) / (1 + np.exp(-out))
        states.append(hidden)
    return np.stack(states)


RATE = 0.25


def test_dropped_weights_between_states_are_the_same_for_all_tokens_and_rows():
    """The weights that `dropout` draws from the key, applied token by token by a loop over rows."""
    lstm = jax.jit(lambda key: Lstm(3, 4, key))(jax.random.key(0))
    x = np.random.default_rng(1).standard_normal((2, 5, 3), np.float32)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    weights = [np.array(each[...], np.float64) for each in (lstm.kernel, lstm.recurrent, lstm.bias)]
    key = jax.random.key(2)
    dropped = np.array(jax.jit(dropout, static_argnums=1)(lstm.recurrent[...], RATE, key), np.float64)
    assert 0 < (dropped == 0).sum() < dropped.size
    np.testing.assert_allclose(dropped[dropped != 0], weights[1][dropped != 0] / (1 - RATE), rtol=1e-6)
    run = jax.jit(lambda key: lstm(x, mask, recurrent_rate=RATE, recurrent_key=key))
    found = np.array(run(key))
    expected = [_looped(x[row], mask[row], weights[0], dropped, weights[2]) for row in range(2)]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    whole = [_looped(x[row], mask[row], *weights) for row in range(2)]
    np.testing.assert_allclose(run(None), whole, atol=1e-6)


def test_what_dropped_weights_add_to_a_state_has_the_expectation_and_variance_of_their_closed_form():
    """h · (W ∘ m) / (1 - p) has the mean h · W and the variance Σ (h W)² p / (1 - p)."""
    hidden, weights = np.random.default_rng(3).standard_normal((2, 6), np.float32)
    keys, column = jax.random.split(jax.random.key(5), 4000), weights[:, None]
    sums = np.array(jax.jit(jax.vmap(lambda key: hidden @ dropout(column, RATE, key)[:, 0]))(keys))
    variance = float(np.sum((hidden * weights) ** 2) * RATE / (1 - RATE))
    assert abs(sums.mean() - hidden @ weights) < 5 * np.sqrt(variance / len(keys))
    assert sums.var() == pytest.approx(variance, rel=0.15)


@pytest.mark.parametrize("direction", ["both", pytest.param("left_to_right", marks=pytest.mark.slow)])
def test_weights_between_states_are_dropped_in_training_alone(direction):
    config = variant(dataclasses.replace(SIZES, direction=direction, hidden_dropout=0.0), recurrent_dropout=0.5)
    dropping = BertForPreTraining(config, parts=("mlm", "pooler"))
    plain = BertForPreTraining(variant(config, recurrent_dropout=0.0), parts=("mlm", "pooler"))
    params, ids = perturbed(plain), TEXT[None]
    batch = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": 0 * ids + 1}

    def states(model, key=None):
        return np.array(encode_once(model, params, batch, key).last_hidden_state)

    key = jax.random.key(7)
    np.testing.assert_array_equal(states(dropping), states(plain))
    np.testing.assert_array_equal(states(plain, key), states(plain))
    np.testing.assert_array_equal(states(dropping, key), states(dropping, key))
    assert np.abs(states(dropping, key) - states(plain)).max() > 1e-4
    assert np.abs(states(dropping, jax.random.key(8)) - states(dropping, key)).max() > 1e-4


def test_the_operations_of_a_step_are_those_of_its_products(model):
    size, places, words = 8, LENGTH - 1, 16 * VOCABULARY
    layers = LENGTH * 2 * 2 * (size * 4 * size + size * 4 * size)  # layers, directions: from the input, from the state
    head = places * 2 * (16 * 16 + words)
    assert model.training_flops(LENGTH, places) == 3 * 2 * (layers + head + 16 * 16)  # and the pooler


LEFT_TO_RIGHT = dataclasses.replace(
    CONFIG, model=dataclasses.replace(SIZES, direction="left_to_right"), objective=LeftToRight()
)


def rows_of(*rows):
    """Rows of texts as a batch of left-to-right rows, with the numbers and places of the texts."""
    ids, numbers, starts = (np.zeros(shape, np.int32) for shape in ((len(rows), 14), (len(rows), 14), (len(rows), 3)))
    for row, texts in enumerate(rows):
        ids[row, : sum(map(len, texts))] = np.concatenate(texts)
        numbers[row, : sum(map(len, texts))] = np.repeat(np.arange(len(texts)) + 1, list(map(len, texts)))
        starts[row, : len(texts)] = np.cumsum([0, *map(len, texts)])[:-1]
    batch = NextWords(13, CLS)(ids, ids > 4, (ids > 0).sum(1), np.zeros(len(rows), np.uint64))
    batch |= {"attention_mask": (ids > 0).astype(np.int32), "token_type_ids": 0 * ids}
    return batch, {"text_ids": numbers, "text_starts": starts}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(CONFIG, id="both directions", marks=pytest.mark.slow),
        pytest.param(LEFT_TO_RIGHT, id="left to right", marks=pytest.mark.slow),
    ],
)
def test_texts_that_share_a_row_are_computed_as_if_they_stood_alone(config):
    """Both rows end in padding, which one direction begins with, and one row has fewer texts than the other."""
    model = BertForPreTraining(dataclasses.replace(config.model, max_position_embeddings=14), parts=("mlm", "pooler"))
    params, objective = perturbed(model), default_objective(model, config)
    texts = [np.array([CLS, *words, SEP], np.int32) for words in ([10, 11], [12], [13, 14, 15], [16, 17, 18, 19], [9])]
    shared, places = rows_of(texts[:3], texts[3:])
    alone = rows_of(*([text] for text in texts))[0]

    def encoded(batch):
        names = ("input_ids", "token_type_ids", "attention_mask")
        return model.encode(params, *map(batch.get, names), texts=PackedTexts.of(batch))

    @compiled
    def measured(batch):
        loss = lambda params: mean_loss(objective.terms, objective.sums(params, batch), objective.denominators(batch))
        output = encoded(batch)
        return output.last_hidden_state, output.pooled, *jax.value_and_grad(loss)(params)

    states, pooled, loss, gradients = jax.device_get(measured(shared | places))
    own_states, own_pooled, own_loss, own_gradients = jax.device_get(measured(alone))
    for number, (row, text) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]):
        here = np.flatnonzero(places["text_ids"][row] == text + 1)
        np.testing.assert_allclose(states[row, here], own_states[number, : len(here)], atol=1e-6)
        np.testing.assert_allclose(pooled[row, text], own_pooled[number], atol=1e-6)
    np.testing.assert_allclose(loss, own_loss, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), gradients, own_gradients)
    unaware = compiled(encoded)(shared).last_hidden_state  # the state of a text passes to the next one
    assert np.abs(np.asarray(unaware)[0, len(texts[0])] - own_states[1, 0]).max() > 1e-3


def test_packed_rows_are_accepted():
    check(dataclasses.replace(CONFIG, data=DataConfig(sentence_pairs="none", packing="on")))


BATCH, BILSTM_LENGTH, HIDDEN, LAYERS, SIZE = 3, 6, 8, 5, 4
MASK = (np.arange(BILSTM_LENGTH)[None] < np.array([[6], [3], [1]])).astype(np.int32)
BILSTM_SIZES = {"vocab_size": 20, "hidden_size": HIDDEN, "num_heads": 2, "max_position_embeddings": 8}
BILSTM_CONFIG = ModelConfig(num_layers=LAYERS, **BILSTM_SIZES)


def head(features="last", kind="tagging", **options):
    return HeadConfig(kind=kind, labels=("O", "B-X", "I-X"), features=features, lstm_size=SIZE, **options)


def states(seed=0):
    return list(
        np.random.default_rng(seed).standard_normal((LAYERS + 1, BATCH, BILSTM_LENGTH, HIDDEN)).astype(np.float32)
    )


@pytest.mark.parametrize("size", [1, pytest.param(5, marks=pytest.mark.slow), 256])
def test_recurrent_weights_start_orthogonal_without_lapack(size):
    """Kernels of LAPACK on the devices of a mesh may wait for each other for ever."""
    key, draw = jax.random.key(3), jax.jit(orthogonal, static_argnums=1)
    matrix = np.asarray(draw(key, size))
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(size), atol=2e-6)
    np.testing.assert_allclose(matrix, jax.nn.initializers.orthogonal()(key, (size, size)), atol=2e-5)
    assert "custom_call" not in draw.lower(key, size).as_text()


def numpy_lstm(params, tokens):
    """One direction over the tokens of one sequence, [n, I] to [n, S], float64."""
    weights = (np.asarray(params[name], np.float64) for name in ("kernel", "recurrent", "bias"))
    return _looped(tokens, np.ones(len(tokens)), *weights)


@pytest.mark.parametrize("kind", ["tagging", "classification"])
def test_scores_equal_numpy(kind):
    tagger, hidden_states = head(kind=kind), states()
    fresh = jax.jit(lambda key: BiLstmHead(BILSTM_CONFIG, tagger, key))(jax.random.key(0))
    module = jax.tree.map(
        lambda x: x + 0.3 * np.random.default_rng(x.size).standard_normal(x.shape).astype(np.float32),
        jax.device_get(fresh),
    )
    params, scores = arrays(module), jax.jit(module)(hidden_states, MASK)
    for row in range(BATCH):
        x = hidden_states[-1][row, : MASK[row].sum()]
        for layer in ("layer_0", "layer_1"):
            ahead = numpy_lstm(params[layer]["forward"], x)
            behind = numpy_lstm(params[layer]["backward"], x[::-1])[::-1]
            x = np.concatenate([ahead, behind], axis=-1)
        read = x if kind == "tagging" else x.max(axis=0)
        expected = read @ np.asarray(params["kernel"]) + np.asarray(params["bias"])
        found = scores[row, : len(x)] if kind == "tagging" else scores[row]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_features_are_those_of_table_7():
    s = states(1)
    weights, scale = np.random.default_rng(2).standard_normal(LAYERS + 1).astype(np.float32), np.float32(1.7)
    share_of_all, share, share_of_four = (np.exp(s) / np.exp(s).sum() for s in (weights, weights[1:], weights[2:]))
    expected = {
        "embeddings": s[0],
        "last": s[-1],
        "second_to_last": s[-2],
        "sum_last_four": s[-4] + s[-3] + s[-2] + s[-1],
        "concat_last_four": np.concatenate(s[-4:], axis=-1),
        "weighted_last_four": scale * sum(w * x for w, x in zip(share_of_four, s[-4:])),
        "weighted_all": scale * sum(w * x for w, x in zip(share, s[1:])),
        "weighted_with_embeddings": scale * sum(w * x for w, x in zip(share_of_all, s)),
    }
    kernels = {}

    @jax.jit
    def inputs(states):
        found = {}
        for name in expected:
            module = BiLstmHead(BILSTM_CONFIG, head(name), jax.random.key(0))
            kernels[name] = module.layer_0.forward.kernel.shape
            assert ("mix" in arrays(module)) == name.startswith("weighted")
            if module.mix is not None:
                module.mix.weights[...], module.mix.scale[...] = weights[-module.mix.weights.shape[0] :], scale
            found[name] = module.inputs(states)
        return found

    for name, found in inputs(s).items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
        assert kernels[name] == (expected[name].shape[-1], 4 * SIZE)


def test_fresh_weights_are_the_mean_of_the_layers():
    mixed = jax.jit(lambda states: BiLstmHead(BILSTM_CONFIG, head("weighted_all"), jax.random.key(0)).inputs(states))
    np.testing.assert_allclose(mixed(states()), np.mean(states()[1:], axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("trained", [False, True], ids=["frozen", "trained"])
def test_a_model_trains_the_head_and_the_encoder_only_if_it_shall(trained):
    tagger = dataclasses.replace(head("weighted_last_four"), train_encoder=trained)
    model = BertForTask(BILSTM_CONFIG, tagger, ComputeConfig(layers="scan"))
    random = np.random.default_rng(4)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda x: 0.1 * random.standard_normal(x.shape, np.float32), shapes)
    batch = {
        "input_ids": random.integers(5, 20, (BATCH, BILSTM_LENGTH)).astype(np.int32),
        "attention_mask": MASK,
        "token_type_ids": np.zeros((BATCH, BILSTM_LENGTH), np.int32),
    }

    def loss(params, key):
        scores = model.apply(params, batch, key)
        return (scores * MASK[:, :, None]).var(), scores

    function = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (value, scores), gradients = function(params, jax.random.key(5))
    assert scores.shape == (BATCH, BILSTM_LENGTH, 3) and scores.dtype == np.float32
    for part, tree in gradients.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            assert np.asarray(leaf).any() == (trained or part == "head"), (part, path)
    assert np.isfinite(value) and function(params, jax.random.key(6))[0][0] != value  # dropout


def test_features_that_cannot_be():
    shallow = ModelConfig(num_layers=2, **BILSTM_SIZES)
    for features in ("concat_last_four", "weighted_last_four"):
        with pytest.raises(UserError, match="needs 4 layers and the model has 2"):
            jax.eval_shape(lambda features=features: BiLstmHead(shallow, head(features), jax.random.key(0)))


@pytest.mark.parametrize(
    "kind, shape, scores",
    [
        ("classification", (BATCH, BILSTM_LENGTH), (BATCH, 3)),
        pytest.param("regression", (BATCH, BILSTM_LENGTH), (BATCH,), marks=pytest.mark.slow),
        pytest.param("choice", (1, BATCH, BILSTM_LENGTH), (1, BATCH), marks=pytest.mark.slow),
        ("span", (BATCH, BILSTM_LENGTH), (BATCH, BILSTM_LENGTH, 2)),
    ],
)
@pytest.mark.parametrize(
    "config",
    [BILSTM_CONFIG, pytest.param(dataclasses.replace(BILSTM_CONFIG, task_transform=True), marks=pytest.mark.slow)],
    ids=["bert", "modern"],
)
def test_every_head_reads_frozen_layers(config, kind, shape, scores):
    """It has no pooler, and changes neither with the words behind the padding nor with the order of the rows."""
    model = BertForTask(config, head("weighted_with_embeddings", kind=kind, dropout=0.0))
    params, random = perturbed(model), np.random.default_rng(7)
    assert "pooler" not in params and params["head"]["mix"]["weights"].shape == (LAYERS + 1,)
    ids = random.integers(5, 20, (BATCH, BILSTM_LENGTH)).astype(np.int32)

    def found(ids, mask=MASK):
        batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return np.asarray(apply(params, {name: values.reshape(shape) for name, values in batch.items()}))

    apply = jax.jit(model.apply)
    first = found(ids)
    assert first.shape == scores and first.dtype == np.float32
    real = MASK > 0 if kind == "span" else np.ones(BATCH, bool)
    by_row = lambda scores: scores.reshape(BATCH, *scores.shape[len(shape) - 1 :])
    again, turned = found(np.where(MASK > 0, ids, 1)), by_row(found(ids[::-1], MASK[::-1]))[::-1]
    for other in by_row(again), turned:
        np.testing.assert_allclose(other[real], by_row(first)[real], atol=1e-6)


def test_a_stored_head_is_kept_only_where_its_parameters_are_the_ones_wanted():
    stored = pretrained_model.stored_model(head=head())
    assert fitting_head(stored, head(dropout=0.5))[0] is stored
    for changes, said in (
        ({"lstm_size": 2 * SIZE}, "width 8 on last"),
        ({"features": "sum_last_four"}, "width 4 on sum_last_four"),
        ({"crf": True}, r"\(O, B-X, I-X\), a CRF, a BiLSTM of width 4 on last"),
    ):
        encoder, note = fitting_head(stored, dataclasses.replace(head(), **changes))
        assert encoder.head is None and encoder.parts == ()
        assert any(path.startswith("encoder/") for path in encoder.arrays)
        assert re.search(f"has a head for .* width 4 on last, this task needs .*{said}: the encoder is taken", note)
    # Without features there is no BiLSTM to be of a width.
    plain = HeadConfig(kind="tagging", labels=("O", "B-X"), lstm_size=8)
    stored = pretrained_model.stored_model(head=plain)
    assert fitting_head(stored, dataclasses.replace(plain, lstm_size=16))[0] is stored

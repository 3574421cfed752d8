"""The BiLSTM against one written out in NumPy, its features against the paper's list, and a frozen encoder below it."""

import dataclasses
import re

import jax
import numpy as np
import pretrained_model
import pytest
from small_model import perturbed

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.finetuning.programs import fitting_head
from bert_jax.models.lstm import BiLstmHead, orthogonal
from bert_jax.models.protocol import arrays
from bert_jax.models.task import BertForTask

BATCH, LENGTH, HIDDEN, LAYERS, SIZE = 3, 6, 8, 5, 4
MASK = (np.arange(LENGTH)[None] < np.array([[6], [3], [1]])).astype(np.int32)
CONFIG = ModelConfig(vocab_size=20, hidden_size=HIDDEN, num_layers=LAYERS, num_heads=2, max_position_embeddings=8)


def head(features="last", kind="tagging", **options):
    return HeadConfig(kind=kind, labels=("O", "B-X", "I-X"), features=features, lstm_size=SIZE, **options)


def states(seed=0):
    return list(np.random.default_rng(seed).standard_normal((LAYERS + 1, BATCH, LENGTH, HIDDEN)).astype(np.float32))


@pytest.mark.parametrize("size", [1, 5, 256])
def test_recurrent_weights_start_orthogonal_without_lapack(size):
    """Kernels of LAPACK on the devices of a mesh may wait for each other for ever."""
    key, draw = jax.random.key(3), jax.jit(orthogonal, static_argnums=1)
    matrix = np.asarray(draw(key, size))
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(size), atol=2e-6)
    np.testing.assert_allclose(matrix, jax.nn.initializers.orthogonal()(key, (size, size)), atol=2e-5)
    assert "custom_call" not in draw.lower(key, size).as_text()


def numpy_lstm(params, tokens):
    """One direction over the tokens of one sequence, [n, I] to [n, S], float64."""
    parts = [
        [
            np.asarray(params[name], np.float64)[..., SIZE * gate : SIZE * (gate + 1)]
            for name in ("kernel", "recurrent", "bias")
        ]
        for gate in range(4)
    ]
    hidden = cell = np.zeros(SIZE)
    outputs = []
    for token in tokens:
        into, forget, new, out = (token @ kernel + hidden @ recurrent + bias for kernel, recurrent, bias in parts)
        into, forget, out = (1 / (1 + np.exp(-gate)) for gate in (into, forget, out))
        cell = forget * cell + into * np.tanh(new)
        hidden = out * np.tanh(cell)
        outputs.append(hidden)
    return np.array(outputs)


@pytest.mark.parametrize("kind", ["tagging", "classification"])
def test_scores_equal_numpy(kind):
    tagger, hidden_states = head(kind=kind), states()
    fresh = jax.jit(lambda key: BiLstmHead(CONFIG, tagger, key))(jax.random.key(0))
    module = jax.tree.map(
        lambda x: x + 0.3 * np.random.default_rng(x.size).standard_normal(x.shape).astype(np.float32),
        jax.device_get(fresh),
    )
    params, scores = arrays(module), jax.jit(module)(hidden_states, MASK)
    for row in range(BATCH):
        x = hidden_states[-1][row, : MASK[row].sum()]
        for layer in ("layer_0", "layer_1"):
            ahead, behind = (
                numpy_lstm(params[layer]["forward"], x),
                numpy_lstm(params[layer]["backward"], x[::-1])[::-1],
            )
            x = np.concatenate([ahead, behind], axis=-1)
        read = x if kind == "tagging" else x.max(axis=0)
        expected = read @ np.asarray(params["kernel"]) + np.asarray(params["bias"])
        found = scores[row, : len(x)] if kind == "tagging" else scores[row]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_features_are_those_of_table_7():
    s = states(1)
    weights, scale = np.random.default_rng(2).standard_normal(LAYERS + 1).astype(np.float32), np.float32(1.7)
    share_of_all, share, share_of_four = (
        np.exp(some) / np.exp(some).sum() for some in (weights, weights[1:], weights[2:])
    )
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
            module = BiLstmHead(CONFIG, head(name), jax.random.key(0))
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
    mixed = jax.jit(lambda states: BiLstmHead(CONFIG, head("weighted_all"), jax.random.key(0)).inputs(states))
    np.testing.assert_allclose(mixed(states()), np.mean(states()[1:], axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("trained", [False, True], ids=["frozen", "trained"])
def test_a_model_trains_the_head_and_the_encoder_only_if_it_shall(trained):
    tagger = dataclasses.replace(head("weighted_last_four"), train_encoder=trained)
    model = BertForTask(CONFIG, tagger, ComputeConfig(layers="scan"))
    random = np.random.default_rng(4)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda x: 0.1 * random.standard_normal(x.shape, np.float32), shapes)
    batch = {
        "input_ids": random.integers(5, 20, (BATCH, LENGTH)).astype(np.int32),
        "attention_mask": MASK,
        "token_type_ids": np.zeros((BATCH, LENGTH), np.int32),
    }

    def loss(params, key):
        scores = model.apply(params, batch, key)
        return (scores * MASK[:, :, None]).var(), scores

    function = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (value, scores), gradients = function(params, jax.random.key(5))
    assert scores.shape == (BATCH, LENGTH, 3) and scores.dtype == np.float32
    for part, tree in gradients.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            assert np.asarray(leaf).any() == (trained or part == "head"), (part, path)
    assert np.isfinite(value) and function(params, jax.random.key(6))[0][0] != value  # dropout


def test_features_that_cannot_be():
    shallow = ModelConfig(vocab_size=20, hidden_size=HIDDEN, num_layers=2, num_heads=2)
    for features in ("concat_last_four", "weighted_last_four"):
        with pytest.raises(UserError, match="needs 4 layers and the model has 2"):
            jax.eval_shape(lambda features=features: BiLstmHead(shallow, head(features), jax.random.key(0)))


@pytest.mark.parametrize(
    "kind, shape, scores",
    [
        ("classification", (BATCH, LENGTH), (BATCH, 3)),
        ("regression", (BATCH, LENGTH), (BATCH,)),
        ("choice", (1, BATCH, LENGTH), (1, BATCH)),
        ("span", (BATCH, LENGTH), (BATCH, LENGTH, 2)),
    ],
)
@pytest.mark.parametrize(
    "config",
    [CONFIG, pytest.param(dataclasses.replace(CONFIG, task_transform=True), marks=pytest.mark.slow)],
    ids=["bert", "modern"],
)
def test_every_head_reads_frozen_layers(config, kind, shape, scores):
    """It has no pooler, and changes neither with the words behind the padding nor with the order of the rows."""
    model = BertForTask(config, head("weighted_with_embeddings", kind=kind, dropout=0.0))
    params, random = perturbed(model), np.random.default_rng(7)
    assert "pooler" not in params and params["head"]["mix"]["weights"].shape == (LAYERS + 1,)
    ids = random.integers(5, 20, (BATCH, LENGTH)).astype(np.int32)

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
        assert (
            encoder.head is None and encoder.parts == () and any(path.startswith("encoder/") for path in encoder.arrays)
        )
        assert re.search(f"has a head for .* width 4 on last, this task needs .*{said}: the encoder is taken", note)
    plain = HeadConfig(
        kind="tagging", labels=("O", "B-X"), lstm_size=8
    )  # without features there is no BiLSTM to be of a width
    stored = pretrained_model.stored_model(head=plain)
    assert fitting_head(stored, dataclasses.replace(plain, lstm_size=16))[0] is stored

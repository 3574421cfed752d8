"""Dropout: its statistics, its sites, its keys."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_model import FLOAT32, SMALL, compiled, encode, loss_function, make_batch, perturbed

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
    identity = jnp.tile(
        jnp.eye(8)[None, :, None, :], (2, 1, 3, 1)
    )  # its product with the probabilities is the probabilities
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

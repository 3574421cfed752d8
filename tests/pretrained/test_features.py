"""The vectors of a loaded model: pooling, the layers that BERT's paper reads, and weights that are learned."""

import jax
import numpy as np
import pytest
from loaded_model import SMALL, TEXTS, loaded
from pretrained_model import stored_model

from bert_jax.models.pooling import LAYERS_READ, combine


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "mean_sqrt_len", "pooler"])
def test_each_pooling_is_its_formula_over_the_states(model, encoding, pooling):
    found = model.encode(TEXTS, pooling=pooling)
    for number, size in enumerate(encoding.attention_mask.sum(axis=1)):
        states = found.last_hidden_state[number, :size]
        expected = {
            "cls": states[0],
            "mean": states.mean(0),
            "max": states.max(0),
            "pooler": encoding.pooled[number],
            "mean_sqrt_len": states.sum(0) / np.sqrt(size),
        }[pooling]
        np.testing.assert_allclose(found.pooled[number], expected, atol=2e-6)
    np.testing.assert_allclose(model.embed(TEXTS, pooling=pooling), found.pooled, atol=2e-6)


WEIGHTS = {"weighted_last_four": [0.5, -1.0, 2.0, 0.25], "weighted_all": [1.0, 0.0, 0.5, 2.0, -1.0]}


@pytest.mark.parametrize("layers", LAYERS_READ)
def test_the_layers_that_the_paper_reads_are_combined_as_it_says(model, encoding, layers):
    states, weights = encoding.hidden_states, WEIGHTS.get(layers)
    expected = {
        "last": lambda: states[5],
        "second_to_last": lambda: states[4],
        "sum_last_four": lambda: states[2] + states[3] + states[4] + states[5],
        "concat_last_four": lambda: np.concatenate(states[2:], axis=-1),
        "weighted_last_four": lambda: 0.5 * states[2] - states[3] + 2 * states[4] + 0.25 * states[5],
        "weighted_all": lambda: states[1] + 0.5 * states[3] + 2 * states[4] - states[5],
    }[layers]()
    np.testing.assert_allclose(combine(states, layers, weights), expected, atol=1e-5)
    embedded = model.embed(TEXTS, layers, "cls", weights=weights)
    assert embedded.shape == (4, 64 if layers == "concat_last_four" else 16)
    np.testing.assert_allclose(embedded, expected[:, 0], atol=1e-5)


def test_weights_of_layers_can_be_learned(encoding):
    target = sum(weight * state for weight, state in zip(WEIGHTS["weighted_all"], encoding.hidden_states[1:]))
    loss = lambda weights: ((combine(encoding.hidden_states, "weighted_all", weights) - target) ** 2).mean()
    gradient = jax.grad(loss)(np.ones(5, np.float32))
    rest = sum(encoding.hidden_states[1:]) - target
    np.testing.assert_allclose(gradient, [2 * (rest * state).mean() for state in encoding.hidden_states[1:]], rtol=1e-4)


def test_without_a_pooler_pooled_is_none():
    bare = loaded(stored_model(config=SMALL, parts=()))
    assert bare.encode("the cat").pooled is None and bare.encode("the cat", pooling="mean").pooled.shape == (1, 16)

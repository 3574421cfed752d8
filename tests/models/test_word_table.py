"""Copies of the word table for parts of a batch: the values and gradients of the table itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.embeddings import look_up, word_logits

VOCABULARY, HIDDEN, ROWS, LENGTH = 11, 6, 8, 5


@pytest.fixture(scope="module")
def drawn():
    random = np.random.default_rng(0)
    table = random.normal(size=(VOCABULARY, HIDDEN)).astype(np.float32)
    ids = random.integers(0, VOCABULARY, (ROWS, LENGTH)).astype(np.int32)
    return table, ids, random.normal(size=(ROWS, LENGTH, VOCABULARY)).astype(np.float32)


def both_uses(table, ids, weights):
    """A function of both uses, and both results."""
    rows = look_up(table, ids)
    logits = word_logits(rows, table)
    return jnp.sum(jnp.tanh(logits) * weights), (rows, logits)


@pytest.mark.parametrize("parts", [1, 2, 8])
def test_copies_give_the_values_of_the_table_and_their_gradients_add_up_to_its(drawn, parts):
    table, ids, weights = drawn
    function = jax.jit(jax.value_and_grad(both_uses, has_aux=True))
    (expected, values), gradient = function(table, ids, weights)
    copies = np.broadcast_to(table, (parts, *table.shape))
    (found, copied_values), gradients = function(copies, ids, weights)
    assert float(found) == pytest.approx(float(expected), rel=1e-6)
    for one, other in zip(copied_values, values, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values[0], table[ids])
    np.testing.assert_allclose(values[1], table[ids] @ table.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.sum(gradients, axis=0), gradient, rtol=1e-4, atol=1e-5)
    for part in range(parts):  # each copy serves its own rows alone
        own = slice(part * ROWS // parts, (part + 1) * ROWS // parts)
        alone = function(table, ids[own], weights[own])[1]
        np.testing.assert_allclose(gradients[part], alone, rtol=1e-4, atol=1e-5)


def test_an_id_beyond_the_table_gives_nan_from_a_copy_too(drawn):
    table = np.broadcast_to(drawn[0], (2, VOCABULARY, HIDDEN))
    found = jax.jit(look_up)(table, np.array([[0], [VOCABULARY]], np.int32))
    assert np.all(np.isfinite(found[0])) and np.all(np.isnan(found[1]))

"""Attention and its mask against loops over every pair of positions in float64 NumPy."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.kernels.plain import AttentionMask, attention

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


@pytest.mark.parametrize(
    "names", [names for size in range(4) for names in itertools.combinations(RESTRICTIONS, size)], ids="+".join
)
def test_every_combination_of_restrictions_equals_numpy(names):
    restrictions = {name: RESTRICTIONS[name] for name in names}
    output, weights = attention(*projections(), AttentionMask(padding=PADDING, **restrictions), collect=True)
    expected_output, expected_weights, blind = numpy_attention(*projections(), restrictions)
    assert blind.any() == ("segments" in names)
    # Near -10000, where all scores of a blind position are, float32 has steps of 0.001.
    error = np.abs(weights - expected_weights).max(-1)
    assert error[~blind].max() < 1e-6 and error.max() < 2e-3
    error = np.abs(output - expected_output).max(-1).swapaxes(1, 2)
    assert error[~blind].max() < 1e-5 and error.max() < 5e-3


def test_gradients_of_queries_and_of_a_bias_equal_finite_differences():
    query, key, value = projections()
    shared = np.random.default_rng(4).standard_normal((1, 1, LENGTH, LENGTH)).astype(np.float32)

    def loss(query, bias):
        mask = AttentionMask(padding=PADDING, window=2, bias=bias)
        return jnp.sum(jnp.sin(attention(query, key, value, mask)[0]))

    def numpy_loss(query, bias):
        return np.sin(numpy_attention(query, key, value, {"window": 2, "bias": bias})[0]).sum()

    gradients = jax.grad(loss, argnums=(0, 1))(query, shared)
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
    plain, wide = (
        attention(*projections(), AttentionMask(padding=PADDING, window=window))[0] for window in (None, LENGTH - 1)
    )
    np.testing.assert_array_equal(plain, wide)


def test_texts_packed_into_a_row_attend_as_if_each_were_alone():
    query, key, value = projections()
    ones = np.ones((BATCH, LENGTH), np.int32)
    segments = np.repeat(np.array([[1, 2]], np.int32), [3, 4], axis=1).repeat(BATCH, axis=0)
    packed, _ = attention(query, key, value, AttentionMask(padding=ones, segments=segments))
    for part in (np.s_[:, :3], np.s_[:, 3:]):
        alone, _ = attention(query[part], key[part], value[part], AttentionMask(padding=ones[part]))
        np.testing.assert_allclose(packed[part], alone, atol=1e-6)


def test_attention_by_hand():
    """The first of three positions attends .40 .20 .40 and gives (3, 4)."""
    query, key, value = (
        np.array(x, np.float32)[None, :, None, :]
        for x in ([[1, 0], [0, 1], [1, 1]], [[1, 1], [0, 1], [1, 0]], [[1, 2], [3, 4], [5, 6]])
    )
    mask = AttentionMask(padding=jnp.ones((1, 3), jnp.int32))
    output, weights = attention(query, key, value, mask, collect=True)
    high, low = math.exp(1 / math.sqrt(2)), 1.0
    np.testing.assert_allclose(weights[0, 0, 0], np.array([high, low, high]) / (2 * high + low), rtol=1e-6)
    np.testing.assert_allclose(weights[0, 0, 0], [0.40, 0.20, 0.40], atol=0.005)
    np.testing.assert_allclose(output[0, 0, 0], [3.0, 4.0], rtol=1e-6)
    assert attention(query, key, value, mask)[1] is None

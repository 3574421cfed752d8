"""The losses against float64 formulas, and the properties that global means rest on."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_model import compiled

from bert_jax.objectives import masked_words

loss_sums = compiled(masked_words.masked_word_sums)


def masked_example(seed=0, vocabulary=50):
    random = np.random.default_rng(seed)
    logits = (3 * random.standard_normal((4, 6, vocabulary))).astype(np.float32)
    ids = random.integers(0, vocabulary, (4, 6)).astype(np.int32)
    ids[:, :2] = logits[:, :2].argmax(-1)  # some of them right
    weights = (random.random((4, 6)) < 0.7).astype(np.float32)
    return logits, ids, weights


def softmax(logits):
    e = np.exp(logits.astype(np.float64))
    return e / e.sum(-1, keepdims=True)


def test_masked_sums_equal_the_formula():
    logits, ids, weights = masked_example()
    sums = loss_sums(logits, ids, weights)
    picked = np.take_along_axis(softmax(logits), ids[..., None], axis=-1)[..., 0]
    assert float(sums.loss) == pytest.approx(-(weights * np.log(picked)).sum(), rel=1e-6)
    assert float(sums.correct) == (weights * (logits.argmax(-1) == ids)).sum() > 0
    assert float(sums.weight) == weights.sum()


def test_masked_gradient_is_softmax_minus_one_hot():
    logits, ids, weights = masked_example()
    gradient = compiled(jax.grad(lambda x: masked_words.masked_word_sums(x, ids, weights).loss))(logits)
    expected = weights[..., None] * (softmax(logits) - np.eye(50)[ids])
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_uniform_logits_cost_the_logarithm_of_the_vocabulary():
    _, ids, weights = masked_example()
    sums = loss_sums(np.zeros((4, 6, 50), np.float32), ids, weights)
    assert float(sums.loss / sums.weight) == pytest.approx(math.log(50), rel=1e-6)
    # A tie goes to the first entry, as argmax has it: indifference is not counted as being right.
    assert float(sums.correct) == (weights * (ids == 0)).sum()


def test_no_weight_gives_zero_and_no_gradient():
    logits, ids, _ = masked_example()
    weights = np.zeros((4, 6), np.float32)
    function = compiled(jax.value_and_grad(lambda x: masked_words.masked_word_sums(x, ids, weights).loss))
    loss, gradient = function(logits)
    assert loss == 0 and not np.any(gradient)
    sums = loss_sums(logits, ids, weights)
    assert all(value == 0 for value in sums)


def test_padded_vocabulary_rows_cost_nothing():
    logits, ids, weights = masked_example()
    padded = np.concatenate([logits, np.full((4, 6, 14), -1e9, np.float32)], axis=-1)
    plain, wide = (loss_sums(x, ids, weights) for x in (logits, padded))
    assert float(plain.loss) == pytest.approx(float(wide.loss), rel=1e-6)
    assert plain.correct == wide.correct


@pytest.mark.parametrize("scale", [1e-3, 1e4])
def test_large_and_small_logits_stay_finite(scale):
    logits, ids, weights = masked_example()
    sums = loss_sums(np.float32(scale) * logits, ids, weights)
    assert np.isfinite(sums.loss) and sums.loss >= 0


def test_bfloat16_logits_are_summed_in_float32():
    logits, ids, weights = masked_example()
    narrow = logits.astype(jnp.bfloat16)
    sums = loss_sums(narrow, ids, weights)
    wide = loss_sums(np.asarray(narrow, np.float32), ids, weights)
    assert sums.loss.dtype == jnp.float32 and sums.loss == wide.loss


def test_next_sentence_sums_equal_the_formula():
    random = np.random.default_rng(1)
    logits, labels = random.standard_normal((9, 2)).astype(np.float32), random.integers(0, 2, 9).astype(np.int32)
    sums = compiled(masked_words.sentence_pair_sums)(logits, labels)
    assert float(sums.loss) == pytest.approx(-np.log(softmax(logits)[np.arange(9), labels]).sum(), rel=1e-6)
    assert float(sums.correct) == (logits.argmax(-1) == labels).sum()
    assert float(sums.weight) == 9


def test_sums_of_parts_are_the_sums_of_the_whole():
    logits, ids, weights = masked_example()
    whole = loss_sums(logits, ids, weights)
    parts = [loss_sums(logits[i : i + 1], ids[i : i + 1], weights[i : i + 1]) for i in range(4)]
    for name, value in whole._asdict().items():
        assert float(sum(getattr(part, name) for part in parts)) == pytest.approx(float(value), rel=1e-6)
    assert all(value.dtype == jnp.float32 and value.shape == () for value in whole)

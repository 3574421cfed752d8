"""Vectors in one byte or one bit for each value."""

import numpy as np
import pytest

from bert_jax import UserError, quantize_embeddings
from bert_jax.pretrained.precision import compared_values, value_ranges

VECTORS = np.array([[-1.0, 0.0, 0.5], [1.0, 0.25, 0.5], [0.0, 1.0, 0.5]], np.float32)


def test_values_are_those_of_sentence_transformers():
    """By hand, from its definition: 255 steps between the least and the greatest value, cut off at the lower one."""
    levels = np.array([[0.0, 0.0, 7.0], [255.0, 510.0, 7.0], [63.9, 129.0, 7.0]], np.float32)  # a step is 1, 2, 0
    assert quantize_embeddings(levels, "uint8").tolist() == [[0, 0, 0], [255, 255, 0], [63, 64, 0]]
    assert quantize_embeddings(levels, "int8").tolist() == [[-128, -128, -128], [127, 127, -128], [-65, -64, -128]]
    narrow = np.array([[10.0, 0.0, 0.0], [265.0, 255.0, 255.0]])
    assert quantize_embeddings(levels, "uint8", narrow).tolist() == [[0, 0, 7], [245, 255, 7], [53, 129, 7]]
    assert quantize_embeddings(VECTORS, "ubinary").tolist() == [[0b00100000], [0b11100000], [0b01100000]]
    assert quantize_embeddings(VECTORS, "binary").tolist() == [[32 - 128], [224 - 128], [96 - 128]]
    assert quantize_embeddings(np.zeros((0, 9), np.float32), "binary").shape == (0, 2)


def test_what_is_compared_is_near_or_counts_bits():
    vectors = np.random.default_rng(0).standard_normal((50, 12)).astype(np.float32)
    ranges = value_ranges(vectors)
    steps = (ranges[1] - ranges[0]) / 255
    assert np.all(np.abs(compared_values(vectors, "int8", ranges) - vectors) <= 0.5 * steps + 1e-5)
    bits = compared_values(vectors, "binary", ranges)
    differing = ((vectors[:, None] > 0) != (vectors[None] > 0)).sum(-1)
    np.testing.assert_allclose(bits @ bits.T / 12, 1 - 2 * differing / 12, atol=1e-6)


def test_what_are_no_vectors_is_refused():
    for vectors, said in ((np.zeros(3), r"shape \[3\]"), (np.zeros((2, 3), np.int8), "type int8")):
        with pytest.raises(UserError, match=said):
            quantize_embeddings(vectors, "int8")
    with pytest.raises(UserError, match=r"must be \[2, 3\]"):
        quantize_embeddings(VECTORS, "int8", np.zeros((2, 4)))
    with pytest.raises(UserError, match="precision='int4' must be"):
        quantize_embeddings(VECTORS, "int4")
    with pytest.raises(UserError, match="one vector has no ranges"):
        quantize_embeddings(VECTORS[:1], "int8")
    for value in (np.nan, np.inf):
        for precision in ("int8", "binary", "float32"):
            with pytest.raises(UserError, match="NaN or infinite"):
                quantize_embeddings(VECTORS + np.float32(value), precision)

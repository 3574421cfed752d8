import itertools

import numpy as np
import pytest
from scipy import stats

from bert_jax.randomness import Stream, bits, invert, permute


@pytest.mark.parametrize("size", [*range(1, 70), 1000, 65_536, 65_537, 200_000])
def test_is_a_permutation_with_its_inverse(size):
    everything = np.arange(size)
    images = permute(everything, size, 3)
    np.testing.assert_array_equal(np.sort(images), everything)
    np.testing.assert_array_equal(invert(images, size, 3), everything)
    np.testing.assert_array_equal(permute(invert(everything, size, 3), size, 3), everything)


def test_far_indices_of_a_huge_range():
    size = 2**45 + 12345
    indices = np.array([[0, 1, 2], [size - 1, size // 2, 10**12]])
    images = permute(indices, size, 8)
    assert images.shape == (2, 3) and images.dtype == np.int64 and (images >= 0).all() and (images < size).all()
    np.testing.assert_array_equal(invert(images, size, 8), indices)


@pytest.mark.parametrize("size", [65, 1000, 65_537])
def test_one_index_has_the_image_that_it_has_among_all(size):
    """Few indices are walked as Python's integers, and all as an array."""
    for function in (permute, invert):
        images = function(np.arange(size), size, 3)
        assert [int(function(index, size, 3)) for index in range(0, size, 7)] == images[::7].tolist()


def test_all_orders_of_four_are_equally_likely():
    """Chi-square over the 24 permutations; rejects at p < 1e-6."""
    orders = {order: number for number, order in enumerate(itertools.permutations(range(4)))}
    seen = [orders[tuple(permute(np.arange(4), 4, bits(key, Stream.ORDER)).tolist())] for key in range(6_000)]
    assert stats.chisquare(np.bincount(seen, minlength=24)).pvalue > 1e-6


def test_order_is_unrelated_to_the_index_and_to_other_keys():
    """Rank correlations of 50,000 images within 5 standard deviations, 1 / sqrt(n)."""
    everything = np.arange(50_000)
    first, second = permute(everything, 50_000, 1), permute(everything, 50_000, 2)
    for a, b in ((first, everything), (first, second), (first[1:], first[:-1])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(50_000)


def test_index_outside_is_refused():
    with pytest.raises(ValueError, match=r"\[0, 10\)"):
        permute(np.array([3, 10]), 10, 0)

"""Bounds are at 5 standard deviations, or chi-square at p = 1e-6, of fixed seeds."""

import numpy as np
import pytest
from scipy import stats

from bert_jax.randomness import Stream, bits, heads, integers, step, uniform


def assert_fits(observed, expected):
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-6


def test_one_counter_is_splitmix64():
    """First five outputs of the reference implementation in C (Vigna 2015) for the seed 1234567."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [int(bits(1234567, Stream(number))) for number in range(5)] == published


def test_draws_do_not_depend_on_what_is_asked_along():
    grid = bits(7, Stream.MASKS, np.arange(50)[:, None], np.arange(20))
    assert grid.shape == (50, 20) and len(np.unique(grid)) == 1000
    assert bits(7, Stream.MASKS, 33, 4) == grid[33, 4]
    keys = bits(7, Stream.SWAP, np.arange(9))
    assert bits(keys, Stream.SPLIT, 3)[5] == bits(bits(7, Stream.SWAP, 5), Stream.SPLIT, 3)
    assert bits(7, Stream.MASKS, 10**12) != bits(7, Stream.MASKS, 10**12 + 2**32)


def test_a_step_of_numbers_is_that_of_arrays_of_any_size_and_order():
    """Against Python's integers: the array is longer than a block, and once not in the order of its memory."""
    states = bits(5, Stream.SWAP, np.arange(9_000))
    one_by_one = [step(int(state), 3) for state in states]
    assert all(isinstance(each, int) for each in one_by_one)
    assert step(states, 3).tolist() == one_by_one
    assert step(states, np.full(9_000, 3)).tolist() == one_by_one
    grid = states.reshape(90, 100)
    assert step(grid.T, np.full((100, 90), 3)).tolist() == np.array(one_by_one, np.uint64).reshape(90, 100).T.tolist()
    assert bits(5, Stream.SWAP, 4).tolist() == step(step(5, Stream.SWAP.value), 4)
    assert bits(-1, Stream.SWAP).tolist() == step(2**64 - 1, Stream.SWAP.value)


@pytest.mark.parametrize("axis", ["positions", "columns", "seeds"])
def test_words_are_uniform_and_uncorrelated_along_every_counter(axis):
    count = np.arange(20_000)
    words = {
        "positions": lambda: bits(3, Stream.MASKS, 5, count),
        "columns": lambda: bits(3, Stream.MASKS, count, 0),
        "seeds": lambda: bits(count, Stream.MASKS, 1),
    }[axis]()
    assert_fits(np.bincount((uniform(words) * 100).astype(int), minlength=100), np.ones(100))
    ones = (words[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).astype(float)
    assert abs(ones.mean(0) - 0.5).max() < 5 * 0.5 / np.sqrt(len(count))
    for lag in (1, 2, 64):
        assert abs(np.corrcoef(uniform(words[lag:]), uniform(words[:-lag]))[0, 1]) < 5 / np.sqrt(len(count))


def test_every_input_bit_changes_half_of_the_output_bits():
    base, flipped = np.arange(2_000)[:, None], np.arange(2_000)[:, None] ^ (1 << np.arange(40))
    changed = np.bitwise_count(bits(1, Stream.ORDER, base) ^ bits(1, Stream.ORDER, flipped)).mean(0)
    assert abs(changed - 32).max() < 5 * 4 / np.sqrt(2_000)


def test_uniform_stays_below_one():
    assert uniform(np.array([0, 2**64 - 1], np.uint64)).tolist() == [0.0, 1 - 2.0**-53]


def test_integers_are_uniform_below_each_bound():
    words = bits(0, Stream.RANDOM_WORD, np.arange(60_000))
    for bound in (2, 7, 1000):
        assert_fits(np.bincount(integers(words, bound), minlength=bound), np.ones(bound))
    bounds = np.tile([1, 5, 2**40], 20_000)
    drawn = integers(words, bounds)
    assert drawn.dtype == np.int64 and (drawn >= 0).all() and (drawn < bounds).all()
    assert abs(drawn[2::3].mean() / 2**40 - 0.5) < 5 / np.sqrt(12 * 20_000)


@pytest.mark.parametrize("tosses", [1, 5, 63, 64, 65, 200])
def test_heads_are_binomial(tosses):
    drawn = heads(bits(4, Stream.TRUNCATION, np.arange(20_000)), Stream.TRUNCATION, np.full(20_000, tosses))
    low, high = stats.binom.ppf([1e-3, 1 - 1e-3], tosses, 0.5).astype(int)
    observed = np.bincount(np.clip(drawn, low, high), minlength=high + 1)[low:]
    expected = stats.binom.pmf(np.arange(low, high + 1), tosses, 0.5)
    expected[0], expected[-1] = stats.binom.cdf(low, tosses, 0.5), stats.binom.sf(high - 1, tosses, 0.5)
    assert_fits(observed, expected)


def test_heads_of_no_toss_and_of_mixed_tosses():
    tosses = np.array([0, 1, 64, 0, 130])
    keys = bits(9, Stream.TRUNCATION, np.arange(5))
    drawn = heads(keys, Stream.TRUNCATION, tosses)
    assert (drawn >= 0).all() and (drawn <= tosses).all()
    np.testing.assert_array_equal(drawn[2:3], heads(keys[2:3], Stream.TRUNCATION, tosses[2:3]))
    assert heads(keys[:0], Stream.TRUNCATION, tosses[:0]).shape == (0,)

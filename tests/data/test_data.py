"""Edits of characters, the order of examples, and drawn numbers.

Statistical bounds are at 5 standard deviations, or chi-square at p = 1e-6; all seeds are fixed.
"""

import functools
import itertools

import numpy as np
import pytest
from scipy import stats

from bert_jax.config.pretraining import EDITS, NoiseConfig, PretrainingNoiseConfig, check_noise
from bert_jax.data.spelling_errors import NEIGHBOURS, edit_sites, edited_text, edited_words, may_change
from bert_jax.errors import UserError
from bert_jax.randomness import Stream, bits, heads, integers, invert, permute, step, uniform

WORDS = ["Anchorage", "gull", "seven", "4711", "o", "don't", "Öland", "...", "lighthouse", "kettle"] * 2_000


def keys(count: int, seed: int = 0) -> np.ndarray:
    return bits(seed, Stream.EDITED_WORD, np.arange(count))


def distance(first: str, second: str, swaps: bool = False) -> int:
    """Insertions, deletions, substitutions and, if `swaps`, transpositions of neighbours, each character in one."""

    @functools.cache
    def between(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        ways = [between(i - 1, j) + 1, between(i, j - 1) + 1, between(i - 1, j - 1) + (first[i - 1] != second[j - 1])]
        if swaps and i > 1 and j > 1 and (first[i - 1], first[i - 2]) == (second[j - 2], second[j - 1]):
            ways.append(between(i - 2, j - 2) + 1)
        return min(ways)

    return between(len(first), len(second))


def test_rate_0_is_the_identity():
    assert edited_words(WORDS, keys(len(WORDS)), NoiseConfig()) == WORDS
    text = "  two\twords,\n and \u00a0 white space "
    assert edited_text(text, bits(0, Stream.EDITED_TEXT, 0), NoiseConfig()) == text


@pytest.mark.parametrize("kind", EDITS)
def test_one_edit_a_word_is_one_step_of_its_kind(kind):
    noise = NoiseConfig(rate=1.0, per="word", kinds=(kind,))
    for word, edited in zip(WORDS[:200], edited_words(WORDS[:200], keys(200), noise), strict=True):
        assert distance(word, edited, swaps=True) == any(map(str.isalnum, word)), (word, edited)
        if len(word) > 1:
            assert len(edited) - len(word) == {"insert": 1, "delete": -1}.get(kind, 0) * any(map(str.isalnum, word))
        if kind == "swap" and len(word) > 1:
            assert sorted(edited) == sorted(word) or "ee" in word or "tt" in word or "ll" in word or "11" in word
        if kind == "neighbour" and word.isascii() and edited != word:
            ((old, new),) = [pair for pair in zip(word, edited, strict=True) if pair[0] != pair[1]]
            assert new.lower() in NEIGHBOURS[old.lower()] and new.isupper() == old.isupper()


@pytest.mark.parametrize("rate", (0.02, 0.3))
def test_the_measured_rate_is_the_rate_asked_for(rate):
    editable = sum(character.isalnum() for word in WORDS for character in word)
    for kinds in (("substitute",), ("neighbour",), EDITS):
        noise = NoiseConfig(rate=rate, kinds=kinds)
        sites = edit_sites(WORDS, keys(len(WORDS)), noise)[2].sum()
        assert abs(sites - rate * editable) < 4 * np.sqrt(editable * rate * (1 - rate))
        if kinds != EDITS:  # substitutions can be counted in the result
            edited = edited_words(WORDS, keys(len(WORDS)), noise)
            assert sites == sum(a != b for pair in zip(WORDS, edited, strict=True) for a, b in zip(*pair, strict=True))
    noise, with_letters = NoiseConfig(rate=rate, per="word"), [word for word in WORDS if word != "..."]
    changed = sum(
        old != new for old, new in zip(with_letters, edited_words(with_letters, keys(18_000), noise), strict=True)
    )
    assert abs(changed - rate * 18_000) < 4 * np.sqrt(18_000 * rate * (1 - rate))


def test_kinds_are_equally_likely():
    lengths = np.array([len(word) for word in WORDS])
    edited = edited_words(WORDS, keys(len(WORDS)), NoiseConfig(rate=1.0, per="word"))
    change = (np.array([len(word) for word in edited]) - lengths)[lengths > 3]
    for difference in (-1, 1):
        assert abs(np.mean(change == difference) - 0.2) < 4 * np.sqrt(0.16 / len(change))


def test_a_word_depends_on_its_own_key_alone():
    noise, count = NoiseConfig(rate=0.3), 500
    edited = edited_words(WORDS[:count], keys(count), noise)
    assert edited == edited_words(WORDS[:count], keys(count), noise)
    assert edited != edited_words(WORDS[:count], keys(count, seed=1), noise)
    backwards = edited_words(WORDS[:count][::-1], keys(count)[::-1], noise)
    assert backwards[::-1] == edited


@pytest.mark.parametrize("per", ("character", "word"))
def test_what_cannot_change_does_not_and_no_word_is_lost(per):
    for rate in (0.05, 1.0):
        noise = NoiseConfig(rate=rate, per=per)
        edited = edited_words(WORDS, keys(len(WORDS)), noise)
        may = may_change(np.array([len(word) + 2 for word in WORDS]), keys(len(WORDS)), noise)
        assert all(may[number] for number, word in enumerate(WORDS) if edited[number] != word)
        assert all(edited) and (rate == 1 or not may.all())
    only_deleted = edited_words(WORDS, keys(len(WORDS)), NoiseConfig(rate=1.0, kinds=("delete",)))
    assert {len(word) for word in only_deleted if word != "..." and "'" not in word} == {1}


def test_errors_name_what_is_wrong():
    check_noise(NoiseConfig(rate=1.0), "noise.")
    for noise, message in (
        (NoiseConfig(rate=1.5), "noise.rate=1.5 must be a probability"),
        (NoiseConfig(kinds=("typo",)), "noise.kinds=typo must be some of insert,"),
        (NoiseConfig(kinds=()), "noise.kinds= must be some of"),
        (NoiseConfig(kinds=("swap", "swap")), "each once"),
        (PretrainingNoiseConfig(reserve=0.9), "noise.reserve=0.9 must be a share from 0 to 0.5"),
    ):
        with pytest.raises(UserError, match=message):
            check_noise(noise, "noise.")


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


def assert_fits(observed, expected):
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-6


def test_one_counter_is_splitmix64():
    """First five outputs of the reference implementation in C (Vigna 2015) for the seed 1234567."""
    published = "6457827717110365317 3203168211198807973 9817491932198370423 4593380528125082431 16408922859458223821"
    assert [int(bits(1234567, Stream(number))) for number in range(5)] == [*map(int, published.split())]


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

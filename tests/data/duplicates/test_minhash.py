"""Similarities as MinHash estimates them, beside the exact ones and the closed form of the bands."""

import numpy as np
import pytest

from bert_jax.corpus.contamination import word_hashes
from bert_jax.corpus.duplicates import (
    HASHES,
    LEAST_RECALL,
    Banding,
    band_keys,
    banding_for,
    minimums,
    signature,
    similarity,
    sketches,
)


def test_a_signature_is_that_of_the_set_of_five_words_in_a_row():
    words = "one two three four five six seven".split()
    text = " ".join(words)
    again = f"{text}. {' '.join(words).upper()}"  # adds the shingles that cross the middle
    assert (signature(word_hashes(text)) == signature(word_hashes("One, two — three: four (five) six seven!"))).all()
    assert (signature(word_hashes(text)) != signature(word_hashes(" ".join(reversed(words))))).all()
    assert (signature(word_hashes(again)) <= signature(word_hashes(text))).all()
    assert (signature(word_hashes("two words")) != signature(word_hashes("words two"))).all()
    assert signature(word_hashes("— …!")) is None


def test_the_estimate_is_that_of_the_sets_and_bands_meet_as_often_as_the_closed_form_says():
    """Pairs of sets of 200 random numbers, of which a known share is common; tolerances of four standard deviations."""
    draw, pairs, size = np.random.default_rng(0), 300, 200
    for wanted in (0.0, 0.3, 0.6, 0.8, 1.0):
        common = round(2 * size * wanted / (1 + wanted))
        truth = common / (2 * size - common)
        numbers = draw.integers(0, 2**32, (pairs, 2 * size - common), np.uint32)
        first, second = (
            np.stack([minimums(row[part]) for row in numbers]) for part in (slice(size), slice(size - common, None))
        )
        estimates = similarity(sketches(first), sketches(second))
        assert abs(estimates.mean() - truth) <= 4 * np.sqrt(0.25 / (pairs * HASHES))
        for banding in (Banding(18, 7), Banding(4, 3)):
            met = (band_keys(first, banding) == band_keys(second, banding)).any(axis=1).mean()
            expected = banding.probability(truth)
            assert abs(met - expected) <= 4 * np.sqrt(expected * (1 - expected) / pairs), (truth, banding)


@pytest.mark.parametrize("threshold, bands, rows", [(0.5, 42, 3), (0.8, 18, 7), (0.9, 10, 12), (1.0, 1, 128)])
def test_the_banding_has_the_most_rows_that_keep_the_recall(threshold, bands, rows):
    chosen = banding_for(threshold)
    assert (chosen.bands, chosen.rows) == (bands, rows)
    assert 1 - (1 - threshold**rows) ** bands >= LEAST_RECALL
    more = rows + 1
    assert more > HASHES or 1 - (1 - threshold**more) ** (HASHES // more) < LEAST_RECALL

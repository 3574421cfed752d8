"""Statistical bounds: 5 standard deviations of the binomial, chi-square at p = 1e-6; all seeds are fixed."""

import numpy as np
import pytest
from scipy import stats
from synthetic_store import CLS, MASK, PAD, SEP, VOCAB_SIZE, synthetic_tokenizer

from bert_jax.config import MaskingConfig
from bert_jax.data.masking import (
    Masking,
    Words,
    _random_order,
    choose_ngrams,
    choose_spans,
    choose_words,
    ngram_lengths,
    num_predictions,
    span_lengths,
)
from bert_jax.randomness import Stream, bits

CONTINUES = synthetic_tokenizer().continues_word()
UNITS = ("token", "whole_word", "ngram", "span")


def make_rows(num_rows=400, length=128, seed=0, one_piece_words=False):
    """[CLS] A [SEP] B [SEP] + padding of random lengths: ids, is_text, lengths, keys."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(5, VOCAB_SIZE, (num_rows, length)).astype(np.int32)
    if one_piece_words:
        ids = np.where(CONTINUES[ids], 5, ids).astype(np.int32)
    lengths = generator.integers(5, length + 1, num_rows)
    ids[:, 0] = CLS
    ids[np.arange(num_rows), generator.integers(2, lengths - 2)] = SEP
    ids[np.arange(num_rows), lengths - 1] = SEP
    ids[np.arange(length) >= lengths[:, None]] = PAD
    return ids, ids > MASK, lengths, bits(seed, Stream.MASKS, np.arange(num_rows))


def masking(unit="token", max_predictions=20, **options):
    return Masking(MaskingConfig(unit=unit, **options), max_predictions, VOCAB_SIZE, MASK, CONTINUES)


def within(observed, share, count):
    return abs(observed - share) < 5 * np.sqrt(max(share * (1 - share), 1e-12) / count) + 1e-12


def test_number_of_predictions_is_pythons_rounding():
    for rate in (0.15, 0.1, 0.4):
        for limit in (3, 20, 77):
            expected = [min(limit, max(1, int(round(length * rate)))) for length in range(3, 513)]
            np.testing.assert_array_equal(num_predictions(np.arange(3, 513), rate, limit), expected)
    assert num_predictions(np.array([30, 50]), 0.15, 20).tolist() == [4, 8]  # 4.5 and 7.5 go to the even neighbour


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("length, limit", [(128, 20), (512, 77), (16, 40)])
def test_slots_describe_exactly_what_changed(unit, length, limit):
    ids, is_text, lengths, keys = make_rows(200, length)
    out = masking(unit, limit)(ids, is_text, lengths, keys)
    positions, used = out["masked_positions"], out["masked_weights"] == 1
    assert positions.shape == out["masked_ids"].shape == (200, limit)
    assert all(value.dtype == (np.float32 if name == "masked_weights" else np.int32) for name, value in out.items())
    assert not positions[~used].any() and not out["masked_ids"][~used].any()
    for row in range(200):
        here = positions[row, used[row]]
        assert (np.diff(here) > 0).all() and is_text[row, here].all() and (used[row, : len(here)]).all()
        np.testing.assert_array_equal(out["masked_ids"][row, used[row]], ids[row, here])
        untouched = np.setdiff1d(np.arange(length), here)
        np.testing.assert_array_equal(out["input_ids"][row, untouched], ids[row, untouched])
    budget = np.minimum(num_predictions(lengths, 0.15, limit), is_text.sum(1))
    assert (used.sum(1) == budget).all() if unit == "token" else (used.sum(1) <= budget).all()


@pytest.mark.parametrize("unit", UNITS)
def test_a_row_is_masked_the_same_in_any_company(unit):
    ids, is_text, lengths, keys = make_rows(40)
    together = masking(unit)(ids, is_text, lengths, keys)
    for row in (0, 17, 39):
        here = slice(row, row + 1)
        alone = masking(unit)(ids[here], is_text[here], lengths[here], keys[here])
        for name, value in alone.items():
            np.testing.assert_array_equal(value, together[name][here])


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "mask, same, random", [(0.8, 0.1, 0.1), (1, 0, 0), (0.8, 0, 0.2), (0.8, 0.2, 0), (0, 0.2, 0.8), (0, 0, 1)]
)
def test_shares_of_table_8(unit, mask, same, random):
    """The six rows of table 8 of the paper (appendix C.2), also for pieces of words and spans."""
    ids, is_text, lengths, keys = make_rows(1500)
    out = masking(unit, mask_share=float(mask), random_share=float(random))(ids, is_text, lengths, keys)
    used = out["masked_weights"] == 1
    now, before = np.take_along_axis(out["input_ids"], out["masked_positions"], 1)[used], out["masked_ids"][used]
    chance = random / VOCAB_SIZE  # a random word may be [MASK] or the word itself
    assert within((now == MASK).mean(), mask + chance, used.sum())
    assert within((now == before).mean(), same + chance, used.sum())


def test_one_decision_for_each_run_of_masked_pieces():
    """Shares of runs are those of the options; a random run has different entries, with the draws of single pieces."""
    ids, is_text, lengths, keys = make_rows(1500)
    options = {"mask_share": 0.5, "random_share": 0.3}
    whole = masking("span", replacement="span", **options)(ids, is_text, lengths, keys)
    pieces = masking("span", **options)(ids, is_text, lengths, keys)
    for name in ("masked_positions", "masked_ids", "masked_weights"):
        np.testing.assert_array_equal(whole[name], pieces[name])
    counts, lengths_of_random = {"mask": 0, "same": 0, "random": 0}, []
    for row in range(len(ids)):
        positions = whole["masked_positions"][row, whole["masked_weights"][row] > 0]
        for run in np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1):
            now, before = whole["input_ids"][row, run], ids[row, run]
            kind = "mask" if (now == MASK).all() else "same" if (now == before).all() else "random"
            counts[kind] += 1
            if kind == "random":
                assert (now == before).sum() < 2 and (len(run) < 3 or len(set(now.tolist())) > 1)
                lengths_of_random.append(len(run))
    number = sum(counts.values())
    assert number > 3000 and max(lengths_of_random) > 5
    for kind, share in (("mask", 0.5), ("random", 0.3), ("same", 0.2)):
        assert within(counts[kind] / number, share, number), kind


def test_selected_share_and_places_are_uniform():
    full = np.full((1, 128), 5, np.int32)
    is_text, count = np.ones((1, 128), bool), 20_000
    is_text[:, [0, 60, 127]] = False
    keys = bits(3, Stream.MASKS, np.arange(count))
    out = masking()(full.repeat(count, 0), is_text.repeat(count, 0), np.full(count, 128), keys)
    assert (out["masked_weights"].sum(1) == 19).all()  # round(0.15 × 128) = 19 of 125
    hits = np.bincount(out["masked_positions"][out["masked_weights"] == 1], minlength=128)
    assert not hits[[0, 60, 127]].any()
    hits = np.delete(hits, [0, 60, 127])
    # without replacement each count has the variance n p (1 - p), and all of them a fixed sum
    assert (
        stats.chi2.sf(((hits - hits.mean()) ** 2 / (count * 19 / 125 * (1 - 19 / 125)) * 124 / 125).sum(), 124) > 1e-6
    )
    assert (abs(hits / count - 19 / 125) < 5 * np.sqrt(19 / 125 * 106 / 125 / count)).all()


def test_random_words_are_uniform_over_the_whole_vocabulary():
    ids, is_text, lengths, keys = make_rows(4000)
    out = masking(mask_share=0.0, random_share=1.0)(ids, is_text, lengths, keys)
    used = out["masked_weights"] == 1
    words = np.take_along_axis(out["input_ids"], out["masked_positions"], 1)[used]
    assert stats.chisquare(np.bincount(words, minlength=VOCAB_SIZE)).pvalue > 1e-6


def words_by_hand(ids, is_text):
    """Lists of places, and the number of the segment that each word lies in."""
    words, segments, segment = [], [], 0
    for place, (token, text) in enumerate(zip(ids, is_text)):
        if not text:
            segment += 1
        elif CONTINUES[token] and is_text[place - 1]:
            words[-1].append(place)
        else:
            words.append([place])
            segments.append(segment)
    return words, segments


def test_words_are_found_as_by_hand():
    ids, is_text, _, _ = make_rows(60)
    found = Words.find(ids, is_text, CONTINUES)
    for row in range(60):
        words, segments = words_by_hand(ids[row], is_text[row])
        assert found.num_pieces[row, : len(words)].tolist() == [len(word) for word in words]
        assert not found.num_pieces[row, len(words) :].any()
        for number, word in enumerate(words):
            assert (found.index[row, word] == number).all()
            after = [n for n in range(number, len(words)) if segments[n] != segments[number]]
            assert found.segment_end[row, number] == (after[0] if after else len(words))


def test_whole_words_as_one_by_one():
    ids, is_text, lengths, keys = make_rows(120)
    words, budget = Words.find(ids, is_text, CONTINUES), num_predictions(lengths, 0.15, 20)
    chosen, order = choose_words(words, keys, budget, MaskingConfig()), _random_order(words.num_pieces > 0, keys)
    places = words.places(chosen, 20)
    for row in range(120):
        by_hand, _ = words_by_hand(ids[row], is_text[row])
        expected = []
        for number in order[row]:
            if number < len(by_hand) and len(expected) + len(by_hand[number]) <= budget[row]:
                expected += by_hand[number]
        assert places[row, : len(expected)].tolist() == sorted(expected) and (places[row, len(expected) :] == 128).all()


@pytest.mark.parametrize("unit", ["whole_word", "ngram", "span"])
def test_no_word_is_masked_in_part(unit):
    ids, is_text, lengths, keys = make_rows(300)
    out = masking(unit)(ids, is_text, lengths, keys)
    shares = []
    for row in range(300):
        masked = set(out["masked_positions"][row, out["masked_weights"][row] == 1].tolist())
        for word in words_by_hand(ids[row], is_text[row])[0]:
            assert len(masked & set(word)) in (0, len(word))
        shares.append(len(masked) / num_predictions(lengths[row], 0.15, 20))
    assert np.mean(shares) > 0.95


def test_spans_as_one_by_one():
    ids, is_text, lengths, keys = make_rows(120)
    config, words = MaskingConfig(unit="span"), Words.find(ids, is_text, CONTINUES)
    budget = num_predictions(lengths, 0.15, 20)
    chosen, order = choose_spans(words, keys, budget, config), _random_order(words.num_pieces > 0, keys)
    draws = bits(keys[:, None], Stream.SPAN_LENGTH, np.arange(order.shape[1]))
    for row in range(120):
        by_hand, segments = words_by_hand(ids[row], is_text[row])
        expected, left = set(), budget[row]
        for first, length in zip(order[row], span_lengths((draws[row] >> np.uint64(11)) * 2.0**-53, config)):
            if first in expected or first >= len(by_hand):
                continue
            for number in range(first, min(first + length, len(by_hand))):
                cost = 0 if number in expected else len(by_hand[number])
                if segments[number] != segments[first] or cost > left:
                    break
                expected.add(number)
                left -= cost
        assert set(np.flatnonzero(chosen[row]).tolist()) == expected


def test_ngrams_as_one_by_one():
    """The procedure of ALBERT's published code, on the same draws, with n-grams that end with their segment."""
    ids, is_text, lengths, keys = make_rows(120)
    config, words = MaskingConfig(unit="ngram"), Words.find(ids, is_text, CONTINUES)
    budget = num_predictions(lengths, 0.15, 20)
    chosen, order = choose_ngrams(words, keys, budget, config), _random_order(words.num_pieces > 0, keys)
    draws = bits(keys[:, None], Stream.SPAN_LENGTH, np.arange(order.shape[1]))
    for row in range(120):
        by_hand, segments = words_by_hand(ids[row], is_text[row])
        expected, masked = set(), 0
        for first, n in zip(order[row], ngram_lengths((draws[row] >> np.uint64(11)) * 2.0**-53, config)):
            ngram = [k for k in range(first, min(first + n, len(by_hand))) if segments[k] == segments[first]]
            while ngram and masked + sum(len(by_hand[k]) for k in ngram) > budget[row]:
                ngram.pop()
            if ngram and not expected & set(ngram):
                expected |= set(ngram)
                masked += sum(len(by_hand[k]) for k in ngram)
        assert set(np.flatnonzero(chosen[row]).tolist()) == expected


def test_ngram_lengths_are_as_likely_as_their_inverse():
    """Lan et al. 2020, section 4.1: p(n) = (1/n) / sum of 1/k, for n up to 3: 6/11, 3/11 and 2/11."""
    lengths = ngram_lengths((np.arange(110_000) + 0.5) / 110_000, MaskingConfig())
    assert np.bincount(lengths).tolist() == [0, 60_000, 30_000, 20_000]
    assert set(ngram_lengths(np.array([0.0, 0.5, 0.999]), MaskingConfig(ngram_max=1))) == {1}


def test_span_lengths_follow_the_clipped_geometric_law():
    """SpanBERT section 3.1: p = 0.2, at most 10 words, mean 3.8; closed form p q^(l-1) / (1 - q^10)."""
    lengths = span_lengths((np.arange(100_000) + 0.5) / 100_000, MaskingConfig())
    expected = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)
    np.testing.assert_allclose(np.bincount(lengths, minlength=11)[1:] / 100_000, expected, atol=2e-5)
    assert lengths.mean() == pytest.approx(3.797, abs=1e-3)
    assert set(span_lengths(np.array([0.0, 0.5, 0.999]), MaskingConfig(span_continue=0.0))) == {1}
    assert span_lengths(np.array([0.05, 0.95]), MaskingConfig(span_continue=1.0)).tolist() == [1, 10]


def test_masked_runs_are_as_many_as_spans_of_that_law_need():
    """Long rows of one-piece words: spans hardly meet, so the runs in a budget of 20 are a renewal count."""
    count, length = 1500, 3000
    ids, is_text = np.full((count, length), 5, np.int32), np.ones((count, length), bool)
    out = masking("span", 20)(ids, is_text, np.full(count, length), bits(5, Stream.MASKS, np.arange(count)))
    assert (out["masked_weights"] == 1).all()
    runs = 1 + (np.diff(out["masked_positions"], axis=1) > 1).sum(1)
    law, spans_needed = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10), np.zeros(21)
    for budget in range(1, 21):
        spans_needed[budget] = 1 + sum(law[n - 1] * spans_needed[budget - n] for n in range(1, min(budget, 11)))
    joined = spans_needed[20] ** 2 / length * 3  # spans that happen to touch, about
    assert abs(runs.mean() - spans_needed[20]) < 5 * runs.std() / np.sqrt(count) + joined

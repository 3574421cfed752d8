"""Masked words, spelling errors, permutations, and Google's procedure.

Statistical bounds are at 5 standard deviations, or chi-square at p = 1e-6; all seeds are fixed.
"""

import dataclasses
import itertools

import documents
import numpy as np
import original_procedure
import pytest
from scipy import stats
from synthetic_store import (
    CLS,
    MASK,
    PAD,
    PAIRS,
    SEP,
    VOCAB_SIZE,
    SyntheticStore,
    epoch_rows,
    make_examples,
    random_documents,
    sentences_seen,
    synthetic_tokenizer,
)

from bert_jax.config import Config, DataConfig, MaskingConfig, Permutation, PhaseConfig, PrepareConfig, TrainVocabConfig
from bert_jax.config.checks import check
from bert_jax.config.objective import LeftToRight
from bert_jax.config.presets import xlnet_config
from bert_jax.config.pretraining import PretrainingNoiseConfig
from bert_jax.data.masking import (
    Masking,
    Permutations,
    Words,
    _random_order,
    choose_ngrams,
    choose_spans,
    choose_words,
    ngram_lengths,
    num_predictions,
    span_lengths,
)
from bert_jax.data.mixtures import epoch_report
from bert_jax.data.packing import with_class_last
from bert_jax.data.pipeline import batches
from bert_jax.data.preparation.prepare import run_prepare
from bert_jax.data.preparation.vocabularies import run_train_vocab
from bert_jax.data.spelling_errors import edited_words
from bert_jax.data.store import PADDING, SPECIAL, Rows, open_store
from bert_jax.errors import UserError
from bert_jax.randomness import Stream, bits
from bert_jax.training_data import Examples

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
        shares.append(len(masked) / num_predictions(lengths[row : row + 1], 0.15, 20)[0])
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


CLEAN = PretrainingNoiseConfig()
NOISE = PretrainingNoiseConfig(rate=0.2)
ROWS = np.arange(24)


@pytest.fixture(scope="module", params=("frequency", "unigram", "byte_bpe"))
def store(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    corpus = documents.write(place / "corpus.txt", 60)
    size = {"frequency": 120, "unigram": 90, "byte_bpe": 400}[request.param]
    lowercase = request.param != "byte_bpe"
    vocabulary = TrainVocabConfig(
        input=str(corpus), output=str(place / "v"), size=size, method=request.param, lowercase=lowercase
    )
    run_train_vocab(vocabulary)
    run_prepare(PrepareConfig(input=str(corpus), vocab=str(place / "v"), output=str(place / "s"), sentences="lines"))
    return open_store(place / "s")


def examples(store, noise=CLEAN, packing="off", split="train", unit="token", **data) -> Examples:
    pairs = "none" if packing == "on" or store.tokenizer().separators > 1 else "nsp"
    data = DataConfig(path="s", sentence_pairs=pairs, packing=packing, noise=noise, **data)
    phase = PhaseConfig(steps=9, sequence_length=96, batch_size=8)
    return Examples(store, Config(data=data, masking=MaskingConfig(unit=unit), phases=(phase,)), split=split)


def assert_equal(first: dict, second: dict):
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].dtype == second[name].dtype
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def at_predictions(batch: dict) -> list[np.ndarray]:
    """Targets, weights, and what the model reads in their places."""
    read = np.take_along_axis(batch["input_ids"], batch["masked_positions"].astype(np.int64), axis=1)
    return [batch["masked_ids"], batch["masked_weights"], read * (batch["masked_weights"] > 0)]


@pytest.mark.parametrize("packing", ("off", "on"))
@pytest.mark.parametrize("unit", ("token", "whole_word"))
def test_targets_are_clean_and_the_rows_are_whole(store, packing, unit):
    clean = examples(store, packing=packing, unit=unit).batch(ROWS)
    assert_equal(
        clean, examples(store, dataclasses.replace(NOISE, rate=0.0, reserve=0.3), packing, unit=unit).batch(ROWS)
    )
    noisy = examples(store, NOISE, packing, unit=unit).batch(ROWS)
    assert (noisy["input_ids"] != clean["input_ids"]).mean() > 0.02
    for ours, theirs in zip(at_predictions(noisy), at_predictions(clean), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    tokenizer = store.tokenizer()
    for name, places in (("sep", tokenizer.sep_id), ("cls", tokenizer.cls_id)):
        counts = [np.sum((b["input_ids"] == places) & (b["attention_mask"] > 0), axis=1) for b in (noisy, clean)]
        np.testing.assert_array_equal(*counts, err_msg=name)
    past = noisy["attention_mask"] == 0
    assert (noisy["input_ids"][past] == tokenizer.pad_id).all() and (noisy["token_type_ids"][past] == 0).all()
    if packing == "on":
        starts = np.take_along_axis(noisy["input_ids"], noisy["text_starts"].astype(np.int64), axis=1)
        assert (starts == tokenizer.cls_id).all()
        np.testing.assert_array_equal(noisy["text_ids"] > 0, noisy["attention_mask"] > 0)
        np.testing.assert_array_equal(noisy["text_ids"].max(axis=1), clean["text_ids"].max(axis=1))


def transcribed(store, clean: Examples, position: int, noise: PretrainingNoiseConfig) -> list[int]:
    """The ids of a row with every error that was drawn, word by word; there must be room for all of them."""
    tokenizer, epoch_index = store.tokenizer(), clean.locate(np.array([position]))
    key = bits(clean.seed, Stream.MASKS, epoch_index[0], 0, epoch_index[1])[0]
    batch = clean.batch(np.array([position]))
    ids, used = batch["input_ids"][0], batch["masked_weights"][0] > 0
    original = ids.copy()
    original[batch["masked_positions"][0][used]] = batch["masked_ids"][0][used]
    predicted = set(batch["masked_positions"][0][used].tolist())
    continues, special = tokenizer.continues_word(), {tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id}
    words: list[list[int]] = []
    result: list[list[int] | int] = []
    previous = None
    for place in range(int(batch["attention_mask"].sum())):
        if original[place] in special:
            previous = None
            result.append(int(ids[place]))
        elif previous is not None and continues[original[place]]:
            previous.append(place)
        else:
            previous = [place]
            words.append(previous)
            result.append(previous)
    number_of = {id(word): number for number, word in enumerate(words)}
    row: list[int] = []
    for part in result:
        if isinstance(part, int):
            row.append(part)
            continue
        old, text = [int(ids[place]) for place in part], tokenizer.decode(original[part])
        word_key = bits(key, Stream.EDITED_WORD, number_of[id(part)])
        (new,) = edited_words([text], np.array([word_key]), noise)
        stays = predicted & set(part) or tokenizer.unk_id in original[part] or continues[original[part[0]]]
        row += old if stays or new == text else tokenizer.encode_words([new])[0]
    return row


def test_each_word_is_edited_tokenized_and_put_into_its_place(store):
    noise = dataclasses.replace(NOISE, rate=0.05, reserve=0.4)
    noisy, errors = examples(store, noise), 0
    clean = examples(store, noise)
    clean._errors = None  # the same rows, with the same room
    for position in range(10):
        batch = noisy.batch(np.array([position]))
        wanted = transcribed(store, clean, position, noise)
        assert batch["input_ids"][0, : batch["attention_mask"].sum()].tolist() == wanted
        errors += len(wanted) - int(clean.batch(np.array([position]))["attention_mask"].sum())
    assert errors > 10


def test_a_batch_is_a_function_of_its_positions(store):
    whole = examples(store, NOISE).batch(ROWS)
    for part in (ROWS[:5], ROWS[::-1], ROWS[7:8]):
        alone = examples(store, NOISE).batch(part)
        assert_equal(alone, {name: values[part] for name, values in whole.items()})
    half = [next(iter(batches(examples(store, NOISE), 0, 8, rows, 1))) for rows in (np.arange(4), np.arange(4, 8))]
    both = {name: np.concatenate([part[name] for part in half]) for name in whole}
    assert_equal(both, {name: values[:8] for name, values in whole.items()})


def test_room_limits_what_is_edited_and_evaluation_is_clean(store):
    lengths = {}
    for reserve in (0.0, 0.4):
        chosen = examples(store, dataclasses.replace(NOISE, reserve=reserve), packing="on")
        before = dataclasses.replace(NOISE, reserve=reserve)
        kept = examples(store, before, packing="on")
        kept._errors = None
        noisy, clean = chosen.batch(ROWS), kept.batch(ROWS)
        lengths[reserve] = noisy["attention_mask"].sum() / clean["attention_mask"].sum()
        assert chosen.text_length == 96 - int(96 * reserve) and noisy["input_ids"].shape == (24, 96)
    assert lengths[0.4] > lengths[0.0] + 0.05
    held_out = [examples(store, noise, split="held_out", held_out=0.2) for noise in (NOISE, CLEAN)]
    assert_equal(held_out[0].batch(ROWS), held_out[1].batch(ROWS))


def test_objectives_without_masks_are_refused():
    config = Config(data=DataConfig(path="s", sentence_pairs="none", noise=NOISE))
    check(dataclasses.replace(config, workdir="w"))
    with pytest.raises(UserError, match="data.noise.rate=0.2 puts errors into words that are not predicted"):
        check(dataclasses.replace(config, objective=LeftToRight()))


PERMUTATIONS_ROWS, LENGTH, WORDS = 400, 90, 50
PERMUTATIONS_CONTINUES = np.arange(WORDS) % 3 == 2


@pytest.fixture(scope="module")
def rows():
    """[CLS] A [SEP] B [SEP] and padding, of every length; ids of which a third continue a word."""
    random = np.random.default_rng(0)
    first = random.integers(1, 30, PERMUTATIONS_ROWS)[:, None]
    end = first + 2 + random.integers(1, 50, PERMUTATIONS_ROWS)[:, None]
    column = np.arange(LENGTH)[None]
    is_text = (column > 0) & (column < end) & (column != first + 1)
    ids = np.where(is_text, random.integers(5, WORDS, (PERMUTATIONS_ROWS, LENGTH)), 0).astype(np.int32)
    return ids, is_text, end[:, 0] + 1, random.integers(0, 2**63, PERMUTATIONS_ROWS).astype(np.uint64)


@pytest.fixture(scope="module")
def permutations():
    return Permutations(rate=1 / 6, longest_span=5, max_predictions=15, continues_word=PERMUTATIONS_CONTINUES)


def test_targets_are_a_sixth_of_the_tokens_and_nothing_is_changed(rows, permutations):
    ids, is_text, lengths, _ = rows
    found = permutations(*rows)
    used = found["masked_weights"] > 0
    np.testing.assert_array_equal(found["input_ids"], ids)
    row, slot = np.nonzero(used)
    positions = found["masked_positions"][row, slot]
    assert is_text[row, positions].all()
    np.testing.assert_array_equal(found["masked_ids"][row, slot], ids[row, positions])
    assert not found["masked_ids"][~used].any() and not found["masked_positions"][~used].any()
    chosen = np.zeros_like(is_text)
    chosen[row, positions] = True
    assert chosen.sum() == len(row)
    wanted = np.minimum(15, np.maximum(1, np.rint(lengths / 6)))
    shortest = np.array([min(end - begin for begin, end in _runs(row)) for row in is_text])
    missing = wanted - used.sum(1)
    assert not missing[shortest > wanted].any()  # one token of a short segment may have to be given
    assert set(missing) <= {0, 1, 2} and (shortest > wanted).sum() > 250


def test_an_order_has_a_place_for_each_target_and_special_token_and_none_for_others(rows, permutations):
    _, is_text, lengths, _ = rows
    found = permutations(*rows)
    special = ~is_text & (np.arange(LENGTH) < lengths[:, None])
    for row, order in enumerate(found["order"]):
        targets = found["masked_positions"][row][found["masked_weights"][row] > 0]
        drawn = np.union1d(targets, np.flatnonzero(special[row]))
        np.testing.assert_array_equal(np.flatnonzero(order), drawn)
        assert sorted(order[drawn]) == list(range(1, len(drawn) + 1))
        for begin, end in _runs(is_text[row]):
            assert not order[begin:end].all()  # the first target of a text sees something of it
    first = np.array([order[order > 0].argmin() for order in found["order"] if (order > 0).sum() == 6])
    assert (np.bincount(first, minlength=6) > len(first) / 6 * 0.4).all()  # none of the places is rarely the first


def _runs(is_text):
    edges = np.flatnonzero(np.diff(np.pad(is_text.astype(int), 1)))
    return zip(edges[::2], edges[1::2], strict=True)


def test_spans_begin_with_words_and_have_the_lengths_of_the_published_code():
    """One long text per row; P(n) ∝ 1/n for n up to 5, to four standard errors of the share of each n."""
    random = np.random.default_rng(1)
    ids = random.integers(5, WORDS, (200, 400)).astype(np.int32)
    is_text, keys = np.ones_like(ids, bool), random.integers(0, 2**63, 200).astype(np.uint64)
    permutations = Permutations(1 / 6, 5, 400, PERMUTATIONS_CONTINUES)
    chosen = permutations.spans(ids, is_text, keys, np.full(200, 400))
    spans = [run for row in chosen for run in _runs(row) if run[1] < 390]  # one at the end of a text may be cut
    begins = [ids[row, begin] for row, mask in enumerate(chosen) for begin, _ in _runs(mask) if begin]
    assert not PERMUTATIONS_CONTINUES[begins].any()
    lengths = np.bincount([end - begin for begin, end in spans])
    total, shares = lengths.sum(), (1 / np.arange(1, 6)) / (1 / np.arange(1, 6)).sum()
    beside = lengths[6:].sum()  # two spans side by side look like one
    assert beside < 0.1 * total
    errors = 4 * np.sqrt(shares / total) + 2 * beside / total
    assert (np.abs(lengths[1:6] / total - shares) < errors).all()
    # A span of n tokens and its context of 6n, with the rest of the word before it: a little less than a seventh.
    assert 0.11 < chosen.mean() < 1 / 7


def test_rows_do_not_depend_on_each_other(rows, permutations):
    whole, some = permutations(*rows), np.array([7, 3, 3, 399])
    part = permutations(*(values[some] for values in rows))
    for name, values in part.items():
        np.testing.assert_array_equal(values, whole[name][some])


@pytest.mark.parametrize("packing", ["off", "on"])
def test_batches_are_a_function_of_seed_and_position(small_store, packing):
    config = Config(
        model=dataclasses.replace(xlnet_config("mini"), max_position_embeddings=64),
        data=DataConfig(path=str(small_store), sentence_pairs="none", packing=packing),
        masking=MaskingConfig(rate=1 / 6),
        objective=Permutation(),
        phases=(PhaseConfig(sequence_length=48, batch_size=8),),
    )
    store = open_store(str(small_store))
    examples = Examples(store, config)
    batch = examples.batch(np.arange(12))
    assert {name: (values.shape[1:], values.dtype) for name, values in batch.items()} == {
        name: (shape, np.dtype(dtype)) for name, (shape, dtype) in examples.layout.items()
    }
    again = Examples(store, config).batch(np.array([11, 2]))
    for name, values in again.items():
        np.testing.assert_array_equal(values, batch[name][[11, 2]])
    other = Examples(store, config, seed=1).batch(np.arange(12))
    assert (other["order"] != batch["order"]).any()
    later = examples.batch(np.arange(12) + examples.num_examples(0))
    assert (later["order"] != batch["order"]).any()


def test_the_class_token_of_xlnet_comes_last_and_in_a_segment_of_its_own():
    """One row of a text, one of two packed texts; in each, offsets and segments move one place to the left."""
    specials = SPECIAL, PADDING
    first = [specials[0], 10, 11, 12, specials[0], *[specials[1]] * 3]
    second = [specials[0], 20, 21, specials[0], specials[0], 30, specials[0], specials[1]]
    index = np.array([first, second])
    nothing = np.zeros(2, np.int64)
    ids = np.array([[1] * 5 + [0] * 3, [1] * 4 + [2] * 3 + [0]], np.int32)
    packed = Rows(index, np.zeros_like(ids), None, nothing, nothing, ids, np.array([[0, 0], [0, 4]], np.int32))
    rows, classes = with_class_last(packed)
    expected = [[10, 11, 12, *[specials[0]] * 2, *[specials[1]] * 3]]
    expected += [[20, 21, *[specials[0]] * 2, 30, *[specials[0]] * 2, specials[1]]]
    np.testing.assert_array_equal(rows.token_index, expected)
    np.testing.assert_array_equal(np.argwhere(classes), [[0, 4], [1, 3], [1, 6]])
    np.testing.assert_array_equal(rows.token_type_ids, 2 * classes)
    alone, _ = with_class_last(Rows(index[:1], np.zeros((1, 8), np.int32), None, nothing[:1], nothing[:1]))
    np.testing.assert_array_equal(alone.token_index, expected[:1])


def statistics(lengths, is_random, truncated, num_tokens):
    return {
        "is_next": 1 - np.mean(is_random),
        "mean_length": np.mean(lengths),
        "truncated": np.sum(truncated) / num_tokens,
    }


def epochs_statistics(examples, epochs=4):
    rows = Rows.concatenate([epoch_rows(examples, epoch) for epoch in range(epochs)])
    return statistics(rows.lengths, rows.labels, rows.truncated / epochs, examples.documents.num_tokens.sum())


def original_statistics(documents, sequence_length, short, passes=4):
    examples = [
        example
        for seed in range(passes)
        for example in original_procedure.create_examples(documents, sequence_length - 3, short, seed)
    ]
    lengths = [example.num_first + example.num_second + 3 for example in examples]
    truncated = [example.truncated / passes for example in examples]
    return statistics(lengths, [example.is_random for example in examples], truncated, sum(map(sum, documents)))


@pytest.mark.parametrize("short", [0.0, 0.1])
def test_lengths_truncation_and_share_of_next_are_near_the_original(short):
    """Close, not equal: the original leaves more lone sentences, so 44 to 46 % IsNext; ours are the paper's 50 %.

    Ours are a little shorter and lose less, because no chunk may have more sentences than a sequence can show.
    """
    documents = random_documents(600, seed=3)[:600]
    ours = epochs_statistics(make_examples(SyntheticStore(documents), sequence_length=128, short=short))
    theirs = original_statistics(documents, 128, short)
    assert abs(ours["is_next"] - 0.5) < 0.03 and abs(ours["is_next"] - theirs["is_next"]) < 0.08
    assert 0.92 < ours["mean_length"] / theirs["mean_length"] < 1.0
    assert theirs["truncated"] - 0.06 < ours["truncated"] < theirs["truncated"]


def test_epochs_of_wikipedia_are_near_the_original_and_have_every_sentence(shared_data, tmp_path):
    """Found over five epochs: IsNext 50 against 44 %, mean length 107 against 112, cut off 5 against 10 %."""
    text, vocab = shared_data / "wiki/wiki_valid.txt.gz", shared_data / "vocab/uncased/vocab.txt"
    run_prepare(PrepareConfig(input=str(text), vocab=str(vocab), output=str(tmp_path / "store"), workers=1))
    store = open_store(tmp_path / "store")
    starts = store.sentence_starts(np.arange(store.num_sentences + 1))
    documents = [lengths.tolist() for lengths in np.split(np.diff(starts), store.document_sentences[1:-1])]
    examples = make_examples(store, sequence_length=128)
    ours, theirs = epochs_statistics(examples), original_statistics(documents, 128, 0.1)
    assert abs(ours["is_next"] - 0.5) < 0.03 and abs(ours["is_next"] - theirs["is_next"]) < 0.08
    assert 0.93 < ours["mean_length"] / theirs["mean_length"] < 1.0
    assert theirs["truncated"] - 0.06 < ours["truncated"] < theirs["truncated"]
    report = epoch_report(examples)
    assert report.duplicated < 0.06 and report.sentences_seen == 1
    # A borrowed copy may bring back what was cut.
    assert report.tokens_seen == pytest.approx(1 - report.truncated, abs=0.01)
    for sentence_pairs, sequence_length in itertools.product(PAIRS, (128, 512)):
        examples = make_examples(store, sentence_pairs=sentence_pairs, sequence_length=sequence_length)
        assert [sentences_seen(examples, epoch) for epoch in range(3)] == [store.num_sentences] * 3

"""Rows for static word vectors: their words, their windows and what is drawn at random."""

import numpy as np
import pytest
from scipy import stats

from bert_jax.config import Config, DataConfig, PhaseConfig, SkipGram
from bert_jax.config.objective import SHARED_NEGATIVES, SkipGramConfig
from bert_jax.data.examples import Examples
from bert_jax.data.neighbours import NeighbourWindows
from bert_jax.data.store import open_store
from bert_jax.randomness import Stream, bits

PAD, CLS, SEP, LENGTH, ROWS = 0, 2, 3, 16, 600
COUNTS = np.array([0, 0, 0, 0, 0, 900, 90, 9, 40, 0, 300])
SPECIAL = 5  # ids below


@pytest.fixture(scope="module")
def given():
    """ROWS rows of [CLS], eight words, [SEP], three words, [SEP], as `NeighbourWindows` takes them."""
    ids = np.full((ROWS, LENGTH), PAD, np.int32)
    words = np.random.default_rng(0).choice(np.flatnonzero(COUNTS), (ROWS, 11))
    ids[:, 0], ids[:, 1:9], ids[:, 9], ids[:, 10:13], ids[:, 13] = CLS, words[:, :8], SEP, words[:, 8:], SEP
    return ids, ids >= SPECIAL, np.full(ROWS, 14), bits(7, Stream.MASKS, np.arange(ROWS))


def rows(given, **options):
    return NeighbourWindows(SkipGramConfig(**options), COUNTS, PAD)(*given)


def test_a_row_keeps_its_words_alone_and_in_order(given):
    found = rows(given)
    np.testing.assert_array_equal(found["input_ids"][:, :11], given[0][:, [*range(1, 9), 10, 11, 12]])
    np.testing.assert_array_equal(found["attention_mask"].sum(axis=1), 11)
    np.testing.assert_array_equal(found["windows"].max(axis=2) > 0, found["attention_mask"] > 0)


def test_in_packed_rows_no_text_has_neighbours_in_another(small_store):
    objective = SkipGram()
    phase = PhaseConfig(sequence_length=256, batch_size=16)
    config = Config(phases=(phase,), data=DataConfig(sentence_pairs="none", packing="on"), objective=objective)
    examples = Examples(open_store(small_store), config)
    where = examples.locate(np.arange(16))
    batch, texts = examples.examples_at(*where), examples.rows(*where)
    assert {name: (array.shape[1:], array.dtype) for name, array in batch.items()} == examples.layout
    several = 0
    for row in range(16):
        sizes = np.bincount(texts.text_ids[row][texts.token_index[row] >= 0])[1:]
        several += len(sizes) > 1
        assert batch["attention_mask"][row].sum() == sizes.sum()
        number, place = np.repeat(np.arange(len(sizes)), sizes), np.arange(sizes.sum())
        before, after = batch["windows"][row, : sizes.sum()].T
        assert (number[place - before] == number).all() and (number[place + after] == number).all()
        assert (np.maximum(before, after) > 0)[sizes[number] > 1].all()
    assert several > 8


def test_windows_are_as_often_of_every_width(given):
    before, after = np.moveaxis(rows(given, window=4)["windows"][:, :11], 2, 0)
    inside = before[:, 4]  # the fifth of eight words
    assert stats.chisquare(np.bincount(inside, minlength=5)[1:]).pvalue > 0.001
    np.testing.assert_array_equal(np.minimum(inside, 3), after[:, 4])


def test_windows_end_with_the_text(given):
    before, after = np.moveaxis(rows(given, window=4)["windows"][:, :11], 2, 0)
    room = np.array([*range(8), *range(3)])
    np.testing.assert_array_equal(before.max(axis=0), np.minimum(room, 4))
    np.testing.assert_array_equal(after.max(axis=0), np.minimum([*range(7, -1, -1), 2, 1, 0], 4))


def test_random_words_are_drawn_by_their_counts_to_the_three_quarters(given):
    drawn = np.bincount(rows(given)["negatives"].ravel(), minlength=len(COUNTS))
    assert not drawn[COUNTS == 0].any()
    there = COUNTS > 0
    expected = ROWS * SHARED_NEGATIVES * COUNTS[there] ** 0.75 / (COUNTS**0.75).sum()
    assert stats.chisquare(drawn[there], expected).pvalue > 0.001
    flat = ROWS * SHARED_NEGATIVES * COUNTS[there] / COUNTS.sum()
    assert stats.chisquare(drawn[there], flat).pvalue < 1e-9  # the test would see another power


def test_frequent_words_are_left_out_by_their_share(given):
    found = rows(given, subsampling=0.01)
    stay = np.bincount(found["input_ids"][found["attention_mask"] > 0], minlength=len(COUNTS))
    there = np.bincount(given[0][given[1]], minlength=len(COUNTS))
    for word in np.flatnonzero(COUNTS):
        share = COUNTS[word] / COUNTS.sum()
        kept = min(1.0, np.sqrt(0.01 / share))
        assert stats.binomtest(int(stay[word]), int(there[word]), kept).pvalue > 0.001


def test_the_store_counts_every_token_once(small_store, monkeypatch):
    store = open_store(small_store)
    monkeypatch.setattr("bert_jax.data.store._COUNTED", 1000)
    expected = np.zeros(store.vocab_size, int)
    np.add.at(expected, np.concatenate(store.arrays["tokens"]), 1)
    np.testing.assert_array_equal(store.token_counts, expected)

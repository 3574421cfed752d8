"""Truncation, and who gets whom for a partner. Statistical bounds are at 5 standard deviations; all seeds are fixed."""

import numpy as np
import original_procedure
import pytest
from scipy import stats
from synthetic_examples import documents_of, epoch_rows, make_examples, segments
from synthetic_store import SyntheticStore, random_documents

from bert_jax.data.chunks import Segments, truncate
from bert_jax.data.store import Rows
from bert_jax.randomness import Stream, bits


@pytest.fixture(scope="module")
def store():
    return SyntheticStore(random_documents(150))


def random_segments(generator, rows, sentences, longest):
    """Segments [rows, 2] of random sentences, and the sentence lengths of each."""
    lengths = [
        [generator.integers(1, longest, generator.integers(1, sentences)).tolist() for _ in range(2)]
        for _ in range(rows)
    ]
    begin = np.broadcast_to([1000, 5000], (rows, 2))
    end = begin + [[sum(segment) for segment in pair] for pair in lengths]
    first_end = begin + [[segment[0] for segment in pair] for pair in lengths]
    return Segments(begin, end, first_end, end - [[segment[-1] for segment in pair] for pair in lengths]), lengths


def truncate_one_by_one(pair, room):
    """Lengths after the longer segment, or the other if its outer sentences have tokens left, lost one at a time."""
    kept = [sum(segment) for segment in pair]
    least = [1 if len(segment) == 1 else sum(segment[1:-1]) + 2 for segment in pair]
    while sum(kept) > room:
        longer = 0 if kept[0] > kept[1] else 1
        kept[longer if kept[longer] > least[longer] else 1 - longer] -= 1
    return kept, sum(least) <= room


def test_truncation_leaves_a_token_of_every_sentence():
    segments, lengths = random_segments(np.random.default_rng(1), 4000, sentences=6, longest=60)
    expected, possible = zip(*(truncate_one_by_one(pair, 90) for pair in lengths))
    where = np.flatnonzero(possible)
    assert 2000 < len(where) < 4000
    begin, end, removed = truncate(segments[where], bits(0, Stream.MASKS, where), 90)
    np.testing.assert_array_equal(end - begin, np.array(expected)[where])
    np.testing.assert_array_equal(removed, segments.length[where] - np.array(expected)[where])
    assert (begin >= segments.begin[where]).all() and (begin < segments.first_end[where]).all()
    assert (end <= segments.end[where]).all() and (end > segments.last_begin[where]).all()
    assert ((begin > segments.begin[where]) & (end < segments.end[where])).any(0).all()


def test_truncation_as_one_by_one():
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 120, (3000, 2))
    begin = np.stack([np.full(3000, 1000), np.full(3000, 5000)], 1)
    single = Segments(begin, begin + lengths, begin + lengths, begin)
    new_begin, new_end, removed = truncate(single, bits(0, Stream.MASKS, np.arange(3000)), 61)
    expected = np.array([original_procedure.truncate(int(a), int(b), 61) for a, b in lengths])
    np.testing.assert_array_equal(new_end - new_begin, expected)
    np.testing.assert_array_equal(removed, lengths - expected)
    front = new_begin - begin
    assert (front >= 0).all() and (front <= removed).all()
    assert abs(front.sum() - removed.sum() / 2) < 5 * np.sqrt(removed.sum() / 4)
    variance = ((front - removed / 2) ** 2).sum() / (removed.sum() / 4)  # of a binomial: 1 in the mean
    assert abs(variance - 1) < 5 * np.sqrt(2 / (removed > 0).sum())


def test_next_sentences_follow_and_random_ones_come_from_elsewhere(store):
    examples = make_examples(store, sequence_length=128)
    for epoch in (0, 1):
        rows = epoch_rows(examples, epoch)
        for (first, second), label, truncated in zip(segments(rows), rows.labels, rows.truncated):
            assert len(first) and len(second)
            assert (np.diff(first) == 1).all() and (np.diff(second) == 1).all()
            same = documents_of(store, first[0]) == documents_of(store, second[0])
            assert same == (label == 0)
            if label == 0:
                assert 0 <= second[0] - first[-1] - 1 <= truncated
                assert truncated or np.isin(second[0], store.sentence_starts(np.arange(store.num_sentences)))


def test_half_of_the_pairs_are_random_where_all_can_be_exchanged():
    plenty = SyntheticStore([[15] * 8] * 3000)
    rows = epoch_rows(make_examples(plenty, short=0.0), 0)
    exchanges = len(rows.labels) / 2  # the coins that were thrown: both partners share one
    assert abs(rows.labels.mean() - 0.5) < 5 * 0.5 / np.sqrt(exchanges) + 1e-3
    assert not rows.duplicated.any()


@pytest.mark.parametrize("sizes", [[3000] * 4, [6000, 2000, 2000, 2000], [5000, 5000], [8000]])
def test_half_of_the_pairs_are_random_with_few_documents_too(sizes):
    """5 standard deviations of one fair coin a couple, over five epochs."""
    store = SyntheticStore([[15] * size for size in sizes])
    examples = make_examples(store, short=0.0)
    rows = Rows.concatenate([epoch_rows(examples, epoch) for epoch in range(5)])
    assert abs(rows.labels.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(rows.labels) / 2)
    for (first, second), label in zip(segments(rows[:500]), rows.labels):
        same = documents_of(store, first[0]) == documents_of(store, second[0])
        assert same == (label == 0) or len(sizes) == 1


def test_a_lone_sentence_gets_a_random_partner_that_fills_the_sequence():
    store = SyntheticStore([[12]] * 40 + [[10] * 20] * 40)
    rows = epoch_rows(make_examples(store, short=0.0, sequence_length=64), 0)
    lone = [
        (first, second, label, copied)
        for (first, second), label, copied in zip(segments(rows), rows.labels, rows.duplicated)
        if documents_of(store, first[0]) < 40
    ]
    assert len(lone) == 40
    for first, second, label, copied in lone:
        assert label == 1 and copied == len(second) and len(first) == 12
        assert documents_of(store, second[0]) != documents_of(store, first[0])
        assert len(second) in (12, 49) or len(second) % 10 == 0  # full, or all that the other chunk had
    assert sum(len(second) == 49 for _, second, _, _ in lone) > 10


def test_first_segments_end_after_any_sentence_but_the_last():
    """randint(1, 3) sentences of four; chi-square at p = 1e-6."""
    store = SyntheticStore([[5] * 4] * 3000)
    rows = epoch_rows(make_examples(store, short=0.0), 0)
    lengths = [len(first) for (first, _), label in zip(segments(rows), rows.labels) if label == 0]
    count = np.bincount(lengths, minlength=16)
    assert count.sum() == count[[5, 10, 15]].sum() and stats.chisquare(count[[5, 10, 15]]).pvalue > 1e-6


def test_sentence_order_labels(store):
    rows = epoch_rows(make_examples(store, sentence_pairs="sop"), 0)
    assert not rows.duplicated.any()
    swappable = 0
    for (first, second), label in zip(segments(rows), rows.labels):
        if len(first) and len(second):
            swappable += 1
            assert documents_of(store, first[0]) == documents_of(store, second[0])
            assert (second[0] < first[0]) == (label == 1)
        else:
            assert label == 0 and len(first) == 1
    assert abs(rows.labels.sum() / swappable - 0.5) < 5 * 0.5 / np.sqrt(swappable)

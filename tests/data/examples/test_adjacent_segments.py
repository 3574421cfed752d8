"""Two segments without a label, against the rule of ELECTRA's published code, written out sentence by sentence.

Statistical bounds are at 5 standard deviations; all seeds are fixed.
"""

import random

import numpy as np
import pytest
from scipy import stats
from synthetic_examples import documents_of, epoch_rows, make_examples, segments
from synthetic_store import SyntheticStore, random_documents

from bert_jax.data import packing
from bert_jax.data.mixtures import epoch_report
from bert_jax.data.store import PADDING, SPECIAL
from bert_jax.randomness import Stream, bits, uniform

ADJACENT = {"sentence_pairs": "adjacent", "short": 0.05}


@pytest.fixture(scope="module")
def store():
    return SyntheticStore(random_documents(150))


def published_segments(lengths: list[int], target_length: int, draw) -> list[int]:
    """The segment, 0 or 1, of each sentence of an example; `draw()` is the next random number in [0, 1)."""
    wanted = 100_000 if draw() < 0.1 else (target_length - 3) // 2
    first, result = 0, []
    for length in lengths:
        goes_over = 1 not in result and first < wanted
        if first == 0 or first + length < wanted or (goes_over and draw() < 0.5):
            first += length
            result.append(0)
        else:
            result.append(1)
    return result


def expected_texts(store, examples, epoch: int, sequence_length: int):
    """For each text of an epoch the token offsets of its segments, by the rule, and whether it would have put some
    sentence back into the first segment."""
    indices = np.arange(examples.source.count(epoch))
    found = examples.source.find(epoch, examples.source.shuffled(epoch, indices))
    draws = uniform(bits(examples.seed, Stream.SPLIT, epoch, indices[:, None], np.arange(2)))
    starts = store.sentence_starts(np.arange(store.num_sentences))
    for begin, end, target, numbers in zip(found.begin, found.end, found.target, draws.tolist()):
        edges = [begin, *starts[(starts > begin) & (starts < end)], end]
        of_sentence = published_segments(np.diff(edges).tolist(), int(target) + 3, iter(numbers).__next__)
        chosen = np.maximum.accumulate(of_sentence)  # nothing goes back
        of_token = np.repeat(chosen, np.diff(edges))
        tokens = np.arange(begin, end)
        first, second = tokens[of_token == 0][: sequence_length - 2], tokens[of_token == 1]
        second = second[: max(0, sequence_length - len(first) - 3)]
        yield [first, second][: 2 if len(second) else 1], chosen.tolist() != of_sentence


@pytest.mark.parametrize("sequence_length", [24, 128])
@pytest.mark.parametrize("short", [0.05, 0.6])
def test_rows_are_those_of_the_published_rule_given_the_numbers_that_were_drawn(store, sequence_length, short):
    examples = make_examples(store, sentence_pairs="adjacent", sequence_length=sequence_length, short=short)
    for epoch in (0, 12):
        rows, kinds = epoch_rows(examples, epoch), set()
        texts = list(expected_texts(store, examples, epoch, sequence_length))
        for index, types, cut, (parts, _) in zip(rows.token_index, rows.token_type_ids, rows.truncated, texts):
            expected = np.full(sequence_length, PADDING)
            expected_types = np.zeros(sequence_length, int)
            expected[0], place = SPECIAL, 1
            for segment, tokens in enumerate(parts):
                expected[place : place + len(tokens)] = tokens
                expected[place + len(tokens)] = SPECIAL
                expected_types[place : place + len(tokens) + 1] = segment
                place += len(tokens) + 1
            np.testing.assert_array_equal(index, expected)
            np.testing.assert_array_equal(types, expected_types)
            kinds.add((len(parts), cut > 0))
        assert kinds == {(1, False), (1, True), (2, False), (2, True)}
        assert len(texts) == len(rows.lengths) and rows.labels is None and not rows.duplicated.any()
        assert 0 < np.mean([goes_back for _, goes_back in texts]) < 0.2  # what the published rule puts out of order


def test_packed_texts_are_those_of_the_published_rule(store, monkeypatch):
    """Where no text gives up a token for a place; chunks are divided between texts, and none needs a cut."""
    monkeypatch.setattr(packing, "TOLERANCE", 0)
    examples = make_examples(store, packing="on", sequence_length=128, **ADJACENT)
    rows = epoch_rows(examples, 3)
    found = []
    for index, types, numbers in zip(rows.token_index, rows.token_type_ids, rows.text_ids):
        for number in range(1, numbers.max() + 1):
            here = numbers == number
            parts = [index[here & (types == segment) & (index >= 0)].tolist() for segment in (0, 1)]
            assert (index[here] == SPECIAL).sum() == 1 + sum(map(bool, parts))
            found.append([part for part in parts if part])
    expected = [[part.tolist() for part in parts] for parts, _ in expected_texts(store, examples, 3, 128)]
    assert sorted(found) == sorted(expected) and {len(parts) for parts in found} == {1, 2}
    assert rows.labels is None and not rows.truncated.any()


def test_rows_are_consecutive_text_of_one_document(store):
    rows = epoch_rows(make_examples(store, sequence_length=128, **ADJACENT), 1)
    for first, second in segments(rows):
        text = np.concatenate([first, second])
        assert (np.diff(text) == 1).all() and len(set(documents_of(store, text))) == 1


def test_one_text_in_ten_is_a_single_segment_and_the_middle_sentence_goes_either_way():
    """Documents of eight sentences of 15 tokens: half of the target is 62, which the fifth sentence reaches."""
    store = SyntheticStore([[15] * 8] * 4000)
    rows = epoch_rows(make_examples(store, sentence_pairs="adjacent", short=0.0, sequence_length=128), 0)
    count = np.bincount([len(first) for first, _ in segments(rows)], minlength=121)
    assert count.sum() == count[[60, 75, 120]].sum() == 4000
    assert stats.chisquare(count[[60, 75, 120]], [1800, 1800, 400]).pvalue > 1e-6


def test_first_segments_are_half_of_the_target_in_the_mean():
    store = SyntheticStore(random_documents(400, seed=2, mean_sentences=60))
    options = {"sentence_pairs": "adjacent", "short": 0.0, "packing": "off", "sequence_length": 512}
    rows = epoch_rows(make_examples(store, **options), 0)
    full = [len(first) for first, second in segments(rows) if len(second) and len(first) + len(second) > 400]
    assert len(full) > 500 and abs(np.mean(full) - 254) < 1 + 5 * np.std(full) / np.sqrt(len(full))


def published_examples(documents, sequence_length: int, seed: int):
    """The lengths of the segments of all examples, made from the front of each document as in the published code."""
    draw, target, examples = random.Random(seed), sequence_length, []
    for document in documents:
        waiting = []
        for number, length in enumerate(document):
            waiting.append(length)
            if sum(waiting) < target and number < len(document) - 1:
                continue
            of_sentence = published_segments(waiting, target, draw.random)
            first, second = (sum(n for n, each in zip(waiting, of_sentence) if each == segment) for segment in (0, 1))
            first = min(first, sequence_length - 2)
            examples.append((first, min(second, max(0, sequence_length - first - 3))))
            waiting, target = [], sequence_length
            if draw.random() < 0.05:
                target = draw.randint(5, sequence_length)
    return np.array(examples)


def test_epochs_are_near_the_published_procedure():
    """Close, not equal: its examples end with the sentence that fills them, ours with the cell of a chunk."""
    documents = random_documents(600, seed=3)[:600]
    theirs = published_examples(documents, 128, seed=0)
    examples = make_examples(SyntheticStore(documents), sequence_length=128, **ADJACENT)
    ours = np.array([[len(first), len(second)] for first, second in segments(epoch_rows(examples, 0))])
    single, mean, first = (
        [measure(each) for each in (ours, theirs)]
        for measure in (
            lambda lengths: (lengths[:, 1] == 0).mean(),
            lambda lengths: lengths.sum(1).mean(),
            lambda lengths: lengths[lengths[:, 1] > 0, 0].mean(),
        )
    )
    assert abs(single[0] - single[1]) < 0.05 and 0.9 < mean[0] / mean[1] < 1 and 0.9 < first[0] / first[1] < 1.05
    report = epoch_report(examples)
    assert report.is_next is None and report.sentences_seen == 1 and report.duplicated == 0

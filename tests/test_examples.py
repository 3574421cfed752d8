"""Statistical bounds are at 5 standard deviations; all seeds are fixed."""

import dataclasses
import itertools

import numpy as np
import pytest
from scipy import stats

import original_procedure
from bert_jax.config import Config, DataConfig, MaskingConfig, PhaseConfig, PrepareConfig
from bert_jax.data.chunks import SHORT_CYCLE, DocumentChunks
from bert_jax.data.documents import Documents
from bert_jax.data.epoch_report import epoch_report
from bert_jax.data.examples import Examples
from bert_jax.data.prepare import run_prepare
from bert_jax.data.randomness import Stream, bits
from bert_jax.data.rows import PADDING, SPECIAL, Rows
from bert_jax.data.store import open_store
from bert_jax.data.truncation import Segments, truncate
from bert_jax.errors import UserError
from synthetic_store import CLS, PAD, SEP, SyntheticStore, random_documents, write_store

PAIRS = ("nsp", "sop", "none")


def make_config(sequence_length=64, short=0.1, **options):
    data = {name: options.pop(name) for name in ("sentence_pairs", "held_out", "eval_path", "copies") if name in options}
    return Config(data=DataConfig(short_sequence_probability=short, **data), masking=MaskingConfig(**options),
                  phases=(PhaseConfig(sequence_length=sequence_length),))


def make_examples(store, split="all", seed=0, **options):
    return Examples(store, make_config(**options), split=split, seed=seed)


def epoch_rows(examples, epoch):
    count = examples.num_examples(epoch)
    return examples.rows(np.full(count, epoch), np.arange(count))


def segments(rows):
    """Token offsets of the first and the second segment of every row (arrays)."""
    return [tuple(index[(index >= 0) & (types == segment)] for segment in (0, 1))
            for index, types in zip(rows.token_index, rows.token_type_ids)]


def sentences_seen(examples, epoch):
    """Number of the store's sentences with a token at least in the epoch."""
    tokens = epoch_rows(examples, epoch).token_index
    starts = examples.store.sentence_starts(np.arange(examples.store.num_sentences))
    return len(np.unique(np.searchsorted(starts, tokens[tokens >= 0], side="right")))


@pytest.fixture(scope="module")
def store():
    return SyntheticStore(random_documents(150))


def documents_of(store, offsets):
    return np.searchsorted(store.document_tokens, offsets, side="right") - 1


# Splits

def test_held_out_documents_depend_on_the_store_alone(store):
    held_out, training = Documents(store, "held_out", 0.1), Documents(store, "train", 0.1)
    assert len(held_out) == round(0.1 * store.num_documents)
    np.testing.assert_array_equal(np.sort(np.concatenate([held_out.numbers, training.numbers])), np.arange(store.num_documents))
    examples = Examples(store, dataclasses.replace(make_config(held_out=0.1), seed=77), split="held_out")
    np.testing.assert_array_equal(examples.documents.numbers, held_out.numbers)
    assert len(Documents(store, "held_out", 1e-9)) == 1
    assert len(Documents(store, "train", 0)) == len(Documents(store, "all", 0.1)) == store.num_documents
    assert len(Examples(store, make_config(held_out=0.1, eval_path="other")).documents) == store.num_documents


def test_splits_that_cannot_be_are_refused():
    one = SyntheticStore([[5, 5]])
    with pytest.raises(UserError, match="keeps 1 of the store's 1 documents"):
        Documents(one, "train", 0.01)
    with pytest.raises(UserError, match="held_out=0 keeps no documents"):
        Documents(one, "held_out", 0)
    assert len(Documents(one, "train", 0)) == 1


# Cutting

@pytest.mark.parametrize("short", [0.0, 0.5])
def test_chunks_are_a_partition_cut_at_sentences(store, short):
    documents = Documents(store, "all", 0)
    chunks = DocumentChunks(documents, 61, short, seed=1)
    starts = store.sentence_starts(np.arange(store.num_sentences + 1))
    for epoch in (0, 1, 13):
        found = chunks.find(epoch, np.arange(chunks.count(epoch)))
        assert (found.end > found.begin).all()
        assert found.begin[0] == 0 and found.end[-1] == store.num_tokens
        np.testing.assert_array_equal(found.begin[1:], found.end[:-1])
        for begin, end, inner, count in zip(found.begin, found.end, found.first_inner, found.num_sentences):
            inside = starts[(starts > begin) & (starts < end)]
            assert count == 1 + len(inside) and (not len(inside) or starts[inner] == inside[0])
        last_start = np.where(found.num_sentences > 1, starts[found.first_inner + found.num_sentences - 2], found.begin)
        assert (last_start - found.begin < 61).all()  # a token of every sentence fits into a sequence
        cut = ~np.isin(found.begin, starts)
        sentence = np.searchsorted(starts, found.begin[cut], side="right") - 1
        length = np.minimum(-(-documents.num_tokens // np.diff(store.document_sentences)), 61)[found.document[cut]]
        assert (starts[sentence + 1] - starts[sentence] > np.maximum(found.target[cut], length)).all()


def test_boundaries_move_from_epoch_to_epoch(store):
    chunks = DocumentChunks(Documents(store, "all", 0), 61, 0.1, seed=1)
    first, second = (chunks.find(epoch, np.arange(chunks.count(epoch))).begin for epoch in (0, 10))
    assert len(first) == len(second)  # the same documents are short in both
    assert len(np.intersect1d(first, second)) < 0.8 * len(first)


def test_short_targets_are_uniform_and_last_for_a_document():
    """randint(2, 61), both included, for a share of the documents; chi-square at p = 1e-6."""
    many = SyntheticStore([[200] * 3] * 20_000)
    chunks = DocumentChunks(Documents(many, "all", 0), 61, 0.25, seed=1)
    found = chunks.find(0, np.arange(chunks.count(0)))
    assert all(len(np.unique(found.target[found.document == document])) == 1 for document in range(50))
    targets = found.target[np.unique(found.document, return_index=True)[1]]
    count = np.bincount(targets, minlength=62)
    expected = np.full(60, 0.25 / 60)
    expected[-1] += 0.75
    assert not count[:2].any() and stats.chisquare(count[2:], expected * 20_000).pvalue > 1e-6


@pytest.mark.parametrize("sentence_pairs", PAIRS)
def test_an_epoch_has_every_token_once_but_what_truncation_cuts(store, sentence_pairs):
    examples = make_examples(store, sentence_pairs=sentence_pairs)
    for epoch in (0, 3):
        rows = epoch_rows(examples, epoch)
        own = rows.token_index.copy()
        own[(rows.duplicated > 0)[:, None] & (rows.token_type_ids == 1)] = PADDING
        seen = np.bincount(own[own >= 0], minlength=store.num_tokens)
        assert seen.max() == 1
        assert seen.sum() + rows.truncated.sum() == store.num_tokens
        assert (rows.token_index >= 0).sum() - seen.sum() == rows.duplicated.sum()


@pytest.mark.parametrize("sentence_pairs", ["nsp", "sop"])
def test_nothing_is_cut_where_everything_fits(sentence_pairs):
    small = SyntheticStore([[10, 12, 9], [20], [5, 5], [7, 8, 9, 10], [1]])
    rows = epoch_rows(make_examples(small, sentence_pairs=sentence_pairs, short=0.0), 0)
    assert not rows.truncated.any() and len(rows.token_index) == 5


def test_report_of_an_epoch_as_counted_by_hand(store):
    examples = make_examples(store)
    report, rows = epoch_report(examples, 1), epoch_rows(examples, 1)
    assert report.sequences == report.examined == examples.num_examples(1)
    used = (rows.token_index != PADDING).sum()
    assert report.padding == pytest.approx(1 - used / rows.token_index.size)
    assert report.mean_length == pytest.approx(used / report.sequences)
    assert report.is_next == pytest.approx((rows.labels == 0).mean())
    assert report.truncated == pytest.approx(rows.truncated.sum() / store.num_tokens)
    starts, seen = store.sentence_starts(np.arange(store.num_sentences + 1)), np.unique(rows.token_index[rows.token_index >= 0])
    assert report.sentences_seen == len(np.unique(np.searchsorted(starts, seen, side="right"))) / store.num_sentences
    assert report.tokens_seen == len(seen) / store.num_tokens
    part = epoch_report(examples, 1, limit=50)
    assert part.examined == 50 and part.sentences_seen is None


# Every sentence in every epoch

def hard_documents():
    """Sentences that are easily lost: short ones among long ones, more of them than a sequence has places, and any mixture."""
    generator = np.random.default_rng(5)
    mixtures = [np.ceil(generator.pareto(0.7, size) + generator.random(size)).clip(1, 900).astype(int).tolist()
                for size in (3, 30, 100, 300) * 10]
    fixed = [[1] * 1000, [1] * 500 + [400] * 5, [5] * 80 + [200] * 10, [1, 300] * 30, [2, 200, 2], [1, 124, 1], [126, 1, 127],
             [125] * 4, [60, 1] * 40, [700], [1], [1, 1], [509, 1, 1], [1, 1, 509] * 3]
    return fixed + mixtures + random_documents(100, seed=5)


@pytest.mark.parametrize("sentence_pairs", PAIRS)
@pytest.mark.parametrize("sequence_length", [8, 64, 128, 512])
def test_every_sentence_is_in_every_epoch(sentence_pairs, sequence_length):
    store = SyntheticStore(hard_documents())
    for short in (0.0, 0.5):
        examples = make_examples(store, sentence_pairs=sentence_pairs, sequence_length=sequence_length, short=short)
        for epoch in (0, 1, 11):
            assert sentences_seen(examples, epoch) == store.num_sentences
        assert epoch_report(examples, 2, limit=10**9).sentences_seen == 1


@pytest.mark.parametrize("sentence_pairs", PAIRS)
def test_every_sentence_is_in_every_epoch_of_fixed_masks_and_of_a_split(sentence_pairs):
    store = SyntheticStore(hard_documents())
    splits = [{"held_out": 0.3, "split": split} for split in ("train", "held_out")]
    for options in ({"static_masks": 10}, *splits):
        examples = make_examples(store, sentence_pairs=sentence_pairs, **options)
        wanted = (examples.documents.end_sentences - examples.documents.first_sentences).sum()
        assert [sentences_seen(examples, epoch) for epoch in (0, 3)] == [wanted, wanted]


def test_a_stream_that_ends_in_a_lone_separator_has_no_empty_sequence():
    examples = make_examples(SyntheticStore([[62], [61, 62]]), sentence_pairs="none")  # 187 places: three cells and one more
    for epoch in range(500):
        assert (epoch_rows(examples, epoch).lengths > 2).all()


def test_packed_sequences_lose_as_much_at_the_front_as_at_the_back():
    rows = epoch_rows(make_examples(SyntheticStore([[50] * 3000]), sentence_pairs="none"), 0)
    front = (rows.token_index[:, 1] % 50).sum()  # every sequence begins with a sentence
    assert abs(front - rows.truncated.sum() / 2) < 5 * np.sqrt(rows.truncated.sum() / 4)


def random_segments(generator, rows, sentences, longest):
    """Segments [rows, 2] of random sentences, and the sentence lengths of each."""
    lengths = [[generator.integers(1, longest, generator.integers(1, sentences)).tolist() for _ in range(2)]
               for _ in range(rows)]
    begin = np.broadcast_to([1000, 5000], (rows, 2))
    end = begin + [[sum(segment) for segment in pair] for pair in lengths]
    first_end = begin + [[segment[0] for segment in pair] for pair in lengths]
    return Segments(begin, end, first_end, end - [[segment[-1] for segment in pair] for pair in lengths]), lengths


def truncate_one_by_one(pair, room):
    """Lengths after the longer segment, or the other where its outer sentences have a token left each, lost one at a time."""
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


# Pairs

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
    lone = [(first, second, label, copied)
            for (first, second), label, copied in zip(segments(rows), rows.labels, rows.duplicated)
            if documents_of(store, first[0]) < 40]
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
    variance = ((front - removed / 2)**2).sum() / (removed.sum() / 4)  # of a binomial: 1 in the mean
    assert abs(variance - 1) < 5 * np.sqrt(2 / (removed > 0).sum())


# Sequences

@pytest.mark.parametrize("sentence_pairs", PAIRS)
def test_layout_of_a_batch(store, sentence_pairs):
    examples = make_examples(store, sentence_pairs=sentence_pairs, mask_share=0.0, random_share=0.0)
    positions = np.arange(300)
    batch, rows = examples.batch(positions), examples.rows(*examples.locate(positions))
    assert ("next_sentence_labels" in batch) == (sentence_pairs != "none")
    assert all(value.dtype == (np.float32 if name == "masked_weights" else np.int32) for name, value in batch.items())
    lengths = batch["attention_mask"].sum(1)
    for row in range(300):
        ids, types, used = batch["input_ids"][row], batch["token_type_ids"][row], lengths[row]
        assert (batch["attention_mask"][row] == (np.arange(64) < used)).all()
        assert ids[0] == CLS and ids[used - 1] == SEP and (ids[used:] == PAD).all() and not types[used:].any()
        index = rows.token_index[row, :used]
        np.testing.assert_array_equal(ids[:used][index >= 0], store.all_tokens[index[index >= 0]])
        separators = np.flatnonzero(ids[:used] == SEP)
        np.testing.assert_array_equal(separators, np.flatnonzero(index == SPECIAL)[1:])
        if sentence_pairs == "none":
            assert not types.any() and (np.diff(separators) > 1).all() and separators[0] > 1
            here = documents_of(store, index[index >= 0])
            assert len(separators) == 1 + (np.diff(here) != 0).sum()  # one between documents, one at the end
        else:
            assert len(separators) == 2
            np.testing.assert_array_equal(types[:used], (np.arange(used) > separators[0]).astype(int))


@pytest.mark.parametrize("sentence_pairs", PAIRS)
@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_make_the_rows_of_one_global_batch(store, sentence_pairs, hosts):
    whole = make_examples(store, sentence_pairs=sentence_pairs).batch(1000 + np.arange(32))
    parts = [make_examples(store, sentence_pairs=sentence_pairs).batch(1000 + np.arange(32)[host::hosts])
             for host in range(hosts)]
    for name, value in whole.items():
        for host, part in enumerate(parts):
            np.testing.assert_array_equal(part[name], value[host::hosts])


@pytest.mark.parametrize("sentence_pairs", PAIRS)
@pytest.mark.parametrize("position", [10**6, 10**12])
def test_a_far_position_is_reached_without_reading_what_is_before_it(sentence_pairs, position):
    store = SyntheticStore(random_documents(150))
    examples = make_examples(store, sentence_pairs=sentence_pairs)
    epochs, indices = examples.locate(position + np.arange(16))
    rows = examples.rows(epochs, indices)
    assert not store.tokens_read.any()
    assert (indices >= 0).all() and (indices < [examples.num_examples(epoch) for epoch in epochs]).all()
    examples.batch(position + np.arange(16))
    wanted = rows.token_index[rows.token_index >= 0]
    np.testing.assert_array_equal(store.tokens_read, np.bincount(wanted, minlength=store.num_tokens))


@pytest.mark.parametrize("sentence_pairs", PAIRS)
def test_positions_go_through_one_epoch_after_the_other(store, sentence_pairs):
    examples = make_examples(store, sentence_pairs=sentence_pairs)
    counts = [examples.num_examples(epoch) for epoch in range(2 * SHORT_CYCLE + 2)]
    epochs, indices = examples.locate(np.arange(sum(counts)))
    np.testing.assert_array_equal(epochs, np.repeat(np.arange(len(counts)), counts))
    np.testing.assert_array_equal(indices, np.concatenate([np.arange(count) for count in counts]))
    np.testing.assert_array_equal(examples.locate(np.array([sum(counts) - 1]))[0], [len(counts) - 1])


@pytest.mark.parametrize("sentence_pairs", PAIRS)
def test_a_restart_anywhere_is_the_unbroken_stream(store, sentence_pairs):
    options = {"sentence_pairs": sentence_pairs, "unit": "span"}
    boundary = make_examples(store, **options).num_examples(0)
    start = boundary - 40
    unbroken = make_examples(store, **options).batch(start + np.arange(80))
    for restart in (1, 39, 40, 41, 63):
        resumed = make_examples(store, **options).batch(start + np.arange(restart, 80))
        for name, value in unbroken.items():
            np.testing.assert_array_equal(resumed[name], value[restart:])


def test_epochs_differ_in_text_and_masks_and_seeds_too(store):
    examples = make_examples(store)
    counts = np.cumsum([0] + [examples.num_examples(epoch) for epoch in range(10)])
    batches = [examples.batch(start + np.arange(20)) for start in (0, counts[1], counts[10])]
    batches.append(make_examples(store, seed=1).batch(np.arange(20)))
    for number, one in enumerate(batches):
        for other in batches[number + 1:]:
            assert (one["input_ids"] != other["input_ids"]).any(1).mean() > 0.9


@pytest.mark.parametrize("sentence_pairs", PAIRS)
def test_static_masks_come_again_after_n_epochs(store, sentence_pairs):
    examples = make_examples(store, sentence_pairs=sentence_pairs, static_masks=3)
    count = examples.num_examples(0)
    epochs = [examples.batch(epoch * count + np.arange(count)) for epoch in range(5)]
    assert (epochs[0]["input_ids"] != epochs[3]["input_ids"]).any(1).mean() > 0.9  # another order
    ordered = []
    for epoch, batch in enumerate(epochs):
        identity = np.argsort(examples.locate(epoch * count + np.arange(count))[1])
        ordered.append({name: value[identity] for name, value in batch.items()})
    for name in epochs[0]:
        np.testing.assert_array_equal(ordered[0][name], ordered[3][name])
        np.testing.assert_array_equal(ordered[1][name], ordered[4][name])
    for name in ("attention_mask", "token_type_ids"):
        np.testing.assert_array_equal(ordered[0][name], ordered[1][name])
    assert (ordered[0]["masked_positions"] != ordered[1]["masked_positions"]).any(1).mean() > 0.9
    restored = [np.copy(batch["input_ids"]) for batch in ordered[:2]]
    for ids, batch in zip(restored, ordered):
        row, slot = np.nonzero(batch["masked_weights"])
        ids[row, batch["masked_positions"][row, slot]] = batch["masked_ids"][row, slot]
    np.testing.assert_array_equal(*restored)


@pytest.mark.parametrize("sentence_pairs", PAIRS)
def test_copies_come_again_in_another_order(store, sentence_pairs):
    """With their cuts, pairs and masks: what the original wrote once and read forty times."""
    examples = make_examples(store, sentence_pairs=sentence_pairs, copies=3)
    counts = [examples.num_examples(epoch) for epoch in range(7)]
    assert counts[:3] == counts[3:6] and counts[6] == counts[0]
    far = 1000 * sum(counts[:3])  # a thousand rounds later
    first, again, other, later = (examples.batch(start + np.arange(count)) for start, count in (
        (0, counts[0]), (sum(counts[:3]), counts[0]), (counts[0], counts[1]), (far, counts[0])))
    assert (first["input_ids"] != again["input_ids"]).any(1).mean() > 0.9
    rows = [sorted(map(tuple, np.concatenate(list(batch.values())[:6], axis=1))) for batch in (first, again, other, later)]
    assert rows[0] == rows[1] == rows[3] and len(set(rows[0]) & set(rows[2])) < 0.1 * len(rows[0])


@pytest.mark.parametrize("sentence_pairs", PAIRS)
def test_a_document_is_found_in_its_examples(store, sentence_pairs):
    examples = make_examples(store, sentence_pairs=sentence_pairs)
    for document in (0, 40, len(examples.documents) - 1):
        indices = examples.source.indices_of(2, examples.source.of_document(2, document))
        everywhere = epoch_rows(examples, 2)
        first = np.where(everywhere.token_type_ids == 0, everywhere.token_index, PADDING)
        if sentence_pairs == "sop":
            first = everywhere.token_index
        holds = ((documents_of(store, first) == document) & (first >= 0)).any(1)
        assert set(np.flatnonzero(holds)) <= set(indices)
        assert (holds[indices] | (everywhere.truncated[indices] > 0)).all()


def test_store_on_disk_gives_the_same_batches(store, tmp_path):
    on_disk = open_store(write_store(store, tmp_path / "store", documents_per_shard=60))
    for sentence_pairs in PAIRS:
        options = {"sentence_pairs": sentence_pairs, "unit": "whole_word", "split": "train"}
        ours, theirs = make_examples(store, **options), make_examples(on_disk, **options)
        assert ours.num_examples(4) == theirs.num_examples(4)
        expected, batch = ours.batch(np.arange(500)), theirs.batch(np.arange(500))
        for name, value in expected.items():
            np.testing.assert_array_equal(batch[name], value)


# Against the original's procedure

def statistics(lengths, is_random, truncated, num_tokens):
    return {"is_next": 1 - np.mean(is_random), "mean_length": np.mean(lengths), "truncated": np.sum(truncated) / num_tokens}


def epochs_statistics(examples, epochs=4):
    rows = Rows.concatenate([epoch_rows(examples, epoch) for epoch in range(epochs)])
    return statistics(rows.lengths, rows.labels, rows.truncated / epochs, examples.documents.num_tokens.sum())


def original_statistics(documents, sequence_length, short, passes=4):
    examples = [example for seed in range(passes)
                for example in original_procedure.create_examples(documents, sequence_length - 3, short, seed)]
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
    assert report.tokens_seen == pytest.approx(1 - report.truncated, abs=0.01)  # a borrowed copy may bring back what was cut
    for sentence_pairs, sequence_length in itertools.product(PAIRS, (128, 512)):
        examples = make_examples(store, sentence_pairs=sentence_pairs, sequence_length=sequence_length)
        assert [sentences_seen(examples, epoch) for epoch in range(3)] == [store.num_sentences] * 3

"""Statistical bounds are at 5 standard deviations; all seeds are fixed."""

import dataclasses

import numpy as np
import pytest
from scipy import stats
from synthetic_examples import (
    LABELLED,
    PAIRS,
    SEPARATORS,
    documents_of,
    epoch_rows,
    make_config,
    make_examples,
    sentences_seen,
)
from synthetic_store import CLS, PAD, SEP, SyntheticStore, random_documents, write_store

from bert_jax.data.chunks import SHORT_CYCLE, DocumentChunks, Documents
from bert_jax.data.examples import Examples
from bert_jax.data.mixtures import epoch_report
from bert_jax.data.store import PADDING, SPECIAL, open_store
from bert_jax.errors import UserError


@pytest.fixture(scope="module")
def store():
    return SyntheticStore(random_documents(150))


# Splits


def test_held_out_documents_depend_on_the_store_alone(store):
    held_out, training = Documents(store, "held_out", 0.1), Documents(store, "train", 0.1)
    assert len(held_out) == round(0.1 * store.num_documents)
    np.testing.assert_array_equal(
        np.sort(np.concatenate([held_out.numbers, training.numbers])), np.arange(store.num_documents)
    )
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
    starts, seen = (
        store.sentence_starts(np.arange(store.num_sentences + 1)),
        np.unique(rows.token_index[rows.token_index >= 0]),
    )
    assert report.sentences_seen == len(np.unique(np.searchsorted(starts, seen, side="right"))) / store.num_sentences
    assert report.tokens_seen == len(seen) / store.num_tokens
    part = epoch_report(examples, 1, limit=50)
    assert part.examined == 50 and part.sentences_seen is None


# Every sentence in every epoch


def hard_documents():
    """Sentences that are easily lost: short ones among long ones, more than a sequence has places, and any mixture."""
    generator = np.random.default_rng(5)
    mixtures = [
        np.ceil(generator.pareto(0.7, size) + generator.random(size)).clip(1, 900).astype(int).tolist()
        for size in (3, 30, 100, 300) * 10
    ]
    fixed = [
        [1] * 1000,
        [1] * 500 + [400] * 5,
        [5] * 80 + [200] * 10,
        [1, 300] * 30,
        [2, 200, 2],
        [1, 124, 1],
        [126, 1, 127],
        [125] * 4,
        [60, 1] * 40,
        [700],
        [1],
        [1, 1],
        [509, 1, 1],
        [1, 1, 509] * 3,
    ]
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
    examples = make_examples(
        SyntheticStore([[62], [61, 62]]), sentence_pairs="none"
    )  # 187 places: three cells and one more
    for epoch in range(500):
        assert (epoch_rows(examples, epoch).lengths > 2).all()


def test_packed_sequences_lose_as_much_at_the_front_as_at_the_back():
    rows = epoch_rows(make_examples(SyntheticStore([[50] * 3000]), sentence_pairs="none"), 0)
    front = (rows.token_index[:, 1] % 50).sum()  # every sequence begins with a sentence
    assert abs(front - rows.truncated.sum() / 2) < 5 * np.sqrt(rows.truncated.sum() / 4)


# Sequences


@pytest.mark.parametrize("sentence_pairs", PAIRS)
def test_layout_of_a_batch(store, sentence_pairs):
    examples = make_examples(store, sentence_pairs=sentence_pairs, mask_share=0.0, random_share=0.0)
    positions = np.arange(300)
    batch, rows = examples.batch(positions), examples.rows(*examples.locate(positions))
    assert ("next_sentence_labels" in batch) == (sentence_pairs in LABELLED)
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
            assert len(separators) in SEPARATORS[sentence_pairs]
            np.testing.assert_array_equal(types[:used], (np.arange(used) > separators[0]).astype(int))


@pytest.mark.parametrize("sentence_pairs", PAIRS)
@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_make_the_rows_of_one_global_batch(store, sentence_pairs, hosts):
    whole = make_examples(store, sentence_pairs=sentence_pairs).batch(1000 + np.arange(32))
    parts = [
        make_examples(store, sentence_pairs=sentence_pairs).batch(1000 + np.arange(32)[host::hosts])
        for host in range(hosts)
    ]
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
        for other in batches[number + 1 :]:
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
    first, again, other, later = (
        examples.batch(start + np.arange(count))
        for start, count in ((0, counts[0]), (sum(counts[:3]), counts[0]), (counts[0], counts[1]), (far, counts[0]))
    )
    assert (first["input_ids"] != again["input_ids"]).any(1).mean() > 0.9
    rows = [
        sorted(map(tuple, np.concatenate(list(batch.values())[:6], axis=1))) for batch in (first, again, other, later)
    ]
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

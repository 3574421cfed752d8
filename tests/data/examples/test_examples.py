"""Examples: instances of a store, packed rows, pairs, and the whole pipeline.

Statistical bounds are at 5 standard deviations, or chi-square at p = 1e-6; all seeds are fixed.
"""

import dataclasses
import importlib.util
import itertools
import math
import queue
import threading

import numpy as np
import original_procedure
import pytest
from processes import SECONDS
from scipy import stats
from synthetic_store import (
    CLS,
    LABELLED,
    PAD,
    PAIRS,
    SEP,
    SEPARATORS,
    SyntheticStore,
    documents_of,
    epoch_rows,
    make_config,
    make_examples,
    random_documents,
    segments,
    sentences_seen,
    write_store,
)

from bert_jax.config import Config, DataConfig, PhaseConfig
from bert_jax.data import packing, pipeline
from bert_jax.data.chunks import SHORT_CYCLE, DocumentChunks, Documents, Segments, truncate
from bert_jax.data.mixtures import epoch_report
from bert_jax.data.packing import pack
from bert_jax.data.pipeline import batches
from bert_jax.data.store import PADDING, SPECIAL, Rows, open_store
from bert_jax.errors import UserError
from bert_jax.randomness import Stream, bits
from bert_jax.training_data import Examples


@pytest.fixture(scope="module")
def store():
    return SyntheticStore(random_documents(150))


@pytest.fixture(params=PAIRS)
def sentence_pairs(request):
    return request.param


def test_the_tokenizer_of_a_store_is_read_once(monkeypatch):
    store, read = SyntheticStore([[8] * 4] * 4), []
    tokenizer = store.tokenizer()
    monkeypatch.setattr(store, "tokenizer", lambda: read.append(tokenizer) or tokenizer)
    make_examples(store)
    assert len(read) == 1


# Splits


def test_held_out_documents_depend_on_the_store_alone(store):
    held_out, training = Documents(store, "held_out", 0.1), Documents(store, "train", 0.1)
    assert len(held_out) == round(0.1 * store.num_documents)
    both = np.concatenate([held_out.numbers, training.numbers])
    np.testing.assert_array_equal(np.sort(both), np.arange(store.num_documents))
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
    starts = store.sentence_starts(np.arange(store.num_sentences + 1))
    seen = np.unique(rows.token_index[rows.token_index >= 0])
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


@pytest.mark.parametrize(
    "sequence_length", [8, *(pytest.param(length, marks=pytest.mark.slow) for length in (64, 128)), 512]
)
def test_every_sentence_is_in_every_epoch(sentence_pairs, sequence_length):
    store = SyntheticStore(hard_documents())
    for short in (0.0, 0.5):
        examples = make_examples(store, sentence_pairs=sentence_pairs, sequence_length=sequence_length, short=short)
        for epoch in (0, 1, 11):
            assert sentences_seen(examples, epoch) == store.num_sentences
        assert epoch_report(examples, 2, limit=10**9).sentences_seen == 1


def test_every_sentence_is_in_every_epoch_of_fixed_masks_and_of_a_split(sentence_pairs):
    store = SyntheticStore(hard_documents())
    splits = [{"held_out": 0.3, "split": split} for split in ("train", "held_out")]
    for options in ({"static_masks": 10}, *splits):
        examples = make_examples(store, sentence_pairs=sentence_pairs, **options)
        wanted = (examples.documents.end_sentences - examples.documents.first_sentences).sum()
        assert [sentences_seen(examples, epoch) for epoch in (0, 3)] == [wanted, wanted]


def test_a_stream_that_ends_in_a_lone_separator_has_no_empty_sequence():
    # 187 places: three cells and one more.
    examples = make_examples(SyntheticStore([[62], [61, 62]]), sentence_pairs="none")
    for epoch in range(500):
        assert (epoch_rows(examples, epoch).lengths > 2).all()


def test_packed_sequences_lose_as_much_at_the_front_as_at_the_back():
    rows = epoch_rows(make_examples(SyntheticStore([[50] * 3000]), sentence_pairs="none"), 0)
    front = (rows.token_index[:, 1] % 50).sum()  # every sequence begins with a sentence
    assert abs(front - rows.truncated.sum() / 2) < 5 * np.sqrt(rows.truncated.sum() / 4)


# Sequences


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


@pytest.mark.parametrize("packing", ["off", "on"])
@pytest.mark.parametrize("position", [10**6, 10**12])
def test_a_far_position_is_reached_without_reading_what_is_before_it(small_groups, sentence_pairs, position, packing):
    store = SyntheticStore(random_documents(150))
    examples = make_examples(store, sentence_pairs=sentence_pairs, packing=packing)
    epochs, indices = examples.locate(position + np.arange(16))
    rows = examples.rows(epochs, indices)
    assert not store.tokens_read.any()
    assert (indices >= 0).all() and (indices < [examples.num_examples(epoch) for epoch in epochs]).all()
    examples.batch(position + np.arange(16))
    wanted = rows.token_index[rows.token_index >= 0]
    np.testing.assert_array_equal(store.tokens_read, np.bincount(wanted, minlength=store.num_tokens))


def test_positions_go_through_one_epoch_after_the_other(store, sentence_pairs):
    examples = make_examples(store, sentence_pairs=sentence_pairs)
    counts = [examples.num_examples(epoch) for epoch in range(2 * SHORT_CYCLE + 2)]
    epochs, indices = examples.locate(np.arange(sum(counts)))
    np.testing.assert_array_equal(epochs, np.repeat(np.arange(len(counts)), counts))
    np.testing.assert_array_equal(indices, np.concatenate([np.arange(count) for count in counts]))
    np.testing.assert_array_equal(examples.locate(np.array([sum(counts) - 1]))[0], [len(counts) - 1])


def test_epochs_differ_in_text_and_masks_and_seeds_too(store):
    examples = make_examples(store)
    counts = np.cumsum([0] + [examples.num_examples(epoch) for epoch in range(10)])
    batches = [examples.batch(start + np.arange(20)) for start in (0, counts[1], counts[10])]
    batches.append(make_examples(store, seed=1).batch(np.arange(20)))
    for number, one in enumerate(batches):
        for other in batches[number + 1 :]:
            assert (one["input_ids"] != other["input_ids"]).any(1).mean() > 0.9


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
    rows = [sorted(map(tuple, np.concatenate(list(b.values())[:6], axis=1))) for b in (first, again, other, later)]
    assert rows[0] == rows[1] == rows[3] and len(set(rows[0]) & set(rows[2])) < 0.1 * len(rows[0])


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


@pytest.fixture(scope="module")
def store_of_packing():
    generator = np.random.default_rng(7)
    short = [generator.integers(1, 15, generator.integers(1, 9)).tolist() for _ in range(250)]
    return SyntheticStore(short + random_documents(60))


@pytest.fixture
def small_groups(monkeypatch):
    """Several groups in an epoch of a few hundred texts."""
    monkeypatch.setattr(packing, "GROUP_TEXTS", 96)
    monkeypatch.setattr(packing, "SAMPLE_TEXTS", 256)


def make_packed(store, **options):
    return make_examples(store, packing="on", **options)


def texts_of(rows, row):
    """Token offsets of the texts of a row: for each a list of its segments."""
    found = []
    for number in range(1, rows.text_ids[row].max() + 1):
        here = rows.text_ids[row] == number
        index, types = rows.token_index[row, here], rows.token_type_ids[row, here]
        found.append([index[(index >= 0) & (types == segment)] for segment in range(types.max() + 1)])
    return found


# Bins


def test_best_fit_decreasing_by_hand():
    row, cut = pack(np.array([3, 6, 4, 7, 2]), np.zeros(5, int), 10, 4, tolerance=0, max_rows=5)
    np.testing.assert_array_equal(row, [0, 1, 1, 0, 2])  # 7 + 3, 6 + 4, 2
    assert not cut.any()
    row, cut = pack(np.array([7, 6, 5]), np.array([0, 1, 1]), 10, 4, tolerance=2, max_rows=5)
    np.testing.assert_array_equal((row, cut), ([0, 1, 1], [0, 0, 1]))  # 5 gives up one token for the room of 4
    row, cut = pack(np.array([6, 6, 6]), np.array([0, 0, 0]), 10, 4, tolerance=2, max_rows=2)
    np.testing.assert_array_equal(row, [0, 1, -1])
    row, _ = pack(np.full(6, 2), np.zeros(6, int), 12, 4, tolerance=0, max_rows=2)
    np.testing.assert_array_equal(row, [0, 0, 0, 0, 1, 1])  # at most four texts


@pytest.mark.parametrize("tolerance", [0, 3])
def test_no_row_is_too_full(tolerance):
    generator = np.random.default_rng(0)
    lengths, spare = generator.integers(5, 65, 2000), generator.integers(0, 5, 2000)
    row, cut = pack(lengths, spare, 64, 5, tolerance, max_rows=2000)
    assert (row >= 0).all() and (cut <= np.minimum(spare, tolerance)).all() and (cut >= 0).all()
    assert np.bincount(row, lengths - cut).max() <= 64 and np.bincount(row).max() <= 5
    assert np.bincount(row, lengths - cut).mean() > 0.97 * 64


# Epochs


@pytest.mark.parametrize("sequence_length", [32, 128])
def test_an_epoch_has_every_token_once_but_what_is_cut(store_of_packing, small_groups, sentence_pairs, sequence_length):
    examples = make_packed(store_of_packing, sentence_pairs=sentence_pairs, sequence_length=sequence_length)
    assert examples.packing.shape(0)[0] > 1
    for epoch in (0, 3):
        rows = epoch_rows(examples, epoch)
        times = np.bincount(rows.token_index[rows.token_index >= 0], minlength=store_of_packing.num_tokens)
        assert times.sum() - rows.duplicated.sum() + rows.truncated.sum() == store_of_packing.num_tokens
        if sentence_pairs != "nsp":
            assert times.max() == 1 and not rows.duplicated.any()
        assert sentences_seen(examples, epoch) == store_of_packing.num_sentences
    assert epoch_report(examples, 1, limit=10**9).sentences_seen == 1


@pytest.mark.parametrize("sequence_length", [128, 512])
def test_nearly_every_place_holds_a_token(sentence_pairs, sequence_length):
    many = SyntheticStore(random_documents(1500, seed=3))
    report = epoch_report(make_packed(many, sentence_pairs=sentence_pairs, sequence_length=sequence_length))
    plain = epoch_report(make_examples(many, sentence_pairs=sentence_pairs, sequence_length=sequence_length))
    assert report.padding < 0.03 and report.truncated < max(0.02, plain.truncated)


def test_sentences_of_one_token_that_do_not_fit_are_counted():
    """Nothing can be cut, so a group above the mean leaves texts out; without a spare row, many do."""
    ones = SyntheticStore([[1] * int(n) for n in np.random.default_rng(1).integers(1, 90, 3000)])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("GROUP_TEXTS", 512), ("SPARE_DEVIATIONS", -3.0)):
            patch.setattr(packing, name, value)
        rows = epoch_rows(make_packed(ones, sentence_pairs="none", short=0.0), 0)
    seen = (rows.token_index >= 0).sum()
    assert rows.truncated.sum() > 0 and seen + rows.truncated.sum() == ones.num_tokens


# Rows


def test_a_row_is_its_texts_one_after_the_other(store_of_packing, small_groups, sentence_pairs):
    examples = make_packed(store_of_packing, sentence_pairs=sentence_pairs, mask_share=0.0, random_share=0.0)
    positions = np.arange(120)
    batch, rows = examples.batch(positions), examples.rows(*examples.locate(positions))
    assert rows.text_ids.max() > 1
    for row in range(len(positions)):
        ids, number = batch["input_ids"][row], batch["text_ids"][row]
        used = number > 0
        np.testing.assert_array_equal(used, batch["attention_mask"][row] > 0)
        assert (np.diff(number[used]) >= 0).all() and (np.diff(used.astype(int)) <= 0).all()
        assert (ids[~used] == PAD).all()
        starts = batch["text_starts"][row, : number.max()]
        np.testing.assert_array_equal(starts, np.flatnonzero(ids == CLS))
        np.testing.assert_array_equal(number[starts], 1 + np.arange(number.max()))
        assert not batch["text_starts"][row, number.max() :].any()
        for text, start in enumerate(starts, 1):
            here = np.flatnonzero(number == text)
            separators = here[ids[here] == SEP]
            assert here[0] == start and separators[-1] == here[-1]
            assert len(separators) in SEPARATORS[sentence_pairs]
            np.testing.assert_array_equal(batch["token_type_ids"][row, here], (here > separators[0]).astype(int))
        if sentence_pairs in LABELLED:
            weights = batch["next_sentence_weights"][row]
            np.testing.assert_array_equal(weights, np.arange(len(weights)) < number.max())
            assert not batch["next_sentence_labels"][row, weights == 0].any()
        index = rows.token_index[row]
        np.testing.assert_array_equal(ids[index >= 0], store_of_packing.all_tokens[index[index >= 0]])
        assert ((index == SPECIAL) == used & np.isin(ids, (CLS, SEP))).all()


def test_segments_are_text_of_one_document_and_labels_say_how_they_belong_together(store_of_packing, sentence_pairs):
    rows = epoch_rows(make_packed(store_of_packing, sentence_pairs=sentence_pairs, sequence_length=128), 0)
    labels, gaps = [], []
    for row in range(len(rows.token_index)):
        for number, parts in enumerate(texts_of(rows, row)):
            for segment in parts:
                assert (np.diff(segment) == 1).all() and len(set(documents_of(store_of_packing, segment))) <= 1
            if sentence_pairs == "nsp":
                first, second = parts
                same = documents_of(store_of_packing, first[0]) == documents_of(store_of_packing, second[0])
                assert same == (rows.labels[row, number] == 0)
                gaps += [second[0] - first[-1]] if same else []
                labels.append(rows.labels[row, number])
            elif sentence_pairs == "sop" and all(map(len, parts)):
                assert (parts[0][0] > parts[1][0]) == rows.labels[row, number]
    assert np.mean(np.array(gaps) == 1) > 0.8 if gaps else sentence_pairs != "nsp"  # else cut off between the two
    assert sentence_pairs != "nsp" or abs(np.mean(labels) - 0.5) < 5 * 0.5 / np.sqrt(len(labels)) + 0.05


def test_texts_are_those_that_stand_alone(store_of_packing, monkeypatch):
    """Where no text gives up a token for a place, packing takes the texts of the epoch as they are."""
    monkeypatch.setattr(packing, "TOLERANCE", 0)
    examples = make_packed(store_of_packing, sequence_length=128)
    rows, alone = epoch_rows(examples, 2), examples._texts(2, np.arange(examples.source.count(2)))
    columns = alone.segments.begin[:, 0], alone.segments.end[:, 0], alone.segments.begin[:, 1], alone.segments.end[:, 1]
    found = [
        (first[0], first[-1] + 1, second[0], second[-1] + 1, rows.labels[row, number])
        for row in range(len(rows.token_index))
        for number, (first, second) in enumerate(texts_of(rows, row))
    ]
    assert sorted(found) == sorted(zip(*columns, alone.labels))


# Positions


@pytest.mark.parametrize("packing", ["off", "on"])
def test_hosts_and_restarts_make_the_rows_of_one_stream(store_of_packing, small_groups, sentence_pairs, packing):
    options = {"sentence_pairs": sentence_pairs, "unit": "span", "packing": packing}
    examples = make_examples(store_of_packing, **options)
    start, positions = examples.num_examples(0) - 40, np.arange(96)
    whole = examples.batch(start + positions)
    restarts = [positions[first:] for first in (1, 39, 40, 41, 63)]
    for part in (positions[::2], positions[1::4], positions[::-1], *restarts):
        other = make_examples(store_of_packing, **options).batch(start + part)
        for name, value in whole.items():
            np.testing.assert_array_equal(other[name], value[part])


@pytest.mark.parametrize("options", [{"copies": 2}, {"static_masks": 2}])
def test_repeated_epochs_have_the_same_rows_in_another_order(store_of_packing, small_groups, options):
    examples = make_packed(store_of_packing, **options)
    counts = np.cumsum([0] + [examples.num_examples(epoch) for epoch in range(4)])
    epochs = [examples.batch(np.arange(*counts[epoch : epoch + 2])) for epoch in range(4)]
    assert (epochs[0]["text_ids"] != epochs[2]["text_ids"]).any(1).mean() > 0.5

    def ordered(batch):
        rows = np.concatenate([value.reshape(len(value), -1) for value in batch.values()], axis=1)
        return rows[np.lexsort(rows.T[::-1])]

    np.testing.assert_array_equal(ordered(epochs[0]), ordered(epochs[2]))
    np.testing.assert_array_equal(ordered(epochs[1]), ordered(epochs[3]))


def test_rows_of_a_document_are_found(store_of_packing, small_groups):
    examples = make_packed(store_of_packing, sentence_pairs="sop")
    for document in (3, 270):
        found = examples.packing.rows_of(1, examples.source.indices_of(1, examples.source.of_document(1, document)))
        holding = [
            (documents_of(store_of_packing, index[index >= 0]) == document).any()
            for index in epoch_rows(examples, 1).token_index
        ]
        np.testing.assert_array_equal(found, np.flatnonzero(holding))


def random_segments(generator, rows, sentences, longest):
    """Segments [rows, 2] of random sentences, and the sentence lengths of each."""
    lengths_of = lambda: generator.integers(1, longest, generator.integers(1, sentences)).tolist()
    lengths = [[lengths_of(), lengths_of()] for _ in range(rows)]
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


LOADERS = ("plain", "tf.data")


@pytest.fixture(scope="module")
def examples():
    config = Config(data=DataConfig(), phases=(PhaseConfig(sequence_length=64),))
    return Examples(SyntheticStore(random_documents(40)), config, split="train")


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype == other[name].dtype
        np.testing.assert_array_equal(value, other[name])


@pytest.mark.parametrize("loader", LOADERS)
def test_loaders_yield_the_examples_bit_for_bit_across_an_epoch_boundary(examples, loader):
    count = examples.num_examples(0)
    made = list(batches(examples, count - 40, 16, np.arange(16), 8, loader=loader, prefetch=3))
    assert len(made) == 8
    for number, batch in enumerate(made):
        assert_same(batch, examples.batch(count - 40 + 16 * number + np.arange(16)))


@pytest.mark.parametrize("loader", LOADERS)
def test_batches_are_placed_in_a_thread_before_they_are_asked_for(examples, loader):
    placed = queue.Queue()

    def place(batch):
        placed.put(threading.current_thread())
        return batch["input_ids"][0, 1]

    iterator = batches(examples, 0, 16, np.arange(16), 3, loader=loader, place=place)
    first = next(iterator)
    threads = [placed.get(timeout=SECONDS) for _ in range(2)]  # the second without being asked for
    assert threading.main_thread() not in threads
    assert [first, *iterator] == [examples.batch(16 * number + np.arange(16))["input_ids"][0, 1] for number in range(3)]


@pytest.mark.parametrize("loader", LOADERS)
def test_restart_and_any_number_of_hosts(examples, loader):
    unbroken = list(batches(examples, 0, 16, np.arange(16), 6, loader="plain"))
    hosts = [batches(examples, 3 * 16, 16, np.arange(16).reshape(4, 4)[host], 3, loader=loader) for host in range(4)]
    for whole, *parts in zip(unbroken[3:], *hosts, strict=True):
        assert_same(whole, {name: np.concatenate([part[name] for part in parts]) for name in whole})


@pytest.mark.parametrize("at_once", [1, 3, 8, 1000])
def test_batches_do_not_depend_on_how_many_are_made_at_once(examples, monkeypatch, at_once):
    size = 4 * sum(math.prod(shape) for shape, _ in examples.layout.values())
    monkeypatch.setattr(pipeline, "_NUMBERS_AT_ONCE", at_once * size)
    made = list(batches(examples, 32, 16, np.arange(4, 8), 8))
    assert len(made) == 8
    for number, batch in enumerate(made):
        assert_same(batch, examples.batch(32 + 16 * number + np.arange(4, 8)))


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("taken", [0, 1, 5])
def test_an_iterator_may_be_left_early(examples, loader, taken):
    iterator = batches(examples, 0, 16, np.arange(16), 10**9, loader=loader, prefetch=4)
    assert len(list(itertools.islice(iterator, taken))) == taken
    closing = threading.Thread(target=iterator.close, daemon=True)
    closing.start()
    closing.join(timeout=SECONDS)
    assert not closing.is_alive()


class Failing:
    """Stands in for examples whose store breaks at a position."""

    split, sequence_length, sentence_pairs = "train", 64, "nsp"
    layout = {"input_ids": ((1,), np.int32)}

    def num_examples(self, epoch):
        return 1000

    def batch(self, positions):
        if 50 in positions:
            raise UserError("the store went away")
        return {"input_ids": positions[:, None].astype(np.int32)}


@pytest.mark.parametrize("loader", LOADERS)
def test_an_error_in_the_worker_is_raised_as_it_was_after_the_batches_before_it(loader):
    iterator = batches(Failing(), 0, 10, np.arange(10), 100, loader=loader)
    for number in range(5):
        assert next(iterator)["input_ids"][0, 0] == 10 * number
    with pytest.raises(UserError, match="the store went away"):
        next(iterator)


def test_fewer_sequences_than_a_batch(examples):
    count = examples.num_examples(0)
    with pytest.raises(UserError, match=f"{count} sequences of length 64, fewer than a batch of {count + 1}"):
        batches(examples, 0, count + 1, np.arange(count + 1), 5)
    assert len(list(batches(examples, 0, count, np.arange(count), 1, loader="plain"))) == 1


def test_without_tensorflow_the_plain_loader_is_named(examples, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = r"bert_jax\[tensorflow\]' installs it, and data.loader=plain makes the same batches"
    with pytest.raises(UserError, match=message):
        batches(examples, 0, 16, np.arange(16), 5, loader="tf.data")


def test_the_default_does_not_load_tensorflow(examples, monkeypatch):
    monkeypatch.delattr(pipeline, "_tensorflow")
    assert_same(next(batches(examples, 0, 16, np.arange(16), 5)), examples.batch(np.arange(16)))

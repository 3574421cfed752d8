"""Rows of several texts: what is in them, where they are, and that nothing of an epoch is lost on the way."""

import numpy as np
import pytest
from synthetic_examples import LABELLED, PAIRS, SEPARATORS, documents_of, epoch_rows, make_examples, sentences_seen
from synthetic_store import CLS, PAD, SEP, SyntheticStore, random_documents

from bert_jax.data import packing
from bert_jax.data.mixtures import epoch_report
from bert_jax.data.packing import pack
from bert_jax.data.store import SPECIAL


@pytest.fixture(scope="module")
def store():
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


@pytest.mark.parametrize("sentence_pairs", PAIRS)
@pytest.mark.parametrize("sequence_length", [32, 128])
def test_an_epoch_has_every_token_once_but_what_is_cut_off(store, small_groups, sentence_pairs, sequence_length):
    examples = make_packed(store, sentence_pairs=sentence_pairs, sequence_length=sequence_length)
    assert examples.packing.shape(0)[0] > 1
    for epoch in (0, 3):
        rows = epoch_rows(examples, epoch)
        times = np.bincount(rows.token_index[rows.token_index >= 0], minlength=store.num_tokens)
        assert times.sum() - rows.duplicated.sum() + rows.truncated.sum() == store.num_tokens
        if sentence_pairs != "nsp":
            assert times.max() == 1 and not rows.duplicated.any()
        assert sentences_seen(examples, epoch) == store.num_sentences
    assert epoch_report(examples, 1, limit=10**9).sentences_seen == 1


@pytest.mark.parametrize("sentence_pairs", PAIRS)
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


@pytest.mark.parametrize("sentence_pairs", PAIRS)
def test_a_row_is_its_texts_one_after_the_other(store, small_groups, sentence_pairs):
    examples = make_packed(store, sentence_pairs=sentence_pairs, mask_share=0.0, random_share=0.0)
    positions = np.arange(120)
    batch, rows = examples.batch(positions), examples.rows(*examples.locate(positions))
    assert rows.text_ids.max() > 1
    for row in range(len(positions)):
        ids, number = batch["input_ids"][row], batch["text_ids"][row]
        used = number > 0
        np.testing.assert_array_equal(used, batch["attention_mask"][row] > 0)
        assert (
            (np.diff(number[used]) >= 0).all() and (np.diff(used.astype(int)) <= 0).all() and (ids[~used] == PAD).all()
        )
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
        np.testing.assert_array_equal(ids[index >= 0], store.all_tokens[index[index >= 0]])
        assert ((index == SPECIAL) == used & np.isin(ids, (CLS, SEP))).all()


@pytest.mark.parametrize("sentence_pairs", PAIRS)
def test_segments_are_text_of_one_document_and_labels_say_how_they_belong_together(store, sentence_pairs):
    rows = epoch_rows(make_packed(store, sentence_pairs=sentence_pairs, sequence_length=128), 0)
    labels, gaps = [], []
    for row in range(len(rows.token_index)):
        for number, parts in enumerate(texts_of(rows, row)):
            for segment in parts:
                assert (np.diff(segment) == 1).all() and len(set(documents_of(store, segment))) <= 1
            if sentence_pairs == "nsp":
                first, second = parts
                same = documents_of(store, first[0]) == documents_of(store, second[0])
                assert same == (rows.labels[row, number] == 0)
                gaps += [second[0] - first[-1]] if same else []
                labels.append(rows.labels[row, number])
            elif sentence_pairs == "sop" and all(map(len, parts)):
                assert (parts[0][0] > parts[1][0]) == rows.labels[row, number]
    assert np.mean(np.array(gaps) == 1) > 0.8 if gaps else sentence_pairs != "nsp"  # else cut off between the two
    assert sentence_pairs != "nsp" or abs(np.mean(labels) - 0.5) < 5 * 0.5 / np.sqrt(len(labels)) + 0.05


def test_texts_are_those_that_stand_alone(store, monkeypatch):
    """Where no text gives up a token for a place, packing takes the texts of the epoch as they are."""
    monkeypatch.setattr(packing, "TOLERANCE", 0)
    examples = make_packed(store, sequence_length=128)
    rows, alone = epoch_rows(examples, 2), examples._texts(2, np.arange(examples.source.count(2)))
    columns = alone.segments.begin[:, 0], alone.segments.end[:, 0], alone.segments.begin[:, 1], alone.segments.end[:, 1]
    found = [
        (first[0], first[-1] + 1, second[0], second[-1] + 1, rows.labels[row, number])
        for row in range(len(rows.token_index))
        for number, (first, second) in enumerate(texts_of(rows, row))
    ]
    assert sorted(found) == sorted(zip(*columns, alone.labels))


# Positions


@pytest.mark.parametrize("sentence_pairs", PAIRS)
def test_hosts_and_restarts_make_the_rows_of_one_stream(store, small_groups, sentence_pairs):
    options = {"sentence_pairs": sentence_pairs, "unit": "span"}
    examples = make_packed(store, **options)
    start = examples.num_examples(0) - 40
    whole = examples.batch(start + np.arange(96))
    for part in (np.arange(96)[1::4], np.arange(39, 96), np.arange(96)[::-1]):
        other = make_packed(store, **options).batch(start + part)
        for name, value in whole.items():
            np.testing.assert_array_equal(other[name], value[part])


def test_a_far_position_is_reached_without_reading_what_is_before_it(small_groups):
    store = SyntheticStore(random_documents(150))
    examples = make_packed(store)
    epochs, indices = examples.locate(10**12 + np.arange(16))
    wanted = examples.rows(epochs, indices).token_index
    assert not store.tokens_read.any()
    examples.batch(10**12 + np.arange(16))
    np.testing.assert_array_equal(store.tokens_read, np.bincount(wanted[wanted >= 0], minlength=store.num_tokens))


@pytest.mark.parametrize("options", [{"copies": 2}, {"static_masks": 2}])
def test_repeated_epochs_have_the_same_rows_in_another_order(store, small_groups, options):
    examples = make_packed(store, **options)
    counts = np.cumsum([0] + [examples.num_examples(epoch) for epoch in range(4)])
    epochs = [examples.batch(np.arange(*counts[epoch : epoch + 2])) for epoch in range(4)]
    assert (epochs[0]["text_ids"] != epochs[2]["text_ids"]).any(1).mean() > 0.5

    def ordered(batch):
        rows = np.concatenate([value.reshape(len(value), -1) for value in batch.values()], axis=1)
        return rows[np.lexsort(rows.T[::-1])]

    np.testing.assert_array_equal(ordered(epochs[0]), ordered(epochs[2]))
    np.testing.assert_array_equal(ordered(epochs[1]), ordered(epochs[3]))


def test_rows_of_a_document_are_found(store, small_groups):
    examples = make_packed(store, sentence_pairs="sop")
    for document in (3, 270):
        found = examples.packing.rows_of(1, examples.source.indices_of(1, examples.source.of_document(1, document)))
        holding = [
            (documents_of(store, index[index >= 0]) == document).any() for index in epoch_rows(examples, 1).token_index
        ]
        np.testing.assert_array_equal(found, np.flatnonzero(holding))

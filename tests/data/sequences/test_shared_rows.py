"""Sequences that share rows: every one is there once, whole and labelled, and little room is left."""

import numpy as np
import pytest
from numbered_features import make_features

from bert_jax.data.sequences import (
    Features,
    PackedBatches,
    SharedRowBatches,
    TrainingBatches,
    batches,
    ladder,
    shared_rows,
    text_places,
)
from bert_jax.errors import UserError


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_batches_hold_the_sequences_of_the_plain_ones(kind):
    features = make_features(103, kind)
    shared = SharedRowBatches(features, 8, 512, window=4, seed=3, multiple=3)
    plain = TrainingBatches(features, 8, window=4, seed=3, multiple=3)
    for step in (0, 5, 12, 13):  # the one before the last is short
        batch, indices = shared.batch(step), plain.indices(step)
        assert batch["input_ids"].shape[0] % 3 == 0 and batch["labels"].dtype == features.labels.dtype
        assert (batch["attention_mask"].sum(1) > 0).all()
        found = []
        for row, slot in zip(*np.nonzero(batch["weights"]), strict=True):
            here = np.flatnonzero(batch["text_ids"][row] == slot + 1)
            index = batch["input_ids"][row, here[0]] - 1  # every array tells where it came from
            assert here[0] == batch["text_starts"][row, slot] and (np.diff(here) == 1).all()
            np.testing.assert_array_equal(batch["input_ids"][row, here], features.input_ids[index])
            np.testing.assert_array_equal(batch["token_type_ids"][row, here], features.token_type_ids[index])
            assert batch["attention_mask"][row, here].all() and batch["labels"][row, slot] == features.labels[index]
            found.append(index)
        assert sorted(found) == sorted(indices)
        used = batch["text_ids"] > 0
        assert used.sum() == shared.lengths[indices].sum() and not batch["input_ids"][~used].any()


def test_fewer_positions_than_rows_of_their_own():
    features = make_features(1000)
    shared, sorted_ = SharedRowBatches(features, 32, 512), TrainingBatches(features, 32, window=4)
    positions = [
        sum(batches.batch(step)["input_ids"].size for step in range(batches.steps_per_epoch))
        for batches in (shared, sorted_)
    ]
    assert positions[0] < 0.8 * positions[1] and shared.lengths.sum() > 0.85 * positions[0]
    shapes = {shared.batch(step)["input_ids"].shape for step in range(shared.steps_per_epoch)}
    assert len({length for _, length in shapes}) == 1 and len(shapes) < 8


def test_rows_are_filled_with_what_leaves_the_least_room():
    # By hand: 7, then 6 and 5 in rows of their own; 4 joins 6 (room 4), 3 joins 7 (room 3), 2 joins 5.
    row, start = shared_rows(np.array([2, 7, 3, 6, 4, 5]), 10, 3)
    np.testing.assert_array_equal(row, [2, 0, 0, 1, 1, 2])
    np.testing.assert_array_equal(start, [5, 0, 7, 0, 6, 0])
    row, _ = shared_rows(np.full(7, 2), 10, 3)  # no more than three in a row
    np.testing.assert_array_equal(np.bincount(row), [3, 3, 1])


def test_rows_may_be_longer_than_the_longest_sequence_if_the_model_reads_that():
    ids = [np.full(33, 1, np.int32)] * 40
    features = Features(ids, ids, np.zeros(40, np.int32), np.arange(40, dtype=np.int32), 100)
    lengths = {longest: SharedRowBatches(features, 8, longest).length for longest in (64, 512)}
    assert lengths == {64: 48, 512: 72}  # 33 are padded to 48, where one fits; in a row of 72 there are two


def test_rows_without_a_longer_one_are_of_different_lengths():
    # By hand: 9 begins a row of 12, which 3 fills; 6 one of 8, which 2 fills; 5 one of 8, where 3 leave no place for 4.
    row, start = shared_rows(np.array([3, 9, 6, 5, 2, 4]), np.array([8, 12, 8, 8, 8, 8]), 9)
    np.testing.assert_array_equal(row, [0, 0, 1, 2, 1, 3])
    np.testing.assert_array_equal(start, [9, 0, 0, 0, 6, 0])


@pytest.mark.parametrize("rows", [10, np.array([10, 10, 12])])
def test_a_text_longer_than_its_row_is_refused_in_one_line(rows):
    with pytest.raises(
        UserError, match=r"^a text of 11 tokens does not fit into a row of 10, .*or make the rows longer$"
    ):
        shared_rows(np.array([10, 11, 12]), rows, 4)


@pytest.mark.parametrize(("size", "batch_size"), [(1000, 32), (37, 8), (2, 32)])
def test_texts_in_packed_batches_are_all_there_in_few_shapes(size, batch_size):
    features = make_features(size, max_length=512)
    found, positions = [], 0
    packed = PackedBatches(features, batch_size)
    for numbers, batch in packed:
        row, start = text_places(batch)
        for number, r, begin in zip(numbers, row, start, strict=True):
            where = r, slice(begin, begin + len(features.input_ids[number]))
            np.testing.assert_array_equal(batch["input_ids"][where], features.input_ids[number])
            np.testing.assert_array_equal(batch["token_type_ids"][where], features.token_type_ids[number])
            assert len(set(batch["text_ids"][where])) == 1
        assert (batch["text_ids"] > 0).sum() == sum(len(features.input_ids[number]) for number in numbers)
        assert batch["input_ids"].shape[1] in ladder(512) and batch["input_ids"].shape[0].bit_count() == 1
        found += numbers.tolist()
        positions += batch["input_ids"].size
    assert sorted(found) == list(range(size)) and size / 3 < len(packed) * batch_size
    padded = [batch["input_ids"] for _, batch in batches(features, batch_size)]
    assert positions <= sum(ids.size for ids in padded)
    assert len({batch["input_ids"].shape for _, batch in packed}) <= len({ids.shape for ids in padded})


def test_padded_texts_have_places_too():
    for numbers, batch in batches(make_features(5, max_length=40), 4):
        row, start = text_places(batch)
        np.testing.assert_array_equal(row, np.arange(len(numbers)))
        assert not start.any()

"""Rows of several texts, and batches of like lengths."""

import itertools

import numpy as np
import pytest
from task_models import make_features

from bert_jax.data.sequences import (
    Features,
    PackedBatches,
    SharedRowBatches,
    TrainingBatches,
    batches,
    evaluation_batches,
    fewest_sizes,
    ladder,
    padded,
    shared_rows,
    text_places,
)
from bert_jax.errors import UserError


@pytest.mark.parametrize("window", [1, 4])
def test_every_epoch_visits_each_sequence_once_in_an_order_of_its_own(window):
    batches = TrainingBatches(make_features(), 8, window=window, seed=3)
    assert batches.steps_per_epoch == 13
    epochs = [[batches.indices(step) for step in range(13 * epoch, 13 * (epoch + 1))] for epoch in (0, 1)]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(np.concatenate(epoch)), np.arange(103))
        assert sorted(map(len, epoch)) == [7] + [8] * 12
    assert not np.array_equal(np.concatenate(epochs[0]), np.concatenate(epochs[1]))
    # Asked from the end, by another object, and with another seed.
    again = TrainingBatches(make_features(), 8, window=window, seed=3)
    for step in (25, 13, 12, 0):
        np.testing.assert_array_equal(again.indices(step), epochs[step // 13][step % 13])
    assert not np.array_equal(TrainingBatches(make_features(), 8, window=window, seed=4).indices(0), epochs[0][0])


def test_a_window_holds_the_sequences_of_the_plain_order_and_pads_less():
    plain, sorted_ = (TrainingBatches(make_features(), 8, window=window) for window in (1, 4))
    for first in (0, 4, 8):
        together = [np.concatenate([b.indices(step) for step in range(first, first + 4)]) for b in (plain, sorted_)]
        np.testing.assert_array_equal(*map(np.sort, together))
    cells = [sum(batches.batch(step)["input_ids"].size for step in range(13)) for batches in (plain, sorted_)]
    assert cells[1] < 0.75 * cells[0]
    lengths = [[batches.lengths[batches.indices(step)].max() for step in range(12)] for batches in (plain, sorted_)]
    assert lengths[1] != sorted(lengths[1])  # short batches do not all come first


@pytest.mark.parametrize("kind", ["classification", "regression", "span", "choice", "tagging"])
def test_rows_hold_the_sequences_and_the_last_ones_only_fill(kind):
    features = make_features(20, kind)
    indices = np.array([4, 17, 9])
    batch = padded(features, indices, 5)
    length = batch["input_ids"].shape[-1]
    assert length in ladder(100) and batch["input_ids"].shape == ((5, 2, length) if kind == "choice" else (5, length))
    for row, index in enumerate(indices):
        ids, types = features.input_ids[index], features.token_type_ids[index]
        ids, types = (ids, types) if kind == "choice" else ([ids], [types])
        for candidate, (wanted_ids, wanted_types) in enumerate(zip(ids, types)):
            where = (row, candidate) if kind == "choice" else row
            size = len(wanted_ids)
            np.testing.assert_array_equal(batch["input_ids"][where], np.pad(wanted_ids, (0, length - size)))
            np.testing.assert_array_equal(batch["token_type_ids"][where], np.pad(wanted_types, (0, length - size)))
            np.testing.assert_array_equal(batch["attention_mask"][where], np.arange(length) < size)
        if kind == "tagging":
            wanted = np.pad(features.labels[index], (0, length - size), constant_values=-1)
            np.testing.assert_array_equal(batch["labels"][row], wanted)
        else:
            np.testing.assert_array_equal(batch["labels"][row], features.labels[index])
    np.testing.assert_array_equal(batch["weights"], [1, 1, 1, 0, 0])
    assert not batch["input_ids"][3:].any() and (batch["attention_mask"][3:].sum(-1) == 1).all()
    assert batch["weights"].dtype == np.float32 and batch["input_ids"].dtype == np.int32
    assert batch["labels"].dtype == (np.float32 if kind == "regression" else np.int32)
    batches = TrainingBatches(features, 4)
    assert batches.text_lengths(1).sum() == batches.batch(1)["attention_mask"].sum()


def test_all_batches_of_a_run_have_a_handful_of_shapes():
    features = make_features(1000)
    batches = TrainingBatches(features, 8, window=4, multiple=3)
    shapes = {batches.batch(step)["input_ids"].shape for step in range(2 * batches.steps_per_epoch)}
    assert shapes <= {(9, rung) for rung in (8, 16, 24, 32, 48, 64, 96, 100)} and len(shapes) > 3


@pytest.mark.parametrize(
    "max_length, expected",
    [(8, (8,)), (16, (8, 16)), (128, (8, 16, 24, 32, 48, 64, 96, 128)), (150, (8, 16, 24, 32, 48, 64, 96, 128, 150))],
)
def test_ladder_ends_at_the_longest_sequence(max_length, expected):
    assert ladder(max_length) == expected


def test_evaluation_covers_everything_once_by_length():
    features = make_features()
    batches = evaluation_batches(features, 10)
    order = np.concatenate(batches)
    np.testing.assert_array_equal(np.sort(order), np.arange(103))
    assert (np.diff([len(features.input_ids[index]) for index in order]) >= 0).all()


def test_an_unlabelled_set_has_no_labels():
    features = make_features()
    features = Features(features.input_ids, features.token_type_ids, None, features.example, 100)
    assert "labels" not in padded(features, np.arange(3), 4)


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
    assert len({length for _, length in shapes}) == 1 and len(shapes) <= 4  # the batches need six numbers of rows


@pytest.mark.parametrize("seed", range(20))
def test_the_fewest_sizes_are_those_of_all_choices(seed):
    random = np.random.default_rng(seed)
    needed = random.integers(1, 9, 30).tolist()
    sizes = fewest_sizes(needed, allowed=1.1)
    cost = lambda chosen: sum(min(size for size in chosen if size >= each) for each in needed)
    choices = [
        (*chosen, max(needed))
        for count in range(len(sizes))
        for chosen in itertools.combinations(sorted(set(needed) - {max(needed)}), count)
    ]
    assert cost(sizes) == min(map(cost, choices)) <= 1.1 * sum(needed) and sizes in choices
    assert all(cost(chosen) > 1.1 * sum(needed) for chosen in choices if len(chosen) < len(sizes))


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
    message = r"^a text of 11 tokens does not fit into a row of 10, .*or make the rows longer$"
    with pytest.raises(UserError, match=message):
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

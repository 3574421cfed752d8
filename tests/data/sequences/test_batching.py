"""Batches of tasks: what is in them, their shapes, and an order that hangs on (seed, step) alone."""

import numpy as np
import pytest
from numbered_features import make_features

from bert_jax.data.sequences import Features, TrainingBatches, evaluation_batches, ladder, padded


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
        together = [
            np.concatenate([batches.indices(step) for step in range(first, first + 4)]) for batches in (plain, sorted_)
        ]
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

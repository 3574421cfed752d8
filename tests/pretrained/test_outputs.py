"""Rows whose width follows from each text alone."""

import numpy as np
import pytest
from task_models import make_features

from bert_jax.config.serving import EngineOptions
from bert_jax.data.sequences import text_places
from bert_jax.pretrained.outputs import BLOCK, POSITIONS, BlockBatches, most_likely, row_width


@pytest.mark.parametrize("packed", [False, True])
def test_every_text_is_there_once_in_a_row_of_its_own_width(packed):
    features, found, shapes = make_features(3000, max_length=200), [], set()
    for numbers, batch in BlockBatches(features, 200, 32, 1024, packed):
        row, start = text_places(batch)
        rows, width = batch["input_ids"].shape
        assert rows * width <= 1024 and batch["input_ids"].size >= BLOCK
        for number, r, begin in zip(numbers, row, start, strict=True):
            ids = features.input_ids[number]
            assert width == row_width(len(ids), 200) and (not begin or packed and width == BLOCK)
            np.testing.assert_array_equal(batch["input_ids"][r, begin : begin + len(ids)], ids)
            assert batch["attention_mask"][r, begin : begin + len(ids)].all()
        found += numbers.tolist()
        shapes.add((rows, width))
        assert not packed or batch["weights"].shape == (rows, width), "heads read as many rows as there are positions"
    assert sorted(found) == list(range(3000)) and {width for _, width in shapes} == {64, 128, 192}


def test_widths_are_blocks_up_to_what_the_model_reads():
    assert [row_width(n, 512) for n in (1, 64, 65, 129, 300, 512)] == [64, 64, 128, 192, 384, 512]
    assert [row_width(n, 40) for n in (1, 40)] == [40, 40], "a table of 40 positions has no more"


def test_batches_of_the_server_are_no_larger_than_those_of_the_library():
    assert EngineOptions().positions == POSITIONS, "larger ones have other bits"


def test_the_most_likely_words_are_those_of_a_stable_order():
    logits = np.random.default_rng(0).integers(0, 5, 200).astype(np.float32)
    words, shares = most_likely(logits, 50)
    np.testing.assert_array_equal(words, np.argsort(-logits, kind="stable")[:50])
    np.testing.assert_allclose(shares, np.exp(logits[words]) / np.exp(logits.astype(float)).sum(), rtol=1e-6)

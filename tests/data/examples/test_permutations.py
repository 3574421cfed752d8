"""Orders of permutation language modelling: what is predicted, in which places; a function of keys alone."""

import dataclasses

import numpy as np
import pytest

from bert_jax.config import Config, DataConfig, MaskingConfig, Permutation, PhaseConfig
from bert_jax.config.presets import xlnet_config
from bert_jax.data.examples import Examples
from bert_jax.data.masking import Permutations
from bert_jax.data.packing import with_class_last
from bert_jax.data.store import PADDING, SPECIAL, Rows, open_store

ROWS, LENGTH, WORDS = 400, 90, 50
CONTINUES = np.arange(WORDS) % 3 == 2


@pytest.fixture(scope="module")
def rows():
    """[CLS] A [SEP] B [SEP] and padding, of every length; ids of which a third continue a word."""
    random = np.random.default_rng(0)
    first = random.integers(1, 30, ROWS)[:, None]
    end = first + 2 + random.integers(1, 50, ROWS)[:, None]
    column = np.arange(LENGTH)[None]
    is_text = (column > 0) & (column < end) & (column != first + 1)
    ids = np.where(is_text, random.integers(5, WORDS, (ROWS, LENGTH)), 0).astype(np.int32)
    return ids, is_text, end[:, 0] + 1, random.integers(0, 2**63, ROWS).astype(np.uint64)


@pytest.fixture(scope="module")
def permutations():
    return Permutations(rate=1 / 6, longest_span=5, max_predictions=15, continues_word=CONTINUES)


def test_targets_are_a_sixth_of_the_tokens_and_nothing_is_changed(rows, permutations):
    ids, is_text, lengths, _ = rows
    found = permutations(*rows)
    used = found["masked_weights"] > 0
    np.testing.assert_array_equal(found["input_ids"], ids)
    row, slot = np.nonzero(used)
    positions = found["masked_positions"][row, slot]
    assert is_text[row, positions].all()
    np.testing.assert_array_equal(found["masked_ids"][row, slot], ids[row, positions])
    assert not found["masked_ids"][~used].any() and not found["masked_positions"][~used].any()
    chosen = np.zeros_like(is_text)
    chosen[row, positions] = True
    assert chosen.sum() == len(row)
    wanted = np.minimum(15, np.maximum(1, np.rint(lengths / 6)))
    shortest = np.array([min(end - begin for begin, end in _runs(row)) for row in is_text])
    missing = wanted - used.sum(1)
    assert not missing[shortest > wanted].any()  # one token of a short segment may have to be given
    assert set(missing) <= {0, 1, 2} and (shortest > wanted).sum() > 250


def test_an_order_has_a_place_for_each_target_and_special_token_and_none_for_others(rows, permutations):
    _, is_text, lengths, _ = rows
    found = permutations(*rows)
    special = ~is_text & (np.arange(LENGTH) < lengths[:, None])
    for row, order in enumerate(found["order"]):
        targets = found["masked_positions"][row][found["masked_weights"][row] > 0]
        drawn = np.union1d(targets, np.flatnonzero(special[row]))
        np.testing.assert_array_equal(np.flatnonzero(order), drawn)
        assert sorted(order[drawn]) == list(range(1, len(drawn) + 1))
        for begin, end in _runs(is_text[row]):
            assert not order[begin:end].all()  # the first target of a text sees something of it
    first = np.array([order[order > 0].argmin() for order in found["order"] if (order > 0).sum() == 6])
    assert (np.bincount(first, minlength=6) > len(first) / 6 * 0.4).all()  # none of the places is rarely the first


def _runs(is_text):
    edges = np.flatnonzero(np.diff(np.pad(is_text.astype(int), 1)))
    return zip(edges[::2], edges[1::2], strict=True)


def test_spans_begin_with_words_and_have_the_lengths_of_the_published_code():
    """One long text per row; P(n) ∝ 1/n for n up to 5, to four standard errors of the share of each n."""
    random = np.random.default_rng(1)
    ids = random.integers(5, WORDS, (200, 400)).astype(np.int32)
    is_text, keys = np.ones_like(ids, bool), random.integers(0, 2**63, 200).astype(np.uint64)
    permutations = Permutations(1 / 6, 5, 400, CONTINUES)
    chosen = permutations.spans(ids, is_text, keys, np.full(200, 400))
    spans = [run for row in chosen for run in _runs(row) if run[1] < 390]  # one at the end of a text may be cut
    begins = [ids[row, begin] for row, mask in enumerate(chosen) for begin, _ in _runs(mask) if begin]
    assert not CONTINUES[begins].any()
    lengths = np.bincount([end - begin for begin, end in spans])
    total, shares = lengths.sum(), (1 / np.arange(1, 6)) / (1 / np.arange(1, 6)).sum()
    beside = lengths[6:].sum()  # two spans side by side look like one
    assert beside < 0.1 * total
    errors = 4 * np.sqrt(shares / total) + 2 * beside / total
    assert (np.abs(lengths[1:6] / total - shares) < errors).all()
    # A span of n tokens and its context of 6n, with the rest of the word before it: a little less than a seventh.
    assert 0.11 < chosen.mean() < 1 / 7


def test_rows_do_not_depend_on_each_other(rows, permutations):
    whole, some = permutations(*rows), np.array([7, 3, 3, 399])
    part = permutations(*(values[some] for values in rows))
    for name, values in part.items():
        np.testing.assert_array_equal(values, whole[name][some])


@pytest.mark.parametrize("packing", ["off", "on"])
def test_batches_are_a_function_of_seed_and_position(small_store, packing):
    config = Config(
        model=dataclasses.replace(xlnet_config("mini"), max_position_embeddings=64),
        data=DataConfig(path=str(small_store), sentence_pairs="none", packing=packing),
        masking=MaskingConfig(rate=1 / 6),
        objective=Permutation(),
        phases=(PhaseConfig(sequence_length=48, batch_size=8),),
    )
    store = open_store(str(small_store))
    examples = Examples(store, config)
    batch = examples.batch(np.arange(12))
    assert {name: (values.shape[1:], values.dtype) for name, values in batch.items()} == {
        name: (shape, np.dtype(dtype)) for name, (shape, dtype) in examples.layout.items()
    }
    again = Examples(store, config).batch(np.array([11, 2]))
    for name, values in again.items():
        np.testing.assert_array_equal(values, batch[name][[11, 2]])
    other = Examples(store, config, seed=1).batch(np.arange(12))
    assert (other["order"] != batch["order"]).any()
    later = examples.batch(np.arange(12) + examples.num_examples(0))
    assert (later["order"] != batch["order"]).any()


def test_the_class_token_of_xlnet_comes_last_and_in_a_segment_of_its_own():
    """One row of a text, one of two packed texts; in each, offsets and segments move one place to the left."""
    specials = SPECIAL, PADDING
    first = [specials[0], 10, 11, 12, specials[0], *[specials[1]] * 3]
    second = [specials[0], 20, 21, specials[0], specials[0], 30, specials[0], specials[1]]
    index = np.array([first, second])
    nothing = np.zeros(2, np.int64)
    ids = np.array([[1] * 5 + [0] * 3, [1] * 4 + [2] * 3 + [0]], np.int32)
    packed = Rows(index, np.zeros_like(ids), None, nothing, nothing, ids, np.array([[0, 0], [0, 4]], np.int32))
    rows, classes = with_class_last(packed)
    expected = [[10, 11, 12, *[specials[0]] * 2, *[specials[1]] * 3]]
    expected += [[20, 21, *[specials[0]] * 2, 30, *[specials[0]] * 2, specials[1]]]
    np.testing.assert_array_equal(rows.token_index, expected)
    np.testing.assert_array_equal(np.argwhere(classes), [[0, 4], [1, 3], [1, 6]])
    np.testing.assert_array_equal(rows.token_type_ids, 2 * classes)
    alone, _ = with_class_last(Rows(index[:1], np.zeros((1, 8), np.int32), None, nothing[:1], nothing[:1]))
    np.testing.assert_array_equal(alone.token_index, expected[:1])

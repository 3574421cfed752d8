import importlib.util
import itertools
import math
import queue
import threading

import numpy as np
import pytest
from processes import SECONDS
from synthetic_store import SyntheticStore, random_documents

from bert_jax.config import Config, DataConfig, PhaseConfig
from bert_jax.data import pipeline
from bert_jax.data.examples import Examples
from bert_jax.data.pipeline import batches
from bert_jax.errors import UserError

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
    with pytest.raises(
        UserError, match=r"bert_jax\[tensorflow\]' installs it, and data.loader=plain makes the same batches"
    ):
        batches(examples, 0, 16, np.arange(16), 5, loader="tf.data")


def test_the_default_does_not_load_tensorflow(examples, monkeypatch):
    monkeypatch.delattr(pipeline, "_tensorflow")
    assert_same(next(batches(examples, 0, 16, np.arange(16), 5)), examples.batch(np.arange(16)))

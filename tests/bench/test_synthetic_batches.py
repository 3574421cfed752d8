"""Batches of random words for benchmarks have the arrays that the data of the same objective have."""

import dataclasses

import numpy as np
import pytest

from bert_jax.bench.step_batches import synthetic_batch
from bert_jax.config import resolve_phases
from bert_jax.console.command_line import load_config
from bert_jax.data.examples.batch_layout import batch_layout


@pytest.mark.parametrize("name", ["bert_mini", "roberta_mini", "xlnet_mini"])
def test_a_random_batch_has_the_arrays_of_a_real_one(name):
    config = load_config(name)
    phases = (dataclasses.replace(config.phases[0], batch_size=3, sequence_length=40),)
    model = dataclasses.replace(config.model, vocab_size=500)
    config = dataclasses.replace(config, model=model, phases=phases)
    (phase,) = resolve_phases(config)
    batch = synthetic_batch(config, phase, padding=0.2, seed=0)
    expected = {name: ((3, *shape), np.dtype(dtype)) for name, (shape, dtype) in batch_layout(phase, config).items()}
    assert {name: (values.shape, values.dtype) for name, values in batch.items()} == expected
    if "order" in batch:
        used = batch["masked_weights"] > 0
        places = np.take_along_axis(batch["order"], batch["masked_positions"], 1)
        assert (np.sort(places, 1)[used] == places[used]).all() and (places[used] > 0).all()
        assert (batch["order"] > 0).sum() == used.sum()

"""What a batch has besides padding, against counts by hand and the operations of each text alone."""

import dataclasses

import jax
import numpy as np
import pytest
from small_model import FLOAT32
from synthetic_examples import make_examples
from synthetic_store import VOCAB_SIZE, SyntheticStore

from bert_jax.config import ModelConfig
from bert_jax.models.bert import BertForPreTraining
from bert_jax.training.step import COUNTS, counts, flops_of_texts, useful_flops


@pytest.mark.parametrize("packing", ["on", "off"])
def test_operations_are_those_of_each_text_alone(packing):
    generator = np.random.default_rng(7)
    store = SyntheticStore([generator.integers(1, 12, generator.integers(1, 7)).tolist() for _ in range(80)])
    batch = make_examples(store, packing=packing).batch(np.arange(6))
    ids = batch.get("text_ids", batch["attention_mask"])
    lengths = [int((row == text).sum()) for row in ids for text in range(1, row.max() + 1)]
    found = {name: float(value) for name, value in jax.device_get(counts(batch)).items()}
    predictions = int(batch["masked_weights"].sum())
    assert [found[name] for name in COUNTS] == [sum(lengths), sum(n * n for n in lengths), len(lengths), predictions]
    # Scanned layers are computed at every position. Otherwise a prediction takes longer in a longer text.
    scan = dataclasses.replace(FLOAT32, layers="scan")
    model = BertForPreTraining(ModelConfig(vocab_size=VOCAB_SIZE, hidden_size=24, num_layers=2, num_heads=3), scan)
    expected = sum(model.training_flops(n, 0) for n in lengths)
    assert flops_of_texts(model, 64)(np.array(lengths)) == pytest.approx(expected, rel=1e-9)
    expected += predictions * (model.training_flops(0, 1) - model.training_flops(0, 0))
    assert useful_flops(model, 64, found) == pytest.approx(expected, rel=1e-9)


def test_operations_of_a_last_layer_that_is_computed_where_it_is_read():
    """Exact for texts of one length; five predictions in each."""
    model = BertForPreTraining(ModelConfig(vocab_size=VOCAB_SIZE, hidden_size=24, num_layers=2, num_heads=3), FLOAT32)
    found = dict(zip(COUNTS, (3 * 40.0, 3 * 1600.0, 3.0, 3 * 5.0), strict=True))
    assert useful_flops(model, 64, found) == pytest.approx(3 * model.training_flops(40, 5), rel=1e-9)
    # In 34 positions: query and output (24 × 24 each), feed-forward (2 × 24 × 96), scores and values (40 × 24 each).
    whole = dataclasses.replace(model, compute=dataclasses.replace(FLOAT32, layers="scan")).training_flops(40, 5)
    assert whole - model.training_flops(40, 5) == 3 * 2 * 34 * (2 * 24 * 24 + 2 * 24 * 96 + 2 * 40 * 24)

"""Positions that count from the padding's id, as RoBERTa's do, and the model without a head for pairs."""

import dataclasses

import jax
import numpy as np
import pytest
from model_variants import variant

from bert_jax.config import ComputeConfig, Config, DataConfig, ModelConfig, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.errors import UserError
from bert_jax.models import costs
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import bert_parameters, pretraining_parts
from bert_jax.models.layers import PackedTexts
from bert_jax.pretrained.initialization import position_sources

SMALL = variant(
    ModelConfig(vocab_size=40, hidden_size=12, num_layers=1, num_heads=3, max_position_embeddings=18, pair_head=False),
    padding_id=1,
)
BASE = variant(
    ModelConfig(vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1, pair_head=False), padding_id=1
)
LARGE = dataclasses.replace(BASE, hidden_size=1_024, num_layers=24, num_heads=16)


@pytest.mark.parametrize(
    "config, encoder, whole",
    [(BASE, 124_055_040, 124_697_433), (LARGE, 354_310_144, 355_412_057)],
    ids=["base", "large"],
)
def test_parameter_counts_are_those_of_transformers(config, encoder, whole):
    counts = costs.parameter_counts(bert_parameters(config))
    assert (counts.encoder, counts.pretraining) == (encoder, whole)
    model = BertForPreTraining(config, ComputeConfig(), pretraining_parts(config))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == whole


def test_packed_texts_have_the_states_they_have_alone():
    model = BertForPreTraining(SMALL, ComputeConfig(dtype="float32"), ("mlm",))
    params = jax.jit(model.init)(jax.random.key(0))
    ids = np.random.RandomState(0).randint(2, 40, (1, 16)).astype(np.int32)
    ids[0, 13:] = 1
    text_ids = np.repeat([[1, 2, 0]], [6, 7, 3], axis=1).astype(np.int32)
    real, zeros = (ids != 1).astype(np.int32), np.zeros_like(ids)
    texts = PackedTexts(jax.numpy.asarray(text_ids), jax.numpy.asarray([[0, 6]]))
    encode = jax.jit(model.encode)
    packed = encode(params, ids, zeros, real, texts=texts).last_hidden_state
    for begin, end in ((0, 6), (6, 13)):
        part = ids[:, begin:end]
        alone = encode(params, part, zeros[:, begin:end], np.ones_like(part)).last_hidden_state
        np.testing.assert_allclose(packed[:, begin:end], alone, atol=1e-6)


def test_a_longer_table_repeats_no_row_of_padding_or_of_the_first_token():
    found = position_sources(6, 12, first=2)
    assert list(found.pieces) == [0, 1, 2, 3, 4, 5, 3, 4, 5, 3, 4, 5]
    assert list(position_sources(4, 9).pieces) == [0, 1, 2, 3, 1, 2, 3, 1, 2]


def run(**model) -> Config:
    return Config(
        model=variant(SMALL, **model),
        data=DataConfig(path="store", sentence_pairs="none"),
        phases=(PhaseConfig(steps=1, sequence_length=16, batch_size=1),),
        workdir="work",
    )


def test_the_longest_sequence_leaves_out_the_rows_of_padding():
    assert check(run()).model.longest_sequence == 16
    with pytest.raises(UserError, match="sequence_length=16.*max_position_embeddings=17 less 2"):
        check(run(max_position_embeddings=17))
    with pytest.raises(UserError, match="padding_id=17.*RoBERTa has 1"):
        check(run(padding_id=17))
    with pytest.raises(UserError, match="data.sentence_pairs=nsp needs .* model.pair_head=False"):
        check(dataclasses.replace(run(), data=DataConfig(path="store")))

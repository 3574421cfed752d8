"""Packed rows against the same texts one per row: outputs, losses and gradients. Both are float32 without dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from processes import EXHAUSTIVE
from small_model import FLOAT32, compiled, loss_and_gradient, perturbed
from synthetic_examples import LABELLED, PAIRS, make_examples
from synthetic_store import VOCAB_SIZE, SyntheticStore
from unpacked_texts import MODEL, unpacked

from bert_jax.config import Config, ReplacedTokens
from bert_jax.config.objective import GeneratorConfig
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.layers import PackedTexts
from bert_jax.objectives import replaced_tokens
from bert_jax.objectives.choice import default_objective
from bert_jax.objectives.masked_words import PretrainingObjective


@pytest.fixture(scope="module")
def store():
    generator = np.random.default_rng(7)
    return SyntheticStore([generator.integers(1, 12, generator.integers(1, 7)).tolist() for _ in range(80)])


@pytest.fixture(scope="module")
def objective():
    return PretrainingObjective(BertForPreTraining(MODEL, FLOAT32))


CORE = {("nsp", "token"), ("sop", "span"), ("none", "whole_word")}  # each kind of pairs and each unit of masks once


@pytest.mark.parametrize(
    "sentence_pairs, unit",
    [
        pytest.param(pairs, unit, marks=[] if (pairs, unit) in CORE else [pytest.mark.slow])
        for pairs in PAIRS
        for unit in ("token", "whole_word", "span")
        if (pairs, unit) in CORE or EXHAUSTIVE
    ],
)
def test_loss_and_gradients_are_those_of_the_texts_one_per_row(store, objective, sentence_pairs, unit):
    batch = make_examples(store, sentence_pairs=sentence_pairs, unit=unit, packing="on").batch(np.arange(6))
    alone, rows = unpacked(batch)
    assert len(rows) > 8 and alone["masked_weights"].sum() == batch["masked_weights"].sum() > 0

    params, measured = perturbed(objective.model), loss_and_gradient(objective)
    ((loss, sums), gradients), ((expected, expected_sums), expected_gradients) = (
        measured(params, batch),
        measured(params, alone),
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for name, found in sums.items():
        np.testing.assert_allclose(found, expected_sums[name], rtol=1e-5)
    assert set(sums) == ({"mlm", "next_sentence"} if sentence_pairs in LABELLED else {"mlm"})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-6), gradients, expected_gradients)


@pytest.mark.parametrize("embeddings", ["shared", pytest.param("disentangled", marks=pytest.mark.slow)])
def test_replaced_tokens_of_packed_pairs_without_labels_are_those_of_the_pairs_one_per_row(
    store, monkeypatch, embeddings
):
    """The words that are drawn depend on the row, so here they follow from the masked ones: every third is right."""
    other = lambda ids: jnp.where(ids % 3 == 0, ids, 5 + (ids + 11) % (VOCAB_SIZE - 5))
    monkeypatch.setattr(replaced_tokens, "sampled_words", lambda logits, batch: other(batch["masked_ids"]))
    generator = GeneratorConfig(hidden_size=12, num_heads=2, embeddings=embeddings)
    config = Config(objective=ReplacedTokens(generator=generator))
    objective = default_objective(BertForPreTraining(MODEL, FLOAT32), config)
    batch = make_examples(store, sentence_pairs="adjacent", packing="on").batch(np.arange(6))
    alone, rows = unpacked(batch)
    pairs = alone["token_type_ids"].any(1)
    assert len(rows) > 8 and pairs.any() and not pairs.all() and "next_sentence_labels" not in batch

    params, measured = perturbed(objective.model), loss_and_gradient(objective)
    ((loss, sums), gradients), ((expected, expected_sums), expected_gradients) = (
        measured(params, batch),
        measured(params, alone),
    )
    assert set(sums) == {"mlm", "replaced_tokens"} and sums["replaced_tokens"].weight == batch["attention_mask"].sum()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for name, found in sums.items():
        np.testing.assert_allclose(found, expected_sums[name], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-6), gradients, expected_gradients)
    assert np.abs(gradients["embeddings"]["token_type"]["table" if embeddings == "shared" else "delta"][1]).max() > 0


def test_every_output_of_a_packed_text_is_that_of_the_text_alone(store, objective):
    batch = make_examples(store, packing="on").batch(np.arange(6))
    alone, rows = unpacked(batch)
    params, names = perturbed(objective.model), ("input_ids", "token_type_ids", "attention_mask")
    encode = compiled(lambda batch: objective.model.encode(params, *map(batch.get, names), texts=PackedTexts.of(batch)))
    found, expected = encode(batch), encode(alone)
    assert found.pooled.shape == (6, batch["text_starts"].shape[1], MODEL.hidden_size)
    for number, (row, text) in enumerate(rows):
        here = np.flatnonzero(batch["text_ids"][row] == text + 1)
        np.testing.assert_allclose(
            found.last_hidden_state[row, here], expected.last_hidden_state[number, : len(here)], atol=2e-5
        )
        np.testing.assert_allclose(found.pooled[row, text], expected.pooled[number], atol=2e-5)
    logits = jax.eval_shape(objective.model.apply, params, batch).next_sentence_logits
    assert logits.shape == (*batch["text_starts"].shape, 2)


def test_positions_begin_again_in_every_text():
    texts = PackedTexts(np.int32([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 3, 3]]), np.int32([[0, 3, 0], [0, 1, 4]]))
    positions = compiled(texts.positions)()
    np.testing.assert_array_equal(positions[0, :5], [0, 1, 2, 0, 1])
    np.testing.assert_array_equal(positions[1], [0, 0, 1, 2, 0, 1])
    assert positions.max() < 6

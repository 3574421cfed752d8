"""Static word vectors: loss and gradient of skip-gram, what a text's vector is, and what is refused."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_finetuning
from model_variants import variant
from one_device import finetune

import bert_jax
from bert_jax.config import (
    Config,
    DataConfig,
    DisentangledConfig,
    MaskedWords,
    ModelConfig,
    PhaseConfig,
    SkipGram,
    SkipGramConfig,
)
from bert_jax.config.checks import check
from bert_jax.console import parse
from bert_jax.data.neighbours import NeighbourWindows
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives.choice import default_objective
from bert_jax.randomness import Stream, bits, integers

LENGTH, VOCABULARY, NEGATIVES = 12, 20, 3
SIZES = variant(
    ModelConfig(vocab_size=VOCABULARY, hidden_size=8, max_position_embeddings=32, hidden_dropout=0.0), layer="none"
)
CONFIG = Config(
    model=SIZES,
    objective=SkipGram(static_vectors=SkipGramConfig(negatives=NEGATIVES)),
    data=DataConfig(sentence_pairs="none"),
    phases=(PhaseConfig(sequence_length=LENGTH, batch_size=2),),
)


@pytest.fixture(scope="module")
def model():
    return BertForPreTraining(SIZES, parts=("contexts",))


@pytest.fixture(scope="module")
def params(model):
    params = jax.jit(model.init)(jax.random.key(0))
    return jax.tree.map(lambda x: x + 0.5 * jax.random.normal(jax.random.key(x.size), x.shape), params)


TEXTS = {"one": ([12], [7]), "several": ([4, 1, 5], [6, 3])}
"""Lengths of the texts of each row; one [SEP] ends each but the last."""


@pytest.fixture(scope="module", params=TEXTS)
def texts(request):
    return TEXTS[request.param]


@pytest.fixture(scope="module")
def batch(texts):
    ids = np.zeros((2, LENGTH), np.int32)
    words = np.random.default_rng(1).integers(5, VOCABULARY, (2, LENGTH)).tolist()
    for row, lengths in enumerate(texts):
        tokens = [id for length in lengths for id in [*(words[row].pop() for _ in range(length)), 3]][:-1]
        ids[row, : len(tokens)] = tokens
    windows = NeighbourWindows(SkipGramConfig(window=3), np.arange(1, VOCABULARY + 1), 0)
    made = windows(ids, ids >= 5, (ids > 0).sum(axis=1), np.array([11, 12], np.uint64))
    return made | {"token_type_ids": np.zeros_like(ids)}


def by_pairs(words, contexts, batch, texts):
    """Return loss, number of pairs and the gradients of both tables: one pair after the other, in float64."""
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    draws = integers(bits(np.array([[11], [12]], np.uint64), Stream.WINDOW, np.arange(LENGTH)), 3)
    loss, count, of_words, of_contexts = 0.0, 0, np.zeros_like(words), np.zeros_like(contexts)
    for row, lengths in enumerate(texts):
        in_row = batch["input_ids"][row]
        for first, end in itertools.pairwise(np.cumsum([0, *lengths])):
            for place, other in itertools.permutations(range(first, end), 2):
                if abs(place - other) > 1 + draws[row, place]:
                    continue
                word = in_row[place]
                count += 1
                drawn = [(each, 0, NEGATIVES / len(batch["negatives"][row])) for each in batch["negatives"][row]]
                for each, label, weight in [(in_row[other], 1, 1.0), *drawn]:
                    share = sigmoid(words[word] @ contexts[each])
                    loss -= weight * np.log(share if label else 1 - share)
                    of_words[word] += weight * (share - label) * contexts[each]
                    of_contexts[each] += weight * (share - label) * words[word]
    return loss, count, of_words, of_contexts


def test_loss_and_gradient_are_those_of_the_pairs_one_by_one(model, params, batch, texts):
    objective = default_objective(model, CONFIG)
    value = jax.jit(lambda params: objective.sums(params, batch)["skip_gram"])
    gradient = jax.jit(jax.grad(lambda params: value(params).loss))(params)
    tables = (np.float64(params["embeddings"]["word"]["table"]), np.float64(params["contexts"]["table"]))
    loss, count, of_words, of_contexts = by_pairs(*tables, batch, texts)
    assert count > 20
    assert float(value(params).weight) == float(objective.denominators(batch)["skip_gram"]) == count
    np.testing.assert_allclose(float(value(params).loss), loss, rtol=1e-5)
    np.testing.assert_allclose(gradient["embeddings"]["word"]["table"], of_words, atol=1e-5 * np.abs(of_words).max())
    np.testing.assert_allclose(gradient["contexts"]["table"], of_contexts, atol=1e-5 * np.abs(of_contexts).max())


def test_the_model_is_its_two_tables(model, params):
    assert sum(x.size for x in jax.tree.leaves(params)) == 2 * VOCABULARY * 8
    ids = jnp.array([[7, 8, 0]])
    output = model.encode(params, ids, 0 * ids, (ids > 0).astype(jnp.int32), collect=True)
    np.testing.assert_array_equal(output.last_hidden_state[0], params["embeddings"]["word"]["table"][ids[0]])
    assert len(output.hidden_states) == 1 and output.attentions == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (lambda: {"objective": MaskedWords()}, "model.layer=none gives a word the same vector everywhere"),
        (
            lambda: {"model": variant(SIZES, layer="lstm", num_layers=1)},
            "would see the neighbours .* model.layer=none",
        ),
        (lambda: {"model": variant(SIZES, num_layers=2)}, "model.num_layers=2 belongs to .*, not to model.layer=none"),
        (lambda: {"model": variant(SIZES, feed_forward="geglu")}, "model.feed_forward=geglu belongs to .*layer=none"),
        (
            lambda: {"model": variant(SIZES, disentangled=DisentangledConfig(terms="c2p"))},
            "model.disentangled.terms=c2p belongs to model.layer=transformer, not to model.layer=none",
        ),
        (lambda: {"phases": (PhaseConfig(sequence_length=5),)}, "window=5 is not shorter than the rows"),
        (
            lambda: {"objective": SkipGram(static_vectors=SkipGramConfig(window=0))},
            "window=0 must be positive",
        ),
        (
            lambda: {"objective": SkipGram(static_vectors=SkipGramConfig(subsampling=1.0))},
            "subsampling=1.0 must be a share",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check(dataclasses.replace(CONFIG, **changes()))


def test_the_weight_of_masked_words_is_refused():
    with pytest.raises(UserError, match="objective.mlm_weight=0.5 belongs to .*, not to objective.name=skip_gram"):
        parse(CONFIG, ["--objective.mlm_weight=0.5"], "pretrain")


def test_loaded_embedded_and_fine_tuned_on_the_mean_of_a_text(tmp_path):
    home = small_finetuning.write(tmp_path, dataclasses.replace(SIZES, hidden_size=32, initializer_range=0.3))
    model = bert_jax.load(home / "pretrained")
    text = "the gardener waters a rose"
    words = np.asarray(model.params["embeddings"]["word"]["table"])
    ids = model.tokenizer.encode(text)
    ids = [model.tokenizer.cls_id, *ids, model.tokenizer.sep_id]
    np.testing.assert_allclose(model.embed([text])[0], words[ids].mean(axis=0), rtol=1e-5, atol=1e-6)
    config = small_finetuning.run_config(home, tmp_path / "task", learning_rate=2e-2, epochs=4)
    assert finetune(config).results["metrics"]["accuracy"] > 0.9

"""Objectives: choice, means over batches, and packed texts."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_bert import softmax
from processes import EXHAUSTIVE
from small_model import FLOAT32, compiled, loss_and_gradient, perturbed
from synthetic_store import LABELLED, PAIRS, VOCAB_SIZE, SyntheticStore, make_examples
from unpacked_texts import MODEL, unpacked

from bert_jax.config import Config, DataConfig, MaskedWords, ReplacedTokens
from bert_jax.config.checks import check
from bert_jax.config.objective import GeneratorConfig
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.layers import PackedTexts
from bert_jax.objectives import masked_words, replaced_tokens
from bert_jax.objectives.masked_words import PretrainingObjective
from bert_jax.objectives.objective import Sums, Term, evaluation_metrics, main_term, mean_loss, training_metrics
from bert_jax.pretraining import default_objective

loss_sums = compiled(masked_words.masked_word_sums)


def masked_example(seed=0, vocabulary=50):
    random = np.random.default_rng(seed)
    logits = (3 * random.standard_normal((4, 6, vocabulary))).astype(np.float32)
    ids = random.integers(0, vocabulary, (4, 6)).astype(np.int32)
    ids[:, :2] = logits[:, :2].argmax(-1)  # some of them right
    weights = (random.random((4, 6)) < 0.7).astype(np.float32)
    return logits, ids, weights


def test_masked_sums_equal_the_formula():
    logits, ids, weights = masked_example()
    sums = loss_sums(logits, ids, weights)
    picked = np.take_along_axis(softmax(np.float64(logits)), ids[..., None], axis=-1)[..., 0]
    assert float(sums.loss) == pytest.approx(-(weights * np.log(picked)).sum(), rel=1e-6)
    assert float(sums.correct) == (weights * (logits.argmax(-1) == ids)).sum() > 0
    assert float(sums.weight) == weights.sum()


def test_masked_gradient_is_softmax_minus_one_hot():
    logits, ids, weights = masked_example()
    gradient = compiled(jax.grad(lambda x: masked_words.masked_word_sums(x, ids, weights).loss))(logits)
    expected = weights[..., None] * (softmax(np.float64(logits)) - np.eye(50)[ids])
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_no_weight_gives_zero_and_no_gradient():
    logits, ids, _ = masked_example()
    weights = np.zeros((4, 6), np.float32)
    function = compiled(jax.value_and_grad(lambda x: masked_words.masked_word_sums(x, ids, weights).loss))
    loss, gradient = function(logits)
    assert loss == 0 and not np.any(gradient)
    sums = loss_sums(logits, ids, weights)
    assert all(value == 0 for value in sums)


@pytest.mark.parametrize("scale", [1e-3, 1e4])
def test_large_and_small_logits_stay_finite(scale):
    logits, ids, weights = masked_example()
    sums = loss_sums(np.float32(scale) * logits, ids, weights)
    assert np.isfinite(sums.loss) and sums.loss >= 0


def test_bfloat16_logits_are_summed_in_float32():
    logits, ids, weights = masked_example()
    narrow = logits.astype(jnp.bfloat16)
    sums = loss_sums(narrow, ids, weights)
    wide = loss_sums(np.asarray(narrow, np.float32), ids, weights)
    assert sums.loss.dtype == jnp.float32 and sums.loss == wide.loss


def test_next_sentence_sums_equal_the_formula():
    random = np.random.default_rng(1)
    logits, labels = random.standard_normal((9, 2)).astype(np.float32), random.integers(0, 2, 9).astype(np.int32)
    sums = compiled(masked_words.sentence_pair_sums)(logits, labels)
    assert float(sums.loss) == pytest.approx(-np.log(softmax(np.float64(logits))[np.arange(9), labels]).sum(), rel=1e-6)
    assert float(sums.correct) == (logits.argmax(-1) == labels).sum()
    assert float(sums.weight) == 9


FIRST, SECOND = Term(name="first", weight=0.5, perplexity="surprise"), Term(name="second", weight=3.0)
SUMS = {
    "first": Sums(jnp.float32(6.0), jnp.float32(4.0), jnp.float32(3.0)),
    "second": Sums(jnp.float32(2.5), jnp.float32(5.0)),
}
DENOMINATORS = {"first": jnp.float32(8.0), "second": jnp.float32(5.0)}


def test_the_loss_is_the_weighted_sum_of_the_means():
    assert float(mean_loss((FIRST, SECOND), SUMS, DENOMINATORS)) == 0.5 * 6 / 8 + 3 * 2.5 / 5
    assert float(mean_loss((FIRST, SECOND), {"second": SUMS["second"]}, DENOMINATORS)) == 3 * 2.5 / 5
    assert float(mean_loss((Term(name="second"),), {"second": SUMS["second"]}, {"second": jnp.float32(5.0)})) == 0.5


@pytest.mark.parametrize(
    "terms, sums, denominators, said",
    [
        ((FIRST, SECOND), {"first": 1, "secnd": 1}, {"first": 1, "second": 1}, "the sums .* have 'secnd', .*'second'"),
        ((FIRST, SECOND), {"first": 1}, {"first": 1, "secnd": 1}, "the denominators .* have 'secnd', .*'second'"),
        ((FIRST, SECOND), {"first": 1, "second": 1}, {"first": 1}, "sums of 'second' but no denominator"),
        ((FIRST, SECOND), {}, {"first": 1}, "returns no sums of any of its terms"),
        ((FIRST, FIRST), {"first": 1}, {"first": 1}, "two terms of the objective have the name 'first'"),
        ((), {}, {}, "returns no sums of any of its terms"),
    ],
)
def test_an_objective_that_contradicts_itself_is_refused(terms, sums, denominators, said):
    """A misspelt term would not be trained, and nobody would be told."""
    sums = {name: Sums(jnp.float32(2.5), jnp.float32(5.0)) for name in sums}
    denominators = {name: jnp.float32(5.0) for name in denominators}
    with pytest.raises(UserError, match=said):
        mean_loss(terms, sums, denominators)


def test_a_misspelt_term_is_refused_when_it_is_measured_too():
    with pytest.raises(UserError, match="the sums of the objective have 'frist'"):
        evaluation_metrics((FIRST, SECOND), {"frist": Sums(6.0, 4.0)})
    with pytest.raises(UserError, match="nothing to train or to measure"):
        evaluation_metrics((FIRST, SECOND), {})


def test_the_main_term_is_the_first_that_is_trained_for():
    assert main_term((FIRST, SECOND)) is FIRST
    assert main_term((Term(name="shown", weight=0.0), SECOND)) is SECOND
    assert main_term(PretrainingObjective(None, MaskedWords(mlm_weight=0.0)).terms).loss == "next_sentence_loss"
    for terms in ((), (Term(name="shown", weight=0.0),)):
        with pytest.raises(UserError, match="no term of the objective has a weight above 0"):
            main_term(terms)


def test_metrics_of_a_step_are_those_of_the_terms_as_they_are_and_their_weighted_sum():
    metrics = {name: float(value) for name, value in training_metrics((FIRST, SECOND), SUMS, DENOMINATORS).items()}
    assert metrics == {"loss": 1.875, "first_loss": 0.75, "first_accuracy": 0.75, "second_loss": 0.5}
    only = training_metrics((Term(),), {"": SUMS["second"]}, {"": DENOMINATORS["second"]})
    assert {name: float(value) for name, value in only.items()} == {"loss": 0.5}


def test_metrics_of_an_evaluation_divide_by_the_weight_of_the_predictions():
    sums = {"first": Sums(6.0, 4.0, 3.0), "second": Sums(2.5, 5.0)}
    found = evaluation_metrics((FIRST, SECOND, Term(name="absent")), sums)
    assert found == {"first_loss": 1.5, "surprise": math.exp(1.5), "first_accuracy": 0.75, "second_loss": 0.5}
    assert list(found) == ["first_loss", "surprise", "first_accuracy", "second_loss"]


def test_nothing_weighed_is_zero_and_not_nan():
    empty = {"first": Sums(jnp.float32(0), jnp.float32(0), jnp.float32(0))}
    metrics = training_metrics((FIRST,), empty, {"first": jnp.float32(0)})
    assert {name: float(value) for name, value in metrics.items()} == {"loss": 0, "first_loss": 0, "first_accuracy": 0}


def test_an_evaluation_of_nothing_has_no_figures():
    sums = {"first": Sums(0.0, 0.0, 0.0), "second": Sums(2.5, 5.0)}
    assert evaluation_metrics((FIRST, SECOND), sums) == {"second_loss": 0.5}
    assert evaluation_metrics((FIRST,), {"first": sums["first"]}) == {}


def test_the_options_are_the_weights_of_the_terms():
    words, pairs = PretrainingObjective(None, MaskedWords(mlm_weight=0.25, sentence_pair_weight=4)).terms
    assert (words.name, words.weight, pairs.name, pairs.weight) == ("mlm", 0.25, "next_sentence", 4)


@pytest.mark.parametrize(
    "pairs, names",
    [("nsp", ("next_sentence", "NSP", "Next sentence")), ("sop", ("sentence_order", "SOP", "Sentence order"))],
)
def test_each_task_on_pairs_has_names_of_its_own_and_the_weight_of_the_option(pairs, names):
    config = Config(objective=MaskedWords(sentence_pair_weight=4), data=DataConfig(sentence_pairs=pairs))
    _, term = default_objective(None, config).terms
    assert (term.name, term.label, term.title) == names and term.weight == 4


@pytest.mark.parametrize(
    "weights, pairs, said",
    [
        ({"mlm_weight": -0.5}, "nsp", "objective.mlm_weight=-0.5 must be 0 or a positive number"),
        ({"sentence_pair_weight": math.inf}, "nsp", "objective.sentence_pair_weight=inf must be a finite number"),
        ({"mlm_weight": 0.0}, "none", "objective.mlm_weight=0 leaves nothing to learn"),
        ({"mlm_weight": 0.0, "sentence_pair_weight": 0.0}, "sop", "objective.mlm_weight=0 leaves nothing to learn"),
    ],
)
def test_weights_that_cannot_be_are_refused(weights, pairs, said):
    with pytest.raises(UserError, match=said):
        check(Config(objective=MaskedWords(**weights), data=DataConfig(sentence_pairs=pairs)))


def test_one_of_the_two_tasks_may_weigh_nothing():
    for weights in ({"mlm_weight": 0.0}, {"sentence_pair_weight": 0.0}):
        check(Config(objective=MaskedWords(**weights)))


@pytest.fixture(scope="module")
def store():
    generator = np.random.default_rng(7)
    return SyntheticStore([generator.integers(1, 12, generator.integers(1, 7)).tolist() for _ in range(80)])


@pytest.fixture(scope="module")
def objective():
    return PretrainingObjective(BertForPreTraining(MODEL, FLOAT32))


CORE = {("nsp", "token"), ("none", "whole_word")}  # with pairs and without; the other kinds have the same arrays


@pytest.mark.parametrize(
    "sentence_pairs, unit",
    [
        pytest.param(pairs, unit, marks=[] if (pairs, unit) in CORE else [pytest.mark.slow])
        for pairs in PAIRS
        for unit in ("token", "whole_word", "span")
        if (pairs, unit) in {*CORE, ("sop", "span")} or EXHAUSTIVE
    ],
)
def test_loss_and_gradients_are_those_of_the_texts_one_per_row(store, objective, sentence_pairs, unit):
    batch = make_examples(store, sentence_pairs=sentence_pairs, unit=unit, packing="on").batch(np.arange(6))
    alone, rows = unpacked(batch)
    assert len(rows) > 8 and alone["masked_weights"].sum() == batch["masked_weights"].sum() > 0

    params, measured = perturbed(objective.model), loss_and_gradient(objective)
    (loss, sums), gradients = measured(params, batch)
    (expected, expected_sums), expected_gradients = measured(params, alone)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for name, found in sums.items():
        np.testing.assert_allclose(found, expected_sums[name], rtol=1e-5)
    assert set(sums) == ({"mlm", "next_sentence"} if sentence_pairs in LABELLED else {"mlm"})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-6), gradients, expected_gradients)


@pytest.mark.parametrize("embeddings", ["shared", pytest.param("disentangled", marks=pytest.mark.slow)])
def test_replaced_tokens_of_packed_pairs_without_labels_are_those_of_pairs_one_per_row(store, monkeypatch, embeddings):
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
    (loss, sums), gradients = measured(params, batch)
    (expected, expected_sums), expected_gradients = measured(params, alone)
    assert set(sums) == {"mlm", "replaced_tokens"} and sums["replaced_tokens"].weight == batch["attention_mask"].sum()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for name, found in sums.items():
        np.testing.assert_allclose(found, expected_sums[name], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-6), gradients, expected_gradients)
    assert np.abs(gradients["embeddings"]["token_type"]["table" if embeddings == "shared" else "delta"][1]).max() > 0


def test_positions_begin_again_in_every_text():
    texts = PackedTexts(np.int32([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 3, 3]]), np.int32([[0, 3, 0], [0, 1, 4]]))
    positions = compiled(texts.positions)()
    np.testing.assert_array_equal(positions[0, :5], [0, 1, 2, 0, 1])
    np.testing.assert_array_equal(positions[1], [0, 0, 1, 2, 0, 1])
    assert positions.max() < 6

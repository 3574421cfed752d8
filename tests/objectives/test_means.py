"""From sums to losses and metrics, against calculations by hand; the weights of the terms among them."""

import math

import jax.numpy as jnp
import pytest

from bert_jax.config import Config, DataConfig, MaskedWords
from bert_jax.config.checks import check
from bert_jax.errors import UserError
from bert_jax.objectives.choice import default_objective
from bert_jax.objectives.masked_words import PretrainingObjective
from bert_jax.objectives.objective import Sums, Term, evaluation_metrics, main_term, mean_loss, training_metrics

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
        ({"sentence_pair_weight": math.inf}, "nsp", "objective.sentence_pair_weight=inf must be 0 or a positive"),
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

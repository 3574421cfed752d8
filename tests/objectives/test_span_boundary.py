"""The span boundary objective (Joshi et al. 2020) against loops over the masks and a transcription in NumPy."""

import dataclasses

import jax
import numpy as np
import numpy_bert
import pytest
from small_model import FLOAT32, SMALL, compiled, make_batch, perturbed
from synthetic_examples import make_examples
from synthetic_store import SyntheticStore, random_documents

from bert_jax.config import ComputeConfig, MaskedWords
from bert_jax.console import load_config
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import PRETRAINING_PARTS, SPAN_PLACES, bert_parameters, pretraining_parts
from bert_jax.models.costs import parameter_counts, training_flops
from bert_jax.models.heads import SpanBoundaries
from bert_jax.objectives.masked_words import PretrainingObjective
from bert_jax.objectives.objective import mean_loss, training_metrics
from bert_jax.parameters import check_complete, entries

PARTS = (*PRETRAINING_PARTS, "span_boundary")
WEIGHTS = MaskedWords(mlm_weight=1.0, span_boundary_weight=0.5, sentence_pair_weight=2.0)


spans_of = compiled(SpanBoundaries.of)


def spans_by_hand(positions, weights):
    """For each used slot of a row: the positions beside its run of masked positions, and its place in the run."""
    masked = {int(position) for position, weight in zip(positions, weights) if weight}
    found = []
    for position in positions[weights > 0]:
        left = right = int(position)
        while left in masked:
            left -= 1
        while right in masked:
            right += 1
        found.append((left, right, int(position) - left - 1))
    return found


def hand_made_batch():
    """After [CLS]; two that touch; before [SEP]; alone. The last slot of the second row is unused."""
    batch = make_batch()
    batch["masked_positions"] = np.array([[1, 2, 5, 12], [3, 4, 5, 0], [1, 5, 6, 7]], np.int32)
    batch["masked_weights"] = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]], np.float32)
    return batch


def test_spans_of_a_hand_made_batch():
    spans = spans_of(hand_made_batch())
    assert spans.left.tolist() == [[0, 0, 4, 11], [2, 2, 2, 0], [0, 4, 4, 4]]
    assert spans.right.tolist() == [[3, 3, 6, 13], [6, 6, 6, 0], [2, 8, 8, 8]]
    assert spans.place.tolist() == [[0, 1, 0, 0], [0, 1, 2, 0], [0, 0, 1, 2]]
    assert spans.weights.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_pieces_of_a_long_span_beyond_the_table_are_left_out():
    positions = np.arange(2, 2 + SPAN_PLACES + 4, dtype=np.int32)[None]
    spans = spans_of({"masked_positions": positions, "masked_weights": np.ones(positions.shape, np.float32)})
    assert spans.weights.tolist() == [[1.0] * SPAN_PLACES + [0.0] * 4]
    assert spans.place[0, :SPAN_PLACES].tolist() == list(range(SPAN_PLACES)) and spans.place.max() == SPAN_PLACES - 1


@pytest.mark.parametrize("unit", ["token", "span"])
@pytest.mark.parametrize("pairs, packing", [("nsp", "off"), ("nsp", "on"), ("none", "off"), ("none", "on")])
def test_spans_stay_inside_their_text_and_its_segments(pairs, packing, unit):
    store = SyntheticStore(random_documents(60, seed=3))
    options = {"sentence_pairs": pairs, "packing": packing, "unit": unit, "replacement": unit, "rate": 0.4}
    batch = make_examples(store, sequence_length=48, **options).batch(np.arange(64))
    spans, used = spans_of(batch), batch["masked_weights"] > 0
    assert used.sum() > 500
    for row in range(64):
        expected = spans_by_hand(batch["masked_positions"][row], batch["masked_weights"][row])
        found = zip(*(np.asarray(each[row])[used[row]].tolist() for each in (spans.left, spans.right)), strict=True)
        assert list(found) == [(left, right) for left, right, _ in expected]
        kept = [place for *_, place in expected if place < SPAN_PLACES]
        assert np.asarray(spans.place[row])[np.asarray(spans.weights[row]) > 0].tolist() == kept
        for name in ("text_ids", "token_type_ids") if packing == "on" else ("token_type_ids",):
            of_left, of_right = (batch[name][row, np.asarray(each[row])] for each in (spans.left, spans.right))
            here = batch[name][row, batch["masked_positions"][row]]
            assert (of_right == here)[used[row]].all()
            if name == "text_ids":  # a second segment has the [SEP] of the first one beside it
                assert (of_left == here)[used[row]].all()


def losses_by_hand(params, config, batch):
    """The losses of y_i = f(x_{s-1}, x_{e+1}, p_{i-s+1}), one slot at a time, and whether the word was found."""
    p = numpy_bert.as_float64(params)
    states = numpy_bert.forward(params, config, batch)["last_hidden_state"]
    head, table, losses, right = p["span_boundary"], p["embeddings"]["word"]["table"], [], []
    for row, positions in enumerate(batch["masked_positions"]):
        spans = spans_by_hand(positions, batch["masked_weights"][row])
        for word, (left, after, place) in zip(batch["masked_ids"][row], spans):
            x = np.concatenate([states[row, left], states[row, after], head["place"]["table"][place]])
            x = numpy_bert.gelu(numpy_bert.dense(x, head["dense"]), config.activation)
            x = numpy_bert.norm(x, head["norm"], config.layer_norm_epsilon)
            x = numpy_bert.gelu(numpy_bert.dense(x, head["words"]["dense"]), config.activation)
            x = numpy_bert.norm(x, head["words"]["norm"], config.layer_norm_epsilon)
            logits = table @ x + head["words"]["bias"]
            losses.append(-np.log(numpy_bert.softmax(logits)[word]))
            right.append(logits.argmax() == word)
    return np.array(losses), np.array(right)


@pytest.fixture(scope="module")
def params():
    return perturbed(BertForPreTraining(SMALL, FLOAT32, PARTS))


@pytest.mark.parametrize("products", ["plain", "cpu"])
def test_loss_equals_the_transcription(params, products):
    config = dataclasses.replace(SMALL, activation="gelu_erf")
    model = BertForPreTraining(config, ComputeConfig(dtype="float32", products=products), PARTS)
    objective, batch = PretrainingObjective(model, WEIGHTS), hand_made_batch()
    batch["masked_ids"][0, 0] = np.argmax(  # one of them right
        np.asarray(compiled(lambda p: model.word_logits(p, batch, "span_boundary"))(params))[0, 0]
    )
    losses, right = losses_by_hand(params, config, batch)
    sums = compiled(lambda p: objective.sums(p, batch))(params)
    assert float(sums["span_boundary"].loss) == pytest.approx(losses.sum(), rel=2e-6)
    assert float(sums["span_boundary"].weight) == len(losses) == 11
    assert float(sums["span_boundary"].correct) == right.sum() >= 1
    metrics = training_metrics(objective.terms, sums, objective.denominators(batch))
    assert float(metrics["span_boundary_loss"]) == pytest.approx(losses.mean(), rel=2e-6)
    both = float(metrics["mlm_loss"]) + 2 * float(metrics["next_sentence_loss"])
    assert float(metrics["loss"]) == pytest.approx(both + losses.mean() / 2, rel=1e-6)


def test_gradients_are_those_of_the_transcription(params):
    """Along a random direction in every array, by central differences in float64."""
    batch = hand_made_batch()
    model = BertForPreTraining(SMALL, FLOAT32, PARTS)
    objective = PretrainingObjective(model, MaskedWords(mlm_weight=0, sentence_pair_weight=0, span_boundary_weight=1))
    loss = lambda p: mean_loss(objective.terms, objective.sums(p, batch), objective.denominators(batch))
    gradients = compiled(jax.grad(loss))(params)
    random = np.random.default_rng(1)
    for part in (("span_boundary",), ("embeddings", "word"), ("encoder", "attention")):
        there = lambda path: tuple(entry.key for entry in path)[: len(part)] == part
        step = jax.tree.map_with_path(
            lambda path, leaf: random.standard_normal(leaf.shape) if there(path) else np.zeros(leaf.shape), params
        )
        wide, size = numpy_bert.as_float64(params), 1e-5
        ends = [
            losses_by_hand(jax.tree.map(lambda x, d: x + sign * size * d, wide, step), SMALL, batch)[0].mean()
            for sign in (1, -1)
        ]
        found = sum(np.sum(g * d) for g, d in zip(jax.tree.leaves(gradients), jax.tree.leaves(step), strict=True))
        assert found == pytest.approx((ends[0] - ends[1]) / (2 * size), rel=2e-4)
    assert not np.any(gradients["mlm"]["bias"]) and np.any(gradients["span_boundary"]["place"]["table"])


def test_parameters_are_those_of_the_paper():
    """By hand for BERT-base: places, [2H + 200, H] and [H, H] with biases, two norms, a bias per word."""
    hidden, words = 768, 30522
    first, second = (2 * hidden + 200) * hidden + hidden, hidden * hidden + hidden
    config = load_config("spanbert_base")
    model = BertForPreTraining(
        dataclasses.replace(config.model, vocab_size=words), parts=pretraining_parts(config.model, config.objective)
    )
    assert parameter_counts(model.parameters).span_boundary == 15 * 200 + first + second + 4 * hidden + words
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    check_complete(model.parameters, shapes)
    assert entries(model.parameters, shapes)["span_boundary"]["dense"]["kernel"].shape == (1736, hidden)
    with_head, without = (
        training_flops(model.config, bert_parameters(model.config, parts), 512, 77).heads
        for parts in (("mlm", "span_boundary"), ("mlm",))
    )
    assert with_head - without == 6 * 77 * (first - hidden + second - hidden + words * hidden)


def test_a_weight_of_zero_is_bert():
    objective, batch = PretrainingObjective(BertForPreTraining(SMALL, FLOAT32)), make_batch()
    assert [term.name for term in objective.terms] == ["mlm", "next_sentence"]
    assert set(objective.denominators(batch)) == {"mlm", "next_sentence"}

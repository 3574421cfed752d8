"""Objectives of words: skip-gram, GloVe, boundaries of spans, left to right."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_bert
import pytest
import small_finetuning
from model_variants import variant
from small_model import FLOAT32, SMALL, compiled, encode, make_batch, perturbed
from small_pretraining import finetune
from synthetic_store import SyntheticStore, make_examples, random_documents

import bert_jax
from bert_jax.config import ComputeConfig, Config, DataConfig, DisentangledConfig, ModelConfig, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.config.objective import GloVe, GloVeConfig, LeftToRight, MaskedWords, SkipGram, SkipGramConfig
from bert_jax.console import load_config, parse
from bert_jax.data.masking import NextWords
from bert_jax.data.neighbours import NeighbourCounts, NeighbourWindows
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import PRETRAINING_PARTS, SPAN_PLACES, bert_parameters, pretraining_parts
from bert_jax.models.costs import (
    parameter_counts,
    run_activation_bytes,
    run_flops,
    trained_parameters,
    training_flops,
)
from bert_jax.models.heads import SpanBoundaries
from bert_jax.models.layers import PackedTexts
from bert_jax.objectives.masked_words import PretrainingObjective
from bert_jax.objectives.objective import mean_loss, training_metrics
from bert_jax.objectives.static_vectors import WordVectors
from bert_jax.parameters import check_complete, entries
from bert_jax.pretraining import default_objective
from bert_jax.randomness import Stream, bits, integers
from bert_jax.training.learner import Load, needed_bytes

LENGTH, VOCABULARY, NEGATIVES = 12, 20, 3
SIZES = ModelConfig(vocab_size=VOCABULARY, hidden_size=8, max_position_embeddings=32, hidden_dropout=0.0)
SIZES = variant(SIZES, layer="none")
CONFIG = Config(
    model=SIZES,
    objective=SkipGram(static_vectors=SkipGramConfig(negatives=NEGATIVES)),
    data=DataConfig(sentence_pairs="none"),
    phases=(PhaseConfig(sequence_length=LENGTH, batch_size=2),),
)


@pytest.fixture(scope="module")
def model():
    return WordVectors(SIZES)


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
        (lambda: {"model": variant(SIZES, layer="lstm", num_layers=1)}, "would see the neighbours .* model.layer=none"),
        (
            lambda: {"model": variant(SIZES, layer="lstm", num_layers=0)},
            "would see the neighbours .* model.layer=none",
        ),
        (lambda: {"model": variant(SIZES, num_layers=2)}, "model.num_layers=2 belongs to .*, not to model.layer=none"),
        (lambda: {"model": variant(SIZES, feed_forward="geglu")}, "model.feed_forward=geglu belongs to .*layer=none"),
        (
            lambda: {"model": variant(SIZES, disentangled=DisentangledConfig(terms="c2p"))},
            "model.disentangled.terms=c2p belongs to model.layer=transformer, not to model.layer=none",
        ),
        (lambda: {"phases": (PhaseConfig(sequence_length=5),)}, "window=5 is not shorter than the rows"),
        (lambda: {"objective": SkipGram(static_vectors=SkipGramConfig(window=0))}, "window=0 must be positive"),
        (
            lambda: {"objective": SkipGram(static_vectors=SkipGramConfig(subsampling=1.0))},
            "subsampling=1.0 must be a share",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check(dataclasses.replace(CONFIG, **changes()))


def test_loaded_embedded_and_fine_tuned_on_the_mean_of_a_text(tmp_path):
    home = small_finetuning.write(tmp_path, dataclasses.replace(SIZES, hidden_size=32, initializer_range=0.3))
    model = bert_jax.load(home / "pretrained")
    text = "the gardener waters a rose"
    words = np.asarray(model.params["embeddings"]["word"]["table"])
    ids = model.tokenizer.encode(text)
    np.testing.assert_allclose(model.embed([text])[0], words[ids].mean(axis=0), rtol=1e-5, atol=1e-6)
    config = small_finetuning.run_config(home, tmp_path / "task", learning_rate=2e-2, epochs=4)
    assert finetune(config).results["metrics"]["accuracy"] > 0.9
    trained = np.asarray(bert_jax.load(tmp_path / "task").params["embeddings"]["word"]["table"])
    specials = [model.tokenizer.cls_id, model.tokenizer.sep_id]
    turned = lambda ids: (trained[ids] / words[ids]).std(axis=1)  # weight decay shortens a vector, a gradient turns it
    assert turned(specials).max() < 1e-6 and turned(ids).min() > 1e-2


GLOVE_VOCABULARY, WINDOW, GLOVE_LENGTH = 12, 3, 10
GLOVE_SIZES = dataclasses.replace(SIZES, vocab_size=GLOVE_VOCABULARY, max_position_embeddings=64)
GLOVE_CONFIG = Config(
    model=GLOVE_SIZES,
    objective=GloVe(static_vectors=GloVeConfig(window=WINDOW, maximum_count=4.0)),
    data=DataConfig(sentence_pairs="none"),
    phases=(PhaseConfig(sequence_length=GLOVE_LENGTH, batch_size=2),),
)


class Matrix:
    """Counts of the pairs of rows of ids, as `PairCounts` gives those of a store."""

    def __init__(self, rows):
        self.cells = np.zeros((GLOVE_VOCABULARY, GLOVE_VOCABULARY))
        self.counted = GloVeConfig(window=WINDOW)
        for row in rows:
            for place, first in enumerate(row):
                for distance, second in enumerate(row[place + 1 : place + 1 + WINDOW], 1):
                    self.cells[first, second] += 1 / distance
                    self.cells[second, first] += 1 / distance

    def of(self, first, second):
        return self.cells[first, second].astype(np.float32)


def batch_of(texts, matrix, length=GLOVE_LENGTH):
    """Rows of [CLS], a text and [SEP], as the pipeline makes them."""
    ids = np.zeros((len(texts), length), np.int32)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text) + 2] = [2, *text, 3]
    made = NeighbourCounts(matrix, 0)(ids, ids > 3, (ids > 0).sum(1), np.zeros(len(texts), np.uint64))
    return made | {"token_type_ids": np.zeros_like(ids)}


@pytest.fixture(scope="module")
def texts_of_glove():
    random = np.random.default_rng(0)
    return [random.integers(4, GLOVE_VOCABULARY, size).tolist() for size in (8, 5, 8)]


@pytest.fixture(scope="module")
def model_of_glove():
    return WordVectors(GLOVE_SIZES, options=GLOVE_CONFIG.objective)


@pytest.fixture(scope="module")
def params_of_glove(model_of_glove):
    params = jax.jit(model_of_glove.init)(jax.random.key(0))
    return jax.tree.map(lambda x: np.random.default_rng(x.size).normal(0, 0.5, x.shape).astype(np.float32), params)


def by_cells(params, cells):
    """Return the paper's sum over cells, the sum of its weights, and the gradients of tables and biases, in float64."""
    words, contexts = (np.float64(e) for e in (params["embeddings"]["word"]["table"], params["contexts"]["table"]))
    centers, neighbours = (np.float64(params["context_biases"][name]) for name in ("center", "neighbour"))
    there = cells > 0
    weights = np.where(there, np.minimum((cells / 4.0) ** 0.75, 1), 0)
    errors = words @ contexts.T + centers[:, None] + neighbours[None] - np.log(np.where(there, cells, 1))
    slopes = 2 * weights * errors
    gradients = slopes @ contexts, slopes.T @ words, slopes.sum(1), slopes.sum(0)
    return (weights * errors**2).sum(), weights.sum(), gradients


def test_over_a_corpus_it_is_the_sum_over_cells_of_the_paper(model_of_glove, params_of_glove, texts_of_glove):
    matrix, objective = Matrix(texts_of_glove), default_objective(model_of_glove, GLOVE_CONFIG)
    batch = batch_of(texts_of_glove, matrix)
    sums = jax.jit(lambda params: objective.sums(params, batch)["glove"])
    gradient = jax.jit(jax.grad(lambda params: sums(params).loss))(params_of_glove)
    loss, weight, expected = by_cells(params_of_glove, matrix.cells)
    np.testing.assert_allclose(sums(params_of_glove)[:2], [loss, weight], rtol=1e-5)
    np.testing.assert_allclose(float(objective.denominators(batch)["glove"]), weight, rtol=1e-5)
    found = [gradient["embeddings"]["word"]["table"], gradient["contexts"]["table"]]
    found += [gradient["context_biases"][name] for name in ("center", "neighbour")]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


def test_texts_that_share_a_row_are_not_neighbours(model_of_glove, params_of_glove, texts_of_glove):
    matrix, objective = Matrix(texts_of_glove), default_objective(model_of_glove, GLOVE_CONFIG)
    row = np.array([[id for text in texts_of_glove for id in (2, *text, 3)] + [0, 0]], np.int32)
    made = NeighbourCounts(matrix, 0)(row, row > 3, (row > 0).sum(1), np.zeros(1, np.uint64))
    found = jax.jit(objective.sums)(params_of_glove, made | {"token_type_ids": np.zeros_like(row)})["glove"]
    np.testing.assert_allclose(found[:2], by_cells(params_of_glove, matrix.cells)[:2], rtol=1e-5)


def test_pairs_that_were_never_counted_and_padding_have_no_weight(model_of_glove, params_of_glove, texts_of_glove):
    nothing = batch_of(texts_of_glove, Matrix([]))
    sums = jax.jit(default_objective(model_of_glove, GLOVE_CONFIG).sums)(params_of_glove, nothing)["glove"]
    assert float(sums.loss) == float(sums.weight) == 0
    matrix = Matrix(texts_of_glove)
    wide, narrow = (batch_of(texts_of_glove, matrix, length) for length in (GLOVE_LENGTH + 6, GLOVE_LENGTH))
    found = [
        jax.jit(default_objective(model_of_glove, GLOVE_CONFIG).sums)(params_of_glove, batch)["glove"][:2]
        for batch in (wide, narrow)
    ]
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_the_model_has_two_tables_and_two_biases(params_of_glove):
    assert sum(x.size for x in jax.tree.leaves(params_of_glove)) == 2 * GLOVE_VOCABULARY * 8 + 2 * GLOVE_VOCABULARY


@pytest.mark.parametrize("config, drawn, size", [(CONFIG, 64, 2 * 20 * 8), (GLOVE_CONFIG, 0, 2 * 12 * 8 + 2 * 12)])
def test_costs_of_static_vectors_are_counted_alike_with_and_without_the_model(config, drawn, size):
    """By hand: the products of all words of a row with each other and, in skip-gram, with 64 that are drawn; three
    arrays of scores, in float32, and the vectors of the other words, in bfloat16; state and copies of all numbers."""
    network = BertForPreTraining(config.model, parts=pretraining_parts(config.model, config.objective))
    model, length = default_objective(network, config).model, config.phases[0].sequence_length
    assert model.parameters == trained_parameters(config.model, config.objective)
    assert check_complete(model.parameters, jax.eval_shape(model.init, jax.random.key(0))) is None
    flops = run_flops(config.model, config.objective, length, length).total
    assert model.training_flops(length, length) == flops == 3 * 2 * 8 * (length**2 + drawn * length)
    kept = run_activation_bytes(config.model, config.objective, length, length, "none")
    assert kept.heads == 3 * 4 * length * (length + 64) + 2 * 8 * (length + 64)
    load = Load(memory_bytes=None, moments=2, sequence_length=length, predictions=length, rows=3, split=1)
    found = needed_bytes(model, ComputeConfig(layers="scan", dtype="bfloat16"), load, "none")
    assert found == (4 * 4 + 2 * 2) * size + 3 * kept.total


@pytest.mark.parametrize(
    "option, message",
    [("maximum_count=0", "maximum_count=0 must be positive"), ("count_power=2", "count_power=2 from 0 to 1")],
)
def test_bad_options_are_refused(option, message):
    with pytest.raises(UserError, match=message):
        check(parse(GLOVE_CONFIG, [f"--objective.static_vectors.{option}"], "pretrain"))


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
def params_of_span_boundary():
    return perturbed(BertForPreTraining(SMALL, FLOAT32, PARTS))


@pytest.mark.parametrize("products", ["plain", pytest.param("cpu", marks=pytest.mark.slow)])
def test_loss_equals_the_transcription(params_of_span_boundary, products):
    config = dataclasses.replace(SMALL, activation="gelu_erf")
    model = BertForPreTraining(config, ComputeConfig(dtype="float32", products=products), PARTS)
    objective, batch = PretrainingObjective(model, WEIGHTS), hand_made_batch()
    logits = compiled(lambda p: model.word_logits(p, batch, "span_boundary"))(params_of_span_boundary)
    batch["masked_ids"][0, 0] = np.argmax(logits[0, 0])  # one of them right
    losses, right = losses_by_hand(params_of_span_boundary, config, batch)
    sums = compiled(lambda p: objective.sums(p, batch))(params_of_span_boundary)
    assert float(sums["span_boundary"].loss) == pytest.approx(losses.sum(), rel=2e-6)
    assert float(sums["span_boundary"].weight) == len(losses) == 11
    assert float(sums["span_boundary"].correct) == right.sum() >= 1
    metrics = training_metrics(objective.terms, sums, objective.denominators(batch))
    assert float(metrics["span_boundary_loss"]) == pytest.approx(losses.mean(), rel=2e-6)
    both = float(metrics["mlm_loss"]) + 2 * float(metrics["next_sentence_loss"])
    assert float(metrics["loss"]) == pytest.approx(both + losses.mean() / 2, rel=1e-6)


def test_gradients_are_those_of_the_transcription(params_of_span_boundary):
    """Along a random direction in every array, by central differences in float64."""
    batch = hand_made_batch()
    model = BertForPreTraining(SMALL, FLOAT32, PARTS)
    objective = PretrainingObjective(model, MaskedWords(mlm_weight=0, sentence_pair_weight=0, span_boundary_weight=1))
    loss = lambda p: mean_loss(objective.terms, objective.sums(p, batch), objective.denominators(batch))
    gradients = compiled(jax.grad(loss))(params_of_span_boundary)
    random = np.random.default_rng(1)
    for part in (("span_boundary",), ("embeddings", "word"), ("encoder", "attention")):
        there = lambda path: tuple(entry.key for entry in path)[: len(part)] == part
        drawn = lambda path, leaf: random.standard_normal(leaf.shape) if there(path) else np.zeros(leaf.shape)
        step = jax.tree.map_with_path(drawn, params_of_span_boundary)
        wide, size = numpy_bert.as_float64(params_of_span_boundary), 1e-5
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
    parts = pretraining_parts(config.model, config.objective)
    model = BertForPreTraining(dataclasses.replace(config.model, vocab_size=words), parts=parts)
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


CLS, SEP, LEFT_TO_RIGHT_LENGTH, LEFT_TO_RIGHT_VOCABULARY = 2, 3, 12, 50
LEFT_TO_RIGHT_SIZES = variant(
    ModelConfig(vocab_size=LEFT_TO_RIGHT_VOCABULARY, hidden_size=16, num_layers=2, num_heads=2, pair_head=False),
    **{"intermediate_size": 32, "max_position_embeddings": LEFT_TO_RIGHT_LENGTH, "type_vocab_size": 0},
    direction="left_to_right",
)
PAIRS = dataclasses.replace(LEFT_TO_RIGHT_SIZES, type_vocab_size=2, pair_head=True)
LEFT_TO_RIGHT_CONFIG = Config(
    model=LEFT_TO_RIGHT_SIZES,
    objective=LeftToRight(),
    data=DataConfig(sentence_pairs="none"),
    phases=(PhaseConfig(sequence_length=LEFT_TO_RIGHT_LENGTH, batch_size=2),),
)


@pytest.fixture(scope="module")
def text():
    """[CLS], seven words and [SEP]."""
    words = np.random.default_rng(0).integers(5, LEFT_TO_RIGHT_VOCABULARY, 7)
    return np.array([CLS, *words, SEP], np.int32)


@pytest.fixture(scope="module")
def model_of_left_to_right():
    return BertForPreTraining(LEFT_TO_RIGHT_SIZES, parts=("mlm", "pooler"))


@pytest.fixture(scope="module")
def params_of_left_to_right(model_of_left_to_right):
    return perturbed(model_of_left_to_right)


def row(*texts) -> dict[str, np.ndarray]:
    """Return a row of several texts as a batch of one, with what `NextWords` makes of it."""
    ids, numbers = np.zeros((1, LEFT_TO_RIGHT_LENGTH), np.int32), np.zeros((1, LEFT_TO_RIGHT_LENGTH), np.int32)
    starts, place = [], 0
    for number, each in enumerate(texts, 1):
        ids[0, place : place + len(each)], numbers[0, place : place + len(each)] = each, number
        starts.append(place)
        place += len(each)
    batch = NextWords(LEFT_TO_RIGHT_LENGTH - 1, CLS)(ids, ids > 4, np.array([place]), np.zeros(1, np.uint64))
    real = (np.arange(LEFT_TO_RIGHT_LENGTH) < place)[None].astype(np.int32)
    batch |= {"attention_mask": real, "token_type_ids": 0 * ids}
    return batch if len(texts) == 1 else batch | {"text_ids": numbers, "text_starts": np.array([starts], np.int32)}


def test_every_token_but_the_first_of_a_text_is_predicted_at_the_place_before_it():
    batch = row([CLS, 10, 11, SEP], [CLS, 12, 13, 14, SEP])
    used = batch["masked_weights"][0] > 0
    pairs = list(zip(batch["masked_positions"][0, used], batch["masked_ids"][0, used], strict=True))
    assert pairs == [(0, 10), (1, 11), (2, SEP), (4, 12), (5, 13), (6, 14), (7, SEP)]
    np.testing.assert_array_equal(batch["input_ids"][0, :9], [CLS, 10, 11, SEP, CLS, 12, 13, 14, SEP])


def test_the_loss_is_that_of_each_word_given_its_prefix_alone(model_of_left_to_right, params_of_left_to_right, text):
    batch = row(text)
    model, params = model_of_left_to_right, params_of_left_to_right
    found = compiled(default_objective(model, LEFT_TO_RIGHT_CONFIG).sums)(params, batch)["next_word"]

    @compiled
    def shares(ids, mask, place):
        encoded = model.encode(params, ids, jnp.zeros_like(ids), mask)
        return jax.nn.log_softmax(model.mlm_logits(params, {"masked_positions": place[None, None]}, encoded)[0, 0])

    total = 0.0
    for place in range(1, len(text)):
        ids, mask = np.zeros((1, LEFT_TO_RIGHT_LENGTH), np.int32), np.zeros((1, LEFT_TO_RIGHT_LENGTH), np.int32)
        ids[0, :place], mask[0, :place] = text[:place], 1  # nothing of what comes later is in the row
        total -= float(np.asarray(shares(ids, mask, np.int32(place - 1)))[text[place]])
    assert float(found.weight) == len(text) - 1
    np.testing.assert_allclose(float(found.loss), total, rtol=1e-5)


def test_packed_texts_are_computed_as_if_alone(model_of_left_to_right, params_of_left_to_right, text):
    model, params = model_of_left_to_right, params_of_left_to_right
    objective, names = default_objective(model, LEFT_TO_RIGHT_CONFIG), ("input_ids", "token_type_ids", "attention_mask")
    first, second = text[[0, 1, 2, -1]], text[[0, 3, 4, 5, -1]]

    @compiled
    def measured(batch):
        encoded = model.encode(params, *map(batch.get, names), texts=PackedTexts.of(batch))
        return objective.sums(params, batch)["next_word"].loss, encoded.pooled

    loss, pooled = measured(row(first, second))
    alone = [measured(row(each)) for each in (first, second)]
    np.testing.assert_allclose(loss, sum(each for each, _ in alone), rtol=1e-5)
    for place, (_, expected) in enumerate(alone):
        np.testing.assert_allclose(pooled[0, place], expected[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pad_left", [False, True])
def test_the_pooler_reads_the_last_real_token(model_of_left_to_right, params_of_left_to_right, text, pad_left):
    padding = np.zeros(LEFT_TO_RIGHT_LENGTH - len(text), np.int32)
    ids = np.concatenate([padding, text] if pad_left else [text, padding])[None]
    batch = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": np.int32(ids > 0)}
    output = encode(model_of_left_to_right, params_of_left_to_right, batch)
    last = LEFT_TO_RIGHT_LENGTH - 1 if pad_left else len(text) - 1
    pooler = params_of_left_to_right["pooler"]
    expected = np.tanh(output.last_hidden_state[0, last] @ pooler["kernel"] + pooler["bias"])
    np.testing.assert_allclose(output.pooled[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": variant(LEFT_TO_RIGHT_SIZES, direction="both")}, "would see the answer; set model.direction"),
        ({"data": DataConfig(), "model": PAIRS}, "set data.sentence_pairs"),
        ({"phases": (PhaseConfig(sequence_length=8, max_predictions=2),)}, "phases.0.max_predictions=2 has no effect"),
    ],
)
def test_what_would_leak_or_be_ignored_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check(dataclasses.replace(LEFT_TO_RIGHT_CONFIG, **changes))

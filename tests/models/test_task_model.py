"""Models of tasks: heads, texts that share rows, and CRFs.

All are float32 without dropout. Places and rows without a text take part, and must change nothing.
"""

import dataclasses
import functools
import itertools
import math

import jax
import numpy as np
import numpy_bert
import pytest
from flax import nnx
from model_variants import variant
from processes import EXHAUSTIVE
from scipy.special import log_softmax
from small_model import FLOAT32, compiled, perturbed

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.config.objective import TaskDistillationConfig
from bert_jax.console import load_config
from bert_jax.data.sequences import Features, filled, padded, shared_rows
from bert_jax.errors import UserError
from bert_jax.models import task
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.protocol import structure
from bert_jax.models.task import BertForTask
from bert_jax.objectives import tasks
from bert_jax.objectives.distillation import TaughtTaskObjective
from bert_jax.objectives.objective import mean_loss
from bert_jax.objectives.tasks import TaskObjective

SMALL = ModelConfig(
    vocab_size=31, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24, max_position_embeddings=16
)
HEADS = {
    "classification": HeadConfig(labels=("no", "yes", "perhaps"), dropout=0.3),
    "regression": HeadConfig(kind="regression"),
    "span": HeadConfig(kind="span"),
    "choice": HeadConfig(kind="choice"),
    "tagging": HeadConfig(kind="tagging", labels=("O", "B", "I", "X"), crf=True),
}


def make_batch(shape):
    """Random ids with padding at the end of the later rows."""
    random = np.random.default_rng(0)
    lengths = np.resize([shape[-1], shape[-1] - 3, shape[-1] - 5], shape[:-1])[..., None]
    column = np.broadcast_to(np.arange(shape[-1]), shape)
    return {
        "input_ids": random.integers(0, SMALL.vocab_size, shape).astype(np.int32),
        "token_type_ids": ((column >= 4) & (column < lengths)).astype(np.int32),
        "attention_mask": (column < lengths).astype(np.int32),
    }


@pytest.mark.parametrize("kind", HEADS)
def test_scores_equal_the_numpy_model_with_an_affine_map_on_it(kind):
    model = BertForTask(SMALL, HEADS[kind], FLOAT32)
    shape = (3, 2, 9) if kind == "choice" else (3, 9)
    batch = make_batch(shape)
    params = perturbed(model)
    # The NumPy model computes the pre-training heads as well; what they hold does not matter here.
    rest = perturbed(BertForPreTraining(SMALL))
    flat = {name: value.reshape(-1, shape[-1]) for name, value in batch.items()}
    flat["masked_positions"] = np.zeros((math.prod(shape[:-1]), 1), int)
    below = numpy_bert.forward(rest | {k: v for k, v in params.items() if k not in ("head", "crf")}, SMALL, flat)
    read = below["last_hidden_state"] if kind in ("span", "tagging") else below["pooled"]
    expected = read @ params["head"]["kernel"].astype(np.float64) + params["head"]["bias"]
    ours = np.asarray(jax.jit(model.apply)(params, batch))
    assert ours.dtype == np.float32
    shapes = {"classification": (3, 3), "regression": (3,), "choice": (3, 2), "span": (3, 9, 2), "tagging": (3, 9, 4)}
    np.testing.assert_allclose(ours, expected.reshape(shapes[kind]), atol=2e-5)


@pytest.mark.parametrize(
    "head, expected",
    [
        (HeadConfig(labels=("0", "1")), 109_483_778),
        (HeadConfig(labels=("a", "b", "c")), 109_484_547),
        (HeadConfig(kind="span"), 108_893_186),
    ],
)
def test_parameter_counts_of_the_published_classes_of_base(head, expected):
    """Of BertForSequenceClassification with 2 and 3 labels and BertForQuestionAnswering (which has no pooler)."""
    shapes = jax.eval_shape(BertForTask(ModelConfig(vocab_size=30_522), head).init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == expected


def test_fresh_parameters_are_the_encoder_s_with_the_head_and_an_indifferent_crf():
    init = BertForTask(SMALL, HEADS["tagging"]).init
    paths = leaf_paths(jax.eval_shape(init, jax.random.key(0)))
    assert not any(path.startswith(("pooler", "mlm", "next_sentence")) for path in paths)
    assert {path: leaf.shape for path, leaf in paths.items() if path.startswith(("head", "crf"))} == {
        "head/kernel": (16, 4),
        "head/bias": (4,),
        "crf/transitions": (4, 4),
        "crf/start": (4,),
        "crf/end": (4,),
    }
    head, crf = jax.jit(lambda key: [init(key)[part] for part in ("head", "crf")])(jax.random.key(0))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(crf)) and 0.01 < np.std(head["kernel"]) < 0.03


def test_dropout_reaches_what_the_head_reads():
    config = dataclasses.replace(SMALL, hidden_dropout=0.0, attention_dropout=0.0)
    batch = make_batch((3, 9))
    model = BertForTask(config, HEADS["classification"], FLOAT32)
    params = perturbed(model)
    apply = jax.jit(model.apply)
    plain, dropped, again, other = (
        np.asarray(apply(params, batch, key)) for key in (None, *map(jax.random.key, (0, 0, 1)))
    )
    np.testing.assert_array_equal(dropped, again)
    assert np.abs(dropped - plain).max() > 1e-3 and np.abs(dropped - other).max() > 1e-3


@pytest.mark.parametrize("head, message", [(HeadConfig(), "labels"), (HeadConfig(kind="span", crf=True), "tagging")])
def test_a_head_that_cannot_be_is_refused(head, message):
    with pytest.raises(UserError, match=message):
        BertForTask(SMALL, head)


def logits_of(*shape):
    return (3 * np.random.default_rng(2).standard_normal(shape)).astype(np.float32)


WEIGHTS = np.array([1, 1, 1, 0], np.float32)  # the last row only fills the batch


def test_classification_loss_is_the_mean_cross_entropy_of_the_real_rows():
    logits, labels = logits_of(4, 3), np.array([2, 0, 1, 1], np.int32)
    sums = compiled(tasks.classification_sums)(logits, labels, WEIGHTS)
    expected = -log_softmax(logits.astype(float), axis=1)[np.arange(3), labels[:3]]
    np.testing.assert_allclose(sums.loss / sums.weight, expected.mean(), rtol=1e-6)
    assert sums.correct == (logits[:3].argmax(1) == labels[:3]).sum() and sums.weight == 3


def test_regression_loss_is_the_mean_squared_error_of_the_real_rows():
    predictions, labels = logits_of(4), np.array([0.5, 2.0, 5.0, 99.0], np.float32)
    sums = compiled(tasks.regression_sums)(predictions, labels, WEIGHTS)
    np.testing.assert_allclose(sums.loss / sums.weight, np.square(predictions - labels)[:3].mean(), rtol=1e-6)


def test_span_loss_is_the_mean_of_both_ends_and_knows_no_padding():
    logits, mask = logits_of(4, 7, 2), np.array([[1] * 7, [1] * 5 + [0] * 2, [1] * 6 + [0], [1] * 7], np.int32)
    # The third answer ends beyond its window's six tokens.
    labels = np.array([[2, 4], [0, 0], [5, 6], [1, 1]], np.int32)
    sums = compiled(tasks.span_sums)(logits, labels, mask, WEIGHTS)
    ends = [
        -log_softmax(logits[row, : mask[row].sum(), end].astype(float))[labels[row, end]]
        for row, end in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0))
    ]
    np.testing.assert_allclose(sums.loss / sums.weight, np.mean(ends), rtol=1e-6)
    wider = ((0, 0), (0, 3))
    longer = compiled(tasks.span_sums)(np.pad(logits, (*wider, (0, 0))), labels, np.pad(mask, wider), WEIGHTS)
    np.testing.assert_allclose(longer, sums, rtol=1e-6)


def test_tagging_loss_is_the_mean_over_first_pieces_of_the_real_rows():
    logits = logits_of(4, 5, 3)
    labels = np.array([[-1, 2, -1, 0, -1], [-1, 1, 1, -1, -1], [-1] * 5, [0] * 5], np.int32)
    sums = compiled(tasks.tagging_sums)(logits, labels, WEIGHTS)
    where = [(0, 1), (0, 3), (1, 1), (1, 2)]
    np.testing.assert_allclose(
        sums.loss / sums.weight,
        np.mean([-log_softmax(logits[at].astype(float))[labels[at]] for at in where]),
        rtol=1e-6,
    )
    assert sums.weight == 4 and sums.correct == sum(logits[at].argmax() == labels[at] for at in where)


TEXTS, LONGEST, PLACES = 11, 13, 5
CLASSES = HeadConfig(labels=("a", "b", "c"))
CASES = {
    **dict.fromkeys(("bert_mini", "albert_mini", "roberta_mini", "spanbert_mini", "distilbert_mini"), CLASSES),
    **dict.fromkeys(("electra_mini", "mosaicbert_base", "neobert", "deberta_mini", "deberta_v3_mini"), CLASSES),
    **dict.fromkeys(("xlnet_mini", "gpt_mini", "elmo_mini", "ulmfit_mini", "glove_mini", "modernbert_mini"), CLASSES),
    "modernbert_mini, mean": dataclasses.replace(CLASSES, pooling="mean"),
    "modernbert_mini, number": HeadConfig(kind="regression"),
    **dict.fromkeys(("modernbert_mini, global", "modernbert_mini, scan"), CLASSES),
    "bert_mini, features": dataclasses.replace(CLASSES, features="weighted_with_embeddings", lstm_size=7),
    "modernbert_mini, features": dataclasses.replace(CLASSES, features="last", lstm_size=7, train_encoder=True),
}
CORE = ("modernbert_mini, mean", "bert_mini, features")
MECHANISMS = {
    "modernbert_mini": "a layer before the head, whose scores a core test compares below",
    "roberta_mini": "positions that begin behind a padding id",
    "mosaicbert_base": "distances in place of positions",
    "deberta_v3_mini": "disentangled attention",
    "xlnet_mini": "relative positions, and a summary at the end",
    "gpt_mini": "left to right",
    "elmo_mini": "recurrent in both directions",
    "glove_mini": "no layers",
    "modernbert_mini, number": "a number in place of classes",
    "modernbert_mini, global": "global tokens",
    "modernbert_mini, scan": "layers in a scan",
}
"""What some cases alone show; the others are composed of the same."""


def model_of(case: str) -> BertForTask:
    """The form of the preset in small."""
    preset, _, way = case.partition(", ")
    form = load_config(preset).model
    sizes = {"vocab_size": 41, "hidden_size": 16, "num_layers": min(2, form.num_layers), "num_heads": 2}
    sizes |= {"intermediate_size": 24, "embedding_size": form.embedding_size and 8, "max_position_embeddings": 64}
    model = dataclasses.replace(form, **{name: size for name, size in sizes.items() if name in vars(form)})
    if form.window is not None:
        model = variant(model, local_window=3, global_every=2, global_tokens=2 if way == "global" else 0)
    compute = dataclasses.replace(FLOAT32, layers="scan") if way == "scan" else FLOAT32
    return BertForTask(model, CASES[case], compute)


def batches(model: BertForTask):
    """The same texts alone and in shared rows, and the row and place of each there."""
    random = np.random.default_rng(2)
    lengths = random.integers(3, LONGEST + 1, TEXTS)
    ids = [random.integers(2, 41, length).astype(np.int32) for length in lengths]
    second = model.config.type_vocab_size > 1
    types = [(second * (np.arange(length) > length // 2)).astype(np.int32) for length in lengths]
    labels = random.integers(0, 3, TEXTS) if model.head.labels else random.normal(size=TEXTS)
    features = Features(ids, types, labels.astype(np.int32 if model.head.labels else np.float32), np.arange(TEXTS), 16)
    row, start = shared_rows(lengths, 24, PLACES)
    place = np.array([np.sum(row[:number] == row[number]) for number in range(TEXTS)])
    assert place.max() > 1
    shape = (int(row.max()) + 2, 24)  # the last row has no text
    return (
        padded(features, np.arange(TEXTS), TEXTS),
        filled(features, np.arange(TEXTS), row, start, shape, PLACES),
        (row, place),
    )


@pytest.mark.parametrize(
    "case",
    [
        *CORE,
        *(pytest.param(case, marks=pytest.mark.slow, id=f"{case}: {shows}") for case, shows in MECHANISMS.items()),
        *(pytest.param(c, marks=pytest.mark.slow) for c in CASES if EXHAUSTIVE and c not in {*CORE, *MECHANISMS}),
    ],
)
def test_scores_losses_and_gradients_are_those_of_the_texts_alone(case):
    model = model_of(case)
    objective = TaskObjective(model)

    def loss(params, batch):
        scores = model.apply(params, batch)
        sums = {objective.terms[0].name: objective.sums_of_scores(params, batch, scores)}
        return mean_loss(objective.terms, sums, objective.denominators(batch)), scores

    params, measured = perturbed(model), compiled(jax.value_and_grad(loss, has_aux=True))
    alone, shared, place = batches(model)
    (expected, scores), gradients = measured(params, alone)
    (found, in_places), shared_gradients = measured(params, shared)
    assert in_places.shape[:2] == shared["weights"].shape
    np.testing.assert_allclose(in_places[place], scores, atol=5e-5)
    assert np.std(scores, axis=0).min() > 1e-3  # texts differ, so that one read in place of another shows
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=5e-6), shared_gradients, gradients)


@pytest.mark.parametrize("direction", ["both", "left_to_right"])
def test_a_head_with_a_layer_reads_the_token_that_has_seen_the_text(direction):
    """The scores of a text are those that a tagger with the same arrays has for that token, in rows of any form."""
    model = model_of("modernbert_mini")
    model = dataclasses.replace(model, config=dataclasses.replace(model.config, direction=direction))
    tagger = dataclasses.replace(model, head=dataclasses.replace(CLASSES, kind="tagging"))
    params, (alone, shared, place) = perturbed(model), batches(model)
    of_texts, of_tokens = (compiled(each.apply) for each in (model, tagger))
    read = np.zeros(TEXTS, int) if direction == "both" else alone["attention_mask"].sum(axis=1) - 1
    expected = np.asarray(of_tokens(params, alone))[np.arange(TEXTS), read]
    np.testing.assert_allclose(of_texts(params, alone), expected, atol=1e-6)
    np.testing.assert_allclose(np.asarray(of_texts(params, shared))[place], expected, atol=5e-5)


@pytest.mark.slow
def test_a_teacher_with_another_kind_of_head_reads_shared_rows_too():
    student, teacher = model_of("bert_mini"), model_of("modernbert_mini, mean")
    options = TaskDistillationConfig(teacher="there", temperature=2.0)
    objective = TaughtTaskObjective(student, teacher, options, perturbed(teacher, 1))
    params, measured = perturbed(student), compiled(objective.sums)
    alone, shared, _ = batches(student)
    expected, found = measured(params, alone), measured(params, shared)
    assert expected.keys() == found.keys() == {"labels", "teacher"}
    for name, sums in expected.items():
        np.testing.assert_allclose(found[name].loss, sums.loss, rtol=1e-5)
        np.testing.assert_allclose(found[name].weight, sums.weight)


NAMES = ("O", "B-X", "I-X", "I-Y")
BATCH, LENGTH, LABELS = 6, 7, len(NAMES)
SENTENCES = (
    [(2, True, True), (3, True, True)],
    [],
    [(1, True, True)],
    [(1, True, True), (1, True, False)],
    [(4, False, False)],
    [(3, False, True), (1, True, True), (3, True, False)],
)
"""Of each row: (words, whether the sentence begins there, whether it ends there)."""
STRUCTURE = structure(lambda: task.ConditionalRandomField(LABELS))


@jax.jit
def loss(params, *rows):
    return nnx.merge(STRUCTURE, params).negative_log_likelihood(*rows)


@functools.partial(jax.jit, static_argnames="names")
def best_paths(params, *rows, names=None):
    return nnx.merge(STRUCTURE, params).best_paths(*rows, names)


def example(seed=0):
    """Parameters; and logits, labels, first, last of rows of 5, 0, 1, 2, 4 and 7 words at any positions in the row.

    Rows have several sentences, and parts of sentences at either end.
    """
    random = np.random.default_rng(seed)
    params = {
        "transitions": random.standard_normal((LABELS, LABELS)),
        "start": random.standard_normal(LABELS),
        "end": random.standard_normal(LABELS),
    }
    logits = 2 * random.standard_normal((BATCH, LENGTH, LABELS))
    labels = np.full((BATCH, LENGTH), -1, np.int32)
    for row, words in enumerate((5, 0, 1, 2, 4, 7)):
        places = np.sort(random.permutation(LENGTH)[:words])
        labels[row, places] = random.integers(0, LABELS, words)
    first, last = random.random((2, BATCH, LENGTH)) < 0.5  # where there is no label, what they are must not matter
    for row, sentences in enumerate(SENTENCES):
        places, ends = np.flatnonzero(labels[row] >= 0), np.cumsum([size for size, _, _ in sentences], dtype=int)
        first[row, places], last[row, places] = False, False
        for (size, begins, finishes), end in zip(sentences, ends):
            first[row, places[end - size]], last[row, places[end - 1]] = begins, finishes
    return (
        {name: value.astype(np.float32) for name, value in params.items()},
        (logits.astype(np.float32), labels, first, last),
    )


def cut(path, sentences):
    """The parts of a path, each with whether it begins its sentence and whether it ends it."""
    words = iter(path)
    return [(tuple(itertools.islice(words, size)), begins, finishes) for size, begins, finishes in sentences]


def path_score(params, emissions, path, sentences):
    score = sum(emissions[t, label] for t, label in enumerate(path))
    for part, begins, finishes in cut(path, sentences):
        score += sum(params["transitions"][a, b] for a, b in itertools.pairwise(part))
        score += begins * params["start"][part[0]] + finishes * params["end"][part[-1]]
    return score


def all_paths(params, emissions, sentences):
    """{path: score}, float64, of every path through emissions [n, C]."""
    wide = {name: value.astype(np.float64) for name, value in params.items()}
    return {
        path: path_score(wide, emissions.astype(np.float64), path, sentences)
        for path in itertools.product(range(LABELS), repeat=len(emissions))
    }


def allowed(path, sentences):
    """Whether every I-X follows B-X or I-X; what precedes a part that begins inside its sentence is not known."""
    return all(
        not NAMES[label].startswith("I-") or (NAMES[part[t - 1]][1:] == NAMES[label][1:] if t else not begins)
        for part, begins, _ in cut(path, sentences)
        for t, label in enumerate(part)
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_loss_is_minus_the_log_of_the_share_of_the_path(seed):
    params, (logits, labels, first, last) = example(seed)
    losses = loss(params, logits, labels, first, last)
    for found, row, gold, sentences in zip(losses, logits, labels, SENTENCES, strict=True):
        real = gold >= 0
        scores = all_paths(params, row[real], sentences)
        expected = np.logaddexp.reduce(list(scores.values())) - scores[tuple(gold[real])]
        assert float(found) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("seed", [3, 6])
@pytest.mark.parametrize("names", [None, NAMES])
def test_best_path_is_the_best_of_all(names, seed):
    params, (logits, labels, first, last) = example(seed)
    found = np.asarray(best_paths(params, logits, labels, first, last, names=names))
    assert ((found == -1) == (labels == -1)).all()
    free_and_forbidden = 0
    for path, row, gold, sentences in zip(found, logits, labels, SENTENCES, strict=True):
        real = gold >= 0
        scores = all_paths(params, row[real], sentences)
        best = max(scores, key=scores.get)
        free_and_forbidden += not allowed(best, sentences)
        if names:
            best = max((path for path in scores if allowed(path, sentences)), key=scores.get)
        assert tuple(path[real]) == best
    assert free_and_forbidden > 0  # else the constraints had nothing to do


def test_constraints_are_the_rules_of_iob2():
    forbidden = task.constraints(NAMES)
    for first, second in itertools.product(range(LABELS), repeat=2):
        goes_on = NAMES[second].startswith("I-") and NAMES[first] != "O" and NAMES[first][1:] == NAMES[second][1:]
        assert (forbidden["transitions"][first, second] == 0) == (goes_on or not NAMES[second].startswith("I-"))
    assert forbidden["start"].tolist() == [0, 0, task.FORBIDDEN, task.FORBIDDEN]


def test_gradients_equal_finite_differences():
    params, (logits, labels, first, last) = example(3)
    loss_and_gradients = jax.jit(jax.value_and_grad(lambda at: loss(*at, labels, first, last).sum()))
    gradients = loss_and_gradients((params, logits))[1]
    random = np.random.default_rng(0)
    for _ in range(3):
        direction = jax.tree.map(lambda x: random.standard_normal(x.shape).astype(np.float32), (params, logits))
        ahead, behind = (jax.tree.map(lambda x, d: x + step * d, (params, logits), direction) for step in (0.01, -0.01))
        slope = (float(loss_and_gradients(ahead)[0]) - float(loss_and_gradients(behind)[0])) / 0.02
        along = sum(float((g * d).sum()) for g, d in zip(jax.tree.leaves(gradients), jax.tree.leaves(direction)))
        # Float32 sums of about 50 differ by 4e-6 over a step of 0.02.
        assert along == pytest.approx(slope, rel=2e-3, abs=2e-3)
    assert not np.any(np.asarray(gradients[1])[labels < 0])  # pieces without a label have no part in the chain

"""Distillation: losses, maps of states, and tasks."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from pretrained_model import random_params
from scipy.special import log_softmax
from small_model import FLOAT32, SMALL, compiled, encode, loss_and_gradient, make_batch, perturbed
from synthetic_store import SyntheticStore, make_examples
from unpacked_texts import MODEL as PACKED
from unpacked_texts import unpacked

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import HeadConfig, MaskedWords, MeshConfig
from bert_jax.config.objective import DistillationConfig, TaskDistillationConfig
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import PRETRAINING_PARTS
from bert_jax.models.costs import parameter_counts, training_flops
from bert_jax.models.task import BertForTask
from bert_jax.objectives import distillation
from bert_jax.objectives.distillation import DistillationObjective, TaughtTaskObjective, compared_layers
from bert_jax.objectives.masked_words import PretrainingObjective
from bert_jax.objectives.objective import training_metrics
from bert_jax.objectives.tasks import TaskObjective
from bert_jax.parameters import total_size

ORACLE = pathlib.Path(__file__).parents[1] / "oracles" / "distillation_oracle.npz"
PARTS = (*PRETRAINING_PARTS, "span_boundary")
EVERYTHING = DistillationConfig(teacher="there", hidden_weight=1.0, attention_weight=1.0)
STUDENT = dataclasses.replace(SMALL, num_layers=1, type_vocab_size=0, pair_head=False, vocab_pad_multiple=8)


@pytest.fixture(scope="module")
def oracle():
    with np.load(ORACLE) as file:
        return dict(file)


@pytest.mark.parametrize("name", ["soft_targets", "cosine", "hidden", "attention"])
def test_terms_and_gradients_are_those_of_torch(oracle, name):
    weights = oracle["mask"].astype(np.float32)
    pairs = weights[:, :, None] * weights[:, None, :]
    functions = {
        "soft_targets": ("logits", lambda x, y: distillation.loss_sums(x, y, weights, 2.0)),
        "cosine": ("states", lambda x, y: distillation.cosine_sums(x[-1], y[-1], weights)),
        "hidden": ("states", lambda x, y: distillation.hidden_sums(list(x), list(y), weights)),
        "attention": ("maps", lambda x, y: distillation.attention_sums(list(x), list(y), pairs)),
    }
    of, sums = functions[name]
    mean = lambda x: sums(x, oracle[f"teacher_{of}"]).loss / sums(x, oracle[f"teacher_{of}"]).weight
    loss, gradient = compiled(jax.value_and_grad(mean))(jnp.asarray(oracle[of]))
    assert float(loss) == pytest.approx(float(oracle[f"{name}_loss"]), rel=1e-6)
    largest = np.abs(oracle[f"{name}_gradient"]).max()
    np.testing.assert_allclose(gradient, oracle[f"{name}_gradient"], atol=2e-6 * largest)


def taught(student, teacher, params, options, mlm_weight=2.0):
    models = [BertForPreTraining(each, FLOAT32, ("mlm",)) for each in (student, teacher)]
    weights = MaskedWords(mlm_weight=mlm_weight, distillation=options)
    return DistillationObjective(*models, weights).reading(params)


@pytest.fixture(scope="module")
def teacher_params():
    return perturbed(BertForPreTraining(SMALL, FLOAT32, ("mlm",)))


@pytest.mark.parametrize("positions", [pytest.param("masked", marks=pytest.mark.slow), "all"])
def test_a_student_equal_to_its_teacher_has_nothing_to_learn_from_it(teacher_params, positions):
    options = dataclasses.replace(EVERYTHING, soft_positions=positions)
    objective, batch = taught(SMALL, SMALL, teacher_params, options), make_batch()
    sums = compiled(lambda params: objective.sums(params, batch))(teacher_params)
    metrics = training_metrics(objective.terms, sums, objective.denominators(batch))
    for name in ("soft_targets", "cosine", "hidden", "attention"):
        assert abs(float(metrics[f"{name}_loss"])) < 1e-6
    alone = PretrainingObjective(objective.model)
    words = compiled(lambda params: alone.sums(params, batch))(teacher_params)["mlm"]
    assert float(sums["mlm"].loss) == pytest.approx(float(words.loss), rel=1e-6)
    assert float(metrics["loss"]) == pytest.approx(2 * float(words.loss) / float(words.weight), rel=1e-5)


@pytest.mark.parametrize("positions", ["masked", "all"])
def test_terms_are_those_of_the_outputs_of_both_models(teacher_params, positions):
    """Padded positions and vocabulary rows count for nothing; the teacher is read without dropout."""
    options = dataclasses.replace(EVERYTHING, soft_positions=positions, temperature=3.0)
    objective, batch = taught(STUDENT, SMALL, teacher_params, options), make_batch()
    params = perturbed(objective.model)
    sums = compiled(lambda params: objective.sums(params, batch))(params)
    tokens, words = batch["attention_mask"] > 0, STUDENT.vocab_size
    everywhere = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    at = batch if positions == "masked" else batch | {"masked_positions": everywhere}
    kept = batch["masked_weights"] > 0 if positions == "masked" else tokens
    logits, states, maps = [], [], []
    for model, arrays in ((objective.model, params), (objective.teacher, teacher_params)):
        encoded = encode(model, arrays, batch, collect=True)
        words_of = compiled(lambda arrays, model=model: model.mlm_logits(arrays, at))(arrays)
        logits.append(np.asarray(words_of, np.float64)[kept][:, :words] / 3)
        states.append([np.asarray(each, np.float64) for each in encoded.hidden_states])
        maps.append([np.asarray(each, np.float64) for each in encoded.attentions])
    soft, hard = (np.exp(each) / np.exp(each).sum(-1, keepdims=True) for each in logits)
    expected = {"soft_targets": 9 * (hard * np.log(hard / soft)).sum()}
    ours, theirs = (each[-1][tokens] for each in states)
    cosines = (ours * theirs).sum(-1) / np.sqrt((ours**2).sum(-1) * (theirs**2).sum(-1))
    expected["cosine"] = (1 - cosines).sum()
    layers = [(states[0][0], states[1][0]), (states[0][1], states[1][2])]
    expected["hidden"] = sum(((x - y)[tokens] ** 2).mean(-1).sum() for x, y in layers) / 2
    expected["attention"] = sum(
        ((maps[0][0] - maps[1][1])[row, :, :length, :length] ** 2).sum() / 3 for row, length in enumerate(tokens.sum(1))
    )
    for name, value in expected.items():
        assert float(sums[name].loss) == pytest.approx(value, rel=2e-5), name
    assert float(sums["soft_targets"].weight) == kept.sum()
    denominators = objective.denominators(batch)
    assert all(float(denominators[name]) == float(sums[name].weight) for name in sums)


def test_pairs_and_spans_are_learned_beside_a_teacher(teacher_params):
    """Each term is that of its objective without the other one."""
    batch = make_batch()
    batch["masked_positions"] = np.sort(batch["masked_positions"], axis=1)
    student = BertForPreTraining(dataclasses.replace(SMALL, num_layers=1), FLOAT32, PARTS)
    weights = MaskedWords(span_boundary_weight=0.5, sentence_pair_weight=2.0, distillation=EVERYTHING)
    teacher = BertForPreTraining(SMALL, FLOAT32, ("mlm",))
    both = DistillationObjective(student, teacher, weights, sentence_pairs="sop").reading(teacher_params)
    alone = PretrainingObjective(student, weights, sentence_pairs="sop")
    only = taught(student.config, SMALL, teacher_params, EVERYTHING)
    params, expected, names = perturbed(student), {}, {}
    for objective in (only, alone):
        for term in objective.terms:
            names[term.name] = term.weight
        sums = compiled(lambda params, objective=objective: objective.sums(params, batch))(params)
        expected |= {name: (float(each.loss), float(each.weight)) for name, each in sums.items()}
    found = compiled(lambda params: both.sums(params, batch))(params)
    assert {"mlm", "span_boundary", "sentence_order", "soft_targets", "hidden"} <= found.keys() == expected.keys()
    for name, (loss, weight) in expected.items():
        assert (float(found[name].loss), float(found[name].weight)) == pytest.approx((loss, weight), rel=1e-6), name
        assert float(both.denominators(batch)[name]) == weight
    assert {term.name: term.weight for term in both.terms} == {name: names[name] for name in expected}


def test_packed_texts_are_taught_as_if_each_had_its_own_row():
    generator = np.random.default_rng(7)
    store = SyntheticStore([generator.integers(1, 12, generator.integers(1, 7)).tolist() for _ in range(80)])
    batch = make_examples(store, sentence_pairs="none", packing="on").batch(np.arange(4))
    alone, rows = unpacked(batch)
    assert len(rows) > 8
    sized = dataclasses.replace(PACKED, num_layers=1)
    objective = taught(sized, sized, perturbed(BertForPreTraining(sized, FLOAT32, ("mlm",))), EVERYTHING)
    params = random_params(objective.model, 3)
    sums = [compiled(lambda params, b=each: objective.sums(params, b))(params) for each in (batch, alone)]
    for name in ("mlm", "soft_targets", "cosine", "hidden", "attention"):
        assert float(sums[0][name].loss) == pytest.approx(float(sums[1][name].loss), rel=2e-5), name
        assert float(sums[0][name].weight) == float(sums[1][name].weight) > 0


def test_layers_are_spread_evenly_or_named():
    sized = lambda layers: dataclasses.replace(SMALL, num_layers=layers)
    assert compared_layers(DistillationConfig(), sized(3), sized(6)) == (1, 3, 5)
    assert compared_layers(DistillationConfig(layers=(0, 4)), sized(2), sized(5)) == (0, 4)
    for layers, ours, theirs in (((), 2, 5), ((1,), 2, 4), ((0, 4), 2, 4)):
        with pytest.raises(UserError, match="must name a layer of the teacher"):
            compared_layers(DistillationConfig(layers=layers), sized(ours), sized(theirs))


WIDE = 40
TEACHER = BertForPreTraining(dataclasses.replace(SMALL, hidden_size=WIDE, num_heads=4, num_layers=4), FLOAT32, ("mlm",))
PROJECTION_STUDENT = BertForPreTraining(SMALL, FLOAT32, ("mlm",), teacher_size=WIDE)
NOTHING = DistillationConfig(teacher="there", soft_weight=0.0, cosine_weight=0.0)


def taught_of_projection(student, teacher, teacher_params, **weights):
    options = dataclasses.replace(NOTHING, **weights)
    objective = DistillationObjective(student, teacher, MaskedWords(mlm_weight=0.0, distillation=options))
    return objective.reading(teacher_params)


@pytest.fixture(scope="module")
def both():
    """Parameters of student and teacher, and of all states those at tokens, [T, H] float64, by model and by layer."""
    batch, arrays = make_batch(), (perturbed(PROJECTION_STUDENT), perturbed(TEACHER, seed=1))
    tokens, states = batch["attention_mask"] > 0, []
    for model, params in zip((PROJECTION_STUDENT, TEACHER), arrays, strict=True):
        found = encode(model, params, batch, collect=True).hidden_states
        states.append([np.asarray(each, np.float64)[tokens] for each in found])
    return *arrays, *states


def assert_loss_and_gradient(found, loss, gradient):
    (measured, _), gradients = found
    assert float(measured) == pytest.approx(loss, rel=1e-5)
    kernel = gradients["state_projection"]["kernel"]
    np.testing.assert_allclose(kernel, gradient, atol=1e-5 * np.abs(gradient).max())
    assert np.any(gradients["encoder"]["attention"]["query"]["kernel"])


def test_states_are_compared_through_one_map(both):
    """L = MSE(H^S W, H^T): embeddings with embeddings, and layer m with layer m · 4 / 2, a mean over all three."""
    params, theirs, states, teacher_states = both
    kernel = params["state_projection"]["kernel"].astype(np.float64)
    pairs = list(zip(states, (teacher_states[layer] for layer in (0, 2, 4)), strict=True))
    differences = [ours @ kernel - wanted for ours, wanted in pairs]
    loss = np.mean([np.mean(each**2) for each in differences])
    gradient = sum(2 * ours.T @ each / each.size / 3 for (ours, _), each in zip(pairs, differences, strict=True))
    found = loss_and_gradient(taught_of_projection(PROJECTION_STUDENT, TEACHER, theirs, hidden_weight=1.0))(
        params, make_batch()
    )
    assert_loss_and_gradient(found, loss, gradient)


def test_the_cosine_is_that_of_mapped_states(both):
    params, theirs, states, teacher_states = both
    mapped, wanted = states[-1] @ params["state_projection"]["kernel"].astype(np.float64), teacher_states[-1]
    sizes = np.linalg.norm(mapped, axis=1, keepdims=True), np.linalg.norm(wanted, axis=1, keepdims=True)
    cosines = (mapped * wanted).sum(1, keepdims=True) / (sizes[0] * sizes[1])
    downwards = cosines * mapped / sizes[0] ** 2 - wanted / (sizes[0] * sizes[1])
    gradient = states[-1].T @ downwards / len(cosines)
    found = loss_and_gradient(taught_of_projection(PROJECTION_STUDENT, TEACHER, theirs, cosine_weight=1.0))(
        params, make_batch()
    )
    assert_loss_and_gradient(found, np.mean(1 - cosines), gradient)


def test_the_map_has_a_place_in_the_table():
    """It is split and decayed like the maps of the model, which are drawn as without it; a step reads all states."""
    shapes = jax.eval_shape(PROJECTION_STUDENT.init, jax.random.key(0))
    expected = {path: each.shape for path, each in PROJECTION_STUDENT.parameters.items()}
    assert {path: leaf.shape for path, leaf in leaf_paths(shapes).items()} == expected
    plain = dataclasses.replace(PROJECTION_STUDENT, teacher_size=None)
    kernel = PROJECTION_STUDENT.parameters["state_projection/kernel"]
    counts = parameter_counts(PROJECTION_STUDENT.parameters)
    assert counts.state_projection == kernel.size == SMALL.hidden_size * WIDE
    assert counts.pretraining == total_size(plain.parameters) + kernel.size
    assert kernel.decays
    assert PROJECTION_STUDENT.training_flops(14, 4) == training_flops(SMALL, plain.parameters, 14, 4).total
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), jax.devices()[:8])
    assert sharding.partition_spec(mesh, kernel) == (P("fsdp", None), [])
    init = compiled(lambda key: [model.init(key) for model in (PROJECTION_STUDENT, plain)])
    drawn, before = map(leaf_paths, init(jax.random.key(3)))
    assert all(np.array_equal(drawn[path], before[path]) for path in before)
    assert np.std(drawn[kernel.path]) == pytest.approx(0.8796 * SMALL.initializer_range, rel=0.1)


@pytest.mark.parametrize(
    "weights, widths, expected",
    [
        ({"hidden_weight": 1.0}, (24, 40), 40),
        ({"cosine_weight": 1.0}, (24, 16), 16),
        ({"hidden_weight": 1.0}, (24, 24), None),
        ({"attention_weight": 1.0}, (24, 40), None),
    ],
)
def test_there_is_a_map_where_states_of_different_widths_are_compared(weights, widths, expected):
    assert dataclasses.replace(NOTHING, **weights).teacher_size(*widths) == expected


ROWS, LENGTH, CANDIDATES = 4, 9, 3
TASK_STUDENT = dataclasses.replace(SMALL, num_layers=1)
HEADS = {
    "classification": HeadConfig(labels=("a", "b", "c")),
    "regression": HeadConfig(kind="regression"),
    "choice": HeadConfig(kind="choice"),
    "span": HeadConfig(kind="span"),
    "tagging": HeadConfig(kind="tagging", labels=("O", "B-X", "I-X")),
}


def make_batch_of_task(kind):
    """The last row only fills the batch, the second one is short, and the third has no answer in it."""
    random = np.random.default_rng(2)
    shape = (ROWS, CANDIDATES, LENGTH) if kind == "choice" else (ROWS, LENGTH)
    real = np.broadcast_to(np.arange(LENGTH) < 9, shape).copy()
    real[1, ..., 6:] = False
    labels = {
        "classification": random.integers(0, 3, ROWS),
        "regression": random.standard_normal(ROWS).astype(np.float32),
        "choice": random.integers(0, CANDIDATES, ROWS),
        "span": np.array([[1, 3], [2, 4], [20, 21], [0, 0]]),
        "tagging": np.where(real & (np.arange(LENGTH) % 2 == 1), random.integers(0, 3, shape) << 2, -1),
    }[kind]
    batch = {
        "input_ids": random.integers(5, SMALL.vocab_size, shape).astype(np.int32),
        "token_type_ids": np.zeros(shape, np.int32),
        "attention_mask": real.astype(np.int32),
        "labels": labels.astype(np.float32 if kind == "regression" else np.int32),
        "weights": np.array([1, 1, 1, 0], np.float32),
    }
    return batch


def by_hand(kind, batch, ours, theirs, temperature):
    """Sum of the losses and of their weights."""
    if kind == "regression":
        return ((ours - theirs) ** 2)[:3].sum(), 3
    if kind == "span":
        rows = [
            (ours[row, :length, end], theirs[row, :length, end], 0.5)
            for row, length in enumerate(batch["attention_mask"][:3].sum(1))
            for end in (0, 1)
        ]
    elif kind == "tagging":
        rows = [(*each, 1) for each in zip(ours[:3][batch["labels"][:3] >= 0], theirs[:3][batch["labels"][:3] >= 0])]
    else:
        rows = [(ours[row], theirs[row], 1) for row in range(3)]
    total = 0.0
    for our, their, weight in rows:
        log_ours, log_theirs = log_softmax(our / temperature), log_softmax(their / temperature)
        total += weight * temperature**2 * (np.exp(log_theirs) * (log_theirs - log_ours)).sum()
    return total, sum(weight for *_, weight in rows)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow) if kind in ("regression", "span", "choice") else kind
        for kind in HEADS
    ],
)
def test_the_scores_of_a_teacher_are_learned_beside_the_labels(kind):
    student, teacher = BertForTask(TASK_STUDENT, HEADS[kind], FLOAT32), BertForTask(SMALL, HEADS[kind], FLOAT32)
    params, theirs, batch = random_params(student, 1), random_params(teacher, 2), make_batch_of_task(kind)
    options = TaskDistillationConfig(teacher="there", temperature=3.0, share=0.25)
    objective = TaughtTaskObjective(student, teacher, options).reading(theirs)
    outputs = compiled(lambda p, t: (objective.sums(p, batch), student.apply(p, batch), teacher.apply(t, batch)))
    sums, ours, scores = outputs(params, theirs)
    expected, weight = by_hand(kind, batch, *(np.asarray(each, np.float64) for each in (ours, scores)), 3.0)
    assert float(sums["teacher"].loss) == pytest.approx(expected, rel=1e-5)
    denominators = objective.denominators(batch)
    assert float(sums["teacher"].weight) == float(denominators["teacher"]) == weight
    alone = TaskObjective(student)
    labels = alone.sums_of_scores(params, batch, ours)
    assert float(sums["labels"].loss) == pytest.approx(float(labels.loss), rel=1e-6)
    metrics = training_metrics(objective.terms, sums, denominators)
    mean = float(labels.loss) / float(alone.denominators(batch)[""])
    assert float(metrics["loss"]) == pytest.approx(0.75 * mean + 0.25 * expected / weight, rel=1e-5)


@pytest.mark.parametrize("kind", ["classification", pytest.param("regression", marks=pytest.mark.slow)])
def test_sequences_that_share_a_row_are_taught_as_if_each_had_its_own(kind):
    student, teacher = BertForTask(TASK_STUDENT, HEADS[kind], FLOAT32), BertForTask(SMALL, HEADS[kind], FLOAT32)
    objective = TaughtTaskObjective(student, teacher, TaskDistillationConfig(teacher="there"))
    objective, params = objective.reading(random_params(teacher, 2)), random_params(student, 1)
    alone = make_batch_of_task(kind)
    shared = {name: alone[name].reshape(2, -1) for name in ("input_ids", "token_type_ids", "attention_mask")}
    shared["text_ids"] = np.repeat([[1, 2]], 2, 0).repeat(LENGTH, 1).astype(np.int32) * shared["attention_mask"]
    shared["text_starts"] = np.array([[0, LENGTH], [0, LENGTH]], np.int32)
    shared |= {name: alone[name].reshape(2, 2) for name in ("labels", "weights")}
    sums = [compiled(lambda p, b=batch: objective.sums(p, b)["teacher"])(params) for batch in (alone, shared)]
    assert float(sums[0].loss) == pytest.approx(float(sums[1].loss), rel=1e-5)
    assert float(sums[0].weight) == float(sums[1].weight) == 3

"""The map between states of different widths, against Jiao et al. 2020, equation 8, in NumPy."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from small_model import FLOAT32, SMALL, compiled, encode, loss_and_gradient, make_batch, perturbed

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import MaskedWords, MeshConfig
from bert_jax.config.objective import DistillationConfig
from bert_jax.devices import sharding
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.costs import parameter_counts, training_flops
from bert_jax.objectives.distillation import DistillationObjective
from bert_jax.parameters import total_size

WIDE = 40
TEACHER = BertForPreTraining(dataclasses.replace(SMALL, hidden_size=WIDE, num_heads=4, num_layers=4), FLOAT32, ("mlm",))
STUDENT = BertForPreTraining(SMALL, FLOAT32, ("mlm",), teacher_size=WIDE)
NOTHING = DistillationConfig(teacher="there", soft_weight=0.0, cosine_weight=0.0)


def taught(student, teacher, teacher_params, **weights):
    options = dataclasses.replace(NOTHING, **weights)
    objective = DistillationObjective(student, teacher, MaskedWords(mlm_weight=0.0, distillation=options))
    return objective.reading(teacher_params)


@pytest.fixture(scope="module")
def both():
    """Parameters of student and teacher, and of all states those at tokens, [T, H] float64, by model and by layer."""
    batch, arrays = make_batch(), (perturbed(STUDENT), perturbed(TEACHER, seed=1))
    tokens, states = batch["attention_mask"] > 0, []
    for model, params in zip((STUDENT, TEACHER), arrays, strict=True):
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
    found = loss_and_gradient(taught(STUDENT, TEACHER, theirs, hidden_weight=1.0))(params, make_batch())
    assert_loss_and_gradient(found, loss, gradient)


def test_the_cosine_is_that_of_mapped_states(both):
    params, theirs, states, teacher_states = both
    mapped, wanted = states[-1] @ params["state_projection"]["kernel"].astype(np.float64), teacher_states[-1]
    sizes = np.linalg.norm(mapped, axis=1, keepdims=True), np.linalg.norm(wanted, axis=1, keepdims=True)
    cosines = (mapped * wanted).sum(1, keepdims=True) / (sizes[0] * sizes[1])
    downwards = cosines * mapped / sizes[0] ** 2 - wanted / (sizes[0] * sizes[1])
    gradient = states[-1].T @ downwards / len(cosines)
    found = loss_and_gradient(taught(STUDENT, TEACHER, theirs, cosine_weight=1.0))(params, make_batch())
    assert_loss_and_gradient(found, np.mean(1 - cosines), gradient)


def test_the_identity_changes_nothing():
    mapped = BertForPreTraining(SMALL, FLOAT32, ("mlm",), teacher_size=SMALL.hidden_size)
    plain, batch = dataclasses.replace(mapped, teacher_size=None), make_batch()
    params, theirs = perturbed(plain), perturbed(plain, seed=1)
    identity = {"state_projection": {"kernel": np.eye(SMALL.hidden_size, dtype=np.float32)}}
    losses = []
    for student, arrays in ((plain, params), (mapped, params | identity)):
        objective = taught(student, plain, theirs, hidden_weight=1.0, cosine_weight=1.0, attention_weight=1.0)
        sums = compiled(lambda arrays, objective=objective: objective.sums(arrays, batch))(arrays)
        losses.append({name: float(each.loss) for name, each in sums.items()})
    assert {"hidden", "cosine", "attention"} <= losses[0].keys() and min(losses[0].values()) > 0.01
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_the_map_has_a_place_in_the_table():
    """It is split and decayed like the maps of the model, which are drawn as without it; a step reads all states."""
    shapes = jax.eval_shape(STUDENT.init, jax.random.key(0))
    assert {path: leaf.shape for path, leaf in leaf_paths(shapes).items()} == {
        path: each.shape for path, each in STUDENT.parameters.items()
    }
    plain = dataclasses.replace(STUDENT, teacher_size=None)
    kernel, counts = STUDENT.parameters["state_projection/kernel"], parameter_counts(STUDENT.parameters)
    assert counts.state_projection == kernel.size == SMALL.hidden_size * WIDE
    assert counts.pretraining == total_size(plain.parameters) + kernel.size
    assert kernel.decays and STUDENT.training_flops(14, 4) == training_flops(SMALL, plain.parameters, 14, 4).total
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), jax.devices()[:8])
    assert sharding.partition_spec(mesh, kernel) == (P("fsdp", None), [])
    init = compiled(lambda key: [model.init(key) for model in (STUDENT, plain)])
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

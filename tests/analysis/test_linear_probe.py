"""Linear probes against scikit-learn, a closed form and finite differences, and what they find that was planted."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from sklearn.linear_model import LogisticRegression

from bert_jax.analysis import probes
from bert_jax.analysis.probes import fit, probe_task, standardized
from bert_jax.analysis.probing_tasks import control_labels, divided, joined, make_task


def states(layers: int, examples: int, spans: int = 1, size: int = 6, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return standardized(random.standard_normal((layers, examples, spans, size)).astype(np.float32))[0]


@pytest.mark.parametrize("penalty", [1e-1, 1e-3])
def test_a_probe_is_the_logistic_regression_of_another_library(penalty):
    inputs = states(1, 300) * np.float32(3.0)
    noise = np.random.default_rng(1).standard_normal((300, 3))
    labels = (inputs[0, :, 0, :3] + noise).argmax(axis=1)
    found = fit(inputs, np.eye(3)[labels], penalty)
    peer = LogisticRegression(C=1 / (penalty * 300), tol=1e-10, max_iter=10_000).fit(inputs[0, :, 0], labels)
    assert found.converged and found.mix.tolist() == [1.0]
    np.testing.assert_allclose(found.matrix.T, peer.coef_, atol=2e-3)
    np.testing.assert_allclose(found.bias - found.bias.mean(), peer.intercept_ - peer.intercept_.mean(), atol=2e-3)


def test_regression_is_ridge_regression():
    inputs = states(1, 200)
    x = inputs[0, :, 0].astype(np.float64)
    y = x @ np.arange(6.0)[:, None] + np.random.default_rng(1).standard_normal((200, 1))
    found = fit(inputs, y, 0.01)
    wanted = np.linalg.solve(x.T @ x / 200 + 0.01 * np.eye(6), x.T @ (y - y.mean()) / 200)
    np.testing.assert_allclose(found.matrix, wanted, atol=1e-3)
    np.testing.assert_allclose(found.bias, y.mean(axis=0), atol=1e-3)


@pytest.mark.parametrize("layers, spans, classes", [(1, 2, 3), (3, 1, 1), (3, 2, 4)])
def test_the_gradient_is_that_of_finite_differences(layers, spans, classes):
    random = np.random.default_rng(2)
    target = random.standard_normal((12, 1)) if classes == 1 else np.eye(classes)[random.integers(classes, size=12)]
    problem = probes._Problem(states(layers, 12, spans, 3), target)
    problem.set_penalty(0.05)
    at = 0.3 * random.standard_normal(len(problem.packed(None)))
    wanted = approx_fprime(at, lambda values: problem(values)[0], 1e-3)  # a mix is summed in float32
    np.testing.assert_allclose(problem(at)[1], wanted, atol=3e-3, rtol=3e-3)


def planted(layer: int, regression: bool = False):
    """400 examples, each of a type of its own, and states of 4 layers that are noise but for one direction in one."""
    random = np.random.default_rng(4)
    found = random.standard_normal((4, 400, 8)).astype(np.float32)
    direction = random.standard_normal(8)
    values = found[layer, :, :] @ direction
    labels = [float(value) if regression else "yes" if value > 0 else "no" for value in values]
    examples = [
        (number // 4, ((number % 4, number % 4 + 1),), label, str(number)) for number, label in enumerate(labels)
    ]
    return joined([make_task("planted", ["abcd"] * 100, examples)]), found, np.arange(400)[:, None]


@pytest.mark.slow
@pytest.mark.parametrize("layer", [0, 2])
def test_a_planted_feature_is_found_in_its_layer_and_control_tasks_stay_at_chance(layer):
    result = probe_task(*planted(layer), (0, 1, 2, 3), range(10))
    assert result.unconverged == 0 and result.classes == ("no", "yes")
    others = [number for number in range(4) if number != layer]
    assert result.mean[layer] > 0.9 and result.mean[4] > 0.9
    # Of accuracies at chance: the seeds divide the same 400 labels, while those of the control tasks are drawn anew.
    of_task, of_control = np.sqrt(0.25 / 400), np.sqrt(0.25 / (10 * result.sizes[2]))
    assert (np.abs(result.mean[others] - 0.5) < 4 * of_task).all()
    assert (np.abs(result.controls.mean(axis=0) - 0.5) < 4 * of_control).all()
    np.testing.assert_allclose(result.selectivity, result.mean - result.controls.mean(axis=0), atol=1e-12)
    assert (result.mix[:, layer] > 0.8).all() and np.abs(result.centre_of_gravity - layer).max() < 0.5


def test_a_planted_number_is_estimated():
    result = probe_task(*planted(3, regression=True), (1, 3), range(2))
    assert result.metric == "R²" and result.mean[1] > 0.99 and abs(result.mean[0]) < 0.2
    assert (np.abs(result.centre_of_gravity - 3) < 0.1).all()  # of layers 1 and 3
    assert (np.abs(result.baseline) < 0.1).all()


def test_intervals_are_those_of_students_t():
    result = probe_task(*planted(1), (1,), range(3))
    spread = result.scores[:, 0].std(ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(result.interval[0], 4.302653 * spread, rtol=1e-6)  # t of 2 degrees of freedom, 97.5 %
    np.testing.assert_array_equal(result.scores[:, 0], result.scores[:, 1])  # the mix of one layer is that layer
    assert np.isnan(probe_task(*planted(1), (1,), range(1)).interval).all()


def test_no_text_is_in_two_parts_and_files_stay_apart():
    task, _, _ = planted(0)
    for seed in range(3):
        parts = [set(task.owners[part]) for part in divided(task, seed)]
        assert [len(part) for part in parts] == [70, 15, 15] and len(set.union(*parts)) == 100
    assert [part.tolist() for part in divided(task, 0)] != [part.tolist() for part in divided(task, 1)]
    more = [make_task("planted", ["abcd"] * 10, [(9, ((0, 1),), "yes", "a")], part) for part in ("dev", "test")]
    whole = joined([task, *more])
    train, dev, test = divided(whole, 0)
    assert len(set(whole.owners[train])) == 80 and whole.owners[dev] == [109] and whole.owners[test] == [119]


def test_a_control_task_gives_each_type_one_label_whatever_its_context():
    examples = [(number, ((0, 1),), "ab"[number % 2], str(number % 50)) for number in range(400)]
    task = joined([make_task("words", ["word"] * 400, examples)])
    labels = control_labels(task, 0)
    for kind in set(task.types):
        assert len(set(labels[task.types == kind])) == 1
    assert set(labels) == {"a", "b"} and (control_labels(task, 1) != labels).any()

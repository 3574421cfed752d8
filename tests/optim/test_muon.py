"""Muon against a float64 transcription of the published code, optax's, and itself on a mesh of eight."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
import tiny_run

from bert_jax.config import MeshConfig, ModelConfig, OptimizerConfig
from bert_jax.devices import sharding
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.parameters import Axis, Parameter, entries, linear, norm, table
from bert_jax.training.optimizers import optimizer, orthogonalized

LAYER, HIDDEN, WIDE, HEADS = Axis("layer", 3), Axis("hidden", 8), Axis("intermediate", 20), Axis("heads", 2)
SIZE = Axis("head_size", 4)
TABLE = table(
    [
        Parameter("embeddings/word/table", (Axis("vocab", 7), HIDDEN), embedding=True),
        *linear("encoder/attention/query", (HIDDEN,), (HEADS, SIZE), (LAYER,)),
        *linear("encoder/attention/output", (HEADS, SIZE), (HIDDEN,), (LAYER,)),
        *linear("encoder/feed_forward/intermediate", (HIDDEN,), (WIDE,), (LAYER,)),
        *linear("encoder/feed_forward/output", (WIDE,), (HIDDEN,), (LAYER,)),
        *norm("encoder/feed_forward_norm", HIDDEN, (LAYER,)),
        *linear("mlm/dense", (HIDDEN,), (HIDDEN,)),
    ]
)
MATRICES = {
    "encoder/attention/query/kernel": (8, 8),
    "encoder/attention/output/kernel": (8, 8),
    "encoder/feed_forward/intermediate/kernel": (8, 20),
    "encoder/feed_forward/output/kernel": (20, 8),
}
CONFIG = OptimizerConfig(name="muon", weight_decay=0.1, clip_norm=0)


def drawn(seed: int) -> dict:
    tree: dict = {}
    random = np.random.default_rng(seed)
    for path, entry in TABLE.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = random.normal(size=entry.shape).astype(np.float32)
    return tree


def zeropower_via_newtonschulz5(gradient: np.ndarray) -> np.ndarray:
    """Of github.com/KellerJordan/Muon, in float64."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = gradient.T if gradient.shape[0] > gradient.shape[1] else gradient
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if gradient.shape[0] > gradient.shape[1] else x


def test_which_arrays_are_matrices():
    assert {path: entry.matrix for path, entry in TABLE.items() if entry.matrix} == MATRICES
    bert = bert_parameters(ModelConfig(vocab_size=50, hidden_size=12, num_heads=3, num_layers=2, intermediate_size=20))
    found = {path for path, entry in bert.items() if entry.matrix}
    attention = {f"encoder/attention/{name}/kernel" for name in ("query", "key", "value", "output")}
    assert found == attention | {f"encoder/feed_forward/{name}/kernel" for name in ("intermediate", "output")}


def by_path(tree) -> dict[str, np.ndarray]:
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


def test_steps_follow_the_published_code():
    ours, params = optimizer(CONFIG, TABLE), drawn(0)
    adam, values = optax.scale_by_adam(CONFIG.beta1, CONFIG.beta2, CONFIG.epsilon), by_path(params)
    state, others = jax.jit(lambda params: (ours.init(params), adam.init(params)))(params)
    buffers = dict.fromkeys(MATRICES, 0.0)
    step, adam_step = jax.jit(ours.update), jax.jit(adam.update)
    for number in range(4):
        grads = drawn(number + 1)
        updates, state = step(grads, state, params)
        plain, others = adam_step(grads, others)
        given, usual = by_path(grads), by_path(plain)
        for path, update in by_path(updates).items():
            decay = 0.1 * values[path] * TABLE[path].decays
            if path not in MATRICES:
                np.testing.assert_allclose(update, usual[path] + decay, rtol=1e-5, atol=1e-6)
                continue
            grad = given[path].astype(np.float64)
            buffers[path] += 0.05 * (grad - buffers[path])  # momentum.lerp_(grad, 1 - beta)
            nesterov = grad + 0.95 * (buffers[path] - grad)  # grad.lerp_(momentum, beta)
            for layer in range(3):
                matrix = zeropower_via_newtonschulz5(nesterov[layer].reshape(MATRICES[path]))
                expected = 0.2 * np.sqrt(max(MATRICES[path])) * matrix.reshape(nesterov[layer].shape)
                np.testing.assert_allclose(update[layer], expected + decay[layer], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 8, 20), (3, 20, 8), (2, 5, 5)])
def test_optax_orthogonalizes_alike_and_singular_values_are_about_one(shape):
    matrices = np.random.default_rng(5).normal(size=shape).astype(np.float32)
    theirs = optax.contrib.scale_by_muon(
        beta=0.0, nesterov=False, weight_dimension_numbers={"w": optax.contrib.MuonDimensionNumbers(1, 2)}
    )

    @jax.jit
    def both(matrices):
        expected, _ = theirs.update({"w": matrices}, theirs.init({"w": matrices}), {"w": matrices})
        return orthogonalized(matrices), expected["w"]

    found, expected = both(matrices)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    values = np.linalg.svd(found, compute_uv=False)
    assert np.all((0.5 < values) & (values < 1.3))
    np.testing.assert_array_equal(both(0 * matrices)[0], np.zeros(shape))


def one_update(transformation):
    """The compiled function of gradients and parameters that returns the first update and the state after it."""
    return jax.jit(lambda grads, params: transformation.update(grads, transformation.init(params), params))


def test_an_update_is_about_as_large_as_adams():
    ours, params = optimizer(OptimizerConfig(name="muon", weight_decay=0), TABLE), drawn(0)
    updates, _ = one_update(ours)(drawn(1), params)
    sizes = [np.sqrt(np.mean(update**2)) for path, update in by_path(updates).items() if path in MATRICES]
    assert all(0.1 < size < 0.3 for size in sizes)


@pytest.mark.parametrize("mesh", [MeshConfig(data=2, fsdp=2, tensor=2), MeshConfig(data=1, fsdp=8)])
def test_a_mesh_of_eight_gives_the_same_update(mesh):
    ours, params, grads = optimizer(CONFIG, TABLE), drawn(0), drawn(1)
    expected, _ = one_update(ours)(grads, params)
    devices = sharding.make_mesh(mesh)
    where = sharding.shardings(devices, entries(TABLE, params))
    placed, given = (jax.tree.map(jax.device_put, tree, where) for tree in (params, grads))
    found, state = one_update(ours)(given, placed)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), found, expected)
    assert len(jax.tree.leaves(state)) == 1 + len(MATRICES) + 2 * (len(TABLE) - len(MATRICES))


@pytest.mark.slow
def test_a_run_on_a_mesh_of_eight_gives_the_losses_of_one_device():
    model, config = tiny_run.tiny(dropout=0.0)
    config = dataclasses.replace(config, optimizer=OptimizerConfig(name="muon"))
    metrics, _ = tiny_run.losses(model, config, tiny_run.SINGLE)
    again, _ = tiny_run.losses(model, config, tiny_run.CUBE)
    for one, other in zip(metrics, again):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)

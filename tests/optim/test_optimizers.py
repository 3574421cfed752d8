"""Optimizers, averages, schedules, and steps that are held."""

import dataclasses
import math
import typing

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_pretraining
from flax.traverse_util import unflatten_dict
from published_optimizers import PEAK, STEPS, adamw, bert_2018, lamb, published, stable_adamw

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import (
    Config,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    ScheduleConfig,
    resolve_phases,
)
from bert_jax.devices import sharding
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.parameters import Axis, Parameter, entries, linear, norm, table
from bert_jax.training.optimizers import (
    ORTHOGONALIZATIONS,
    POLAR_EXPRESS,
    Holding,
    average_of,
    averaged,
    chained,
    clip_by_global_norm,
    holding,
    included,
    learning_rate,
    moved,
    optimizer,
    orthogonalized,
    restarted,
    scale_by_adam,
    scale_by_depth,
    unfrozen_by_epoch,
    warmed_momentum,
    with_average_of,
)
from bert_jax.training.state import TrainState
from bert_jax.training.step import updated

CONFIG = Config(phases=(PhaseConfig(steps=STEPS, warmup_steps=5, learning_rate=PEAK),))


def parameters() -> dict:
    random = np.random.default_rng(0)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)
    return {
        "embeddings": {"word": {"table": normal(7, 4)}, "norm": {"scale": normal(4), "bias": normal(4)}},
        "encoder": {
            "attention": {"query": {"kernel": normal(3, 4, 2, 2), "bias": normal(3, 2, 2)}},
            "attention_norm": {"scale": normal(3, 4), "bias": normal(3, 4)},
        },
        "mlm": {"dense": {"kernel": normal(4, 4), "bias": normal(4)}, "bias": normal(7)},
    }


LAYER, HIDDEN, VOCAB = Axis("layer", 3), Axis("hidden", 4), Axis("vocab", 7)
HEADS = (Axis("heads", 2), Axis("head_size", 2))
TABLE = table(
    [
        Parameter("embeddings/word/table", (VOCAB, HIDDEN)),
        *norm("embeddings/norm", HIDDEN),
        *linear("encoder/attention/query", (HIDDEN,), HEADS, (LAYER,)),
        *norm("encoder/attention_norm", HIDDEN, (LAYER,)),
        *linear("mlm/dense", (HIDDEN,), (HIDDEN,)),
        Parameter("mlm/bias", (VOCAB,), decays=False),
    ]
)


def gradients(step: int) -> list[np.ndarray]:
    """Of alternating size, so that clipping to 1 acts on some steps and not on others."""
    random = np.random.default_rng(step + 1)
    scale = (0.5, 0.01)[step % 2]
    return [scale * random.normal(size=leaf.shape).astype(np.float32) for leaf in jax.tree.leaves(parameters())]


def rate_at(config: Config, step: jax.Array | np.ndarray | int) -> jax.Array:
    return learning_rate(config.schedule, resolve_phases(config), step)


def rates_at(config: Config, steps: list[int]) -> jax.Array:
    """Return the rates of some steps by one program: each operation alone would be one."""
    return jax.jit(lambda steps: rate_at(config, steps))(np.array(steps))


def run(config: OptimizerConfig, params: dict) -> dict:
    transformation, structure = optimizer(config, TABLE), jax.tree.structure(params)

    @jax.jit
    def step(params, state, grads, number):
        grads, _ = clip_by_global_norm(grads, config.clip_norm)
        updates, state = transformation.update(grads, state, params)
        rate = rate_at(CONFIG, number)
        return jax.tree.map(lambda p, u: p - rate * u, params, updates), state

    state = jax.jit(transformation.init)(params)
    for number in range(STEPS):
        params, state = step(params, state, jax.tree.unflatten(structure, gradients(number)), number)
    return params


@pytest.mark.parametrize(
    "name, rule", [("adamw_bert", bert_2018), ("adamw", adamw), ("lamb", lamb), ("stable_adamw", stable_adamw)]
)
def test_fifty_steps_follow_the_published_rule(name, rule):
    found = run(OptimizerConfig(name=name), parameters())
    by_hand = published(rule, parameters(), lambda step, params: gradients(step))
    for (path, value), expected in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(by_hand)):
        np.testing.assert_allclose(value, expected, rtol=2e-4, atol=2e-5, err_msg=jax.tree_util.keystr(path))


def test_a_sudden_gradient_shortens_the_step_of_its_layer_alone():
    config = OptimizerConfig(name="stable_adamw", clip_norm=0, weight_decay=0)
    one = optimizer(config, table([Parameter("w", (LAYER, HIDDEN))]))
    params = {"w": np.zeros((3, 4), np.float32)}
    adam = optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)
    states = jax.jit(lambda params: (one.init(params), adam.init(params)))(params)

    @jax.jit
    def both(grads, states):
        found, state = one.update(grads, states[0], params)
        usual, plain = adam.update(grads, states[1])
        return (found["w"], usual["w"]), (state, plain)

    for _ in range(20):
        _, states = both({"w": np.full((3, 4), 0.1, np.float32)}, states)
    sudden = {"w": np.full((3, 4), 0.1, np.float32) * np.array([[1], [50], [1]], np.float32)}
    found, usual = map(np.asarray, both(sudden, states)[0])
    np.testing.assert_allclose(found[::2], usual[::2], rtol=1e-5)
    assert np.all(found[1] < 0.5 * usual[1])


def test_lamb_ratio_is_one_where_a_norm_is_zero():
    config = OptimizerConfig(name="lamb", clip_norm=0)
    params = {"encoder": {"kernel": np.stack([np.zeros((2, 2)), np.ones((2, 2)), np.zeros((2, 2))]).astype(np.float32)}}
    grads = {"encoder": {"kernel": np.stack([np.ones((2, 2)), np.ones((2, 2)), np.zeros((2, 2))]).astype(np.float32)}}
    square = (Axis("layer", 3), Axis("hidden", 2), Axis("hidden", 2))
    lamb = optimizer(config, table([Parameter("encoder/kernel", square)]))
    updates, _ = jax.jit(lambda params: lamb.update(grads, lamb.init(params), params))(params)
    # First Adam step: direction 1 (plus decay 0.01 · p); zero parameter → ratio 1; ones → |p|/|u| · u = 1.
    expected = [np.ones((2, 2)), np.ones((2, 2)), np.zeros((2, 2))]
    np.testing.assert_allclose(updates["encoder"]["kernel"], expected, rtol=1e-4)


def test_googles_own_test():
    """AdamWeightDecayOptimizer in google-research/bert optimization_test.py: 100 steps at 0.2 reach the target."""
    config = OptimizerConfig(name="adamw_bert", weight_decay=0, clip_norm=0)
    transformation = optimizer(config, table([Parameter("w", (Axis("feature", 3),))]))
    params, target = {"w": np.float32([0.1, -0.2, -0.1])}, np.float32([0.4, 0.2, -0.5])

    @jax.jit
    def step(params, state):
        grads = jax.grad(lambda p: jnp.mean((p["w"] - target) ** 2))(params)
        updates, state = transformation.update(grads, state, params)
        return jax.tree.map(lambda p, u: p - 0.2 * u, params, updates), state

    state = jax.jit(transformation.init)(params)
    for _ in range(100):
        params, state = step(params, state)
    np.testing.assert_allclose(params["w"], target, atol=1e-2)


def test_what_decays_in_the_real_model():
    model = BertForPreTraining(ModelConfig(vocab_size=64, hidden_size=8, num_layers=2, num_heads=2))
    decays = leaf_paths(included(model.parameters, jax.eval_shape(model.init, jax.random.key(0))))
    assert {path for path, decay in decays.items() if decay} == {
        "embeddings/word/table",
        "embeddings/position/table",
        "embeddings/token_type/table",
        "pooler/kernel",
        "mlm/dense/kernel",
        "next_sentence/kernel",
        *(f"encoder/attention/{part}/kernel" for part in ("query", "key", "value", "output")),
        *(f"encoder/feed_forward/{part}/kernel" for part in ("intermediate", "output")),
    }


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_clipping(scale):
    grads = {"a": np.float32([3.0, 0.0]) * np.float32(scale), "b": np.float32([[4.0]]) * np.float32(scale)}
    clip = jax.jit(clip_by_global_norm, static_argnums=1)
    clipped, norm = clip(grads, 1.0)
    np.testing.assert_allclose(norm, 5 * scale, rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], 0.8 if scale > 1 else 4 * scale, rtol=1e-6)
    unclipped, norm = jax.device_get(clip(grads, 0.0))
    np.testing.assert_allclose([norm, unclipped["b"][0, 0]], [5 * scale, 4 * scale], rtol=1e-6)


@pytest.mark.parametrize("name", ["adamw_bert", "adamw", "lamb"])
def test_moments_are_named_after_their_parameters(name):
    paths = leaf_paths(parameters())
    state = jax.eval_shape(optimizer(OptimizerConfig(name=name), TABLE).init, parameters())
    names = [f"/{path}" for path in leaf_paths(state)]
    for path in paths:
        assert sum(found.endswith("/" + path) for found in names if "/mu/" in found) == 1
        assert any(found.endswith("/nu/" + path) for found in names)
    assert len(names) == 2 * len(paths) + (name != "adamw_bert")


SGD = optax.identity()


@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_the_average_is_the_closed_form(decay):
    """Σ_t (1 − d_t) Π_{s > t} d_s · p_t, plus the start's own share, which is what the decays leave."""
    random = np.random.default_rng(0)
    values = random.normal(size=(9, 3, 2)).astype(np.float32)
    rule = averaged(SGD, decay)
    state = rule.init({"w": values[0]})
    for step in range(8):
        _, state = rule.update({"w": values[step]}, state, {"w": values[step]})
        state = jax.jit(moved)(state, {"w": values[step + 1]}, np.int32(step))
    decays = np.array([min(decay, (1 + step) / (10 + step)) for step in range(8)])
    expected = values[0] * np.prod(decays)
    for step in range(8):
        expected = expected + (1 - decays[step]) * np.prod(decays[step + 1 :]) * values[step + 1]
    np.testing.assert_allclose(average_of(state)["w"], expected, rtol=1e-5)


def test_a_fresh_start_and_fresh_moments():
    rule = averaged(optax.trace(0.9), 0.9)
    state = moved(rule.init({"w": np.ones(2)}), {"w": np.full(2, 3.0)}, np.int32(0))
    again = with_average_of(rule.init({"w": np.zeros(2)}), state)
    np.testing.assert_allclose(average_of(again)["w"], average_of(state)["w"])
    np.testing.assert_array_equal(average_of(restarted(state, {"w": np.full(2, 7.0)}))["w"], np.full(2, 7.0))


def test_without_a_decay_nothing_is_kept():
    assert averaged(SGD, 0.0) is SGD
    state = SGD.init({"w": np.ones(2)})
    assert moved(state, {"w": np.zeros(2)}, np.int32(3)) is state and restarted(state, {"w": np.zeros(2)}) is state
    assert average_of(state) is None and with_average_of(state, state) is state


NAMES = typing.get_args(typing.get_type_hints(OptimizerConfig)["name"])
HOLDING_LAYER, HOLDING_HIDDEN, WIDE = Axis("layer", 2), Axis("hidden", 4), Axis("intermediate", 6)
HOLDING_TABLE = table(
    [
        Parameter("embeddings/word/table", (Axis("vocab", 7), HOLDING_HIDDEN), embedding=True),
        *linear("encoder/feed_forward/intermediate", (HOLDING_HIDDEN,), (WIDE,), (HOLDING_LAYER,)),
    ]
)


def drawn(seed: int) -> dict:
    random = np.random.default_rng(seed)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)
    dense = {"kernel": normal(2, 4, 6), "bias": normal(2, 6)}
    return {"embeddings": {"word": {"table": normal(7, 4)}}, "encoder": {"feed_forward": {"intermediate": dense}}}


def bits(tree) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def optimizers() -> dict[str, optax.GradientTransformation]:
    ours = {name: optimizer(OptimizerConfig(name=name), HOLDING_TABLE) for name in NAMES}
    return ours | {
        "averaged": averaged(ours["adamw"], 0.9),
        "by depth, averaged": averaged(chained(ours["adamw_bert"], scale_by_depth(0.5, 2, HOLDING_TABLE)), 0.9),
        "optax": optax.trace(0.9),
        "optax, averaged": averaged(optax.chain(optax.trace(0.9), optax.scale_by_rms()), 0.9),
    }


@pytest.mark.parametrize("name", [*NAMES, "averaged", "by depth, averaged", "optax", "optax, averaged"])
def test_what_is_not_finite_changes_no_bit(name):
    one, good = optimizers()[name], drawn(1)
    endless = jax.tree.map(lambda g: np.concatenate([np.full_like(g[..., :1], np.inf), g[..., 1:]], -1), good)
    step = jax.jit(lambda state, gradients, loss: updated(state, gradients, loss, one, jnp.float32(0.01), 1.0)[0])
    state = TrainState(step=jnp.int32(0), params=drawn(0), optimizer_state=jax.jit(one.init)(drawn(0)))
    for count in range(2):
        for gradients, loss in ((endless, 1.0), (good, np.nan)):
            found = step(state, gradients, jnp.float32(loss))
            assert bits(found.params) == bits(state.params)
            assert bits(found.optimizer_state) == bits(state.optimizer_state)
            assert int(found.step) == count + 1
        moved = step(state, good, jnp.float32(1.0))
        unmoved = [a == b for a, b in zip(bits(moved), bits(state), strict=True)]
        assert not any(unmoved), "a finite gradient changes every array"
        state = moved


def test_adam_is_that_of_optax():
    ours, theirs = scale_by_adam(0.9, 0.95, 1e-6), optax.scale_by_adam(0.9, 0.95, 1e-6)
    state, other = jax.jit(ours.init)(drawn(0)), jax.jit(theirs.init)(drawn(0))
    update, optax_update = jax.jit(ours.update), jax.jit(theirs.update)
    for step in range(4):
        updates, state = update(drawn(step), state)
        expected, other = optax_update(drawn(step), other)
        assert bits(updates) == bits(expected) and bits(state) == bits(other)
        assert jax.tree.structure(state) == jax.tree.structure(other)


def test_parts_of_a_chain_get_what_they_ask_for():
    one = chained(optax.trace(0.9), unfrozen_by_epoch(2, HOLDING_TABLE))
    finite = np.bool_(False)
    updates, state = jax.jit(one.update)(drawn(1), one.init(drawn(0)), drawn(0), epoch=np.int32(0), finite=finite)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(updates))  # all layers are still frozen
    assert bits(state) == bits(one.init(drawn(0)))
    assert isinstance(one, Holding) and holding(one) is one


MUON_LAYER = Axis("layer", 3)
MUON_HIDDEN = Axis("hidden", 8)
MUON_WIDE = Axis("intermediate", 20)
MUON_HEADS = Axis("heads", 2)
SIZE = Axis("head_size", 4)
MUON_TABLE = table(
    [
        Parameter("embeddings/word/table", (Axis("vocab", 7), MUON_HIDDEN), embedding=True),
        *linear("encoder/attention/query", (MUON_HIDDEN,), (MUON_HEADS, SIZE), (MUON_LAYER,)),
        *linear("encoder/attention/output", (MUON_HEADS, SIZE), (MUON_HIDDEN,), (MUON_LAYER,)),
        *linear("encoder/feed_forward/intermediate", (MUON_HIDDEN,), (MUON_WIDE,), (MUON_LAYER,)),
        *linear("encoder/feed_forward/output", (MUON_WIDE,), (MUON_HIDDEN,), (MUON_LAYER,)),
        *norm("encoder/feed_forward_norm", MUON_HIDDEN, (MUON_LAYER,)),
        *linear("mlm/dense", (MUON_HIDDEN,), (MUON_HIDDEN,)),
    ]
)
MATRICES = {
    "encoder/attention/query/kernel": (8, 8),
    "encoder/attention/output/kernel": (8, 8),
    "encoder/feed_forward/intermediate/kernel": (8, 20),
    "encoder/feed_forward/output/kernel": (20, 8),
}
MUON_CONFIG = OptimizerConfig(name="muon", weight_decay=0.1, clip_norm=0)


def drawn_of_muon(seed: int) -> dict:
    random = np.random.default_rng(seed)
    arrays = {path: random.normal(size=entry.shape).astype(np.float32) for path, entry in MUON_TABLE.items()}
    return unflatten_dict(arrays, sep="/")


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
    assert {path: entry.matrix for path, entry in MUON_TABLE.items() if entry.matrix} == MATRICES
    bert = bert_parameters(ModelConfig(vocab_size=50, hidden_size=12, num_heads=3, num_layers=2, intermediate_size=20))
    found = {path for path, entry in bert.items() if entry.matrix}
    attention = {f"encoder/attention/{name}/kernel" for name in ("query", "key", "value", "output")}
    assert found == attention | {f"encoder/feed_forward/{name}/kernel" for name in ("intermediate", "output")}


def test_steps_follow_the_published_code():
    ours, params = optimizer(MUON_CONFIG, MUON_TABLE), drawn_of_muon(0)
    adam, values = optax.scale_by_adam(MUON_CONFIG.beta1, MUON_CONFIG.beta2, MUON_CONFIG.epsilon), leaf_paths(params)
    state, others = jax.jit(lambda params: (ours.init(params), adam.init(params)))(params)
    buffers = dict.fromkeys(MATRICES, 0.0)
    step, adam_step = jax.jit(ours.update), jax.jit(adam.update)
    for number in range(4):
        grads = drawn_of_muon(number + 1)
        updates, state = step(grads, state, params)
        plain, others = adam_step(grads, others)
        given, usual = leaf_paths(grads), leaf_paths(plain)
        for path, update in leaf_paths(updates).items():
            decay = 0.1 * values[path] * MUON_TABLE[path].decays
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


def best_quintic(low: float, high: float) -> np.ndarray:
    """The odd polynomial of degree 5 that is nearest to 1 between two numbers: its error has four equal extremes."""
    inner = np.array([(3 * low + high) / 4, (low + 3 * high) / 4])
    for _ in range(50):
        points = np.array([low, *inner, high])
        *factors, _ = np.linalg.solve(np.stack([points, points**3, points**5, [1, -1, 1, -1]], axis=1), np.ones(4))
        slope = np.polynomial.Polynomial([factors[0], 0, 3 * factors[1], 0, 5 * factors[2]])
        inner = np.sort(slope.roots().real)[2:]
    return np.array(factors)


def test_polar_express_has_the_best_polynomials_one_after_the_other():
    """Derived again: of a low end below 0.0241 of the high one only that part, and the result is put around 1."""
    low, high = 1e-3, 1.0
    for found in POLAR_EXPRESS:
        factors = best_quintic(max(low, 0.02407327424182761 * high), high)
        ends = [factors @ [x, x**3, x**5] for x in (low, high)]
        np.testing.assert_allclose(found, factors * 2 / sum(ends), rtol=1e-9)
        low = 2 * ends[0] / sum(ends)
        high = 2 - low


def test_singular_values_after_polar_express_are_in_its_range():
    """Against the factors of NumPy: the same directions, and values that were above 0.001 of the norm near 1."""
    left, values, right = np.linalg.svd(np.random.default_rng(2).normal(size=(2, 6, 9)), full_matrices=False)
    values = np.float32([[1, 0.5, 0.1, 0.02, 4e-3, 1.2e-3], [1, 1, 1, 1, 1, 1]])
    given = np.float32(left * values[:, None] @ right)
    run = jax.jit(lambda matrices: orthogonalized(matrices, ORTHOGONALIZATIONS["polar_express"]))
    found = np.asarray(run(given))
    core = np.swapaxes(left, 1, 2) @ found @ np.swapaxes(right, 1, 2)
    after = np.diagonal(core, axis1=1, axis2=2)
    assert 0.84 < after.min() and after.max() < 1.13
    np.testing.assert_allclose(core, after[:, :, None] * np.eye(6), atol=2e-4)
    every = np.geomspace(1e-3, 1, 1_000)
    for polynomial in ORTHOGONALIZATIONS["polar_express"]:
        every = sum(factor * every**power for factor, power in zip(polynomial, (1, 3, 5), strict=True))
    assert 0.84 < every.min() and every.max() < 1.13


def test_momentum_warms_up_as_in_the_published_code():
    ours, buffer, update = warmed_momentum(0.95, 3), np.zeros(4), None
    step, state = jax.jit(ours.update), ours.init({"w": np.zeros(4, np.float32)})
    for number in range(5):
        gradient = np.random.default_rng(number).normal(size=4).astype(np.float32)
        share = min(number / 3, 1)
        momentum = (1 - share) * 0.85 + share * 0.95
        buffer = momentum * buffer + (1 - momentum) * gradient  # momentum_buffer.lerp_(grad, 1 - momentum)
        expected = (1 - momentum) * gradient + momentum * buffer  # grad.lerp(momentum_buffer, momentum)
        update, state = step({"w": gradient}, state)
        np.testing.assert_allclose(update["w"], expected, rtol=1e-5, atol=1e-6)


def one_update(transformation):
    """The compiled function of gradients and parameters that returns the first update and the state after it."""
    return jax.jit(lambda grads, params: transformation.update(grads, transformation.init(params), params))


@pytest.mark.parametrize(
    "mesh", [MeshConfig(data=2, fsdp=2, tensor=2), pytest.param(MeshConfig(data=1, fsdp=8), marks=pytest.mark.slow)]
)
def test_a_mesh_of_eight_gives_the_same_update(mesh):
    ours, params, grads = optimizer(MUON_CONFIG, MUON_TABLE), drawn_of_muon(0), drawn_of_muon(1)
    expected, _ = one_update(ours)(grads, params)
    devices = sharding.make_mesh(mesh)
    where = sharding.shardings(devices, entries(MUON_TABLE, params))
    placed, given = (jax.tree.map(jax.device_put, tree, where) for tree in (params, grads))
    found, state = one_update(ours)(given, placed)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), found, expected)
    assert len(jax.tree.leaves(state)) == 1 + len(MATRICES) + 2 * (len(MUON_TABLE) - len(MATRICES))


@pytest.mark.slow
def test_a_run_on_a_mesh_of_eight_gives_the_losses_of_one_device():
    model, config = small_pretraining.tiny(dropout=0.0)
    config = dataclasses.replace(config, optimizer=OptimizerConfig(name="muon"))
    metrics, _ = small_pretraining.losses(model, config, small_pretraining.SINGLE)
    again, _ = small_pretraining.losses(model, config, small_pretraining.CUBE)
    for one, other in zip(metrics, again):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


PAPER = Config(phases=(PhaseConfig(steps=1_000_000, warmup_steps=10_000, learning_rate=1e-4),))


def config(steps=1000, warmup=100, peak=0.5, **schedule) -> Config:
    phase = PhaseConfig(steps=steps, warmup_steps=warmup, learning_rate=peak)
    return Config(phases=(phase,), schedule=ScheduleConfig(**schedule))


def test_the_2018_line_over_a_million_steps():
    steps = np.concatenate([np.arange(20_000), np.arange(20_000, 1_000_001, 1_009), np.arange(999_990, 1_000_001)])
    expected = 1e-4 * np.where(steps < 10_000, steps / 10_000, 1 - steps / 1e6)  # which jumps down at the peak
    np.testing.assert_allclose(rate_at(PAPER, steps), expected, rtol=3e-7, atol=0)


@pytest.mark.parametrize(
    "schedule, expected",
    [
        (dict(name="linear"), lambda t: 1 - t / 1000),
        (dict(name="linear", final_fraction=0.1), lambda t: 0.1 + 0.9 * (1 - t / 1000)),
        (dict(name="polynomial", power=0.5), lambda t: math.sqrt(1 - t / 1000)),
        (dict(name="polynomial", power=2.0, final_fraction=0.2), lambda t: 0.2 + 0.8 * (1 - t / 1000) ** 2),
        (dict(name="cosine"), lambda t: 0.5 * (1 + math.cos(math.pi * (t - 100) / 900))),
        (dict(name="cosine", final_fraction=0.1), lambda t: 0.1 + 0.45 * (1 + math.cos(math.pi * (t - 100) / 900))),
        (dict(name="constant"), lambda t: 1.0),
        (
            dict(name="constant", cooldown_steps=200, final_fraction=0.25),
            lambda t: min(1.0, 0.25 + 0.75 * (1000 - t) / 200),
        ),
        (
            dict(name="constant", cooldown_steps=200, cooldown="one_minus_sqrt", final_fraction=0.25),
            lambda t: 0.25 + 0.75 * (1 - math.sqrt(max(0, t - 800) / 200)),
        ),
    ],
)
def test_closed_forms(schedule, expected):
    steps = [0, 1, 50, 99, 100, 101, 400, 799, 800, 801, 999, 1000]
    wanted = [0.5 * (t / 100 if t < 100 else expected(t)) for t in steps]
    np.testing.assert_allclose(rates_at(config(**schedule), steps), wanted, rtol=2e-6, atol=2e-8)


def test_no_warm_up_begins_at_the_peak_and_the_default_is_a_hundredth():
    np.testing.assert_allclose(rates_at(config(warmup=0), [0, 1]), [0.5, 0.4995], rtol=1e-6)
    np.testing.assert_allclose(rates_at(config(warmup=None), [5, 10]), [0.25, 0.5 * 0.99], rtol=1e-6)


def test_continuing_phases_share_one_line_and_scale_it():
    phases = (PhaseConfig(steps=900, warmup_steps=10, learning_rate=0.5), PhaseConfig(steps=100, learning_rate=0.5))
    steps = np.arange(1001)
    np.testing.assert_array_equal(rate_at(Config(phases=phases), steps), rate_at(config(warmup=10), steps))
    lower = (phases[0], dataclasses.replace(phases[1], learning_rate=0.1))
    rates = rate_at(Config(phases=lower), np.array([899, 900, 950]))
    np.testing.assert_allclose(rates, [0.5 * 0.101, 0.1 * 0.1, 0.1 * 0.05], rtol=1e-6)


def test_restarting_phases_have_schedules_of_their_own():
    phases = (
        PhaseConfig(steps=900, warmup_steps=10, learning_rate=0.5),
        PhaseConfig(steps=60, warmup_steps=20, learning_rate=0.2, schedule="restart"),
        PhaseConfig(steps=40, learning_rate=0.2),
    )
    rates = rates_at(Config(phases=phases), [10, 899, 900, 910, 920, 960, 999, 1000])
    wanted = [0.5 * 890 / 900, 0.5 / 900, 0, 0.1, 0.2 * 0.8, 0.2 * 0.4, 0.2 * 0.01, 0]
    np.testing.assert_allclose(rates, wanted, rtol=1e-6)


def test_python_numpy_and_traced_steps_agree():
    compiled = jax.jit(lambda step: rate_at(PAPER, step))
    for step in (0, 123, 10_000, 777_777):
        assert rate_at(PAPER, step) == rate_at(PAPER, np.int64(step)) == compiled(jnp.int32(step))
    assert rate_at(PAPER, 5).dtype == jnp.float32

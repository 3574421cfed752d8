"""Optimizers against float64 NumPy transcriptions of what was published, and against each other."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from published_optimizers import PEAK, STEPS, adamw, bert_2018, lamb, published, stable_adamw

from bert_jax.config import Config, ModelConfig, OptimizerConfig, PhaseConfig
from bert_jax.models.bert import BertForPreTraining
from bert_jax.parameters import Axis, Parameter, linear, norm, table
from bert_jax.training.optimizers import clip_by_global_norm, included, learning_rate, optimizer

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


def run(config: OptimizerConfig, params: dict) -> dict:
    transformation, structure = optimizer(config, TABLE), jax.tree.structure(params)

    @jax.jit
    def step(params, state, grads, number):
        grads, _ = clip_by_global_norm(grads, config.clip_norm)
        updates, state = transformation.update(grads, state, params)
        rate = learning_rate(CONFIG, number)
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


def test_adamw_equals_optax():
    config = OptimizerConfig(name="adamw", clip_norm=0, weight_decay=0.1, epsilon=1e-8)
    ours = optimizer(config, TABLE)
    theirs = optax.adamw(1.0, weight_decay=0.1, mask=lambda tree: included(TABLE, tree))
    params = parameters()
    states = jax.jit(lambda params: (ours.init(params), theirs.init(params)))(params)

    @jax.jit
    def both(grads, states):
        updates, state = ours.update(grads, states[0], params)
        expected, other = theirs.update(grads, states[1], params)
        return updates, expected, (state, other)

    for number in range(5):
        grads = jax.tree.unflatten(jax.tree.structure(params), gradients(number))
        updates, expected, states = both(grads, states)
        expected = jax.device_get(expected)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, -b, rtol=1e-6), updates, expected)


def test_lamb_treats_stacked_layers_as_separate_ones():
    config = OptimizerConfig(name="lamb", clip_norm=0)
    random = np.random.default_rng(3)
    # Layers of very different size: one ratio for the whole stack would be far from theirs.
    kernel = (random.normal(size=(3, 4, 5)) * np.array([0.1, 1, 10]).reshape(3, 1, 1)).astype(np.float32)
    grad = random.normal(size=(3, 4, 5)).astype(np.float32)
    stacked, single = {"encoder": {"kernel": kernel}}, {str(i): {"kernel": kernel[i]} for i in range(3)}
    axes = (HIDDEN, Axis("intermediate", 5))
    of_stack = optimizer(config, table([Parameter("encoder/kernel", (LAYER, *axes))]))
    of_single = optimizer(config, table(Parameter(f"{i}/kernel", axes) for i in range(3)))

    @jax.jit
    def both(stacked, single):
        together, _ = of_stack.update({"encoder": {"kernel": grad}}, of_stack.init(stacked), stacked)
        grads = {str(i): {"kernel": grad[i]} for i in range(3)}
        return together, of_single.update(grads, of_single.init(single), single)[0]

    together, apart = jax.device_get(both(stacked, single))
    for i in range(3):
        np.testing.assert_allclose(together["encoder"]["kernel"][i], apart[str(i)]["kernel"], rtol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(apart[str(i)]["kernel"]), np.linalg.norm(kernel[i]), rtol=1e-5)


def test_lamb_ratio_is_one_where_a_norm_is_zero():
    config = OptimizerConfig(name="lamb", clip_norm=0)
    params = {"encoder": {"kernel": np.stack([np.zeros((2, 2)), np.ones((2, 2)), np.zeros((2, 2))]).astype(np.float32)}}
    grads = {"encoder": {"kernel": np.stack([np.ones((2, 2)), np.ones((2, 2)), np.zeros((2, 2))]).astype(np.float32)}}
    square = (Axis("layer", 3), Axis("hidden", 2), Axis("hidden", 2))
    lamb = optimizer(config, table([Parameter("encoder/kernel", square)]))
    updates, _ = jax.jit(lambda params: lamb.update(grads, lamb.init(params), params))(params)
    # First Adam step: direction 1 (plus decay 0.01 · p); zero parameter → ratio 1; ones → |p|/|u| · u = 1.
    np.testing.assert_allclose(
        updates["encoder"]["kernel"], [np.ones((2, 2)), np.ones((2, 2)), np.zeros((2, 2))], rtol=1e-4
    )


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
    decays = included(model.parameters, jax.eval_shape(model.init, jax.random.key(0)))
    yes = {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, value in jax.tree.leaves_with_path(decays)
        if value
    }
    assert yes == {
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
    params = parameters()
    paths = {jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in jax.tree.leaves_with_path(params)}
    state = jax.eval_shape(optimizer(dataclasses.replace(OptimizerConfig(), name=name), TABLE).init, params)
    names = [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in jax.tree.leaves_with_path(state)]
    for path in paths:
        assert sum(found.endswith("/" + path) for found in names if "/mu/" in found) == 1
        assert any(found.endswith("/nu/" + path) for found in names)
    assert len(names) == 2 * len(paths) + (name != "adamw_bert")

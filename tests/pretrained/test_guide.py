"""The example of docs/checkpoints.md, run as it is printed there, and its gradients against float64 NumPy."""

import pathlib
import re

import jax
import numpy as np
import numpy_bert
import pytest
from loaded_model import SMALL, loaded
from pretrained_model import stored_model

import bert_jax

GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "checkpoints.md"


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Everything that the example defines, and the parameters that it began with."""
    place = tmp_path_factory.mktemp("guide")
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "jax.grad" in block]
    defined = {"model": loaded(stored_model(config=SMALL))}
    before = jax.device_get(defined["model"].params)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        exec(compile(code, GUIDE, "exec"), defined)
    return defined | {"before": before, "place": place}


def loss_in_float64(params, batch, wanted) -> float:
    states = numpy_bert.forward(params, SMALL, batch | {"masked_positions": np.zeros((3, 1), int)})["last_hidden_state"]
    vectors = np.stack([row[:size].mean(axis=0) for row, size in zip(states, batch["attention_mask"].sum(axis=1))])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return ((vectors @ vectors.T - np.asarray(wanted)) ** 2).mean()


def test_the_gradients_are_those_of_the_loss(example):
    """Along random directions through all parameters: central differences in float64, exact to about 1e-8."""
    before, random, small = example["before"], np.random.default_rng(0), 1e-5
    value, gradients = jax.jit(jax.value_and_grad(example["loss"]))(before)
    as_float64 = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), before)
    assert value == pytest.approx(loss_in_float64(as_float64, example["batch"], example["wanted"]), rel=1e-5)
    for _ in range(5):
        direction = jax.tree.map(lambda leaf: random.standard_normal(leaf.shape), as_float64)
        ahead, behind = (
            loss_in_float64(
                jax.tree.map(lambda leaf, way: leaf + sign * small * way, as_float64, direction),
                example["batch"],
                example["wanted"],
            )
            for sign in (1, -1)
        )
        along = sum(
            np.vdot(way, np.asarray(slope, np.float64))
            for way, slope in zip(jax.tree.leaves(direction), jax.tree.leaves(gradients))
        )
        assert abs(along) > 1e-3 and along == pytest.approx((ahead - behind) / (2 * small), rel=1e-3)


def test_it_learns_and_what_it_saved_is_what_it_learned(example):
    saved = bert_jax.load(example["place"] / "adapted")
    after, before = (
        loss_in_float64(jax.device_get(params), example["batch"], example["wanted"])
        for params in (saved.params, example["before"])
    )
    assert after < 0.5 * before
    for ours, theirs in zip(jax.tree.leaves(example["model"].params), jax.tree.leaves(saved.params), strict=True):
        np.testing.assert_array_equal(ours, theirs)

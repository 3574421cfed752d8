"""A gradient that is not finite changes no bit of any optimizer's state; one that is gives what optax gives."""

import typing

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.config import OptimizerConfig
from bert_jax.parameters import Axis, Parameter, linear, table
from bert_jax.training.optimizers import (
    Holding,
    averaged,
    chained,
    holding,
    optimizer,
    scale_by_adam,
    scale_by_depth,
    unfrozen_by_epoch,
)
from bert_jax.training.state import TrainState
from bert_jax.training.step import updated

NAMES = typing.get_args(typing.get_type_hints(OptimizerConfig)["name"])
LAYER, HIDDEN, WIDE = Axis("layer", 2), Axis("hidden", 4), Axis("intermediate", 6)
TABLE = table(
    [
        Parameter("embeddings/word/table", (Axis("vocab", 7), HIDDEN), embedding=True),
        *linear("encoder/feed_forward/intermediate", (HIDDEN,), (WIDE,), (LAYER,)),
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
    ours = {name: optimizer(OptimizerConfig(name=name), TABLE) for name in NAMES}
    return ours | {
        "averaged": averaged(ours["adamw"], 0.9),
        "by depth, averaged": averaged(chained(ours["adamw_bert"], scale_by_depth(0.5, 2, TABLE)), 0.9),
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
    one = chained(optax.trace(0.9), unfrozen_by_epoch(2, TABLE))
    updates, state = jax.jit(one.update)(
        drawn(1), one.init(drawn(0)), drawn(0), epoch=np.int32(0), finite=np.bool_(False)
    )
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(updates))  # all layers are still frozen
    assert bits(state) == bits(one.init(drawn(0)))
    assert isinstance(one, Holding) and holding(one) is one

"""States of a few arrays, saved and compared."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.config import CheckpointConfig

KEEP_ALL = CheckpointConfig(keep_last=100)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    step: jax.Array
    params: dict
    optimizer_state: object


def make_state(seed: int = 0, rows: int = 256) -> State:
    """Random floats do not compress, so that a flipped bit in a file is a flipped bit in an array."""
    random = np.random.default_rng(seed)
    params = {
        "embeddings": {"word": {"table": jnp.asarray(random.normal(size=(rows, 64)), jnp.float32)}},
        "pooler": {"kernel": jnp.asarray(random.normal(size=(16, 16)), jnp.float32), "bias": jnp.zeros(16)},
    }
    return State(jnp.int32(seed), params, optax.adamw(1e-3).init(params))


def abstract(state):
    return jax.eval_shape(lambda: state)


def assert_same_bits(a, b) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        assert x.dtype == y.dtype and x.shape == y.shape
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def write_steps(directory, *steps: int, run_id: str | None = None) -> dict[int, State]:
    states = {step: make_state(step) for step in steps}
    with Checkpoints(directory, KEEP_ALL, run_id=run_id) as checkpoints:
        for step, state in states.items():
            assert checkpoints.save(step, state, position={"examples_seen": 32 * step}, config={"seed": step})
    return states

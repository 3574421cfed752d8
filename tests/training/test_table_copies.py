"""The gradient of a word table that every part of the batch reads from its own copy: the sum over the parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.config import MeshConfig
from bert_jax.devices import sharding
from bert_jax.training import step

ROWS, COLUMNS = 74, 16  # rows that no number of devices divides, but for the two of the tensor axis

MESHES = {
    "one_axis": MeshConfig(data=1, fsdp=8),
    "every_axis": MeshConfig(data=2, fsdp=2, tensor=2),
    "slices": MeshConfig(slice=2, data=1, fsdp=4),
}


@pytest.mark.parametrize("in_pairs", [False, True], ids=["at_once", "in_pairs"])
@pytest.mark.parametrize("by_rows", [False, True], ids=["by_columns", "by_rows"])
@pytest.mark.parametrize("name", MESHES)
def test_the_gradient_is_the_sum_over_all_parts_and_split_like_the_table(name, by_rows, in_pairs, monkeypatch):
    monkeypatch.setattr(step, "LEAST_BY_ROWS", 2 if by_rows else 9)
    monkeypatch.setattr(sharding, "LEAST_IN_PAIRS", 2 if in_pairs else 9)
    mesh = sharding.make_mesh(MESHES[name])
    where = NamedSharding(mesh, P("tensor", "fsdp"))
    # Whole numbers, whose sums are exact in any order.
    weights = np.random.default_rng(0).integers(-99, 99, (sharding.batch_parts(mesh), ROWS, COLUMNS)).astype(np.float32)

    def loss(params, weights):
        copied = step.with_copies(params, mesh, where, jnp.dtype("float32"))
        return jnp.sum(copied["embeddings"]["word"]["table"] * weights)

    params = {"embeddings": {"word": {"table": jax.device_put(np.ones((ROWS, COLUMNS), np.float32), where)}}}
    parts = jax.device_put(weights, NamedSharding(mesh, P(sharding.BATCH_AXES, "tensor", None)))
    gradient = jax.jit(jax.grad(loss))(params, parts)["embeddings"]["word"]["table"]
    np.testing.assert_array_equal(jax.device_get(gradient), weights.sum(0))
    assert gradient.sharding.is_equivalent_to(where, 2)

"""Which gradients are summed whole before they are split: those of tables whose rows are looked up, and no others."""

import jax
import jax.numpy as jnp
import pytest

from bert_jax.config import MeshConfig, ModelConfig
from bert_jax.devices import sharding
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.parameters import Axis, Parameter, entries, table
from bert_jax.training.step import _tables_whole

HIDDEN = Axis("hidden", 16)
PARAMETERS = {
    **bert_parameters(ModelConfig(vocab_size=64, hidden_size=16, num_heads=2, num_layers=1), ("mlm", "mask_decoder")),
    **table([Parameter("order/lines", (Axis("position", 8), HIDDEN), used="looked_up")]),
}


@pytest.mark.parametrize("copies", [False, True])
def test_tables_that_are_looked_up_are_summed_whole_from_outside_too(copies):
    arrays: dict = {}
    for path, parameter in PARAMETERS.items():
        *parents, name = path.split("/")
        place = arrays
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = jnp.zeros(parameter.shape)
    mesh = sharding.make_mesh(MeshConfig(data=1, fsdp=8))
    shardings = sharding.shardings(mesh, entries(PARAMETERS, arrays))
    found = jax.jit(lambda given: _tables_whole(PARAMETERS, given, shardings, copies))(
        jax.device_put(arrays, shardings)
    )
    split = {path for path in PARAMETERS if "fsdp" in sharding.partition_spec(mesh, PARAMETERS[path])[0]}
    whole = {path for path in split if _array(found, path).sharding.is_fully_replicated}
    tables = {"embeddings/position/table", "embeddings/token_type/table", "mask_decoder/position/table", "order/lines"}
    assert whole == (tables if copies else tables | {"embeddings/word/table"})  # copies are summed like kernels
    assert {"mlm/dense/kernel", "encoder/attention/query/kernel"} <= split


def _array(tree: dict, path: str) -> jax.Array:
    for name in path.split("/"):
        tree = tree[name]
    assert isinstance(tree, jax.Array)
    return tree

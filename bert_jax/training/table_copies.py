"""A copy of the word table for each part of the batch, so that the gradients of its two uses are summed together.

XLA sums what lookup and logits give over the devices as soon as each is computed, which moves the largest array of the
model twice. With copies, each device adds up its own two gradients, and the only sum is the transpose of copying.

That sum is in the type of the products, in which the gradients of all kernels are summed too: they leave a product in
that type. What one device adds up is float32 before and after.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.devices import sharding
from bert_jax.models.protocol import Model, Params, SharesWordTable

LEAST_BY_ROWS = 8  # devices on the fsdp axis; with four, large's columns are scattered, and the exchange is a loss
TILE_ROWS = 16  # of bfloat16 on a TPU


def copies_type(model: Model, mesh: Mesh) -> jnp.dtype | None:
    """Return the type in which gradients of copies are summed; None if `model` cannot read copies, or one is enough."""
    if isinstance(model, SharesWordTable) and model.shares_word_table and sharding.batch_parts(mesh) > 1:
        return model.dtype
    return None


def with_copies(params: Params, mesh: Mesh, where: NamedSharding, dtype: jnp.dtype) -> Params:
    """Return `params` with the word table [V, H] as [N, V, H], where each of the N parts of the batch has its copy.

    Args:
      params: of a model that has a `copies_type`.
      mesh: the devices.
      where: how the table is split over them.
      dtype: type in which the gradients of the copies are summed.
    """
    parts = sharding.batch_parts(mesh)
    apart = NamedSharding(mesh, P(sharding.BATCH_AXES, where.spec[0] if where.spec else None, None))
    by_rows = "fsdp" in where.spec and mesh.shape["fsdp"] >= LEAST_BY_ROWS

    @jax.custom_vjp
    def copied(table: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(jnp.broadcast_to(table[None], (parts, *table.shape)), apart)

    def summed(_: Any, gradient: jax.Array) -> tuple[jax.Array]:
        own = jax.lax.with_sharding_constraint(gradient, apart).astype(dtype)
        # lax.reduce, because jnp.sum would widen a narrow type before it sums.
        total = _sum_by_rows(own, where) if by_rows else jax.lax.reduce(own, jnp.zeros((), dtype), jax.lax.add, (0,))
        return (jax.lax.with_sharding_constraint(total, where).astype(jnp.float32),)

    copied.defvjp(lambda table: (copied(table), None), summed)
    embeddings = params["embeddings"]
    copies = embeddings["word"] | {"table": copied(embeddings["word"]["table"])}
    return params | {"embeddings": embeddings | {"word": copies}}


def _sum_by_rows(own: jax.Array, where: NamedSharding) -> jax.Array:
    """Return the sum of what each device has, [N, V, H] → [V, H] split coarsely, by way of rows.

    The compiler for TPUs scatters a sum over rows, of whole tiles, but not one over columns: it sums whole tables,
    which moves twice as much. Once each device has the sum of its rows alone, they exchange rows for columns, which
    is little.
    """
    coarse = sharding.split_coarsely(where)
    mesh = coarse.mesh
    assert isinstance(mesh, Mesh), "shardings of a state are on devices"
    batch = tuple(axis for axis in mesh.axis_names if axis != "tensor")
    within = tuple(axis for axis in batch if axis not in ("slice", "fsdp"))

    def of_one_device(own: jax.Array) -> jax.Array:
        rows = own.shape[1]
        padded = jnp.pad(own[0], ((0, -rows % (TILE_ROWS * mesh.shape["fsdp"])), (0, 0)))
        part = jax.lax.psum_scatter(padded, "fsdp", scatter_dimension=0, tiled=True)
        part = jax.lax.psum(jax.lax.psum(part, within), "slice")
        return jax.lax.all_to_all(part, "fsdp", split_axis=1, concat_axis=0, tiled=True)[:rows]

    split = jax.shard_map(of_one_device, mesh=mesh, in_specs=P(batch, "tensor", None), out_specs=coarse.spec)
    return sharding.under(mesh, split)(own)

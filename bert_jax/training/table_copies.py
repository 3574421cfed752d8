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
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.electra import Electra
from bert_jax.models.protocol import Model, Params


def copies_type(model: Model, mesh: Mesh) -> jnp.dtype | None:
    """Return the type in which gradients of copies are summed; None if `model` cannot read copies, or one is enough."""
    if isinstance(model, BertForPreTraining | Electra) and model.shares_word_table and sharding.batch_parts(mesh) > 1:
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

    @jax.custom_vjp
    def copied(table: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(jnp.broadcast_to(table[None], (parts, *table.shape)), apart)

    def summed(_: Any, gradient: jax.Array) -> tuple[jax.Array]:
        own = jax.lax.with_sharding_constraint(gradient, apart).astype(dtype)
        # lax.reduce, because jnp.sum would widen a narrow type before it sums.
        total = jax.lax.reduce(own, jnp.zeros((), dtype), jax.lax.add, (0,))
        return (jax.lax.with_sharding_constraint(total, where).astype(jnp.float32),)

    copied.defvjp(lambda table: (copied(table), None), summed)
    embeddings = params["embeddings"]
    copies = embeddings["word"] | {"table": copied(embeddings["word"]["table"])}
    return params | {"embeddings": embeddings | {"word": copies}}

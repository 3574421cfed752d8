"""Learning rates that fall from the top layer to the embeddings (Howard & Ruder 2018; Zhang et al. 2021)."""

import jax
import jax.numpy as jnp
import optax

from bert_jax.errors import UserError
from bert_jax.models.bert_parameters import TASK_PARTS
from bert_jax.models.parameters import Parameter, ParameterTable, entries


def scale_by_depth(decay: float, num_layers: int, parameters: ParameterTable) -> optax.GradientTransformation:
    """Return a transformation that multiplies updates by decay^d.

    d is 0 for head, pooler and top layer, 1 for the layer below it, …, num_layers for the embeddings.

    Raises:
      UserError: layers share parameters, which then have no depth.
    """
    for parameter in parameters.values():
        axis = parameter.axis("layer")
        if axis is not None and parameter.shape[axis] != num_layers:
            raise UserError(
                f"layer_decay={decay} needs separate parameters for each of {num_layers} layers, but "
                f"{parameter.path} is {list(parameter.shape)}, which layers share; use layer_decay=1"
            )

    def scaled(parameter: Parameter, update: jax.Array) -> jax.Array:
        if parameter.embedding:
            return update * decay**num_layers
        axis = parameter.layer_axis
        if axis is None:
            return update
        factors = decay ** jnp.arange(update.shape[axis] - 1, -1, -1, dtype=update.dtype)
        return update * jnp.expand_dims(factors, [other for other in range(update.ndim) if other != axis])

    return optax.stateless(lambda updates, params: jax.tree.map(scaled, entries(parameters, updates), updates))


def frozen_encoder(parameters: ParameterTable) -> optax.GradientTransformation:
    """Return a transformation that updates only the head and its CRF; not even weight decay changes the encoder."""

    def kept(parameter: Parameter, update: jax.Array) -> jax.Array:
        return update if parameter.part in TASK_PARTS else jnp.zeros_like(update)

    return optax.stateless(lambda updates, params: jax.tree.map(kept, entries(parameters, updates), updates))

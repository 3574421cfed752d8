"""Learning rates that fall from the top layer to the embeddings (Howard & Ruder 2018; Zhang et al. 2021)."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.errors import UserError
from bert_jax.models.bert_parameters import ENCODER_PARTS, TASK_PARTS
from bert_jax.models.parameters import Parameter, ParameterTable, entries


def scale_by_depth(decay: float, num_layers: int, parameters: ParameterTable) -> optax.GradientTransformation:
    """Return a transformation that multiplies updates by decay^d.

    d is 0 for head, pooler and top layer, 1 for the layer below it, …, num_layers for the embeddings.

    Raises:
      UserError: there are no layers, or they share parameters, which then have no depth.
    """
    if not num_layers:
        raise UserError(f"layer_decay={decay} needs layers, and this model has none; use layer_decay=1")
    _check_separate(num_layers, parameters, f"layer_decay={decay}", "use layer_decay=1")

    def scaled(parameter: Parameter, update: jax.Array) -> jax.Array:
        if parameter.embedding:
            return update * decay**num_layers
        axis = parameter.layer_axis
        if axis is None:
            return update
        below = num_layers - 1 - parameter.lowest_layer - jnp.arange(update.shape[axis], dtype=update.dtype)
        factors = decay**below
        return update * jnp.expand_dims(factors, [other for other in range(update.ndim) if other != axis])

    return optax.stateless(lambda updates, params: jax.tree.map(scaled, entries(parameters, updates), updates))


def unfrozen_by_epoch(num_layers: int, parameters: ParameterTable) -> optax.GradientTransformationExtraArgs:
    """Return a transformation whose `update` takes the number of the `epoch` and lets pass what learns by then.

    That is the head and the pooler in epoch 0, in each later one also the next layer from the top, the final norm with
    the first of them, and everything after the last layer (gradual unfreezing, Howard & Ruder 2018, section 3.3).

    Raises:
      UserError: layers share parameters, which then have no depth.
    """
    _check_separate(num_layers, parameters, "gradual_unfreezing=True", "use gradual_unfreezing=False")

    def first_epochs(parameter: Parameter, update: jax.Array) -> jax.Array:
        if parameter.part == "final_norm":
            return jnp.asarray(1)
        if parameter.part not in ENCODER_PARTS:
            return jnp.asarray(0)
        axis = parameter.layer_axis
        if parameter.embedding or axis is None:
            return jnp.asarray(num_layers + 1)
        from_top = num_layers - parameter.lowest_layer - jnp.arange(update.shape[axis])
        return jnp.expand_dims(from_top, [other for other in range(update.ndim) if other != axis])

    def update(updates: Any, state: optax.OptState, params: Any = None, **given: Any):
        del params
        thawed = lambda parameter, each: jnp.where(given["epoch"] >= first_epochs(parameter, each), each, 0.0)
        return jax.tree.map(thawed, entries(parameters, updates), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _check_separate(num_layers: int, parameters: ParameterTable, option: str, remedy: str) -> None:
    """Raise a UserError if layers share parameters."""
    for parameter in parameters.values():
        axis = parameter.axis("layer")
        if axis is not None and parameter.shape[axis] != num_layers:
            raise UserError(
                f"{option} needs separate parameters for each of {num_layers} layers, but {parameter.path} is "
                f"{list(parameter.shape)}, which layers share; {remedy}"
            )


def frozen_encoder(parameters: ParameterTable) -> optax.GradientTransformation:
    """Return a transformation that updates only the head and its CRF; not even weight decay changes the encoder."""

    def kept(parameter: Parameter, update: jax.Array) -> jax.Array:
        return update if parameter.part in TASK_PARTS else jnp.zeros_like(update)

    return optax.stateless(lambda updates, params: jax.tree.map(kept, entries(parameters, updates), updates))

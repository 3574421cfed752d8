"""The optimizers, as update directions without a learning rate.

The step multiplies the direction by −learning_rate(step), so the schedule depends on the global step alone: resetting
or loading moments never shifts it. The model's table says which parameters decay and which have one array per layer.
"""

import typing
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax.config import OptimizerConfig
from bert_jax.models.parameters import Parameter, ParameterTable, entries
from bert_jax.optim.holding import Holding, chained, held
from bert_jax.optim.muon import scale_by_muon


def optimizer(config: OptimizerConfig, parameters: ParameterTable) -> Holding:
    """Return the direction of the update for gradients that have been clipped; `update` needs the parameters.

    adamw_bert: google-research/bert optimization.py: m / (sqrt(v) + epsilon) + weight_decay · p, no bias correction.
    adamw: the same with bias-corrected m and v (Loshchilov & Hutter 2019).
    lamb: the adamw direction times |p| / |direction| of each layer (You et al. 2020, algorithm 2 with phi = identity).
    muon: orthogonalized momentum for matrices, the adamw direction for the rest (optim/muon.py).
    stable_adamw: the adamw direction divided by max(1, RMS(g / √v)) of each array (Wortsman et al. 2023, algorithm 2).
    """
    if config.name == "stable_adamw":
        return stable_adamw(config, parameters)
    if config.name == "muon":
        moments = scale_by_muon(config, parameters)
    elif config.name == "adamw_bert":
        moments = scale_by_uncorrected_adam(config.beta1, config.beta2, config.epsilon)
    else:
        moments = scale_by_adam(config.beta1, config.beta2, config.epsilon)
    parts = [moments, optax.add_decayed_weights(config.weight_decay, mask=lambda tree: included(parameters, tree))]
    if config.name == "lamb":
        parts.append(scale_by_layer_trust_ratio(parameters))
    return chained(*parts)


def included(parameters: ParameterTable, tree: Any) -> dict[str, Any]:
    """Return a tree of booleans: whether weight decay (and the trust ratio) applies; not to biases and LayerNorm.

    Embedding tables and the dense layer of the MLM head decay; the output bias of the MLM head does not.
    """
    return jax.tree.map(lambda parameter: parameter.decays, entries(parameters, tree))


def clip_by_global_norm(gradients: Any, max_norm: float) -> tuple[Any, ...]:
    """Return (gradients · max_norm / max(norm, max_norm), norm before clipping); max_norm=0 changes no gradient.

    The norm is that of the whole tree, as in tf.clip_by_global_norm. The original clips each replica's gradient before
    the mean over replicas; here the gradient of the global batch is clipped, so the result does not depend on the
    number of devices.
    """
    norm = optax.tree.norm(gradients)
    if not max_norm:
        return gradients, norm
    scale = max_norm / jnp.maximum(norm, max_norm)
    return jax.tree.map(lambda g: g * scale, gradients), norm


class UncorrectedAdamState(NamedTuple):
    mu: optax.Params
    nu: optax.Params


def scale_by_adam(beta1: float, beta2: float, epsilon: float) -> Holding:
    """Return optax's Adam, with the same state, which holds it (`holding`)."""

    def update(updates: Any, state: Any, params: Any = None, *, finite: jax.Array | bool = True, **given: Any):
        del params, given
        mu, nu = _moments(updates, state, beta1, beta2, finite)
        count = optax.safe_increment(state.count)
        directions = jax.tree.map(
            lambda m, v: m / (jnp.sqrt(v) + epsilon),
            optax.tree.bias_correction(mu, beta1, count),
            optax.tree.bias_correction(nu, beta2, count),
        )
        return directions, optax.ScaleByAdamState(held(finite, count, state.count), mu, nu)

    return Holding(optax.scale_by_adam(beta1, beta2, epsilon).init, update)


def scale_by_uncorrected_adam(beta1: float, beta2: float, epsilon: float) -> Holding:
    """Return Adam without bias correction and with epsilon outside the root, with which BERT was trained."""

    def init(params: Any):
        return UncorrectedAdamState(mu=optax.tree.zeros_like(params), nu=optax.tree.zeros_like(params))

    def update(updates: Any, state: Any, params: Any = None, *, finite: jax.Array | bool = True, **given: Any):
        del params, given
        mu, nu = _moments(updates, state, beta1, beta2, finite)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu), UncorrectedAdamState(mu, nu)

    return Holding(init, update)


def _moments(gradients: Any, state: Any, beta1: float, beta2: float, finite: jax.Array | bool) -> tuple[Any, Any]:
    """Return the next first and second moments, or those of `state`."""
    mu = optax.tree.update_moment(gradients, state.mu, beta1, 1)
    nu = optax.tree.update_moment_per_elem_norm(gradients, state.nu, beta2, 2)
    return held(finite, mu, state.mu), held(finite, nu, state.nu)


def scale_by_layer_trust_ratio(parameters: ParameterTable) -> optax.GradientTransformation:
    """Return a transformation that multiplies each layer's update by |parameter| / |update|.

    The ratio is 1 where a norm is 0 or nothing decays. A stacked parameter holds one array per layer: its norms, and
    its ratios, are taken layer by layer.
    """

    def scaled(entry: Parameter, update: jax.Array, parameter: jax.Array) -> jax.Array:
        if not entry.decays:
            return update
        axes = tuple(axis for axis in range(update.ndim) if axis != entry.axis("layer"))
        parameter_norm = jnp.sqrt(jnp.sum(parameter**2, axes, keepdims=True))
        update_norm = jnp.sqrt(jnp.sum(update**2, axes, keepdims=True))
        defined = (parameter_norm > 0) & (update_norm > 0)
        return update * jnp.where(defined, parameter_norm / jnp.where(defined, update_norm, 1.0), 1.0)

    return optax.stateless(lambda updates, params: jax.tree.map(scaled, entries(parameters, updates), updates, params))


def stable_adamw(config: OptimizerConfig, parameters: ParameterTable) -> Holding:
    """Return AdamW with the update clipping of Adafactor; a stacked parameter holds one array per layer.

    After a sudden change the second moments are too small for the gradients, and an unclipped step would be too long.
    """
    adam = scale_by_adam(config.beta1, config.beta2, config.epsilon)
    decay = optax.add_decayed_weights(config.weight_decay, mask=lambda tree: included(parameters, tree))

    def surprise(entry: Parameter, gradient: jax.Array, second: jax.Array) -> jax.Array:
        axes = tuple(axis for axis in range(gradient.ndim) if axis != entry.layer_axis)
        square = jnp.square(gradient) / jnp.maximum(second, config.epsilon**2)
        return jnp.maximum(jnp.sqrt(jnp.mean(square, axes, keepdims=True)), 1.0)

    def update(updates: Any, state: Any, params: Any = None, **given: Any):
        directions, state = adam.update(updates, state, **given)
        directions, _ = decay.update(directions, decay.init(updates), params)
        moments = typing.cast(optax.ScaleByAdamState, state)
        seconds = optax.tree.bias_correction(moments.nu, config.beta2, moments.count)
        ratios = jax.tree.map(surprise, entries(parameters, updates), updates, seconds)
        return jax.tree.map(jnp.divide, directions, ratios), state

    return Holding(adam.init, update)

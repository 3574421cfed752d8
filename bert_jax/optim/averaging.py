"""The moving average of the weights of a run, which is kept, evaluated and saved beside them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.optim.holding import Holding, held, holding


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AveragedState:
    """State of an optimizer with the average of the parameters."""

    optimizer: optax.OptState
    average: dict[str, Any]
    decay: float = dataclasses.field(metadata={"static": True})


def averaged(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """Return the optimizer with the average in its state; 0 changes nothing. `moved` takes the average along."""
    if not decay:
        return optimizer

    def init(params: Any) -> Any:
        return AveragedState(optimizer.init(params), _copied(params), decay)

    def update(updates: Any, state: Any, params: Any = None, **given: Any) -> tuple[Any, Any]:
        updates, inner = holding(optimizer).update(updates, state.optimizer, params, **given)
        return updates, dataclasses.replace(state, optimizer=inner)

    return Holding(init, update)


def moved(
    state: optax.OptState, params: dict[str, Any], step: jax.Array, finite: jax.Array | bool = True
) -> optax.OptState:
    """Return the state after the update from `step`, which gave `params`: average ← d · average + (1 − d) · params.

    d is min(decay, (1 + step) / (10 + step)), as in TensorFlow's ExponentialMovingAverage, so that the average forgets
    the parameters of the start. Unless `finite`, the average stays. A state without one is returned as it is.
    """
    if not isinstance(state, AveragedState):
        return state
    step = step.astype(jnp.float32)
    decay = jnp.minimum(jnp.float32(state.decay), (1 + step) / (10 + step))
    average = jax.tree.map(lambda mean, value: mean + (1 - decay) * (value - mean), state.average, params)
    return dataclasses.replace(state, average=held(finite, average, state.average))


def restarted(state: optax.OptState, params: dict[str, Any]) -> optax.OptState:
    """Return the state of a run that starts from `params`."""
    return dataclasses.replace(state, average=_copied(params)) if isinstance(state, AveragedState) else state


def with_average_of(fresh: optax.OptState, state: optax.OptState) -> optax.OptState:
    """Return the state `fresh` with the average of `state`, which continues when moments are reset."""
    if not (isinstance(state, AveragedState) and isinstance(fresh, AveragedState)):
        return fresh
    return dataclasses.replace(fresh, average=state.average)


def average_of(state: optax.OptState) -> dict[str, Any] | None:
    """Return the average of the parameters; None if none is kept."""
    return state.average if isinstance(state, AveragedState) else None


def _copied(params: dict[str, Any]) -> dict[str, Any]:
    """Return arrays of their own, since a step gives away the memory of both."""
    return jax.tree.map(jnp.copy, params)

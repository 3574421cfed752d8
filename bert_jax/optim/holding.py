"""Optimizers that keep their state where a gradient is not finite."""

from typing import Any

import jax
import jax.numpy as jnp
import optax


class Holding(optax.GradientTransformationExtraArgs):
    """An optimizer whose `update` takes `finite`, a boolean [] that is True unless given.

    Where it is false, the state returned is the one passed in; the updates are then worth nothing.
    """


def holding(optimizer: optax.GradientTransformation) -> Holding:
    """Return the optimizer as one that holds its state: itself if it does, else chosen after its update.

    XLA's compiler for CPUs computes what an update and a choice after it both read a second time, and copies the old
    state. An optimizer that chooses its moments before it reads them is spared both.
    """
    if isinstance(optimizer, Holding):
        return optimizer
    update_of = optax.with_extra_args_support(optimizer).update

    def update(updates: Any, state: Any, params: Any = None, *, finite: jax.Array | bool = True, **given: Any):
        updates, new = update_of(updates, state, params, **given)
        return updates, held(finite, new, state)

    return Holding(optimizer.init, update)


def chained(*parts: optax.GradientTransformation) -> Holding:
    """Return the parts as one optimizer, in which each holds its state."""
    return Holding(*optax.chain(*map(holding, parts)))


def held(finite: jax.Array | bool, new: Any, old: Any) -> Any:
    """Return the tree `new` where `finite` is true, else `old`."""
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)

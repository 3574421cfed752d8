"""Arrays that a step reads and never changes, such as the parameters of a teacher.

They are arguments of the compiled functions, after all others: as constants they would be part of the program. They are
on the devices once, are split like parameters, and are in no checkpoint and no optimizer state.
"""

from collections.abc import Callable
from typing import Any, cast

import jax

from bert_jax.devices import sharding
from bert_jax.objectives.objective import Objective, TaughtObjective

Frozen = tuple[Any, ...]
"""Trees of arrays, or of ShapeDtypeStructs with shardings, in the order in which an objective takes them."""


def frozen_shardings(frozen: Frozen) -> Frozen:
    """Return the sharding of each array, in the same trees."""
    return jax.tree.map(lambda leaf: leaf.sharding, frozen)


def reader(objective: Objective, frozen: Frozen) -> Callable[[Frozen], Objective]:
    """Return what makes the objective that reads arrays like `frozen`, in the function that is traced with them."""
    where = sharding.gathered(frozen_shardings(frozen))

    def reading(arrays: Frozen) -> Objective:
        if not arrays:
            return objective
        return cast(TaughtObjective, objective).reading(*jax.lax.with_sharding_constraint(arrays, where))

    return reading

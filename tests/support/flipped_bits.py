"""A state of which one device holds something else than the others, as a device that computes wrongly leaves it."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from bert_jax.training.state import TrainState
from bert_jax.training.step import Program


def with_a_flipped_bit(state: TrainState, path: str, device: int) -> TrainState:
    """The same state, but for the lowest bit of the last element of what `device` holds of the parameter at `path`."""
    return dataclasses.replace(state, params=_changed_at(state.params, path, lambda leaf: _flipped(leaf, device)))


def wrong_at(step: int, device: int) -> Callable:
    """What stands in for `Program.__call__` where `device` computes one step of training wrongly."""
    call = Program.__call__

    def faulty(self, *arguments):
        result = call(self, *arguments)
        if isinstance(result, tuple) and int(result[0].step) == step:  # what evaluates and predicts returns no state
            return with_a_flipped_bit(result[0], "encoder/attention/query/kernel", device), result[1]
        return result

    return faulty


def _changed_at(params: dict, path: str, change) -> dict:
    first, _, rest = path.partition("/")
    return {**params, first: _changed_at(params[first], rest, change) if rest else change(params[first])}


def _flipped(array: jax.Array, device: int) -> jax.Array:
    parts = []
    for shard in array.addressable_shards:
        values = np.array(shard.data)
        if shard.device.id == device:
            values.view(np.uint32).reshape(-1)[-1] ^= 1
        parts.append(jax.device_put(values, shard.device))
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)

"""Work directories that a run has begun, that another one holds, or whose copies differ in a bit."""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
from collections.abc import Callable, Iterator

import jax
import numpy as np

from bert_jax.checkpoints.workdir import WorkDirectory, open_workdir
from bert_jax.config import Config, ModelConfig, PhaseConfig
from bert_jax.config.options import from_dict, to_dict
from bert_jax.pretraining import PRETRAINING
from bert_jax.training.state import TrainState
from bert_jax.training.step import Program

CONFIG = Config(
    model=ModelConfig(num_layers=2), phases=(PhaseConfig(steps=90), PhaseConfig(steps=10, sequence_length=512))
)


def opened(path, tokenizer, config=CONFIG, store="store-1", names=None, devices=None) -> WorkDirectory:
    """Take a directory as `pretrain` does; `names`: what it must have in common with an earlier start as well."""
    identity = {"store_fingerprint": store, "tokenizer_fingerprint": tokenizer.fingerprint} | (names or {})
    local = config.checkpoint.local_path
    return open_workdir(path, PRETRAINING, identity, to_dict(config), tokenizer, local_path=local, devices=devices)


def start(path, tokenizer, config=CONFIG, store="store-1"):
    opened(path, tokenizer, config, store).release()


def changed(**options) -> Config:
    """CONFIG with dotted options replaced: changed(**{"phases.1.steps": 20})."""
    values = to_dict(CONFIG)
    for name, value in options.items():
        *parents, last = name.split(".")
        part = values
        for parent in parents:
            part = part[int(parent) if parent.isdigit() else parent]
        part[int(last) if last.isdigit() else last] = value
    return from_dict(Config, values)


@contextlib.contextmanager
def held_by_another(directory: pathlib.Path, pid: int) -> Iterator[None]:
    """Hold a directory as process `pid` would: the kernel tells locks apart by the opened file."""
    with open(directory / "owner.json", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump({"pid": pid, "host": os.uname().nodename, "id": "another", "since": "now"}, file)
        file.flush()
        yield


def contents(path) -> dict:
    """Of the files that make it a work directory; owner.json changes as it is renewed."""
    files = (file for file in pathlib.Path(path).rglob("*") if file.is_file() and "owner.json" not in file.name)
    return {file: file.read_bytes() for file in files}


def no_locks(*unused):
    """In place of fcntl.flock, on a file system without locks."""
    raise OSError("no locks here")


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

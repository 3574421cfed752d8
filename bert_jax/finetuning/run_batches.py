"""The batches of a run: which layout they have, and how they reach the devices."""

import functools

import jax
from jax.sharding import Mesh

from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.data.sequences.batching import Batch, TrainingBatches
from bert_jax.data.sequences.features import Features
from bert_jax.data.sequences.shared_rows import SharedRowBatches
from bert_jax.devices import sharding
from bert_jax.finetuning.programs import Programs


def training_batches(
    config: FinetuneConfig, features: Features, programs: Programs, *, batch_size: int, seed: int
) -> TrainingBatches:
    """Return the batches of a run, in rows of their own or in shared ones."""
    multiple = sharding.batch_parts(programs.mesh) * config.micro_batches
    if config.packing:
        make = functools.partial(SharedRowBatches, features, batch_size, programs.longest_row)
    else:
        make = functools.partial(TrainingBatches, features, batch_size)
    return make(window=config.bucket_window, seed=seed, multiple=multiple)


def placed_batch(batch: Batch, mesh: Mesh) -> dict[str, jax.Array]:
    """Return the batch on the devices, to which each host contributes its rows."""
    rows = len(batch["input_ids"])
    mine = sharding.host_rows(mesh, rows)
    return sharding.to_global(mesh, {name: values[mine] for name, values in batch.items()}, rows)

"""An objective whose loss goes wrong on certain batches, wherever in a run they come."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.objectives.objective import Batch, Objective, Sums, Term
from bert_jax.pretraining import default_objective
from bert_jax.training_data import open_corpus


@dataclasses.dataclass(frozen=True)
class PoisonedObjective:
    """The objective `inner`, with losses times `factor` for batches whose token ids add up to one of `marks`."""

    inner: Objective
    marks: tuple[int, ...]
    factor: float

    @property
    def model(self):
        return self.inner.model

    @property
    def terms(self) -> tuple[Term, ...]:
        return self.inner.terms

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return self.inner.denominators(batch)

    def sums(self, params, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        total = jnp.sum(batch["input_ids"])
        bad = jnp.any(jnp.stack([total == mark for mark in self.marks]))
        factor = jnp.where(bad, jnp.float32(self.factor), jnp.float32(1))
        sums = self.inner.sums(params, batch, dropout_key)
        return {name: each._replace(loss=each.loss * factor) for name, each in sums.items()}


def poisoned(config, first_positions, factor: float):
    """What makes the objective of a run in whose first phase the batches from these positions on go wrong."""
    examples, rows = open_corpus(config).training[0], np.arange(config.phases[0].batch_size)
    marks = tuple(int(examples.batch(first + rows)["input_ids"].sum()) for first in first_positions)
    return lambda model, config: PoisonedObjective(default_objective(model, config), marks, factor)

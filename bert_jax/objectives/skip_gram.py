"""Skip-gram with negative sampling (Mikolov et al. 2013, arXiv 1310.4546, equation 4): static word vectors."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.protocol import encoder_inputs
from bert_jax.objectives.objective import Batch, Sums, Term

NEIGHBOURS = Term(name="skip_gram", label="neighbours", title="Skip-gram", unit="nats per pair", panels=("loss",))


@dataclasses.dataclass(frozen=True)
class SkipGramObjective:
    """Neighbours of every word against random words (see `Objective`), of batches of `data.examples.neighbour_windows`.

    A pair of a word w and its neighbour c has the loss -log σ(w·c) - k E log σ(-w·n) over words n ~ count^(3/4). The
    expectation is the mean over the words that were drawn for the row.
    """

    model: BertForPreTraining
    negatives: int
    """The weight k of the random words."""
    terms: tuple[Term, ...] = (NEIGHBOURS,)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {NEIGHBOURS.name: jnp.sum(_pairs(batch))}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        ids, pairs = batch["input_ids"], _pairs(batch)
        encoded = self.model.encode(params, *encoder_inputs(batch), dropout_key)
        near = jax.nn.softplus(-self.model.context_scores(params, encoded, ids))
        drawn = jax.nn.softplus(self.model.context_scores(params, encoded, batch["negatives"]))
        of_a_pair = near + self.negatives * jnp.mean(drawn, axis=2, keepdims=True)
        return {NEIGHBOURS.name: Sums(jnp.sum(pairs * of_a_pair), jnp.sum(pairs))}


def _pairs(batch: Batch) -> jax.Array:
    """Return float32 [B, L, L]: 1 where the second place is a neighbour of the first."""
    place = jnp.arange(batch["input_ids"].shape[1])
    distance, windows = (place[None] - place[:, None])[None], batch["windows"]
    near = (distance != 0) & (distance >= -windows[:, :, :1]) & (distance <= windows[:, :, 1:])
    return near.astype(jnp.float32)

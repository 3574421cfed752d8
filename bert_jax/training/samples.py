"""What the model would fill in for the masks of a few held-out sequences, the same ones at every evaluation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from bert_jax.config import Config
from bert_jax.data.examples.batch_layout import Batch
from bert_jax.data.store.store import Store
from bert_jax.devices import sharding
from bert_jax.devices.signals import StopSignals
from bert_jax.models.protocol import FillsMasks
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.learner import Learner
from bert_jax.training.metrics import Rates
from bert_jax.training.program import Program
from bert_jax.training.step import make_forward_step

CANDIDATES = 3  # per mask
MOST_MASKS = 8  # per sequence; more say no more


class Samples:
    """The first sequences of an evaluation, whose masked words a model predicts.

    Args:
      model: has the head for masked words, or a generator that has it.
      evaluation: has the sequences, their masks and the mesh.
      tokenizer: makes text of ids.
      shardings: tree of the shardings of the parameters.
      count: number of sequences.
    """

    def __init__(self, model: FillsMasks, evaluation: Evaluation, tokenizer: Tokenizer, shardings: Any, count: int):
        self._tokenizer, self._mesh = tokenizer, evaluation.mesh
        self._count = min(count, evaluation.examples.num_examples(0))
        rows = sharding.batch_parts(evaluation.mesh)
        self._size = -(-self._count // rows) * rows  # the mesh divides it; the others are not shown
        positions = np.arange(self._size) % self._count
        self._batch = _all_masked(evaluation.examples.batch(positions), tokenizer.mask_id)
        names = ("input_ids", "token_type_ids", "attention_mask", "masked_positions")
        mine = sharding.host_rows(evaluation.mesh, self._size)
        self._given = {name: self._batch[name][mine] for name in names}
        function = lambda params, batch: _candidates(model, params, batch)
        self._step = Program(make_forward_step(function, self._mesh, shardings))

    def run(self, params: Any, signals: StopSignals | None = None, rates: Rates | None = None) -> list[dict[str, Any]]:
        """Return, for each sequence, its text and for each of its first masks the word and the best candidates.

        Raises:
          Stopped: raised by `signals` before it is computed.
        """
        batch = sharding.to_global(self._mesh, self._given, self._size)
        if signals is not None:
            signals.check()
            self._step.prepare(params, batch, signals=signals, rates=rates)
        shares, ids = jax.device_get(self._step(params, batch))
        return [self._sequence(row, shares[row], ids[row]) for row in range(self._count)]

    def _sequence(self, row: int, shares: np.ndarray, ids: np.ndarray) -> dict[str, Any]:
        used = np.flatnonzero(self._batch["masked_weights"][row])[:MOST_MASKS]
        tokens = self._tokenizer.tokens
        text = self._batch["input_ids"][row, self._batch["attention_mask"][row] > 0]
        masks = []
        for slot in used:
            candidates = zip(ids[slot], shares[slot], strict=True)
            masks.append(
                {
                    "word": tokens[self._batch["masked_ids"][row, slot]],
                    "candidates": [[tokens[number], round(float(share), 4)] for number, share in candidates],
                }
            )
        return {"text": " ".join(tokens[number] for number in text), "masks": masks}


def make_samples(learner: Learner, config: Config, evaluation: Evaluation, store: Store) -> Samples | None:
    """Return what notes predictions at evaluations; None if nobody asked, or no part of the model fills masks in."""
    model = learner.objective.model
    if not config.evaluation.samples:
        return None
    if not (config.objective.masks_words and isinstance(model, FillsMasks) and model.fills_masks):
        logging.warning(
            "evaluation.samples=%d notes nothing: the model %s with objective.name=%s fills no masked words in (see "
            "FillsMasks in bert_jax/models/protocol.py)",
            config.evaluation.samples,
            type(model).__name__,
            config.objective.name,
        )
        return None
    return Samples(model, evaluation, store.tokenizer(), learner.shardings.params, config.evaluation.samples)


def _all_masked(batch: Batch, mask_id: int) -> Batch:
    """Return the batch with [MASK] at every masked position, where training may show a random or the original word."""
    rows, slots = np.nonzero(batch["masked_weights"])
    ids = batch["input_ids"].copy()
    ids[rows, batch["masked_positions"][rows, slots]] = mask_id
    return {**batch, "input_ids": ids}


def _candidates(model: FillsMasks, params: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
    """Return probabilities and ids [B, M, CANDIDATES] of the most likely entries."""
    probabilities = jax.nn.softmax(model.mlm_logits(params, batch).astype(jnp.float32))
    return jax.lax.top_k(probabilities, CANDIDATES)

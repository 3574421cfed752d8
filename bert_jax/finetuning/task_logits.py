"""From sequences to the scores of a task's head, by one fine-tuned model or the mean of several."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.config import HeadConfig
from bert_jax.config.predicting import PredictConfig
from bert_jax.data.sequences.batching import evaluation_batches, padded, round_up
from bert_jax.data.sequences.features import Features
from bert_jax.devices import sharding
from bert_jax.devices.memory_shortage import memory_advice
from bert_jax.devices.signals import StopSignals
from bert_jax.formats.fit import check_fit
from bert_jax.formats.opening import place
from bert_jax.formats.stored import StoredModel
from bert_jax.models.task import BertForTask
from bert_jax.objectives.task_head import predictions
from bert_jax.training.metrics import Rates
from bert_jax.training.program import Program
from bert_jax.training.step import make_forward_step

SMALLER = ("a smaller --batch_size (in fine-tuning, --eval_batch_size)",)


def predict_logits(
    predict_step: Program,
    params: Any,
    features: Features,
    head: HeadConfig,
    batch_size: int,
    mesh: Mesh,
    signals: StopSignals | None = None,
    rates: Rates | None = None,
) -> list[np.ndarray]:
    """Return the scores of every sequence, in order and without padding, float32.

    Args:
      predict_step: (params, batch) → `predictions`; compiled once per rung of the ladder of lengths.
      rates: paused while it is compiled.

    Returns:
      classification [C]; regression []; choice [K]; span [L, 2]; tagging [L, C].

    Raises:
      Stopped: raised by `signals` before one of the batches.
    """
    rows = round_up(batch_size, sharding.batch_parts(mesh))
    mine = sharding.host_rows(mesh, rows)
    inputs = ("input_ids", "token_type_ids", "attention_mask", *(("labels",) if head.crf else ()))
    results: list[Any] = [None] * len(features)

    def collect(indices: np.ndarray, scores: jax.Array) -> None:
        for index, row in zip(indices, np.asarray(scores), strict=False):
            results[index] = row[: len(features.input_ids[index])] if head.kind in ("span", "tagging") else row

    pending: tuple[np.ndarray, jax.Array] | None = None
    with memory_advice(f"a batch of {rows} sequences to predict", SMALLER):
        for indices in evaluation_batches(features, batch_size):
            batch = padded(features, indices, rows)
            batch = sharding.to_global(mesh, {name: batch[name][mine] for name in inputs}, rows)
            if signals is not None:
                signals.check()
                predict_step.prepare(params, batch, signals=signals, rates=rates)
            scores = predict_step(params, batch)
            if pending is not None:  # fetched one batch late, so that the device never waits for Python
                collect(*pending)
            pending = indices, scores
        if pending is not None:
            collect(*pending)
    return results


def average(head: HeadConfig, predictions: Sequence[list[np.ndarray]]) -> list[np.ndarray]:
    """Return the scores of an ensemble: log of the mean probability of a class or candidate; for others the mean score.

    Span scores are averaged, not probabilities: scores are comparable across the windows of a question, and the
    threshold was tuned on them. For a CRF, whose scores are those of the best path, each word gets the fraction of the
    models that vote for a label.
    """
    if len(predictions) == 1:
        return predictions[0]
    if head.kind in ("regression", "span") or head.crf:
        return [np.mean(rows, axis=0) for rows in zip(*predictions, strict=True)]
    members = [
        [row - np.logaddexp.reduce(row, axis=-1, keepdims=True) for row in rows]
        for rows in zip(*predictions, strict=True)
    ]
    return [np.logaddexp.reduce(rows, axis=0) - np.float32(np.log(len(rows))) for rows in members]


def member_logits(stored: StoredModel, features: Features, config: PredictConfig, mesh: Mesh) -> list[np.ndarray]:
    """Return what `predict_logits` does for a stored model."""
    check_fit(stored)
    params = place(stored, mesh)
    model = BertForTask(stored.model, stored.need_head(), config.compute)
    step = Program(
        make_forward_step(functools.partial(predictions, model), mesh, jax.tree.map(lambda leaf: leaf.sharding, params))
    )
    return predict_logits(step, params, features, stored.need_head(), config.batch_size, mesh)

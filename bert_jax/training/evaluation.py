"""Held-out evaluation: the same documents, pairs and masks every time."""

import dataclasses
import operator
from typing import Any

import jax
import numpy as np

from bert_jax.config import Config, Phase
from bert_jax.data.examples.examples import Examples
from bert_jax.data.examples.pipeline import batches
from bert_jax.devices import sharding
from bert_jax.devices.signals import StopSignals
from bert_jax.objectives import masked_language_model
from bert_jax.objectives.means import evaluation_metrics
from bert_jax.objectives.objective import Objective, Sums
from bert_jax.training.frozen import Frozen
from bert_jax.training.metrics import Rates
from bert_jax.training.program import Program
from bert_jax.training.step import make_sums_step

EVALUATION_SEED = 2019  # for pairs, lengths and masks; not the run's seed, so that runs with different seeds compare
UNIGRAM_SEQUENCES = 20_000


class Evaluation:
    """Sequences of one split at the length of one phase, with fixed masks; `run` measures parameters on them."""

    def __init__(
        self,
        objective: Objective,
        config: Config,
        phase: Phase,
        store: Any,
        split: str,
        mesh: Any,
        shardings: Any,
        frozen: Frozen = (),
    ):
        self.terms: tuple[Any, ...] = objective.terms
        alone = dataclasses.replace(phase, packed=False)  # one text per row, so that runs with and without compare
        self.examples: Examples = Examples(store, config, alone, split=split, seed=EVALUATION_SEED)
        self.mesh = mesh
        rows = sharding.batch_parts(mesh)
        wanted = min(config.evaluation.sequences, self.examples.num_examples(0))
        # Equal batches that the mesh divides: a few sequences may be left out at the end, or be used twice where there
        # are too few.
        self.num_batches: int = -(-wanted // config.evaluation.batch_size)
        self.batch_size: int = max(1, wanted // self.num_batches // rows) * rows
        self._step = Program(make_sums_step(objective, mesh, shardings, frozen), frozen)

    @property
    def num_sequences(self) -> int:
        return self.num_batches * self.batch_size

    def run(self, params: Any, signals: StopSignals | None = None, rates: Rates | None = None) -> dict[str, float]:
        """Return loss (nats per prediction), perplexity and accuracy of each term of the objective, by metric name.

        A term for which the batches have no labels, or the model has no head, is absent.

        Args:
          params: the parameters to measure.
          signals: asked before each batch whether to stop.
          rates: paused while the forward step is compiled.

        Raises:
          Stopped: raised by `signals` before one of the batches.
        """
        totals: dict[str, Sums] = {}
        for batch in self._batches():
            batch = sharding.to_global(self.mesh, batch, self.batch_size)
            if signals is not None:
                signals.check()
                self._step.prepare(params, batch, signals=signals, rates=rates)
            sums = jax.tree.map(float, jax.device_get(self._step(params, batch)))
            totals = jax.tree.map(operator.add, totals, sums) if totals else sums
        return evaluation_metrics(self.terms, totals)

    def unigram(self, training: Examples) -> dict[str, float]:
        """Return the metrics that a model ignoring the context reaches on the same masks, for terms that predict words.

        It knows the word frequencies of `training`, with add-one smoothing; {} if no term predicts words.
        """
        predicting = [term.name for term in self.terms if term.of_words]
        if not predicting:
            return {}
        counts = np.ones(training.store.vocab_size)
        size = min(256, training.num_examples(0))
        for batch in batches(training, 0, size, np.arange(size), UNIGRAM_SEQUENCES // size, loader="plain"):
            counts += np.bincount(batch["masked_ids"][batch["masked_weights"] > 0], minlength=len(counts))
        targets = np.concatenate([batch["masked_ids"][batch["masked_weights"] > 0] for batch in self._batches()])
        sums = masked_language_model.frequency_sums(counts, targets)
        return evaluation_metrics(self.terms, dict.fromkeys(predicting, sums))

    def _batches(self):
        # Always the plain loader: no second TensorFlow pipeline beside the training one, and the batches are the same.
        return batches(
            self.examples,
            0,
            self.batch_size,
            sharding.host_rows(self.mesh, self.batch_size),
            self.num_batches,
            loader="plain",
        )

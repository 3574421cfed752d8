"""Held-out evaluation: the same documents, pairs and masks every time."""

import dataclasses
import functools
import operator
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.config import Config, Phase
from bert_jax.data.examples.corpus import HeldOut
from bert_jax.data.examples.examples import Examples
from bert_jax.data.examples.mixture import Mixture
from bert_jax.data.examples.pipeline import batches
from bert_jax.devices import sharding
from bert_jax.devices.memory_shortage import memory_advice
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
    """Sequences of what is held out, at the length of one phase, with fixed masks; `run` measures parameters on them.

    Of several stores, each is measured alone, on as many sequences; the whole is their mean in the proportions in which
    training mixes them, as if the sequences were drawn from the mixture.
    """

    def __init__(
        self,
        objective: Objective,
        config: Config,
        phase: Phase,
        held_out: Sequence[HeldOut],
        shares: Mapping[str, float],
        mesh: Any,
        shardings: Any,
        frozen: Frozen = (),
    ):
        self.terms: tuple[Any, ...] = objective.terms
        self.mesh = mesh
        self._parts = tuple(Part.of(each, shares[each.name], config, phase, mesh) for each in held_out)
        self._step = Program(make_sums_step(objective, mesh, shardings, frozen), frozen)

    @property
    def num_sequences(self) -> int:
        return sum(part.num_sequences for part in self._parts)

    @property
    def examples(self) -> Examples:
        """Those of the first store, to show some."""
        return self._parts[0].examples

    def run(self, params: Any, signals: StopSignals | None = None, rates: Rates | None = None) -> dict[str, float]:
        """Return loss (nats per prediction), perplexity and accuracy of each term of the objective, by metric name.

        Those of one store among several begin with its name and a slash (`wiki/mlm_loss`). A term for which the batches
        have no labels, or the model has no head, is absent.

        Args:
          params: the parameters to measure.
          signals: asked before each batch whether to stop.
          rates: paused while the forward step is compiled.

        Raises:
          Stopped: raised by `signals` before one of the batches.
        """
        return self._metrics([self._sums(part, params, signals, rates) for part in self._parts])

    def unigram(self, training: Examples | Mixture) -> dict[str, float]:
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
        found = []
        for part in self._parts:
            targets = [batch["masked_ids"][batch["masked_weights"] > 0] for batch in part.batches(self.mesh)]
            sums = masked_language_model.frequency_sums(counts, np.concatenate(targets))
            found.append(dict.fromkeys(predicting, sums))
        return self._metrics(found)

    def _sums(self, part: "Part", params: Any, signals: StopSignals | None, rates: Rates | None) -> dict[str, Sums]:
        """Return the sums of each term over all sequences of one store."""
        totals: dict[str, Sums] = {}
        with memory_advice(
            f"an evaluation batch of {part.batch_size} sequences", ["a smaller --evaluation.batch_size"]
        ):
            for batch in part.batches(self.mesh):
                batch = sharding.to_global(self.mesh, batch, part.batch_size)
                if signals is not None:
                    signals.check()
                    self._step.prepare(params, batch, signals=signals, rates=rates)
                sums = jax.tree.map(float, jax.device_get(self._step(params, batch)))
                totals = _added(totals, sums) if totals else sums
        return totals

    def _metrics(self, found: list[dict[str, Sums]]) -> dict[str, float]:
        """Return the metrics of all stores together, and of each if there are several, from their sums."""
        if len(found) == 1:
            return evaluation_metrics(self.terms, found[0])
        weighed = [
            jax.tree.map((part.share / part.num_sequences).__mul__, sums)
            for part, sums in zip(self._parts, found, strict=True)
            if part.share
        ]
        metrics = evaluation_metrics(self.terms, functools.reduce(_added, weighed))
        for part, sums in zip(self._parts, found, strict=True):
            own = evaluation_metrics(self.terms, sums)
            metrics |= {f"{part.name}/{name}": value for name, value in own.items()}
        return metrics


def _added(some: dict[str, Sums], others: dict[str, Sums]) -> dict[str, Sums]:
    return jax.tree.map(operator.add, some, others)


@dataclasses.dataclass(frozen=True)
class Part:
    """The sequences of one store that an evaluation reads."""

    name: str
    share: float
    examples: Examples
    num_batches: int
    batch_size: int

    @property
    def num_sequences(self) -> int:
        return self.num_batches * self.batch_size

    @classmethod
    def of(cls, held_out: HeldOut, share: float, config: Config, phase: Phase, mesh: Any) -> "Part":
        alone = dataclasses.replace(phase, packed=False)  # one text per row, so that runs with and without compare
        examples = Examples(held_out.store, config, alone, split=held_out.split, seed=EVALUATION_SEED)
        rows = sharding.batch_parts(mesh)
        wanted = min(config.evaluation.sequences, examples.num_examples(0))
        # Equal batches that the mesh divides: a few sequences may be left out at the end, or be used twice where there
        # are too few.
        num_batches = -(-wanted // config.evaluation.batch_size)
        return cls(held_out.name, share, examples, num_batches, max(1, wanted // num_batches // rows) * rows)

    def batches(self, mesh: Any) -> Generator[dict[str, np.ndarray], None, None]:
        # Always the plain loader: no second TensorFlow pipeline beside the training one, and the batches are the same.
        rows = sharding.host_rows(mesh, self.batch_size)
        return batches(self.examples, 0, self.batch_size, rows, self.num_batches, loader="plain")

"""Held-out evaluation: the same documents, pairs and masks every time, with samples of filled-in masks.

The samples are the model's words for the masks of a few held-out sequences, the same ones at every evaluation.
"""

import dataclasses
import functools
import operator
from collections.abc import Generator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from bert_jax.config import EvaluationConfig, ObjectiveConfig
from bert_jax.data.examples import Batch, StoreExamples
from bert_jax.data.mixtures import Mixture
from bert_jax.data.pipeline import batches
from bert_jax.devices import sharding
from bert_jax.devices.hardware import memory_advice
from bert_jax.devices.signals import StopSignals
from bert_jax.models.protocol import FillsMasks, Model
from bert_jax.objectives import masked_words
from bert_jax.objectives.objective import Objective, Sums, evaluation_metrics
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.training.metrics import Rates
from bert_jax.training.step import Frozen, Program, make_forward_step, make_sums_step

UNIGRAM_SEQUENCES = 20_000


class Evaluation:
    """Sequences of what is held out; `run` measures parameters on them.

    Of several stores, each is measured alone, on as many sequences; the whole is their mean in the proportions in which
    training mixes them, as if the sequences were drawn from the mixture.
    """

    def __init__(
        self,
        objective: Objective,
        options: EvaluationConfig,
        held_out: Mapping[str, StoreExamples],
        shares: Mapping[str, float],
        mesh: Any,
        shardings: Any,
        frozen: Frozen = (),
    ):
        self.terms: tuple[Any, ...] = objective.terms
        self.mesh = mesh
        self._told: set[str] = set()
        self._parts = tuple(Part.of(name, shares[name], each, options, mesh) for name, each in held_out.items())
        self._step = Program(make_sums_step(objective, mesh, shardings, frozen), frozen)

    @property
    def num_sequences(self) -> int:
        return sum(part.num_sequences for part in self._parts)

    @property
    def examples(self) -> StoreExamples:
        """Sequences of the first store, from which samples are shown."""
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
        found = [self._sums(part, params, signals, rates) for part in self._parts]
        self._tell_of_nothing(found)
        return self._metrics(found)

    def _tell_of_nothing(self, found: list[dict[str, Sums]]) -> None:
        """Warn once of a term for which the held-out sequences have no place, so that it is not measured."""
        for term in self.terms:
            sums = [each[term.name] for each in found if term.name in each]
            if sums and not any(each.weight for each in sums) and term.name not in self._told:
                self._told.add(term.name)
                logging.warning(
                    "nothing in the %d held-out sequences is to be predicted for %s, which is not measured: take more "
                    "or longer texts, or mask single tokens",
                    self.num_sequences,
                    term.loss,
                )

    def unigram(self, training: StoreExamples | Mixture) -> dict[str, float]:
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
            sums = masked_words.frequency_sums(counts, np.concatenate(targets))
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
    examples: StoreExamples
    num_batches: int
    batch_size: int

    @property
    def num_sequences(self) -> int:
        return self.num_batches * self.batch_size

    @classmethod
    def of(cls, name: str, share: float, examples: StoreExamples, options: EvaluationConfig, mesh: Any) -> "Part":
        rows = sharding.batch_parts(mesh)
        wanted = min(options.sequences, examples.num_examples(0))
        # Equal batches that the mesh divides: a few sequences may be left out at the end, or be used twice where there
        # are too few.
        num_batches = -(-wanted // options.batch_size)
        return cls(name, share, examples, num_batches, max(1, wanted // num_batches // rows) * rows)

    def batches(self, mesh: Any) -> Generator[dict[str, np.ndarray], None, None]:
        # Always the plain loader: no second TensorFlow pipeline next to the training one, and the batches are the same.
        rows = sharding.host_rows(mesh, self.batch_size)
        return batches(self.examples, 0, self.batch_size, rows, self.num_batches, loader="plain")


CANDIDATES = 3  # per mask
MOST_MASKS = 8  # per sequence; more say no more


class Samples:
    """The first sequences of an evaluation, whose masked words a model predicts.

    Args:
      model: with a head for masked words, its own or that of a generator.
      evaluation: has the sequences, their masks and the mesh.
      tokenizer: turns ids into text.
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


def make_samples(
    model: Model,
    evaluation: Evaluation,
    tokenizer: Tokenizer,
    objective: ObjectiveConfig,
    shardings: Any,
    count: int,
) -> Samples | None:
    """Return the `count` sequences whose predictions are noted; None if there are none or the model fills no masks."""
    if not count:
        return None
    if not (objective.masks_words and isinstance(model, FillsMasks) and model.fills_masks):
        logging.warning(
            "evaluation.samples=%d notes nothing: the model %s with objective.name=%s fills no masked words in (see "
            "FillsMasks in bert_jax/models/protocol.py)",
            count,
            type(model).__name__,
            objective.name,
        )
        return None
    return Samples(model, evaluation, tokenizer, shardings, count)


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

"""Memorization of masks: the loss with the masks of training minus fresh ones, at every checkpoint of a run.

Behind `bert-jax analyze mask_gap`. A model can only memorize masks of sequences that it was trained on, so the gap is
measured there, on the same sequences twice: with the masks of their last visit, and with masks drawn from random
numbers that training never uses. No mask was ever trained with on held-out sequences, so the same difference is zero
there up to chance; it is measured as the reference. Comparing the loss with fresh masks on training and on held-out
sequences separates over-fitting to the text from over-fitting to the masks.
"""

import dataclasses
import os
from collections.abc import Sequence

import numpy as np
from etils import epath
from matplotlib.figure import Figure
from rich.table import Table

from bert_jax.analysis.results import Analysis, call_with, columns_table, framed, model_fingerprint, panels, short_path
from bert_jax.analysis.texts import sequence_losses
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import Position, Span, read_record
from bert_jax.config import (
    DataConfig,
    MaskedWords,
    MaskingConfig,
    ObjectiveConfig,
    Phase,
    config_of_phase,
    resolve_phases,
)
from bert_jax.config.analyses import MaskGapConfig
from bert_jax.config.options import to_dict
from bert_jax.data.examples import Batch
from bert_jax.errors import UserError, at_least
from bert_jax.pretrained.model import PretrainedModel, load
from bert_jax.progress import progress_bar
from bert_jax.training_data import Examples, open_corpus, read_config


@dataclasses.dataclass(frozen=True)
class MaskGap:
    """Losses at each of S checkpoints: means over sequences of the mean loss of their predictions, in nats."""

    steps: np.ndarray
    """float64 [S]: the step of each checkpoint."""
    epochs: np.ndarray
    """float64 [S]: how often its phase had learned from the training sequences by then; skipped ones do not count."""
    visits: np.ndarray
    """float64 [S]: how often each of the measured masks had been trained with; 1 for dynamic masks."""
    trained: np.ndarray
    """float64 [S]: loss of training sequences with the masks of their last visit."""
    fresh: np.ndarray
    """float64 [S]: loss of the same sequences with fresh masks, mean over `fresh_masks` of them."""
    gap: np.ndarray
    """float64 [S]: trained - fresh; below 0 where masks were memorized."""
    gap_error: np.ndarray
    """float64 [S]: standard error of the gap, over the sequences."""
    held_out: np.ndarray
    """float64 [S]: loss of held-out sequences with fresh masks; NaN if nothing is held out."""
    held_out_gap: np.ndarray
    """float64 [S]: the same difference between two masks that were not trained with: 0 but for chance."""
    held_out_gap_error: np.ndarray
    """float64 [S]: its standard error."""
    masks: str
    """Masks of the run: "dynamic", "static, 1", …"""
    sequences: int
    """Number of training sequences, at every checkpoint; the same ones where each epoch has the same text."""
    held_out_sequences: int
    """Number of held-out sequences; 0 if nothing is held out."""
    fresh_masks: int
    """Number of fresh masks of each sequence."""
    run: str
    """Path of the work directory."""


def mask_gap(
    run: str | os.PathLike[str],
    *,
    sequences: int = 256,
    fresh_masks: int = 4,
    seed: int = 0,
    batch_size: int = 32,
    progress: bool = True,
) -> MaskGap:
    """Return the gap between masks of training and fresh masks at every checkpoint that a work directory still has.

    Args:
      run: work directory of a pre-training run whose token store is where its configuration says.
      sequences: number of training sequences, drawn from the last epoch that was complete, or from what had been
        seen before there was one; and number of held-out sequences. Fewer are all taken.
      fresh_masks: number of fresh masks of each sequence.
      seed: of the sequences and of the fresh masks.
      batch_size: number of sequences that the model reads at once.

    Raises:
      UserError: there is no such run, checkpoint or store, or the run has no masks, packed rows, errors in its text or
        several stores.
    """
    at_least(1, sequences=sequences, fresh_masks=fresh_masks, batch_size=batch_size)
    config = read_config(run)
    phases, seen = resolve_phases(config), [config_of_phase(config, index) for index in range(len(config.phases))]
    for each in seen:
        check_measurable(each.objective, each.data, phases, run)
    corpus, held_out = open_corpus(config), None
    checkpoints = Checkpoints(epath.Path(run) / "checkpoints", read_only=True)
    if not checkpoints.steps():
        raise UserError(f"{os.fspath(run)} has no checkpoint yet; start again when it has one")
    rows, model, sizes = [], None, (0, 0)
    with progress_bar("checkpoints", len(checkpoints.steps()), visible=progress) as move_to:
        for number, (step, path) in enumerate(zip(checkpoints.steps(), checkpoints.directories(), strict=True)):
            loaded = load(path)
            if model is None or model.config != loaded.config:  # a phase may change what it computes
                model = loaded
            else:
                model.params = loaded.params  # what is compiled serves all checkpoints
            position = Position.from_dict(read_record(path / "record")["position"])
            phase = phases[position.phase]
            examples = corpus.training[phase.index]
            assert isinstance(examples, Examples)
            for each in corpus.held_out[:1]:
                held_out = Examples(each.store, config, phase, split=each.split, seed=phase.data_seed)
            comparing = _Comparison(model, fresh_masks, seed, batch_size)
            epochs, indices = last_visits(examples, position, sequences, seed)
            trained = comparing.losses(examples, epochs, indices)
            other = np.full((1, 2), np.nan)
            if held_out is not None:
                first = np.arange(min(sequences, held_out.num_examples(0)))
                other = comparing.losses(held_out, np.zeros_like(first), first)
            read = position.trained / examples.num_examples(0)
            period = seen[phase.index].masking.static_masks or config.data.copies
            visits = np.mean(visits_of(examples, position, epochs, indices, period)) if period else 1.0
            sizes = len(trained), 0 if held_out is None else len(other)
            rows.append([step, read, visits, *trained.mean(axis=0), *_gap(trained), other[:, 1].mean(), *_gap(other)])
            move_to(number + 1)
    columns = np.array(rows, np.float64).T
    names = [field.name for field in dataclasses.fields(MaskGap)][: len(columns)]
    return MaskGap(
        **dict(zip(names, columns, strict=True)),
        masks=_masks(seen[-1].masking, config.data),
        sequences=sizes[0],
        held_out_sequences=sizes[1],
        fresh_masks=fresh_masks,
        run=os.fspath(run),
    )


def check_measurable(
    objective: ObjectiveConfig, data: DataConfig, phases: Sequence[Phase], run: str | os.PathLike[str]
) -> None:
    """Raise a UserError if the masks of a run cannot be compared with fresh ones."""
    reasons = {
        f"objective.name={objective.name} has no masked words": not isinstance(objective, MaskedWords),
        "its rows are packed, which a loaded model does not read": any(each.packed for each in phases),
        "data.noise changes the text with the masks": data.noise.rate > 0,
        "it reads a mixture of stores": bool(data.mixture),
    }
    for reason, holds in reasons.items():
        if holds:
            raise UserError(f"{os.fspath(run)} cannot be measured: {reason}; choose a run without it")


def last_visits(examples: Examples, position: Position, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return epoch and index, int64 [n] each, of up to `count` examples of the last epoch that is complete.

    Before the first is, they are drawn from all examples before `position`. Those that a rollback skipped were never
    learned from, and are left out.
    """
    random, complete = np.random.default_rng(seed), int(examples.locate(np.array([position.examples_seen]))[0][0]) - 1
    skipped = _skipped(examples, position)
    for epoch in range(complete, -1, -1):
        drawn = random.permutation(examples.num_examples(epoch))
        indices = np.sort(drawn[~np.isin(drawn, skipped[1][skipped[0] == epoch])][:count])
        if len(indices):
            return np.full(len(indices), epoch), indices
    positions = random.permutation(position.examples_seen)
    for span in _spans(position):
        positions = positions[(positions < span.begin) | (positions >= span.end)]
    return examples.locate(np.sort(positions[:count]))


def visits_of(
    examples: Examples, position: Position, epochs: np.ndarray, indices: np.ndarray, period: int
) -> np.ndarray:
    """Return how often, int64 [n], the masks of these visits, which recur every `period` epochs, were trained with."""
    counts = epochs // period + 1
    for epoch, index in zip(*_skipped(examples, position), strict=True):
        counts -= (indices == index) & (epoch <= epochs) & ((epochs - epoch) % period == 0)
    return counts


def _spans(position: Position) -> list[Span]:
    """Return what the run has skipped in the phase of its position."""
    return [span for span in position.skipped if span.phase == position.phase]


def _skipped(examples: Examples, position: Position) -> tuple[np.ndarray, np.ndarray]:
    """Return epoch and index, int64 [n] each, of the examples before `position` that no state has learned from."""
    spans = [np.arange(span.begin, min(span.end, position.examples_seen)) for span in _spans(position)]
    return examples.locate(np.unique(np.concatenate([np.zeros(0, np.int64), *spans])))


class _Comparison:
    """Compares masks of the same sequences by one model."""

    def __init__(self, model: PretrainedModel, fresh_masks: int, seed: int, batch_size: int):
        self._model, self._batch_size = model, batch_size
        self._numbers = [seed * fresh_masks + number for number in range(fresh_masks)]

    def losses(self, examples: Examples, epochs: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Return float64 [n, 2]: the mean loss of each sequence with the masks of that epoch, and with fresh ones."""
        own = self._losses(examples.examples_at(epochs, indices))
        fresh = [self._losses(examples.examples_at(epochs, indices, fresh=number)) for number in self._numbers]
        return np.stack([own, np.mean(fresh, axis=0)], axis=1)

    def _losses(self, batch: Batch) -> np.ndarray:
        wanted = ("input_ids", "token_type_ids", "attention_mask", "masked_positions", "masked_ids", "masked_weights")
        return sequence_losses(self._model, {name: batch[name] for name in wanted}, self._batch_size)


def _gap(losses: np.ndarray) -> tuple[float, float]:
    """Return the mean difference of the two columns, and its standard error."""
    differences = losses[:, 0] - losses[:, 1]
    error = differences.std(ddof=1) / np.sqrt(len(differences)) if len(differences) > 1 else np.nan
    return float(differences.mean()), float(error)


def _masks(masking: MaskingConfig, data: DataConfig) -> str:
    if masking.static_masks:
        return f"static, {masking.static_masks}"
    return f"dynamic, {data.copies} copies" if data.copies else "dynamic"


def draw_mask_gap(result: MaskGap) -> Figure:
    """Return the losses and the gaps, with bands of two standard errors, over the steps of training."""
    heading = f"{short_path(result.run)}: {result.masks} masks, {result.sequences:,} sequences"
    figure, (losses, gaps) = panels((10.0, 3.8), heading, 1, 2)
    losses.plot(result.steps, result.trained, marker="o", label="training text, masks of training")
    losses.plot(result.steps, result.fresh, marker="o", label="training text, fresh masks")
    losses.plot(result.steps, result.held_out, marker="o", label="held-out text, fresh masks")
    framed(losses, "Loss of the masked words", "step", legend=9)
    for name, values, errors in (
        ("training text", result.gap, result.gap_error),
        ("held-out text", result.held_out_gap, result.held_out_gap_error),
    ):
        (line,) = gaps.plot(result.steps, values, marker="o", label=name)
        gaps.fill_between(
            result.steps, values - 2 * errors, values + 2 * errors, alpha=0.2, color=line.get_color(), linewidth=0
        )
    gaps.axhline(0.0, color="#8a8a8a", linewidth=0.8)
    framed(gaps, "Masks of training less fresh masks", "step", legend=9)
    return figure


def _told(result: MaskGap) -> list[Table]:
    losses = (result.trained, result.fresh, result.gap, result.gap_error)
    losses += (result.held_out, result.held_out_gap, result.held_out_gap_error)
    names = ("own", "fresh", "gap", "±", "held out", "gap", "±")
    columns = [("step", ",.0f", result.steps), ("epochs", ".1f", result.epochs), ("visits", ".1f", result.visits)]
    columns += [(name, ".2f", values) for name, values in zip(names, losses, strict=True)]
    title = f"{result.masks} masks: {result.sequences:,} sequences, {result.held_out_sequences:,} held out"
    return [columns_table(columns, title)]


MASK_GAP = Analysis("mask_gap", MaskGap, _told, {"mask_gap": draw_mask_gap})


def run_mask_gap(path: str, options: MaskGapConfig) -> None:
    """Print and draw the gap between masks of training and fresh masks at every checkpoint of a run."""
    origin = {
        "run": os.fspath(path),
        "config": to_dict(read_config(path)),
        "steps": Checkpoints(os.path.join(path, "checkpoints"), read_only=True).steps(),
        "newest": model_fingerprint(load(path)),
    }
    MASK_GAP.run(options, origin, call_with(mask_gap, options, path))

"""The runs of a fine-tuning command, their learning rates, and detection of runs that learned nothing.

Fine-tuning on a small task now and then ends in a model that ignores its input.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np

from bert_jax.config import HeadConfig, ScheduleConfig
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.options import INT32
from bert_jax.config.pretraining import traced_steps
from bert_jax.data.sequences import Features, GroupedFeatures, steps_per_epoch
from bert_jax.errors import UserError
from bert_jax.objectives.tasks import PLAIN, TaskLoss
from bert_jax.tasks.sentences import matthews
from bert_jax.tasks.squad import SpanFeatures
from bert_jax.training.optimizers import shape


def collapsed(
    head: HeadConfig,
    train: Features,
    ignored: str | None,
    training_loss: float,
    skipped_steps: int,
    loss: TaskLoss = PLAIN,
) -> str | None:
    """Describe in words why a finished run counts as collapsed, or return None.

    Args:
      ignored: result of `ignores_input` for the weights that count.
      training_loss: mean over the end of the last epoch; NaN if no epoch came to its end.
      skipped_steps: number of updates skipped because the loss or the gradient was not finite.
      loss: what is trained.
    """
    reasons = [f"loss or gradient was not finite in {skipped_steps} steps"] if skipped_steps else []
    if ignored:
        reasons.append(ignored)
    chance = prior_loss(head, train, loss)
    if chance is not None and not training_loss < 0.99 * chance:
        reasons.append(f"training loss at the end {training_loss:.4f}, {chance:.4f} without reading the input")
    return "; ".join(reasons) or None


def ignores_input(head: HeadConfig, dev: Features, logits: list[np.ndarray], metrics: dict[str, float]) -> str | None:
    """Describe in words why the answers on dev look independent of the input, or return None.

    `logits`: scores on `dev`, one entry per sequence.
    """
    if broken := sum(any(np.isnan(part).any() for part in _parts(row)) for row in logits):
        return f"{broken:,} of {len(logits):,} answers on dev are not numbers (NaN)"
    reasons = []
    if metrics.get("NoAns_f1") == 1 and metrics.get("HasAns_f1") == 0:  # SQuAD 2.0, with its best threshold
        reasons.append("every question is left unanswered")
    elif answer := _constant_answer(head, dev, logits):
        reasons.append(f"every prediction is {answer}")
    if head.kind in ("classification", "choice"):
        labels, answers = np.asarray(dev.labels), np.array([row.argmax() for row in logits])
        accuracy, majority = np.mean(answers == labels), np.bincount(labels).max() / len(labels)
        correlation = matthews(labels, answers)
        # Two standard errors of guessing: where class sizes differ much, a model may be correlated with the labels and
        # still be below the largest class.
        if accuracy <= majority and correlation < 2 / np.sqrt(len(labels)):
            reasons.append(
                f"accuracy {accuracy:.4f} is not above the share of the largest class, {majority:.4f}, and the "
                f"Matthews correlation, {correlation:.3f}, not above that of guessing"
            )
    return "; ".join(reasons) or None


def prior_loss(head: HeadConfig, features: Features, loss: TaskLoss = PLAIN) -> float | None:
    """Return the loss of the best answer that ignores the input: entropy in nats of the labels, variance if numbers.

    None for spans and tags, where knowing the length or the most frequent tag already helps a lot, for vectors, which
    have no labels, for rankings, whose losses are others, and for the focal loss, which has no closed form of it.
    """
    others = isinstance(features, GroupedFeatures) or loss.focal_gamma
    if head.kind in ("span", "tagging", "vectors") or others:
        return None
    if head.kind == "multilabel":
        return _binary_prior(np.asarray(features.labels, np.float64), features.weights, loss)
    labels = np.asarray(features.labels)
    if head.kind == "regression":
        return float(np.var(labels) if features.weights is None else np.cov(labels, aweights=features.weights, ddof=0))
    counts = np.bincount(labels, features.weights, minlength=len(head.labels))
    weights = np.array(loss.class_weights or (1.0,))
    total = np.sum(weights * counts)
    targets = weights * counts
    if loss.label_smoothing:
        evenly = loss.label_smoothing / len(counts) * counts.sum()
        targets = (1 - loss.label_smoothing) * targets + weights * evenly
    shares = targets / targets.sum()
    return float(-np.sum(targets[shares > 0] * np.log(shares[shares > 0])) / total)


def _binary_prior(labels: np.ndarray, weights: np.ndarray | None, loss: TaskLoss) -> float:
    """Return the same for several labels per text, bool [E, C]: of each class, in a mean over them."""
    shares = np.average(labels, axis=0, weights=weights) * (1 - loss.label_smoothing) + loss.label_smoothing / 2
    halves = np.array([np.array(loss.class_weights or (1.0,)) * shares, 1 - shares])
    best = halves / halves.sum(axis=0)
    return float(-np.mean(np.sum(halves * np.log(np.where(best > 0, best, 1.0)), axis=0)))


def _constant_answer(head: HeadConfig, features: Features, logits: list[np.ndarray]) -> str | None:
    """Return the one answer given to every sequence, in words; None if there are two, or only one sequence."""
    if len(logits) < 2:
        return None
    if head.kind == "multilabel":
        return "the same for each label" if np.std(logits, axis=0).max() < 1e-3 else None
    if head.kind == "regression":
        return f"{np.mean(logits):.3f}" if np.std(logits) < 1e-3 else None
    if head.kind == "vectors":
        anchors = np.stack([_one_vector(row[0]) for row in logits])
        scale = np.abs(anchors).max()
        return "the same vector" if np.ptp(anchors, axis=0).max() <= 1e-4 * scale else None
    if isinstance(features, SpanFeatures):
        # Only places in the window: [CLS], the label of windows without the answer, may score best but is no answer.
        places = {
            tuple(row[prefix : -features.suffix].argmax(axis=0).tolist())
            for row, prefix in zip(logits, features.prefix, strict=True)
        }
        return "tokens {} to {} of the window".format(*places.pop()) if len(places) == 1 else None
    if head.kind == "tagging" and features.labels is not None:
        answers = {
            int(tag)
            for row, labels in zip(logits, features.labels, strict=True)
            for tag in row[labels >= 0].argmax(axis=-1)
        }
    else:
        answers = {int(row.argmax()) for row in logits}
    if len(answers) > 1:
        return None
    (answer,) = answers
    return repr(head.labels[answer]) if head.labels else f"candidate {answer}"


def _parts(row: Any) -> list[np.ndarray]:
    """Return the arrays that hold what was predicted of a sequence: the scores, or vectors, of tokens or of words."""
    return [row] if isinstance(row, np.ndarray) else row if isinstance(row, list) else [row.data]


def _one_vector(vectors: Any) -> np.ndarray:
    """Return the vector of a text, the sum of those of its tokens, or that of its words as an array with zeros."""
    if isinstance(vectors, np.ndarray):
        return vectors if vectors.ndim == 1 else vectors.sum(axis=0)
    return vectors.toarray()[0]


@dataclasses.dataclass(frozen=True)
class Run:
    """One training from the checkpoint to the last epoch."""

    batch_size: int
    learning_rate: float
    epochs: int
    seed: int
    fold: int = 0
    """Part of the training examples that it is scored on, from 1; 0 if there is a dev set."""
    folds: int = 0
    """Number of parts."""

    @property
    def setting(self) -> str:
        """Name of what runs with different seeds, and on different parts, have in common."""
        folds = f"_folds{self.folds}" if self.folds else ""
        return f"batch{self.batch_size}_rate{self.learning_rate:g}_epochs{self.epochs}{folds}"

    @property
    def name(self) -> str:
        """Name of its directory below runs/."""
        return f"{self.setting}_seed{self.seed}" + (f"_fold{self.fold}" if self.fold else "")

    def of(self, config: FinetuneConfig) -> FinetuneConfig:
        """Return the options of the command with those of the run alone."""
        own = {name: getattr(self, name) for name in ("batch_size", "learning_rate", "epochs", "seed")}
        return dataclasses.replace(config, **own)


def plan(config: FinetuneConfig) -> list[Run]:
    """Return every seed of every setting, and of a cross-validation every part; the first seed of all comes first."""
    settings = [(config.batch_size, config.learning_rate, config.epochs)]
    if config.grid:
        settings = list(itertools.product(config.grid_batch_sizes, config.grid_learning_rates, config.grid_epochs))
    return [
        Run(*setting, seed, fold, config.folds)
        for seed in range(config.seed, config.seed + config.seeds)
        for setting in settings
        for fold in (range(1, config.folds + 1) if config.folds else (0,))
    ]


def check_length(config: FinetuneConfig, sequences: int) -> None:
    """Raise UserError if the shortest run on that many sequences is too short for what the options want of its steps.

    These are warm-up and cooldown, and the steps to trace. Nor may the longest have more steps than can be counted.
    """
    cooldown = config.schedule.cooldown_steps
    lengths = [(run.epochs * steps_per_epoch(sequences, run.batch_size), run) for run in plan(config)]
    steps, run = max(lengths, key=lambda pair: pair[0])
    if steps > INT32[1]:
        raise UserError(f"epochs={run.epochs} of {sequences:,} sequences are {steps:,} steps; at most {INT32[1]:,} are")
    steps, run = min(lengths, key=lambda pair: pair[0])
    if cooldown and _warmup_steps(config.warmup_share, steps) + cooldown > steps:
        raise UserError(
            f"schedule.cooldown_steps={cooldown} and warmup_share={config.warmup_share} do not fit into the {steps} "
            f"steps of {run.name}; lower the former, for example to {max(1, steps // 10)}"
        )
    traced_steps(config.profile, steps)


def learning_rates(run: Run, schedule: ScheduleConfig, warmup_share: float, steps: int) -> np.ndarray:
    """Return the learning rate of the update from each step to the next, float32 [steps]."""
    warmup = _warmup_steps(warmup_share, steps)
    return np.float32(run.learning_rate) * np.asarray(shape(schedule, np.arange(steps), steps, warmup))


def _warmup_steps(share: float, steps: int) -> int:
    """Return the number of warm-up steps, rounded down as in the original's run_classifier.py."""
    return int(share * steps)

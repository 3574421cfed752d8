"""What a linear probe reads from each layer, and from a learned mix of all, beside controls and baselines."""

import dataclasses
from collections.abc import Callable

import numpy as np

from bert_jax.analysis.probing.linear_probe import fit_and_choose, standardized
from bert_jax.analysis.probing.probing_task import ProbingTask, control_labels, divided


@dataclasses.dataclass(frozen=True)
class TaskProbes:
    """The scores on test of the probes of one task, for K seeds; columns are the R layers, then the mix of all.

    The score is the accuracy, for regression R², which is 0 for the mean and may be negative.
    """

    task: str
    """Name of the task."""
    metric: str
    """accuracy or R²."""
    classes: tuple[str, ...]
    """The labels; none for regression."""
    sizes: tuple[int, int, int]
    """Numbers of examples to train on, to choose the penalty by and to test on, with the first seed."""
    left_out: int
    """Number of examples of which a text that is too long was cut."""
    scores: np.ndarray
    """float64 [K, R + 1]."""
    controls: np.ndarray
    """float64 [K, R + 1]: the same with the labels of the control task."""
    baseline: np.ndarray
    """float64 [K]: score of the most frequent label, for regression of the mean, of those to train on."""
    mean: np.ndarray
    """float64 [R + 1]: mean score of the seeds."""
    interval: np.ndarray
    """float64 [R + 1]: half of the 95 % confidence interval of this mean, by Student's t over the seeds."""
    selectivity: np.ndarray
    """float64 [R + 1]: mean score less that of the control task (Hewitt and Liang 2019)."""
    selectivity_interval: np.ndarray
    """float64 [R + 1]: as `interval`."""
    mix: np.ndarray
    """float64 [K, R]: shares of the layers in the mix."""
    centre_of_gravity: np.ndarray
    """float64 [K]: mean layer of the mix, Σ share · layer (Tenney et al. 2019)."""
    penalties: np.ndarray
    """float64 [K, R + 1]: strength of the penalty that was chosen."""
    gradient: float
    """Largest component of the gradient of any of these probes at the end of its training; linear_probe.TOLERANCE ends
    it."""
    unconverged: int
    """Number of probes, of all trained, that had not come so far after linear_probe.MOST_ITERATIONS."""


def probe_task(
    task: ProbingTask,
    states: np.ndarray,
    places: np.ndarray,
    layers: tuple[int, ...],
    seeds: range,
    count: Callable[[], None] = lambda: None,
) -> TaskProbes:
    """Return the scores of one task.

    Args:
      task: n examples.
      states: float32 [N + 1, m, H], see `span_states`.
      places: int [n, S]: those of the spans of each example among the m.
      layers: numbers of those to probe.
      seeds: seeds, each of which divides the texts differently.
      count: called after every probe.
    """
    read = np.asarray(~np.isnan(states[0, :, 0])[places].any(axis=1))
    kept, places = task.chosen(read), places[read]
    inputs = np.stack([states[layer][places] for layer in layers])  # [R, n, S, H]
    rows = [_probe_seed(kept, inputs, seed, count) for seed in seeds]
    scores, controls = (np.array([row.scores[kind] for row in rows]) for kind in (0, 1))
    mix = np.stack([row.mix for row in rows])
    return TaskProbes(
        task=task.name,
        metric="R²" if task.regression else "accuracy",
        classes=() if task.regression else tuple(map(str, np.unique(task.labels))),
        sizes=rows[0].sizes,
        left_out=int((~read).sum()),
        scores=scores,
        controls=controls,
        baseline=np.array([row.baseline for row in rows]),
        mean=scores.mean(axis=0),
        interval=_half_interval(scores),
        selectivity=(scores - controls).mean(axis=0),
        selectivity_interval=_half_interval(scores - controls),
        mix=mix,
        centre_of_gravity=mix @ np.array(layers, np.float64),
        penalties=np.array([row.penalties for row in rows]),
        gradient=max(row.gradient for row in rows),
        unconverged=sum(row.unconverged for row in rows),
    )


@dataclasses.dataclass
class _Seed:
    """What one seed gives: scores of the task and of its control, by layer and for the mix."""

    sizes: tuple[int, int, int]
    baseline: float
    scores: tuple[list[float], list[float]] = dataclasses.field(default_factory=lambda: ([], []))
    mix: np.ndarray = dataclasses.field(default_factory=lambda: np.ones(1))
    penalties: list[float] = dataclasses.field(default_factory=list)
    gradient: float = 0.0
    unconverged: int = 0


def _probe_seed(task: ProbingTask, inputs: np.ndarray, seed: int, count: Callable[[], None]) -> _Seed:
    train, dev, test = divided(task, seed)
    parts = standardized(inputs[:, train], inputs[:, dev], inputs[:, test])
    targets = [_targets(labels, train) for labels in (task.labels, control_labels(task, seed))]
    result = _Seed(
        (len(train), len(dev), len(test)),
        _score(np.tile(targets[0][train].mean(axis=0), (len(test), 1)), targets[0][test]),
    )
    layers = len(inputs)
    for control, target in enumerate(targets):
        for chosen in [*(slice(layer, layer + 1) for layer in range(layers)), *([slice(None)] if layers > 1 else [])]:
            fitted, failed = fit_and_choose(parts[0][chosen], target[train], parts[1][chosen], target[dev])
            result.scores[control].append(_score(fitted.scores(parts[2][chosen]), target[test]))
            result.unconverged += failed
            result.gradient = max(result.gradient, fitted.gradient)
            if not control:
                result.penalties.append(fitted.penalty)
                result.mix = fitted.mix
            count()
    if layers == 1:  # the mix of one layer is that layer
        for values in (*result.scores, result.penalties):
            values.append(values[0])
    return result


def _targets(labels: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return one-hot rows [n, classes], or numbers [n, 1] with mean 0 and variance 1 over those to train on."""
    if labels.dtype.kind == "f":
        return ((labels - labels[train].mean()) / (labels[train].std() or 1.0))[:, None]
    classes, numbers = np.unique(labels, return_inverse=True)
    return np.eye(len(classes))[numbers]


def _score(scores: np.ndarray, target: np.ndarray) -> float:
    """Return the accuracy of scores [n, C], or R² if C is 1."""
    if target.shape[1] == 1:
        return float(1 - ((scores - target) ** 2).sum() / ((target - target.mean()) ** 2).sum())
    return float((scores.argmax(axis=1) == target.argmax(axis=1)).mean())


def _half_interval(values: np.ndarray) -> np.ndarray:
    """Return half of the 95 % confidence interval of the mean of K rows, float64 [R]; NaN for one row."""
    from scipy.stats import t

    count = len(values)
    if count == 1:
        return np.full(values.shape[1], np.nan)
    return t.ppf(0.975, count - 1) * values.std(axis=0, ddof=1) / np.sqrt(count)

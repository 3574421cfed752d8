"""Linear probes on the states of each layer, and of a learned mix of layers, with controls and baselines.

Behind `bert-jax analyze probe`. Probes are logistic and linear regressions on frozen states, trained until the
gradient vanishes. The states of spans are computed once, for all layers, into a file that is mapped into memory;
several tasks share the states of their texts.

The features of one span are its state h. Those of two spans are [a, b, a * b], as for the arcs of Liu et al. 2019,
because nothing linear in [a, b] alone can tell that two words belong together. Several layers are mixed before that,
by Σ softmax(s) h, with s learned along with the rest (Tenney et al. 2019). The mix is scaled to the mean square of a
layer, so that the penalty does not disfavour it.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import threadpoolctl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from scipy.special import softmax

from bert_jax.analysis.probing_tasks import ProbingTask, control_labels, divided, drawn_examples, read_probing_tasks
from bert_jax.analysis.results import Analysis, call_with, columns_table, framed, model_fingerprint, panels, short_path
from bert_jax.analysis.texts import span_means
from bert_jax.config.analyses import ProbeConfig
from bert_jax.corpus.readers import find_sources
from bert_jax.data.sequences import as_features, batches
from bert_jax.errors import UserError, at_least
from bert_jax.models.pooling import layer_indices
from bert_jax.pretrained.model import PretrainedModel, load
from bert_jax.progress import progress_bar
from bert_jax.tokenization.tokenizer import assembled, text_start

PENALTIES = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)
"""Strengths λ of λ/2 · |W|², from the strongest; that with the least loss on dev is taken."""
TOLERANCE = 1e-4
"""Largest component of the gradient of the mean loss at which training ends, in coordinates in which the curvature is
about one: the loss is then within some 1e-8 of its minimum per parameter."""
MOST_ITERATIONS = 2_000


@dataclasses.dataclass(frozen=True)
class LinearProbe:
    """A trained probe: scores are features · matrix + bias, of states that were standardized."""

    matrix: np.ndarray
    """float64 [features, C]; C is 1 for regression."""
    bias: np.ndarray
    """float64 [C]."""
    mix: np.ndarray
    """float64 [R]: share of each layer, which sum to 1."""
    scale: float
    """Factor of the mix."""
    penalty: float
    gradient: float
    """Largest component of the gradient at the end, see TOLERANCE."""

    @property
    def converged(self) -> bool:
        return self.gradient <= TOLERANCE

    def scores(self, states: np.ndarray) -> np.ndarray:
        """Return float64 [n, C] for standardized states [R, n, S, H]."""
        return _features(self.scale * _mixed(self.mix, states)) @ self.matrix + self.bias


def fit(problem: "Problem", penalty: float, start: LinearProbe | None = None) -> LinearProbe:
    """Return the probe with the least loss, penalized by λ/2 · |W|², from that of one layer to start from.

    With one layer the loss is convex, so the starting point does not matter; with several it is not, and training
    starts from equal shares.
    """
    from scipy.optimize import minimize

    problem.set_penalty(penalty)
    found = minimize(
        problem,
        problem.packed(start),
        jac=True,
        method="L-BFGS-B",
        options={"gtol": TOLERANCE, "ftol": 0.0, "maxiter": MOST_ITERATIONS, "maxfun": 2 * MOST_ITERATIONS},
    )
    shares, matrix, bias = problem.unpacked(found.x)
    return LinearProbe(matrix, bias, shares, problem.scale(shares), penalty, float(np.abs(found.jac).max()))


def fit_and_choose(
    train: np.ndarray, target: np.ndarray, dev: np.ndarray, dev_target: np.ndarray
) -> tuple[LinearProbe, int]:
    """Return the probe whose penalty has the least loss on dev, and how many of those tried did not converge.

    Penalties become weaker until dev gets worse. A probe of one layer starts from the last; that of a mix would find it
    hard to leave shares near 0.
    """
    best, least, failed, probe, problem = None, np.inf, 0, None, Problem(train, target)
    for penalty in PENALTIES:
        probe = fit(problem, penalty, probe if len(train) == 1 else None)
        failed += not probe.converged
        loss = _loss(probe.scores(dev), dev_target)[0]
        if best is not None and loss >= least:
            break
        best, least = probe, loss
    assert best is not None
    return best, failed


def standardized(train: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """Return states [R, n, S, H] with mean 0 and variance 1 over the n of `train`, and the others by the same map."""
    mean = train.mean(axis=1, keepdims=True, dtype=np.float64)
    deviation = train.std(axis=1, keepdims=True, dtype=np.float64)
    scale = np.where(deviation > 1e-5 * np.abs(mean) + 1e-12, deviation, np.inf)  # else rounding, as of a constant
    return [((states - mean) / scale).astype(np.float32) for states in (train, *others)]


class Problem:
    """The penalized mean loss and its gradient as a function of one vector: [layer scores (R > 1), matrix, bias].

    The states of BERT vary in few directions, so that the curvature of the loss spans six orders of magnitude, and an
    optimizer would need thousands of steps. The matrix is therefore stored in the vector as rows for the principal
    directions of the features, each scaled so that the curvature is about one in all of them. The minimum is the same.

    Args:
      states: float32 [R, n, S, H], standardized.
      target: float [n, C]: one-hot rows for cross-entropy (C ≥ 2), or numbers to estimate (C = 1).
    """

    def __init__(self, states: np.ndarray, target: np.ndarray):
        self._states, self._target = states, target.astype(np.float64)
        self._layers = len(states)
        self._mixing = self._layers if self._layers > 1 else 0
        flat = states.reshape(self._layers, -1)
        self._products = (flat @ flat.T / flat.shape[1]).astype(np.float64)  # shares @ products @ shares: mean square
        shares = np.full(self._layers, 1 / self._layers)
        features = _features(self.scale(shares) * _mixed(shares, states))
        self._features = None if self._mixing else features
        centred = features - features.mean(axis=0)
        variances, self._directions = np.linalg.eigh(centred.T @ centred / len(features))
        # The curvature p (1 - p) of a cross-entropy is at most about 1 / C where training starts, at p = 1 / C.
        self._curvature = np.maximum(variances, 0.0) / target.shape[1]
        self._shape = (features.shape[1], target.shape[1])
        self.set_penalty(PENALTIES[0])

    def set_penalty(self, penalty: float) -> None:
        """Change λ; vectors have another meaning after it."""
        self._penalty = penalty
        self._basis = self._directions / np.sqrt(self._curvature + penalty)
        self._inverse = self._directions * np.sqrt(self._curvature + penalty)  # its transpose is the inverse

    def scale(self, shares: np.ndarray) -> float:
        """Return what gives the mix the mean square of a layer, which is 1 where it is standardized."""
        return 1.0 if not self._mixing else float(shares @ self._products @ shares) ** -0.5

    def packed(self, probe: LinearProbe | None) -> np.ndarray:
        """Return the vector of a probe of one layer; None: that of zeros."""
        if probe is None:
            return np.zeros(self._mixing + self._shape[0] * self._shape[1] + self._shape[1])
        return np.concatenate([(self._inverse.T @ probe.matrix).ravel(), probe.bias])

    def unpacked(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the shares of the layers, the matrix and the bias."""
        shares = softmax(values[: self._mixing]) if self._mixing else np.ones(1)
        matrix = self._basis @ values[self._mixing : -self._shape[1]].reshape(self._shape)
        return shares, matrix, values[-self._shape[1] :]

    def __call__(self, values: np.ndarray) -> tuple[float, np.ndarray]:
        shares, matrix, bias = self.unpacked(values)
        scale = self.scale(shares)
        mixed = scale * _mixed(shares, self._states) if self._features is None else None
        features = self._features if mixed is None else _features(mixed)
        assert features is not None
        loss, of_scores = _loss(features @ matrix + bias, self._target)
        loss += self._penalty / 2 * float((matrix**2).sum())
        of_matrix = features.T @ of_scores + self._penalty * matrix
        parts = [(self._basis.T @ of_matrix).ravel(), of_scores.sum(axis=0)]
        if mixed is not None:
            of_mixed = _of_states(of_scores @ matrix.T, mixed)
            of_shares = scale * (self._states.reshape(self._layers, -1) @ of_mixed.astype(np.float32).ravel())
            of_shares = of_shares - float((of_mixed * mixed).sum()) * scale**2 * (self._products @ shares)
            parts.insert(0, shares * (of_shares - shares @ of_shares))
        return loss, np.concatenate(parts)


def _loss(scores: np.ndarray, target: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean loss and its gradient [n, C]: cross-entropy, or for one column half the squared error."""
    if target.shape[1] == 1:
        difference = scores - target
        return float((difference**2).mean() / 2), difference / len(target)
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return -float((logs * target).sum() / len(target)), (np.exp(logs) - target) / len(target)


def _mixed(shares: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Return Σ shares · states, float64 [n, S, H]; summed in float32, as the states are, which need not be copied."""
    return (shares.astype(np.float32) @ states.reshape(len(states), -1)).reshape(states.shape[1:]).astype(np.float64)


def _features(states: np.ndarray) -> np.ndarray:
    """Return [n, H] of one span, [n, 3 · H] of two, from [n, S, H]."""
    if states.shape[1] == 1:
        return states[:, 0]
    first, second = states[:, 0], states[:, 1]
    return np.concatenate([first, second, first * second], axis=1)


def _of_states(of_features: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Return the gradient [n, S, H] by the states from that by their `_features`."""
    if states.shape[1] == 1:
        return of_features[:, None]
    of_first, of_second, of_product = np.split(of_features, 3, axis=1)
    return np.stack([of_first + of_product * states[:, 1], of_second + of_product * states[:, 0]], axis=1)


Pieces = Literal["first", "mean", "last"]


def span_states(
    model: PretrainedModel,
    texts: tuple[str, ...],
    spans: np.ndarray,
    directory: pathlib.Path,
    *,
    pieces: Pieces = "mean",
    batch_size: int = 32,
    max_length: int | None = None,
    progress: bool = True,
) -> np.ndarray:
    """Return float32 [N + 1, m, H]: the states of m spans in the embeddings and each of N layers; NaN if they were cut.

    Args:
      model: any model with a tokenizer.
      texts: T texts. "[MASK]" in them is not a mask.
      spans: int [m, 3]: number of the text, first character, the one behind the last.
      directory: the array is a file in it, mapped into memory; a call with the same arguments finds it there.
      pieces: which of the pieces that overlap a span represent it.
    """
    longest = model.config.longest_sequence
    if max_length is not None and not 5 <= max_length <= longest:
        raise UserError(f"max_length={max_length} must be between 5 and the {longest} positions of the model")
    limit = max_length or longest
    content = json.dumps([model_fingerprint(model), texts, spans.tolist(), pieces, limit])
    file = directory / f"states_{hashlib.sha256(content.encode()).hexdigest()[:24]}.npy"
    if not file.exists():
        directory.mkdir(parents=True, exist_ok=True)
        unfinished = directory / f"{uuid.uuid4().hex}.unfinished"  # another process may be computing the same
        try:
            _compute(model, texts, spans, unfinished, pieces, batch_size, limit, progress)
            os.replace(unfinished, file)
        finally:
            unfinished.unlink(missing_ok=True)
    return np.load(file, mmap_mode="r")


def _compute(
    model: PretrainedModel,
    texts: tuple[str, ...],
    spans: np.ndarray,
    file: pathlib.Path,
    pieces: Pieces,
    batch_size: int,
    limit: int,
    progress: bool,
) -> None:
    shape = (model.config.num_layers + 1, len(spans), model.config.hidden_size)
    found = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
    tokenizer = model.need_tokenizer()
    encoded = [tokenizer.encode_with_offsets(text) for text in texts]
    rows = [assembled(tokenizer, ids[: limit - 2]) for ids, _ in encoded]
    by_text = np.split(
        np.argsort(spans[:, 0], kind="stable"), np.cumsum(np.bincount(spans[:, 0], minlength=len(texts)))
    )
    done = 0
    with progress_bar("states of texts", len(texts), visible=progress) as move_to:
        for numbers, batch in batches(as_features(rows, limit), batch_size):
            inputs = (batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
            states = np.stack(model.encode_ids(*inputs).hidden_states or (), axis=2)  # [B, L, N + 1, H]
            for row, number in enumerate(numbers):
                places = by_text[number]
                tokens = _tokens(encoded[number][1], spans[places, 1:], text_start(tokenizer), limit, pieces)
                found[:, places] = np.moveaxis(span_means(states[row], tokens), 1, 0)
            done += len(numbers)
            move_to(done)
    found.flush()


def _tokens(offsets: list[Any], spans: np.ndarray, first: int, limit: int, pieces: Pieces) -> np.ndarray:
    """Return int [m, 2], the first token and the one behind the last of each span [m, 2]; (0, 0) if one was cut."""
    starts, ends = np.array(offsets, np.int64).reshape(-1, 2).T
    overlap = (starts[None] < spans[:, 1:]) & (ends[None] > spans[:, :1]) & (ends > starts)[None]
    if not overlap.shape[1]:
        return np.zeros((len(spans), 2), np.int64)
    low, high = overlap.argmax(axis=1), overlap.shape[1] - overlap[:, ::-1].argmax(axis=1)
    read = overlap.any(axis=1) & (high <= limit - 2)
    if pieces == "first":
        high = low + 1
    elif pieces == "last":
        low = high - 1
    return np.where(read[:, None], first + np.stack([low, high], axis=1), 0)


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
    """Largest component of the gradient of any of these probes at the end of its training; TOLERANCE ends it."""
    unconverged: int
    """Number of probes, of all trained, that had not come so far after MOST_ITERATIONS."""


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
    """Results of one seed: scores of the task and of its control, by layer and for the mix."""

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
    columns = [*(slice(layer, layer + 1) for layer in range(layers)), *([slice(None)] if layers > 1 else [])]

    def fitted(control: int, chosen: slice) -> tuple[LinearProbe, int]:
        target = targets[control]
        return fit_and_choose(parts[0][chosen], target[train], parts[1][chosen], target[dev])

    wanted = list(itertools.product(range(len(targets)), columns))
    with _side_by_side() as pool:
        trained = pool.map(fitted, *zip(*wanted, strict=True))
        for (control, chosen), (found, failed) in zip(wanted, trained, strict=True):
            result.scores[control].append(_score(found.scores(parts[2][chosen]), targets[control][test]))
            result.unconverged += failed
            result.gradient = max(result.gradient, found.gradient)
            if not control:
                result.penalties.append(found.penalty)
                result.mix = found.mix
            count()
    if layers == 1:  # the mix of one layer is that layer
        for values in (*result.scores, result.penalties):
            values.append(values[0])
    return result


@contextlib.contextmanager
def _side_by_side() -> Iterator[concurrent.futures.Executor]:
    """Yield threads that train a probe each, with one thread of BLAS.

    The products of a probe take a millisecond or less. Divided among several threads, which wait for each other in
    busy loops, they would take many times the processor time, and longer too.
    """
    import scipy.optimize  # noqa: F401  # it brings a BLAS of its own, which must be there to be limited

    pool = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="probe")
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


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


@dataclasses.dataclass(frozen=True)
class LayerProbes:
    """Results for several tasks."""

    tasks: tuple[TaskProbes, ...]
    """The results of each, in the order asked for."""
    layers: tuple[int, ...]
    """Numbers of the R layers; 0 is the embeddings, which know no context."""
    seeds: int
    """Number of seeds, K."""
    pieces: str
    """Which pieces of a word its vector is made of: mean, first or last."""
    model: str
    """Path of the model."""


def probe(
    model: PretrainedModel,
    tasks: Sequence[ProbingTask],
    *,
    directory: str | os.PathLike[str] | None = None,
    layers: str | Sequence[int] = "all",
    pieces: Pieces = "mean",
    seeds: int = 3,
    examples: int = 5_000,
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = None,
    progress: bool = True,
) -> LayerProbes:
    """Return what linear probes read from the frozen layers of a model.

    Each probe is trained to convergence, on standardized states, with the strength of its penalty chosen on dev, and
    scored on test. Every seed divides the texts differently and draws a different control task.

    Args:
      model: any model with a tokenizer.
      tasks: from `read_probing_tasks`, or made with `make_task`.
      directory: where the states of the examples are kept, for the next call; None: nowhere. Memory is that of the
        examples of one task in all layers, the rest is on disk.
      layers: "all", or numbers: 0 the embeddings, -1 the last.
      pieces: which pieces of a word or span represent it.
      seeds: number of seeds, 2 or more for intervals.
      examples: largest number of examples of a task and part, drawn at random.
      seed: the first of the seeds, and that of what is drawn.

    Raises:
      UserError: there is no such layer, a task has too few texts to divide, or an option cannot work.
    """
    at_least(1, seeds=seeds)
    at_least(10, examples=examples)
    if not tasks:
        raise UserError("there are no tasks to probe; give one or more")
    chosen = layer_indices(layers, model.config.num_layers) or (model.config.num_layers,)
    tasks = [drawn_examples(task, examples, seed) for task in tasks]
    for task in tasks:
        divided(task, seed)  # before anything that takes long
    with contextlib.ExitStack() as stack:
        place = pathlib.Path(directory or stack.enter_context(tempfile.TemporaryDirectory()))
        read = functools.partial(
            span_states, model, directory=place, batch_size=batch_size, max_length=max_length, progress=progress
        )
        states = _states_of_tasks(tasks, pieces, read)
        fits = len(tasks) * seeds * 2 * (len(chosen) + (len(chosen) > 1))  # of each layer and the mix of several, twice
        move_to, done = stack.enter_context(progress_bar("probes", fits, visible=progress)), 0

        def count() -> None:
            nonlocal done
            done += 1
            move_to(done)

        found = [
            probe_task(task, *of_task, chosen, range(seed, seed + seeds), count)
            for task, of_task in zip(tasks, states, strict=True)
        ]
    return LayerProbes(tuple(found), chosen, seeds, pieces, model.path)


def _states_of_tasks(
    tasks: Sequence[ProbingTask], pieces: Pieces, read: Callable[..., np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the states [N + 1, m, H] for each task, and int [n, S]: which of the m are those of its spans.

    Tasks on the same texts share them, so that the model reads a text once, by `span_states`.
    """
    groups: dict[tuple[tuple[str, ...], bool], list[int]] = {}
    for number, task in enumerate(tasks):
        groups.setdefault((task.texts, task.pooled), []).append(number)
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for (texts, pooled), members in groups.items():
        needed = [_located(tasks[number]) for number in members]
        spans, places = np.unique(np.concatenate(needed), axis=0, return_inverse=True)
        states = read(texts, spans, pieces="mean" if pooled else pieces)
        parts = np.split(places.ravel(), np.cumsum([len(each) for each in needed])[:-1])
        for number, part in zip(members, parts, strict=True):
            found[number] = states, part.reshape(len(tasks[number].labels), -1)
    return [found[number] for number in range(len(tasks))]


def _located(task: ProbingTask) -> np.ndarray:
    """Return int [n · S, 3]: text, start and end of every span."""
    count = task.spans.shape[1]
    return np.concatenate([np.repeat(task.owners, count)[:, None], task.spans.reshape(-1, 2)], axis=1)


COLUMNS = 3


def draw_probes(result: LayerProbes) -> Figure:
    """Return a panel per task: the score by layer and of the mix, its control and its baseline."""
    columns = min(COLUMNS, len(result.tasks))
    rows = -(-len(result.tasks) // columns)
    heading = f"{short_path(result.model)}: linear probes, {result.seeds} seeds"
    figure, grid = panels((4.4 * columns, 3.0 * rows + 0.4), heading, rows, columns, squeeze=False)
    for axes, task in zip(grid.ravel(), result.tasks, strict=False):
        _draw_task(axes, task, _names(result))
    for axes in grid.ravel()[len(result.tasks) :]:
        axes.set_visible(False)
    grid[0, 0].legend(frameon=False, fontsize=8)
    return figure


def _draw_task(axes: Axes, task: TaskProbes, names: list[str]) -> None:
    places, last = np.arange(len(names)), len(names) - 1
    error = np.nan_to_num(task.interval)
    (line,) = axes.plot(places[:last], task.mean[:last], marker="o", label="probe")
    axes.errorbar(places, task.mean, yerr=error, fmt="o", color=line.get_color(), capsize=3)
    axes.plot(places, task.mean - task.selectivity, linestyle="--", marker=".", color="#d1751f", label="control task")
    axes.axhline(task.baseline.mean(), color="#8a8a8a", linewidth=0.9, linestyle=":", label="most frequent label")
    axes.set_xticks(places, names)
    axes.set_ylabel(task.metric)
    framed(axes)
    title = f"{task.task}, centre {task.centre_of_gravity.mean():.2f}"
    axes.set_title(title, loc="left", fontsize=10, parse_math=False)


def _names(result: LayerProbes) -> list[str]:
    return [*("emb" if layer == 0 else str(layer) for layer in result.layers), "mix"]


def _told(result: LayerProbes) -> Iterator[Table | str]:
    names, tasks = _names(result), {f"{task.task}, {task.metric}": task for task in result.tasks}
    several = result.seeds > 1
    columns = [("layer", "", ["baseline", *names, *["widest ±"] * several, "centre"])]
    for title, task in tasks.items():
        scores = map("{:.3f}".format, (task.baseline.mean(), *task.mean, *[task.interval.max()] * several))
        columns.append((title, "", [*scores, f"{task.centre_of_gravity.mean():.2f}"]))
    yield columns_table(columns, f"scores on test, {result.seeds} seed{'s' * several}")
    selectivity = [(title, ".3f", task.selectivity) for title, task in tasks.items()]
    yield columns_table([("layer", "", names), *selectivity], "selectivity")
    for task in result.tasks:
        if task.left_out:
            yield f"{task.task}: {task.left_out:,} examples are left out, because their texts were cut before them"
        if task.unconverged:
            yield (
                f"{task.task}: {task.unconverged} probes did not converge; the largest gradient among those chosen is "
                f"{task.gradient:.1e}"
            )


PROBE = Analysis("probe", LayerProbes, _told, {"probe": draw_probes})


def run_probe(path: str, options: ProbeConfig) -> None:
    """Print and draw what linear probes read from each layer."""
    model = load(path)
    origin = {
        "models": [model_fingerprint(model)],
        "input": [
            [source.identity for source in find_sources(files, "text")] if files else []
            for files in (options.input, options.dev, options.test)
        ],
    }
    names = [name.strip() for name in options.tasks.split(",") if name.strip()]

    def compute() -> LayerProbes:
        columns = options.tag_columns()
        tasks = call_with(read_probing_tasks, options, model, options.input, tasks=names, columns=columns)()
        return call_with(probe, options, model, tasks, directory=options.output, layers=options.layer_numbers())()

    PROBE.run(options, origin, compute)

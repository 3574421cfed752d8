"""Evaluation of vectors in the field's forms: tasks from local files, and the object by which mteb evaluates a model.

Behind `bert-jax analyze vectors`. The tasks are those of MTEB (Muennighoff et al. 2023) on texts of one's own: similar
pairs by their scores, pairs that belong together, clusters, and classes learned from a few examples. Retrieval is
`bert-jax search`.

    mteb.evaluate(bert_jax.MtebEncoder(bert_jax.load("MODEL")), mteb.get_tasks(["STSBenchmark"]))

Neither mteb nor torch is imported.
"""

import dataclasses
import functools
import os
import pathlib
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import ArrayLike

from bert_jax.analysis import results
from bert_jax.analysis.probes import Problem, fit
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config.analyses import VectorTasksConfig
from bert_jax.config.tasks import TextDataConfig, VectorDataConfig
from bert_jax.corpus.readers import find_sources
from bert_jax.errors import UserError, at_least
from bert_jax.pretrained.model import PretrainedModel, load
from bert_jax.pretrained.precision import VectorPrecision, compared_values, value_ranges
from bert_jax.tasks import sentences, text, vectors
from bert_jax.tasks.sentences import Sentences
from bert_jax.tasks.vectors import VectorExamples, unit


def v_measure(classes: np.ndarray, clusters: np.ndarray) -> float:
    """Return how well clusters, int [E], agree with classes, int [E]: the harmonic mean of homogeneity and completeness
    (Rosenberg & Hirschberg 2007), whose base of logarithms does not matter; 1 if they are the same but for names."""
    joint = np.zeros((classes.max() + 1, clusters.max() + 1))
    np.add.at(joint, (classes, clusters), 1 / len(classes))
    of_classes, of_clusters = (_entropy(joint.sum(axis)) for axis in (1, 0))
    shared = max(of_classes + of_clusters - _entropy(joint.ravel()), 0.0)  # mutual information
    homogeneity, completeness = (shared / each if each else 1.0 for each in (of_classes, of_clusters))
    return 2 * homogeneity * completeness / (homogeneity + completeness) if shared else float(of_classes == of_clusters)


def _entropy(shares: np.ndarray) -> float:
    shares = shares[shares > 0]
    return max(-float(shares @ np.log(shares)), 0.0)


def pair_scores(belong: np.ndarray, cosines: np.ndarray) -> dict[str, float]:
    """Return average precision, and accuracy and F1 at the threshold that is best for each, of pairs.

    A threshold lies between two cosines, as in MTEB; equal ones are on one side of it, so that the order of the pairs
    does not matter.

    Args:
      belong: bool [E], whether a pair belongs together; some do and some do not.
      cosines: float [E].
    """
    order = np.argsort(-cosines, kind="stable")
    ranked, right = cosines[order], np.cumsum(belong[order])
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    found, right, there = ends + 1, right[ends], belong.sum()
    gained = np.diff(right, prepend=0) / there
    accuracy = (right + (~belong).sum() - (found - right)) / len(belong)
    f1 = 2 * right / (found + there)
    return {
        "average_precision": float(gained @ (right / found)),
        "accuracy": float(max(accuracy[:-1], default=0.0)),
        "f1": float(max(f1[:-1], default=0.0)),
    }


def cluster(points: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return the cluster of each of the points [n, H], int [n], by k-means from the points of k-means++."""
    from scipy.cluster.vq import kmeans2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a cluster that has become empty
        return kmeans2(points.astype(np.float64), count, iter=100, minit="++", rng=seed)[1]


def classify(train: np.ndarray, classes: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the class of each of the points [n, H], int [n], by logistic regression as in MTEB.

    The penalty is half the squared norm of the weights, beside the sum of the losses, and leaves out the bias.

    Args:
      train: float [t, H].
      classes: int [t], of which each number up to the highest occurs.
    """
    count = int(classes.max()) + 1
    # Of two classes, one vector of weights is learned elsewhere: half of it for each has half the penalty.
    penalty = (2 if count == 2 else 1) / len(train)
    probe = fit(Problem(train.astype(np.float32)[None, :, None], np.eye(count)[classes]), penalty)
    return probe.scores(points.astype(np.float32)[None, :, None]).argmax(axis=1)


def draws(classes: np.ndarray, per_class: int, count: int, seed: int) -> list[np.ndarray]:
    """Return the numbers of the training examples of `count` experiments, so many per class, drawn as in MTEB."""
    numbers, found = np.arange(len(classes)), []
    for _ in range(count):
        np.random.RandomState(seed).shuffle(numbers)  # shuffled again and again by the same generator, as there
        chosen = [numbers[classes[numbers] == each][:per_class] for each in range(classes.max() + 1)]
        found.append(np.concatenate(chosen))
    return found


@dataclasses.dataclass(frozen=True)
class VectorScores:
    """What the vectors of a model are worth in tasks."""

    model: str
    """Path of the model."""
    examples: dict[str, int]
    """Number of examples that each task is measured on."""
    scores: dict[str, dict[str, float]]
    """Metrics of each task, by its name."""


def vector_scores(
    model: PretrainedModel,
    *,
    sts: VectorExamples | None = None,
    pairs: VectorExamples | None = None,
    clusters: Sentences | None = None,
    classes: tuple[Sentences, Sentences] | None = None,
    experiments: int = 10,
    per_class: int = 8,
    seed: int = 42,
    batch_size: int = 32,
    precision: VectorPrecision = "float32",
) -> VectorScores:
    """Return the scores of a model's vectors, as `embed` makes them, in the tasks whose examples are given.

    Args:
      model: any model with a tokenizer.
      sts: pairs with scores, measured by the correlation of scores and cosines.
      pairs: pairs with the score 1 if they belong together, else 0, measured by their cosines.
      clusters: texts with classes, as many clusters as classes; the mean V-measure of `experiments` runs of k-means.
      classes: training and test texts with classes; the mean accuracy and macro-F1 of `experiments` regressions, each
        on `per_class` training texts per class.
      experiments: number of runs of k-means, and of regressions.
      per_class: number of training texts per class.
      seed: of what is drawn.
      batch_size: number of texts that the model reads at once.
      precision: of other numbers than float32, the cosines of pairs are measured once more, with ranges of these texts,
        under the name of the task and the precision.

    Raises:
      UserError: the model gives a text other vectors than a single one, or an experiment has nothing to measure.
    """
    _need_single(model)
    at_least(1, experiments=experiments, per_class=per_class, batch_size=batch_size)
    found: dict[str, dict[str, float]] = {}
    embed = functools.partial(model.embed, batch_size=batch_size)
    for name, each in (("sts", sts), ("pairs", pairs)):
        if each is not None and each.scores is not None:
            of_texts = embed(each.texts[0]), embed(each.texts[1])
            found[name] = _of_pairs(name, each.scores, *of_texts)
            if precision != "float32":
                ranges = value_ranges(np.concatenate(of_texts))
                less = (compared_values(side, precision, ranges) for side in of_texts)
                found[f"{name} {precision}"] = _of_pairs(name, each.scores, *less)
    if clusters is not None and clusters.answers is not None:
        points, count = embed(clusters.first), len(clusters.labels)
        runs = [v_measure(clusters.answers, cluster(points, count, seed + run)) for run in range(experiments)]
        found["clusters"] = {"v_measure": float(np.mean(runs))}
    if classes is not None:
        found["classes"] = _classification(embed, *classes, draws_of=(per_class, experiments, seed))
    sizes = {"sts": sts, "pairs": pairs, "clusters": clusters, "classes": classes and classes[1]}
    return VectorScores(model.path, {name: len(sizes[name.partition(" ")[0]] or ()) for name in found}, found)


def _of_pairs(name: str, scores: np.ndarray, first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """Return the metrics of sts or pairs by the cosines of vectors [E, H]."""
    cosines = np.sum(unit(first) * unit(second), axis=1)
    if name == "pairs":
        return pair_scores(scores > 0.5, cosines)
    return {metric: sentences.METRICS[metric](scores, cosines) for metric in vectors.METRICS[0]}


def _need_single(model: PretrainedModel) -> None:
    """Raise a UserError unless this is a model that gives each text one vector, which is what cosines compare."""
    form = getattr(model, "vector_form", None)
    if form is None:
        raise UserError(f"{model!r:.60} is no model; give what bert_jax.load returns")
    if form != "single":
        raise UserError(
            f"{model.path} gives a text vectors of the form {form}, and cosines compare single ones; measure it by "
            "bert-jax search, or give a model of single vectors"
        )


def _classification(embed: Any, train: Sentences, test: Sentences, draws_of: tuple[int, int, int]) -> dict[str, float]:
    assert train.answers is not None and test.answers is not None, "both are read with their labels"
    learned, points, figures = embed(train.first), embed(test.first), []
    for chosen in draws(train.answers, *draws_of):
        said = classify(learned[chosen], train.answers[chosen], points)
        figures.append([sentences.METRICS[name](test.answers, said) for name in ("accuracy", "macro_f1")])
    return dict(zip(("accuracy", "macro_f1"), np.mean(figures, axis=0).tolist(), strict=True))


def read_pairs(file: str | os.PathLike[str], *, classes: bool = False) -> VectorExamples:
    """Return the pairs of a file and their scores, which are 0 or 1 if they are `classes`.

    Raises:
      UserError: the file cannot be read, has no scores, or only one class of pairs.
    """
    found = vectors.load("vectors", VectorDataConfig(dev=_path(file)), "dev")
    if not found.rated or found.scores is None:
        raise UserError(f"{file} has no column {' or '.join(vectors.SCORE)} with a score of each pair")
    if classes and (wrong := found.scores[~np.isin(found.scores, (0, 1))]).size:
        raise UserError(f"{file} has the score {wrong[0]:g}; pairs that belong together have 1 and others 0")
    if np.ptp(found.scores) == 0:
        raise UserError(f"all pairs of {file} have the score {found.scores[0]:g}, so there is nothing to tell apart")
    return found


def read_classes(file: str | os.PathLike[str], labels: tuple[str, ...] | None = None) -> Sentences:
    """Return the texts of a file with the class of each, of `labels` if they are given."""
    found = text.load("text", TextDataConfig(dev=_path(file), regression=False), "dev", labels)
    if found.second is not None:
        raise UserError(f"{file} has pairs of texts; a class is given to one text")
    return found


def _path(file: str | os.PathLike[str]) -> str:
    if not isinstance(file, str | os.PathLike):
        raise UserError(f"{file!r:.60} is no path of a file of examples")
    return os.fspath(file)


def run_vectors(path: str, options: VectorTasksConfig) -> None:
    """Print and write the scores of a model's vectors in the tasks whose files are given."""
    for name in ("sts", "pairs", "clusters", "train", "test"):
        if (file := getattr(options, name)) and not epath.Path(file).expanduser().exists():
            raise UserError(f"{name}={file}: no such file")
    train = read_classes(options.train) if options.train else None
    given: dict[str, Any] = {
        "sts": read_pairs(options.sts) if options.sts else None,
        "pairs": read_pairs(options.pairs, classes=True) if options.pairs else None,
        "clusters": read_classes(options.clusters) if options.clusters else None,
        "classes": None if train is None else (train, read_classes(options.test, train.labels)),
    }
    model = load(path)
    files = [file for file in (options.sts, options.pairs, options.clusters, options.train, options.test) if file]
    identities = [source.identity for file in files for source in find_sources(file)]
    origin = {"models": [results.model_fingerprint(model)], "input": identities}
    analysis = results.Analysis("vectors", VectorScores, _told, {})
    analysis.run(options, origin, results.call_with(vector_scores, options, model, **given))


def _told(result: VectorScores) -> list[Any]:
    rows = [
        (name, f"{result.examples[name]:,}", metric, f"{100 * value:.2f}")
        for name, metrics in result.scores.items()
        for metric, value in metrics.items()
    ]
    return [results.table(("task", "examples", "metric", "score × 100"), rows)]


class MtebEncoder:
    """A model as the library mteb (2.x) evaluates one, by its EncoderProtocol.

    Vectors are those of `embed`, with the model's pooling, normalization, length and prompts. They are compared by
    their cosines.

    Raises:
      UserError: the model gives a text other vectors than a single one.
    """

    def __init__(self, model: PretrainedModel):
        _need_single(model)
        self.model: PretrainedModel = model

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        precision: str | None = None,
        **_: Any,
    ) -> np.ndarray:
        """Return the vectors of all texts, float32 [n, H].

        Args:
          inputs: batches, each with a list of texts under "text"; a DataLoader gives such.
          task_metadata: not used, as the two that follow: the model makes the same vectors for every task.
          hf_split: not used.
          hf_subset: not used.
          prompt_type: "query" or "document", for the model's prompt of these; None: without one.
          batch_size: number of texts that the model reads at once.
          show_progress_bar: whether to show a bar; None: for long lists only.
          precision: float32, or None.

        Raises:
          UserError: a batch has no texts, or the vectors are to be of another type.
        """
        if precision not in (None, "float32"):
            raise UserError(f"precision={precision!r:.40}: vectors are float32; leave it out of encode_kwargs")
        kind = None if prompt_type is None else str(getattr(prompt_type, "value", prompt_type))
        if kind not in (None, "query", "document"):
            raise UserError(f"prompt_type={kind!r:.40} must be query or document, or None")
        texts = [text for batch in inputs for text in _texts(batch)]
        return self.model.embed(texts, prompt=kind, batch_size=batch_size, progress=show_progress_bar)  # pyright: ignore[reportArgumentType]

    def similarity(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> np.ndarray:
        """Return the cosines of all pairs of the rows of two arrays, float32 [n, m]."""
        first, second = _rows(embeddings1), _rows(embeddings2)
        return (first @ second.T).astype(np.float32)

    def similarity_pairwise(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> np.ndarray:
        """Return the cosine of each row of one array and the same row of the other, float32 [n]."""
        return np.sum(_rows(embeddings1) * _rows(embeddings2), axis=1).astype(np.float32)

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb records of the model, by which its cache tells parameters apart; None where mteb is not loaded."""
        library = sys.modules.get("mteb.models")
        return None if library is None else library.ModelMeta.create_empty(self._known)

    @functools.cached_property
    def _known(self) -> dict[str, Any]:
        model = self.model
        parameters = leaf_paths(model.params)
        embeddings = (leaf.size for path, leaf in parameters.items() if path.startswith("embeddings/"))
        return {
            "name": f"bert_jax/{pathlib.PurePath(model.path).name}",
            "revision": model.fingerprint[:16],
            "n_parameters": sum(leaf.size for leaf in parameters.values()),
            "n_embedding_parameters": sum(embeddings),
            "max_tokens": model.embedding.max_length or model.config.longest_sequence,
            "embed_dim": model.config.hidden_size,
            "framework": ["JAX"],
            "use_instructions": bool(model.embedding.query_prompt or model.embedding.document_prompt),
        }


def _texts(batch: Mapping[str, Any]) -> Sequence[str]:
    """Return the texts of a batch."""
    texts = batch.get("text") if isinstance(batch, Mapping) else None
    if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(isinstance(each, str) for each in texts):
        raise UserError(f"a batch is {batch!r:.80}; expected a dict with a list of texts under 'text'")
    return texts


def _rows(vectors: ArrayLike) -> np.ndarray:
    """Return vectors of norm 1, float64 [n, H], of an array [n, H] or [H], or a tensor."""
    return unit(np.atleast_2d(np.asarray(vectors)))

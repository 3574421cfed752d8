"""Geometry of layers: similarity by CKA, isotropy, whitening, and correlation with human similarity judgements.

Behind `bert-jax analyze cka` and `bert-jax analyze isotropy`.

Linear CKA is estimated from minibatches (Kornblith et al. 2019; Nguyen, Raghu, Kornblith 2021, section 3). The
similarity of two representations X and Y of the same texts is HSIC(X, Y) / √(HSIC(X, X) · HSIC(Y, Y)). HSIC is
estimated without bias from every minibatch (Song et al. 2012, equation 5); numerator and denominators are averaged
over the minibatches, and only then divided. So memory is bounded by one minibatch, and the minibatch size does not
bias the result.

Isotropy is how evenly the vectors of a layer fill the space. The cosine of vectors that all point the same way hardly
tells texts apart, whatever else they encode. Mean cosines show this at once (Ethayarajh 2019), the partition function
of Arora et al. 2016 measures it in the form of Mu and Viswanath 2018, and the spectrum of the covariance tells how
many directions carry the variance. Means and covariances are accumulated in float64 from vectors that arrive in
parts.

Postprocessing (whitening, or removal of the strongest directions) is fitted on the vectors of some texts; the
correlation of sentence cosines with human judgements is measured before and after it.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence, Sized

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from rich.table import Table

from bert_jax.analysis import results
from bert_jax.analysis.texts import (
    CONSTANT,
    WINDOW,
    check_vectors,
    counted_texts,
    layer_vectors,
    texts_of,
    window_vectors,
    windows,
)
from bert_jax.config.analyses import CkaConfig, IsotropyConfig, VectorKind
from bert_jax.config.heads import Combination, Pooling
from bert_jax.config.tasks import TaskDataConfig
from bert_jax.corpus.readers import find_sources
from bert_jax.errors import UserError
from bert_jax.formats.stored import KINDS, Postprocess, PostprocessKind
from bert_jax.pretrained.model import PretrainedModel, load
from bert_jax.tasks import glue
from bert_jax.tasks.sentences import spearman

SMALLEST = 4  # texts in a minibatch, below which the estimator divides by zero


@dataclasses.dataclass(frozen=True)
class LayerSimilarity:
    """CKA of every layer of one model with every layer of another, or of the same."""

    matrix: np.ndarray
    """float64 [N + 1, M + 1]: row 0 and column 0 are the embeddings, then the layers. 1 at equal representations, about
    0 at independent ones (slightly negative values are chance); NaN where a representation is the same for all
    texts, as that of [CLS] in the embeddings."""
    texts: int
    """Number of texts that were compared."""
    minibatches: int
    """Number of minibatches whose estimates were averaged."""
    models: tuple[str, str]
    """Paths of the models of the rows and of the columns."""
    vectors: str
    """Kind of vector that represents a text: mean, cls or token."""


def cka(
    model: PretrainedModel,
    texts: Iterable[str],
    other: PretrainedModel | None = None,
    *,
    vectors: VectorKind = "mean",
    minibatch: int = 256,
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = None,
    progress: bool = True,
) -> LayerSimilarity:
    """Return the linear CKA between all layers of a model, or between the layers of two models.

    Args:
      model: its layers are the rows.
      texts: several texts, best in random order, since neighbours share a minibatch; they may be a stream of any
        length. A last minibatch that is not full is left out, unless it is the only one.
      other: its layers are the columns; None: those of `model`.
      vectors: what represents a text in each layer: the "mean" of its tokens, its [CLS] ("cls"), or one "token" drawn
        at random, the same in all layers.
      minibatch: number of texts per estimate, 4 or more; memory grows with its square.
      seed: of the tokens drawn.
      max_length: tokens per text; None: as many as both models have positions.

    Raises:
      UserError: fewer than 4 texts or an option that cannot work; with vectors="token", two models with different
        tokenizers.
    """
    models = (model,) if other is None else (model, other)
    check_vectors(vectors, *models)
    if minibatch < SMALLEST:
        raise UserError(f"minibatch={minibatch} must be at least {SMALLEST}, which the unbiased estimate needs")
    _check_tokenizers(models, vectors)
    length = min(each.config.longest_sequence for each in models) if max_length is None else max_length
    sums, seen, read, kept = HsicSums(), 0, 0, {"seed": seed, "batch_size": batch_size, "progress": progress}
    size = -(-WINDOW // minibatch) * minibatch
    for states in window_vectors(models, texts, vectors, size, max_length=length, **kept):
        read += len(states[0])
        for start in range(0, len(states[0]), minibatch):
            rows, columns = (each[start : start + minibatch] for each in (states[0], states[-1]))
            if len(rows) == minibatch or (not seen and len(rows) >= SMALLEST):
                sums.add(rows, columns)
                seen += len(rows)
    if not sums.count:
        raise UserError(f"CKA needs at least {SMALLEST} texts, not {read}; give more")
    return LayerSimilarity(sums.similarity(), seen, sums.count, (models[0].path, models[-1].path), vectors)


class HsicSums:
    """Sums over minibatches of the unbiased HSIC of every pair of layers, and of every layer with itself."""

    def __init__(self) -> None:
        self.count: int = 0
        self._between: np.ndarray = np.zeros(())
        self._rows: np.ndarray = np.zeros(())
        self._columns: np.ndarray = np.zeros(())

    def add(self, rows: np.ndarray, columns: np.ndarray) -> None:
        """Add a minibatch: representations [n, R, H] and [n, C, H'] of the same n texts."""
        first = _kernels(rows)
        second = first if columns is rows else _kernels(columns)
        self.count += 1
        self._between = self._between + hsic(first, second)
        self._rows = self._rows + np.diagonal(hsic(first, first))
        self._columns = self._columns + np.diagonal(hsic(second, second))

    def similarity(self) -> np.ndarray:
        """Return CKA, float64 [R, C]; NaN where a representation is constant."""
        scale = np.sqrt(np.maximum(self._rows, 0.0))[:, None] * np.sqrt(np.maximum(self._columns, 0.0))[None]
        return np.divide(self._between, scale, out=np.full(scale.shape, np.nan), where=scale > 0)


def hsic(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return HSIC_1 of Song et al. 2012, float64 [R, C], for kernels [R, n, n] and [C, n, n] with zero diagonals."""
    n = first.shape[1]
    products = first.reshape(len(first), -1) @ second.reshape(len(second), -1).T  # tr(K L), as both are symmetric
    sums, others = first.sum(axis=2), second.sum(axis=2)
    totals = np.outer(sums.sum(axis=1), others.sum(axis=1)) / ((n - 1) * (n - 2))
    return (products + totals - 2 / (n - 2) * sums @ others.T) / (n * (n - 3))


def _kernels(states: np.ndarray) -> np.ndarray:
    """Return float64 [R, n, n]: the inner products of [n, R, H] over texts, with zero diagonals."""
    layers = np.moveaxis(states, 1, 0).astype(np.float64)
    means = layers.mean(axis=1, keepdims=True)
    centred = layers - means  # the estimator does not change, and loses fewer digits
    constant = np.mean(centred**2, axis=(1, 2)) <= CONSTANT * np.mean(layers**2, axis=(1, 2))
    centred[constant] = 0.0
    kernels = centred @ np.swapaxes(centred, 1, 2)
    kernels[:, np.arange(len(states)), np.arange(len(states))] = 0.0
    return kernels


def _check_tokenizers(models: tuple[PretrainedModel, ...], vectors: VectorKind) -> None:
    fingerprints = {each.need_tokenizer().fingerprint for each in models}
    if vectors == "token" and len(fingerprints) > 1:
        raise UserError(
            f"vectors='token' compares tokens, but {models[0].path} and {models[-1].path} have different tokenizers; "
            "use vectors='mean' or 'cls'"
        )


class Moments:
    """The number, the mean and the summed squared deviations of all vectors added so far, for each of R layers."""

    def __init__(self, layers: int, size: int):
        self.count: int = 0
        self.mean: np.ndarray = np.zeros((layers, size))
        self._deviations: np.ndarray = np.zeros((layers, size, size))

    def add(self, vectors: np.ndarray) -> None:
        """Add [n, R, H].

        The deviations are those from the mean of the part, corrected for the distance of the two means (Chan, Golub,
        LeVeque 1979), so that no digits are lost where the mean is far from zero, as it is in BERT.
        """
        part = np.moveaxis(vectors, 1, 0).astype(np.float64)
        mean, count = part.mean(axis=1), part.shape[1]
        centred = part - mean[:, None]
        shift, total = mean - self.mean, self.count + count
        between = shift[:, :, None] * shift[:, None, :] * (self.count * count / total)
        self._deviations += np.swapaxes(centred, 1, 2) @ centred + between
        self.mean += shift * (count / total)
        self.count = total

    def covariance(self) -> np.ndarray:
        """Return float64 [R, H, H], divided by the number of vectors less one."""
        return self._deviations / (self.count - 1)

    def second_moment(self) -> np.ndarray:
        """Return float64 [R, H, H]: the mean of x xᵀ, not centred."""
        return self._deviations / self.count + self.mean[:, :, None] * self.mean[:, None, :]


@dataclasses.dataclass(frozen=True)
class LayerIsotropy:
    """Measures of isotropy of the embeddings and of each of N layers, in this order."""

    cosine: np.ndarray
    """float64 [N + 1]: the mean cosine of two different texts; 0 for vectors in all directions, 1 for a single one."""
    absolute_cosine: np.ndarray
    """float64 [N + 1]: the mean of its absolute value, about √(2 / πH) for random directions."""
    partition: np.ndarray
    """float64 [N + 1]: min F(c) / max F(c) for F(c) = Σ exp(c·x), over the eigenvectors c of Σ x xᵀ with both signs: 1
    for vectors in all directions, near 0 otherwise. It depends on the length of the vectors too."""
    spectrum: np.ndarray
    """float64 [N + 1, H]: eigenvalues of the covariance, the largest first."""
    effective_dimensions: np.ndarray
    """float64 [N + 1]: (Σ λ)² / Σ λ² of the spectrum: H if all directions vary alike, 1 if only one varies; NaN for
    vectors that are the same in all texts."""
    texts: int
    """Number of texts that were measured."""
    model: str
    """Path of the model."""
    vectors: str
    """Kind of vector that represents a text: mean, cls or token."""


def isotropy(
    model: PretrainedModel,
    texts: Iterable[str],
    *,
    vectors: VectorKind = "mean",
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = None,
    progress: bool = True,
) -> LayerIsotropy:
    """Return how isotropic the vectors of the texts are in every layer.

    Args:
      model: any model with a tokenizer.
      texts: two or more; they may be a stream of any length. Cosines are those of pairs within 2,048 consecutive texts,
        and the partition function is summed over the first 2,048, so up to that number all are exact.
      vectors: what represents a text in each layer: the "mean" of its tokens, its [CLS] ("cls"), or one "token" drawn
        at random, the same in all layers.
      seed: of the tokens drawn.

    Raises:
      UserError: fewer than two texts, or an option that cannot work.
    """
    check_vectors(vectors, model)
    layers, size = model.config.num_layers + 1, model.config.hidden_size
    moments, cosines, first = Moments(layers, size), CosineSums(layers), np.zeros((0, layers, size), np.float32)
    kept = {"seed": seed, "batch_size": batch_size, "max_length": max_length, "progress": progress}
    for (states,) in window_vectors((model,), texts, vectors, WINDOW, **kept):
        first = states if not moments.count else first
        moments.add(states)
        cosines.add(states)
    if moments.count < 2:
        raise UserError("isotropy is measured between texts, and there is only one; give two or more")
    spectrum = covariance_spectrum(moments)
    squares = np.sum(spectrum**2, axis=1)
    return LayerIsotropy(
        cosine=cosines.signed / cosines.pairs,
        absolute_cosine=cosines.absolute / cosines.pairs,
        partition=partition_score(first, moments.second_moment()),
        spectrum=spectrum,
        effective_dimensions=np.divide(
            spectrum.sum(axis=1) ** 2, squares, out=np.full(layers, np.nan), where=squares > 0
        ),
        texts=moments.count,
        model=model.path,
        vectors=vectors,
    )


def units(vectors: np.ndarray) -> np.ndarray:
    """Return vectors [..., H] with length 1; one of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)


class CosineSums:
    """Sums of the cosines of all pairs of different vectors that were added together."""

    def __init__(self, layers: int):
        self.pairs: int = 0
        self.signed: np.ndarray = np.zeros(layers)
        self.absolute: np.ndarray = np.zeros(layers)

    def add(self, vectors: np.ndarray) -> None:
        """Add all pairs among [n, R, H]; the cosine with a vector of zeros is 0."""
        n = len(vectors)
        self.pairs += n * (n - 1)
        different = ~np.eye(n, dtype=bool)
        for layer in range(vectors.shape[1]):
            directions = units(vectors[:, layer].astype(np.float64))
            cosines = directions @ directions.T
            self.signed[layer] += np.sum(cosines, where=different)
            self.absolute[layer] += np.sum(np.abs(cosines), where=different)


def covariance_spectrum(moments: Moments) -> np.ndarray:
    """Return the eigenvalues of the covariance, float64 [R, H], the largest first; zeros for vectors all the same."""
    spectrum = np.maximum(np.linalg.eigvalsh(moments.covariance())[:, ::-1], 0.0)
    constant = spectrum.sum(axis=1) <= CONSTANT * np.sum(moments.mean**2, axis=1)
    return np.where(constant[:, None], 0.0, spectrum)


def partition_score(vectors: np.ndarray, second_moment: np.ndarray) -> np.ndarray:
    """Return I = min F(c) / max F(c) of each layer, float64 [R], in (0, 1].

    Mu and Viswanath 2018 take c from the eigenvectors of Σ x xᵀ. Their signs are arbitrary but change F, so each counts
    with both.

    Args:
      vectors: [n, R, H].
      second_moment: [R, H, H], the mean of x xᵀ.
    """
    scores = []
    for layer, matrix in enumerate(second_moment):
        directions = np.linalg.eigh(matrix)[1]
        projections = vectors[:, layer].astype(np.float64) @ directions
        logs = [_log_sum_exp(sign * projections) for sign in (1, -1)]
        scores.append(np.exp(min(map(np.min, logs)) - max(map(np.max, logs))))
    return np.array(scores)


def _log_sum_exp(values: np.ndarray) -> np.ndarray:
    """Return log Σ exp over the first axis, without overflow: BERT's vectors are long."""
    largest = values.max(axis=0)
    return largest + np.log(np.exp(values - largest).sum(axis=0))


def fit_postprocess(
    model: PretrainedModel,
    texts: Iterable[str],
    kind: PostprocessKind = "whitening",
    layers: Combination = "last",
    pooling: Pooling | None = None,
    *,
    components: int | None = None,
    batch_size: int = 32,
    max_length: int | None = None,
    progress: bool = True,
) -> Postprocess:
    """Return the map that makes the vectors of texts more isotropic, for `model.embed(…, postprocess=…)`.

    `model.postprocesses[NAME] = …` saves it with the model.

    Args:
      model: any model with a tokenizer.
      texts: more texts than the vectors have values; they may be a stream of any length.
      kind: "whitening": mean zero and the identity as covariance (Su et al. 2021); "component_removal": without their
        mean and the directions with the most variance (Mu and Viswanath 2018, all-but-the-top).
      layers: as in `embed`.
      pooling: as in `embed`; None: what the model does by default.
      components: of whitening, how many values the new vectors have, those with the most variance; None: as many as the
        directions in which the old ones vary. That is one less than they have values if a LayerNorm made them, as in
        BERT: what it adds and multiplies apart, its output sums to zero. Of component_removal, how many directions to
        remove; None: one for every hundred values, as in the paper, and at least one.
      max_length: tokens per text; None: as `embed`.

    Raises:
      UserError: whitening with too few texts for the number of dimensions, texts whose vectors do not vary in as many
        directions, or an option that cannot work.
    """
    if kind not in KINDS:
        raise UserError(f"kind={kind!r} must be one of {', '.join(KINDS)}")
    pooling = model.embedding.pooling if pooling is None else pooling
    moments = None
    with counted_texts(texts, visible=progress) as done:
        for window in windows(texts, WINDOW):
            vectors = model.embed(
                window, layers, pooling, normalize=False, batch_size=batch_size, max_length=max_length, progress=False
            )
            moments = Moments(1, vectors.shape[1]) if moments is None else moments
            moments.add(vectors[:, None])
            done(len(window))
    assert moments is not None  # windows yields one or raises
    matrix = postprocess_matrix(kind, moments.count, moments.covariance()[0], components)
    return Postprocess(kind, layers, pooling, moments.mean[0].astype(np.float32), matrix.astype(np.float32))


def postprocess_matrix(
    kind: PostprocessKind, count: int, covariance: np.ndarray, components: int | None = None
) -> np.ndarray:
    """Return float64 [H, K] that centred vectors are multiplied with; see `fit_postprocess`.

    Args:
      count: number of vectors that the covariance is of.
      covariance: [H, H].
    """
    size = len(covariance)
    usual, most = (size, size) if kind == "whitening" else (max(1, round(size / 100)), size - 1)
    needed = usual if components is None else components
    if not 1 <= needed <= most:
        raise UserError(f"components={components} must be between 1 and {most} for {kind} of {size} values")
    if count <= needed:
        raise UserError(
            f"{kind} with {needed} components needs more than {needed} texts, not {count}; give more texts, or "
            "fewer components"
        )
    variances, directions = (part[..., ::-1] for part in np.linalg.eigh(covariance))
    if kind == "component_removal":
        return np.eye(size) - directions[:, :needed] @ directions[:, :needed].T
    varying = int(np.sum(variances > CONSTANT * max(variances[0], 0.0)))
    kept = varying if components is None else components
    if not 1 <= kept <= varying:
        raise UserError(
            f"the vectors of these {count:,} texts vary in {varying} directions, not in {max(1, kept)}; give texts "
            "that differ more, or fewer components"
        )
    return directions[:, :kept] / np.sqrt(variances[:kept])


POOLINGS: tuple[VectorKind, ...] = ("mean", "cls")
TREATMENTS = ("none", "centred", "component_removal", "whitening")


@dataclasses.dataclass(frozen=True)
class SentenceCorrelation:
    """Spearman's correlation of cosines with judged similarities, by pooling, layer and treatment of the vectors."""

    poolings: tuple[str, ...]
    """P ways to make one vector per text."""
    treatments: tuple[str, ...]
    """T treatments, fitted on other texts: none, centred (without their mean), component_removal and whitening."""
    spearman: np.ndarray
    """float64 [P, N + 1, T]: embeddings first; NaN where the vectors are the same for all texts."""
    pairs: int
    """Number of judged pairs."""
    texts: int
    """Number of texts that the treatments were fitted on."""
    model: str
    """Path of the model."""


def sentence_correlation(
    model: PretrainedModel,
    texts: Iterable[str],
    pairs: Sequence[tuple[str, str]],
    similarities: Sequence[float],
    *,
    batch_size: int = 32,
    max_length: int | None = None,
    progress: bool = True,
) -> SentenceCorrelation:
    """Return Spearman's correlation of the cosine of two texts with their judged similarity, such as that of STS-B.

    Args:
      model: any model with a tokenizer.
      texts: what the treatments are fitted on, more texts than the vectors have values; a list, or anything else that
        can be read twice.
      pairs: texts that were judged.
      similarities: their similarities, the higher the more alike.

    Raises:
      UserError: too few texts to whiten with, or pairs and similarities that do not go together.
    """
    if len(pairs) != len(similarities) or len(pairs) < 2:
        raise UserError(f"{len(pairs)} pairs with {len(similarities)} similarities; give two or more, one for each")
    layers, size = model.config.num_layers + 1, model.config.hidden_size
    if isinstance(texts, Sized):
        check_whitening(len(texts), size)
    found = np.full((len(POOLINGS), layers, len(TREATMENTS)), np.nan)
    judged, count = [text for pair in pairs for text in pair], 0
    for row, pooling in enumerate(POOLINGS):
        moments, kept = Moments(layers, size), {"batch_size": batch_size, "max_length": max_length}
        for (states,) in window_vectors((model,), texts, pooling, WINDOW, **kept, progress=progress):
            moments.add(states)
        vectors = layer_vectors(model, judged, pooling, **kept)
        covariance, count = moments.covariance(), moments.count
        for layer in np.flatnonzero(covariance_spectrum(moments).any(axis=1)):
            centred = vectors[:, layer] - moments.mean[layer]
            treated = {
                "none": vectors[:, layer].astype(np.float64),
                "centred": centred,
                **{kind: centred @ postprocess_matrix(kind, count, covariance[layer]) for kind in KINDS},
            }
            for column, treatment in enumerate(TREATMENTS):
                found[row, layer, column] = spearman(np.asarray(similarities), pair_cosines(treated[treatment]))
    return SentenceCorrelation(POOLINGS, TREATMENTS, found, len(pairs), count, model.path)


def check_whitening(texts: int, size: int) -> None:
    """Raise a UserError if vectors of `size` values cannot be whitened by so few texts."""
    if texts <= size:
        raise UserError(
            f"{texts:,} texts are too few to whiten vectors of {size} values for the comparison with judged pairs; "
            f"give more than {size}, by --texts and an input that has them, or leave --sts out"
        )


def pair_cosines(vectors: np.ndarray) -> np.ndarray:
    """Return float64 [n]: the cosines of vectors 0 and 1, 2 and 3, … of [2n, K]; 0 with a vector of zeros."""
    directions = units(vectors)
    return np.vecdot(directions[::2], directions[1::2])


def read_judged_pairs(path: str) -> tuple[list[tuple[str, str]], list[float]]:
    """Return the pairs of a file of STS-B with labels, such as its dev.tsv, and their similarities, 0 to 5.

    Raises:
      UserError: there is no such file, or a row is bad.
    """
    found = glue.load("stsb", TaskDataConfig(dev=path), "dev")
    assert found.second is not None and found.answers is not None  # as of every file of STS-B with labels
    return list(zip(found.first, found.second, strict=True)), found.answers.tolist()


MOST_NUMBERED = 14  # rows or columns of a heat map whose cells show their numbers; in larger ones they would not fit


def draw_layer_similarity(result: LayerSimilarity) -> Figure:
    """Return a heat map of the CKA matrix, with the embeddings in the lower left corner."""
    rows, columns = result.matrix.shape
    figure, axes = results.panels((2.2 + 0.5 * columns, 1.6 + 0.5 * rows), "")
    image = axes.imshow(result.matrix, cmap="viridis", vmin=0.0, vmax=1.0, origin="lower")
    figure.colorbar(image, ax=axes, label="linear CKA", shrink=0.8)
    for labels, size, name, axis in (
        (axes.set_yticks, rows, result.models[0], axes.set_ylabel),
        (axes.set_xticks, columns, result.models[1], axes.set_xlabel),
    ):
        labels(range(size), results.layer_names(size))
        axis(f"layer of {results.short_path(name)}", parse_math=False)
    if max(rows, columns) <= MOST_NUMBERED:
        results.write_numbers(axes, result.matrix)
    axes.set_title(f"Linear CKA, {result.texts:,} texts, vectors: {result.vectors}", fontsize=11)
    return figure


def draw_layer_isotropy(result: LayerIsotropy) -> Figure:
    """Return three panels: mean cosines and the partition function by layer, and the spectrum of every layer."""
    count = len(result.cosine)
    heading = f"{results.short_path(result.model)}: {result.texts:,} texts, vectors: {result.vectors}"
    figure, (cosines, partition, spectrum) = results.panels((13.0, 3.8), heading, 1, 3)
    series = {"mean cosine": result.cosine, "mean |cosine|": result.absolute_cosine}
    results.lines_by_layer(cosines, "Pairs of texts", series)
    cosines.axhline(0.0, color="#8a8a8a", linewidth=0.8)
    cosines.legend(frameon=False)
    results.lines_by_layer(partition, "Partition function, min F / max F", {"partition": result.partition})
    partition.set_yscale("log")
    for layer, (name, values) in enumerate(zip(results.layer_names(count), result.spectrum, strict=True)):
        if total := values.sum():
            colour = colormaps["viridis"](layer / count)
            spectrum.plot(np.arange(1, len(values) + 1), np.cumsum(values) / total, color=colour, label=name)
    spectrum.set_xscale("log")
    spectrum.set_ylim(0.0, 1.02)
    results.framed(spectrum, "Share of the variance in the first directions", "number of directions")
    spectrum.legend(frameon=False, title="layer", fontsize=8)
    return figure


def draw_sentence_correlation(result: SentenceCorrelation) -> Figure:
    """Return one panel per pooling: the correlation by layer, before and after each treatment."""
    heading = f"{results.short_path(result.model)}: {result.pairs:,} pairs, fitted on {result.texts:,} texts"
    figure, drawn = results.panels((10.0, 3.8), heading, 1, len(result.poolings), sharey=True)
    for axes, pooling, values in zip(drawn, result.poolings, result.spearman, strict=True):
        names = (treatment.replace("_", " ") for treatment in result.treatments)
        results.lines_by_layer(axes, f"vectors: {pooling}", dict(zip(names, values.T, strict=True)))
    drawn[0].set_ylabel("Spearman's correlation")
    drawn[0].legend(frameon=False, fontsize=9)
    return figure


def _cka_told(result: LayerSimilarity, alone: bool) -> list[str]:
    steps = ", ".join(f"{each:.3f}" for each in np.diagonal(result.matrix, 1))
    of_one = f"neighbouring layers, from the embeddings up: {steps}"
    of_two = f"the last layers of both: {result.matrix[-1, -1]:.3f}"
    return [f"linear CKA over {result.texts:,} texts in {result.minibatches} minibatches", of_one if alone else of_two]


def _isotropy_told(result: LayerIsotropy) -> list[Table]:
    columns = {
        "mean cosine": result.cosine,
        "mean |cosine|": result.absolute_cosine,
        "partition": result.partition,
        "effective dimensions": result.effective_dimensions,
    }
    return [results.layers_table(columns, digits=".3g")]


def _sts_told(result: SentenceCorrelation) -> list[Table]:
    rows = [
        (pooling, name, *(f"{value:.3f}" for value in values))
        for pooling, layers in zip(result.poolings, result.spearman, strict=True)
        for name, values in zip(results.layer_names(len(layers)), layers, strict=True)
    ]
    title = f"Spearman's correlation, {result.pairs:,} pairs"
    return [results.table(("vectors", "layer", *result.treatments), rows, title)]


ISOTROPY = results.Analysis("isotropy", LayerIsotropy, _isotropy_told, {"isotropy": draw_layer_isotropy})
STS = results.Analysis("sts", SentenceCorrelation, _sts_told, {"sts": draw_sentence_correlation}, "sts.json")


def run_cka(path: str, options: CkaConfig) -> None:
    """Print and draw how similar the layers of a model are, or those of two models."""
    models = [load(each) for each in (path, options.other) if each]
    tell = functools.partial(_cka_told, alone=len(models) == 1)
    compute = results.call_with(cka, options, models[0], other=models[1] if options.other else None)
    analysis = results.Analysis("cka", LayerSimilarity, tell, {"cka": draw_layer_similarity})
    analysis.run_on_texts(options, models, compute)


def run_isotropy(path: str, options: IsotropyConfig) -> None:
    """Print and draw how evenly vectors fill their space by layer; with `--sts`, how well they tell similar texts."""
    judged = read_judged_pairs(options.sts) if options.sts else None  # before anything that takes long
    model = load(path)
    if judged is not None:
        sources = find_sources(options.input, options.format, text_field=options.text_field)
        drawn = texts_of(sources, options.texts, options.seed, options.text_field)
        check_whitening(sum(1 for _ in drawn), model.config.hidden_size)
    ISOTROPY.run_on_texts(options, [model], results.call_with(isotropy, options, model))
    if judged is not None:
        pairs, similarities = judged
        compute = results.call_with(sentence_correlation, options, model, pairs=pairs, similarities=similarities)
        STS.run_on_texts(options, [model], compute, options.sts)

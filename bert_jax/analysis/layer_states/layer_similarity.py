"""Linear CKA between layers, from minibatches: Kornblith et al. 2019; Nguyen, Raghu, Kornblith 2021, section 3.

The similarity of two representations X and Y of the same texts is HSIC(X, Y) / √(HSIC(X, X) · HSIC(Y, Y)). HSIC is
estimated without bias from every minibatch (Song et al. 2012, equation 5), numerator and denominators are averaged
over the minibatches, and only then divided. So memory is that of one minibatch, and its size does not shift the result.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from bert_jax.analysis.text_sample import windows
from bert_jax.analysis.text_vectors import CONSTANT, WINDOW, check_vectors, counted_texts, layer_vectors
from bert_jax.config.analyses.analysis_options import VectorKind
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel

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
    """What represents a text: mean, cls or token."""


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
      batch_size: number of texts that a model reads at once.
      max_length: tokens per text; None: as many as both models have positions.
      progress: whether to show a bar.

    Raises:
      UserError: fewer than 4 texts or an option that cannot work; with vectors="token", two models with different
        tokenizers.
    """
    check_vectors(vectors)
    if minibatch < SMALLEST:
        raise UserError(f"minibatch={minibatch} must be at least {SMALLEST}, which the unbiased estimate needs")
    models = (model,) if other is None else (model, other)
    _check_tokenizers(models, vectors)
    length = min(each.config.longest_sequence for each in models) if max_length is None else max_length
    sums, seen, read = HsicSums(), 0, 0
    with counted_texts(texts, len(models), progress) as done:
        for window in windows(texts, -(-WINDOW // minibatch) * minibatch):
            states = [
                layer_vectors(
                    each,
                    window,
                    vectors,
                    first=read,
                    seed=seed,
                    batch_size=batch_size,
                    max_length=length,
                    done=done,
                )
                for each in models
            ]
            read += len(window)
            for start in range(0, len(window), minibatch):
                size = min(minibatch, len(window) - start)
                if size == minibatch or (not seen and size >= SMALLEST):
                    sums.add(states[0][start : start + size], states[-1][start : start + size])
                    seen += size
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

"""How evenly the vectors of each layer fill the space: cosines, partition function, spectrum.

Vectors that all point the same way tell texts apart badly by their cosine, whatever else they know. Mean cosines show
that at once (Ethayarajh 2019), the partition function of Arora et al. 2016 measures it in the form of Mu and Viswanath
2018, and the spectrum of the covariance says how many directions carry the variance.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from bert_jax.analysis.layer_states.moments import Moments
from bert_jax.analysis.text_sample import windows
from bert_jax.analysis.text_vectors import CONSTANT, WINDOW, check_vectors, counted_texts, layer_vectors
from bert_jax.config.analyses.analysis_options import VectorKind
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel


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
    """What represents a text: mean, cls or token."""


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
      batch_size: number of texts that the model reads at once.
      max_length: tokens per text; None: as many as the model has positions.
      progress: whether to show a bar.

    Raises:
      UserError: fewer than two texts, or an option that cannot work.
    """
    check_vectors(vectors)
    layers, size = model.config.num_layers + 1, model.config.hidden_size
    moments, cosines, first = Moments(layers, size), CosineSums(layers), np.zeros((0, layers, size), np.float32)
    with counted_texts(texts, visible=progress) as done:
        for window in windows(texts, WINDOW):
            states = layer_vectors(
                model,
                window,
                vectors,
                first=moments.count,
                seed=seed,
                batch_size=batch_size,
                max_length=max_length,
                done=done,
            )
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
            states = vectors[:, layer].astype(np.float64)
            lengths = np.linalg.norm(states, axis=1, keepdims=True)
            units = np.divide(states, lengths, out=np.zeros_like(states), where=lengths > 0)
            cosines = units @ units.T
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

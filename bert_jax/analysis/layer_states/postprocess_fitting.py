"""Whitening and removal of the strongest directions, fitted on the vectors of some texts."""

from collections.abc import Iterable

import numpy as np

from bert_jax.analysis.layer_states.moments import Moments
from bert_jax.analysis.text_sample import windows
from bert_jax.analysis.text_vectors import CONSTANT, WINDOW, counted_texts
from bert_jax.config.encoder_heads import Combination, Pooling
from bert_jax.errors import UserError
from bert_jax.models.postprocessing import KINDS, Postprocess, PostprocessKind
from bert_jax.pretrained.model import PretrainedModel


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
      batch_size: number of texts that the model reads at once.
      max_length: tokens per text; None: as `embed`.
      progress: whether to show a bar.

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
                window,
                layers,
                pooling,
                normalize=False,
                batch_size=batch_size,
                max_length=max_length,
                progress=False,
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
      kind: see there.
      count: number of vectors that the covariance is of.
      covariance: [H, H].
      components: see there.
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

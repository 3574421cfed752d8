"""How well cosines of sentence vectors agree with people's judgement, before and after they are made isotropic."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from bert_jax.analysis.layer_states.layer_isotropy import covariance_spectrum
from bert_jax.analysis.layer_states.moments import Moments
from bert_jax.analysis.layer_states.postprocess_fitting import postprocess_matrix
from bert_jax.analysis.text_sample import windows
from bert_jax.analysis.text_vectors import WINDOW, counted_texts, layer_vectors
from bert_jax.config.analyses.analysis_options import VectorKind
from bert_jax.config.task_options import TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.models.postprocessing import KINDS
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.tasks import glue
from bert_jax.tasks.scores import spearman

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
      batch_size: number of texts that the model reads at once.
      max_length: tokens per text; None: as many as the model has positions.
      progress: whether to show a bar.

    Raises:
      UserError: too few texts to whiten with, or pairs and similarities that do not go together.
    """
    if len(pairs) != len(similarities) or len(pairs) < 2:
        raise UserError(f"{len(pairs)} pairs with {len(similarities)} similarities; give two or more, one for each")
    layers, size = model.config.num_layers + 1, model.config.hidden_size
    found = np.full((len(POOLINGS), layers, len(TREATMENTS)), np.nan)
    judged, count = [text for pair in pairs for text in pair], 0
    for row, pooling in enumerate(POOLINGS):
        moments = Moments(layers, size)
        with counted_texts(texts, visible=progress) as done:
            for window in windows(texts, WINDOW):
                states = layer_vectors(model, window, pooling, batch_size=batch_size, max_length=max_length, done=done)
                moments.add(states)
        vectors = layer_vectors(model, judged, pooling, batch_size=batch_size, max_length=max_length)
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


def pair_cosines(vectors: np.ndarray) -> np.ndarray:
    """Return float64 [n]: the cosines of vectors 0 and 1, 2 and 3, … of [2n, K]; 0 with a vector of zeros."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return np.vecdot(units[::2], units[1::2])


def read_judged_pairs(path: str) -> tuple[list[tuple[str, str]], list[float]]:
    """Return the pairs of a file of STS-B with labels, such as its dev.tsv, and their similarities, 0 to 5.

    Raises:
      UserError: there is no such file, or a row is bad.
    """
    found = glue.load("stsb", TaskDataConfig(dev=path), "dev")
    assert found.second is not None and found.answers is not None  # as of every file of STS-B with labels
    return list(zip(found.first, found.second, strict=True)), found.answers.tolist()

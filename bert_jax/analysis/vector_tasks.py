"""Evaluation of vectors in the field's forms: the object by which the library mteb evaluates a model.

    mteb.evaluate(bert_jax.MtebEncoder(bert_jax.load("MODEL")), mteb.get_tasks(["STSBenchmark"]))

Neither mteb nor torch is imported.
"""

import functools
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.tasks.vectors import unit


class MtebEncoder:
    """A model as the library mteb (2.x) evaluates one, by its EncoderProtocol.

    Vectors are those of `embed`, with the model's pooling, normalization, length and prompts. They are compared by
    their cosines.
    """

    def __init__(self, model: PretrainedModel):
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

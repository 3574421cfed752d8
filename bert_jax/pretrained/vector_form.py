"""What `PretrainedModel.embed` makes of hidden states: layers combined, pooled, mapped and normalized."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from bert_jax.config.encoder_heads import Combination, Pooling
from bert_jax.data.sequences.batching import Batch
from bert_jax.errors import UserError
from bert_jax.models.pooling import check_pooling, layers_read
from bert_jax.models.postprocessing import Postprocess
from bert_jax.pretrained.runner import Runner


@dataclasses.dataclass(frozen=True, eq=False)
class VectorForm:
    """The arguments of `embed` with the defaults of the model filled in, and checked."""

    layers: Combination
    pooling: Pooling
    weights: np.ndarray | None
    """float32, for the weighted sums of layers."""
    postprocess: Postprocess | None
    normalize: bool

    def vectors(self, runner: Runner, batches: Iterable[tuple[np.ndarray, Batch]], count: int) -> np.ndarray:
        """Return float32 [count, H'], from batches with the numbers of their texts."""
        found = np.zeros((count, 0), np.float32)
        for numbers, batch in batches:
            normalize = self.normalize and self.postprocess is None
            rows = runner.embed(batch, self.weights, self.layers, self.pooling, normalize)
            found = found if found.size else np.zeros((count, rows.shape[1]), np.float32)
            found[numbers] = rows[: len(numbers)]
        if self.postprocess is None:
            return found
        found = self.postprocess(found)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        return found / np.maximum(lengths, 1e-12) if self.normalize else found


def vector_form(
    model: Any,
    layers: Combination,
    pooling: Pooling | None,
    weights: ArrayLike | None,
    postprocess: Postprocess | str | None,
    normalize: bool | None,
) -> VectorForm:
    """Return the form of the vectors of a PretrainedModel; raise a UserError if it cannot make such vectors."""
    layers_read(layers, model.config.num_layers, weights)
    if pooling is None and model.embedding.unsupported:
        raise UserError(
            f"{model.path} is a model of sentence-transformers with {model.embedding.unsupported}, which embed "
            'cannot do; give pooling, such as pooling="mean", for vectors of the bare BERT'
        )
    if pooling == "pooler" and layers != "last":
        raise UserError(
            f"pooling={pooling!r} with layers={layers!r}: use cls, mean or max (the pooler reads the last layer only)"
        )
    pooled: Pooling = model.embedding.pooling if pooling is None else pooling
    check_pooling(pooled, "pooler" in model.network.parts)
    return VectorForm(
        layers,
        pooled,
        None if weights is None else np.asarray(weights, np.float32),
        None if postprocess is None else _fitting(model.postprocesses, postprocess, layers, pooled),
        bool(model.embedding.normalize if normalize is None else normalize),
    )


def _fitting(known: dict[str, Postprocess], chosen: Postprocess | str, layers: str, pooling: str) -> Postprocess:
    """Return the one that is meant, which must have been fitted on such vectors."""
    if isinstance(chosen, str):
        if chosen not in known:
            raise UserError(f"this model has no postprocess {chosen!r}; it has {', '.join(map(repr, known)) or 'none'}")
        chosen = known[chosen]
    chosen.check(layers, pooling)
    return chosen

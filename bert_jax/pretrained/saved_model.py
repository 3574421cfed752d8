"""A loaded model with its present parameters, written to a new work directory."""

import os
from typing import Any

import jax
import numpy as np
from absl import logging

from bert_jax.checkpoints.fingerprint import leaf_paths
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel
from bert_jax.formats.writing import new_directory, write_bert_jax
from bert_jax.pretrained.edited_parameters import not_finite
from bert_jax.tasks.recorded import without_metrics


def save(model: Any, params: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a PretrainedModel with `params`; its method of this name describes what is written."""
    if jax.process_count() > 1:
        raise UserError(
            f"save is for one host but this program has {jax.process_count()}; load the model on one of them"
        )
    if bad := not_finite(params):
        logging.warning(
            "%d arrays have values that are NaN or infinite, first %s; they are saved as they are", len(bad), bad[0]
        )
    with new_directory(path) as directory:
        write_bert_jax(as_stored(model, params), directory, by="model.save")


def as_stored(model: Any, params: dict[str, Any]) -> StoredModel:
    """Return a PretrainedModel with `params` as the formats read and write one."""
    arrays = {
        path: StoredArray(leaf.shape, leaf.dtype, np.asarray(leaf).__getitem__)
        for path, leaf in leaf_paths(params).items()
    }
    return StoredModel(
        model.kind,
        model.path,
        model.config,
        arrays,
        model.tokenizer,
        model.head,
        model.embedding,
        postprocesses=model.postprocesses,
        history=without_metrics(model.history),
    )

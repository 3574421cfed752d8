"""`bert_jax.load`: from a directory of any kind to the model object."""

import os

from jax.sharding import Mesh

from bert_jax.config import ComputeConfig
from bert_jax.devices.compilation_cache import use_compilation_cache
from bert_jax.formats.fit import check_fit
from bert_jax.formats.opening import one_device, open_stored, place
from bert_jax.pretrained.model import PretrainedModel


def load(
    path: str | os.PathLike[str], *, mesh: Mesh | None = None, compute: ComputeConfig = ComputeConfig()
) -> PretrainedModel:
    """Return the model in `path` with its configuration, parameters (float32) and tokenizer.

    Args:
      path: local or gs://: a work directory of bert_jax (its newest good checkpoint) or one step of it, a Hugging Face
        directory, or a TensorFlow 1 checkpoint (directory or prefix). None of them needs TensorFlow.
      mesh: None for the first device; else every device reads its own part (bert_jax/devices/sharding.py).
      compute: dtype of activations and the like; see ComputeConfig.

    Raises:
      UserError: there is no readable model, only a pickle, damaged files, or arrays that do not fit the configuration.
    """
    use_compilation_cache()
    stored = open_stored(path)
    check_fit(stored)
    mesh = one_device() if mesh is None else mesh
    return PretrainedModel(stored, place(stored, mesh), mesh, compute)

"""`bert_jax.load`: from a directory of any kind to the model object."""

import os
from typing import Literal

from jax.sharding import Mesh

from bert_jax.config import ComputeConfig
from bert_jax.devices.compilation_cache import use_compilation_cache
from bert_jax.errors import UserError
from bert_jax.formats.fit import check_fit
from bert_jax.formats.generator_arrays import generator_of
from bert_jax.formats.opening import one_device, open_stored, place
from bert_jax.formats.stored import StoredModel
from bert_jax.pretrained.model import PretrainedModel


def load(
    path: str | os.PathLike[str],
    *,
    mesh: Mesh | None = None,
    compute: ComputeConfig = ComputeConfig(),
    part: Literal["generator"] | None = None,
) -> PretrainedModel:
    """Return the model in `path` with its configuration, parameters (float32) and tokenizer.

    Args:
      path: local or gs://: a work directory of bert_jax (its newest good checkpoint) or one step of it, a Hugging Face
        directory, or a TensorFlow 1 checkpoint (directory or prefix). None of them needs TensorFlow.
      mesh: None for the first device; else every device reads its own part (bert_jax/devices/sharding.py).
      compute: dtype of activations and the like; see ComputeConfig.
      part: "generator" for that of a run of replaced-token detection, of which None opens the discriminator.

    Raises:
      UserError: there is no readable model, only a pickle, damaged files, or arrays that do not fit the configuration;
        or there is no such part.
    """
    if part not in (None, "generator"):
        raise UserError(f"part={part!r:.40} must be 'generator', or None for the model itself")
    stored = _opened(path)
    return _loaded(stored if part is None else generator_of(stored), mesh, compute)


def load_with_generator(
    path: str | os.PathLike[str], *, mesh: Mesh | None = None, compute: ComputeConfig = ComputeConfig()
) -> tuple[PretrainedModel, PretrainedModel | None]:
    """Return the model in `path` and, of a run of replaced-token detection, the generator at the same step."""
    stored = _opened(path)
    return _loaded(stored, mesh, compute), _loaded(generator_of(stored), mesh, compute) if stored.beside else None


def _opened(path: str | os.PathLike[str]) -> StoredModel:
    use_compilation_cache()
    return open_stored(path)


def _loaded(stored: StoredModel, mesh: Mesh | None, compute: ComputeConfig) -> PretrainedModel:
    check_fit(stored)
    mesh = one_device() if mesh is None else mesh
    return PretrainedModel(stored, place(stored, mesh), mesh, compute)

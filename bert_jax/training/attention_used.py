"""How the steps of a run compute attention: for people, and for what the backward pass has to keep."""

import dataclasses

from jax.sharding import Mesh

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.devices import sharding
from bert_jax.models.architecture import computation_dtype
from bert_jax.models.kernels.choice import PLATFORMS, Shape, attention_path
from bert_jax.models.layer_loop import reads_alone
from bert_jax.models.window_blocks import scores_by_blocks


def attention_of(
    model: ModelConfig, compute: ComputeConfig, mesh: Mesh, rows: int, length: int, max_texts: int = 1
) -> str:
    """Return how attention is computed in training, for people.

    Args:
      model: what is trained.
      compute: how.
      mesh: the devices.
      rows: of a batch, over all devices.
      length: tokens of a row.
      max_texts: texts that a row has room for, each with global tokens of its own.
    """
    path, local = _paths(model, compute, mesh, rows, length, max_texts)
    path += "" if local == path else f", in local layers by {local}"
    if path.startswith("xla") or not reads_alone(model, compute):
        return path
    return f"{path}; where only some states of the last layer are read, that layer by xla"


def keeps_no_probabilities(model: ModelConfig, compute: ComputeConfig, mesh: Mesh, rows: int, length: int) -> bool:
    """Return whether all layers compute attention in a kernel whose backward pass computes probabilities again."""
    return model.layer == "transformer" and set(_paths(model, compute, mesh, rows, length)) <= set(PLATFORMS)


def local_keys(
    model: ModelConfig, compute: ComputeConfig, mesh: Mesh, rows: int, length: int, max_texts: int = 1
) -> int | None:
    """Return how many scores each position of a local layer has; None if there is no such layer."""
    if model.local_window is None or model.layer != "transformer":
        return None
    by_blocks = _paths(model, compute, mesh, rows, length, max_texts)[1] == "windowed"
    return scores_by_blocks(model.local_window, model.global_tokens * max_texts) if by_blocks else length


def _paths(
    model: ModelConfig, compute: ComputeConfig, mesh: Mesh, rows: int, length: int, max_texts: int = 1
) -> tuple[str, str]:
    """Return how layers compute attention, and how those do that see a window alone."""
    shape = Shape(
        batch=rows // sharding.batch_parts(mesh),
        length=length,
        heads=model.num_heads,
        head_parts=mesh.shape["tensor"],
        size=model.head_size,
        rate=model.attention_dropout,
        dtype=computation_dtype(compute),
        global_tokens=model.global_tokens * max_texts,
        disentangled=model.disentangled.terms != "none" or model.is_xlnet,
    )
    shapes = shape, dataclasses.replace(shape, window=model.local_window)
    path, local = (attention_path(compute, mesh.devices.flat[0].platform, each) for each in shapes)
    return path, local

"""Which attention kernel computes what: decided here alone, by platform, options and shape."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.config import ComputeConfig
from bert_jax.errors import UserError
from bert_jax.models.kernels import cudnn, xla
from bert_jax.models.kernels.contract import AttentionKernel

PLATFORMS = {"pallas": ("tpu", "a TPU"), "cudnn": ("gpu", "an NVIDIA GPU")}
"""Where a kernel runs; those that are not named here run everywhere."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """What attention gets on one device: B rows of L positions, A heads of size D, the rate of dropout and the type."""

    batch: int
    length: int
    heads: int
    size: int
    rate: float
    dtype: jnp.dtype


def kernel_name(compute: ComputeConfig, platform: str | None = None) -> str:
    """Return the kernel that the options choose on `platform` (by default that of this process): xla, pallas, cudnn."""
    if compute.attention != "auto":
        return compute.attention
    # cudnn has not been measured, so it is no default.
    return "pallas" if (platform or jax.default_backend()) == "tpu" else "xla"


def attention_kernel(compute: ComputeConfig) -> AttentionKernel:
    """Return the kernel that the options choose; where it has an obstacle it calls `kernels.xla.attention` itself."""
    name = kernel_name(compute)
    if name == "pallas":
        from bert_jax.models.kernels import pallas  # most processes have no TPU, and the import takes a while

        return pallas.attention
    return cudnn.attention if name == "cudnn" else xla.attention


def check_attention(compute: ComputeConfig, platform: str) -> None:
    """Raise a UserError if the options name a kernel that `platform` (cpu, gpu, tpu) cannot run."""
    needed, machine = PLATFORMS.get(compute.attention, (platform, ""))
    if platform != needed:
        raise UserError(
            f"compute.attention={compute.attention} needs {machine}, but this runs on {platform}; set "
            "compute.attention=auto, which takes what the machine has"
        )


def attention_path(compute: ComputeConfig, platform: str, shape: Shape) -> str:
    """Return how the attention of a training step is computed, and if not as the options say, why; for people."""
    name = kernel_name(compute, platform)
    if name == "pallas":
        from bert_jax.models.kernels import pallas

        reason = pallas.obstacle(shape.batch, shape.length, shape.heads, shape.size)
    else:
        reason = cudnn.obstacle(shape.length, shape.size, shape.rate, shape.dtype) if name == "cudnn" else None
    return name if reason is None else f"xla, not {name}: {reason}"

"""The choice of an attention kernel by platform, options and call, made here alone; and attention by cuDNN.

Each kernel declares what it supports (`Kernel`). Of those that the platform and the option allow, the first that
supports a call computes it, and attention in plain JAX computes all others.

With cuDNN on NVIDIA GPUs, scores and probabilities never leave the chip. JAX offers it without dropout. cuDNN could
drop probabilities, but by generators of its own, whose draws depend on how the batch is split over devices; so
plain.py computes its steps with attention dropout. It runs only on request: no faster than Triton where both were
measured (docs/speed.md).
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import ComputeConfig
from bert_jax.errors import UserError
from bert_jax.models.kernels import windowed
from bert_jax.models.kernels.plain import EVERYTHING, AttentionKernel, AttentionMask, Call, Kernel, call_of
from bert_jax.models.layers import platform_in_use

LARGEST_SIZE = 128  # of a head, in the forward and backward pass of every card since Ampere


def obstacle(call: Call) -> str | None:
    """Return why cuDNN cannot compute attention of such sizes and types, or None if it can."""
    if call.dtype not in (jnp.bfloat16, jnp.float16):
        return f"it computes in bfloat16, not in {jnp.dtype(call.dtype).name}"
    if call.size % 8 or call.size > LARGEST_SIZE:
        return f"heads of size {call.size} are no multiple of 8 up to {LARGEST_SIZE}"
    return f"length {call.length} is odd" if call.length % 2 else None


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    dropout_key: jax.Array | None = None,
    rate: float = 0.0,
    collect: bool = False,
) -> tuple[jax.Array, None]:
    """See `AttentionKernel`.

    Of a bias, even a constant one, cuDNN computes the gradient; of a mask, which JAX makes a bias too, it does not.
    Queries that see no key, which no loss reads, get the mean of the values.
    """
    assert not collect and (dropout_key is None or not rate), "a Kernel gives its function what it supports"
    (batch, length), bias, seen = query.shape[:2], mask.whole_bias(), mask.seen()
    if bias is not None:
        bias = jnp.broadcast_to(bias, (batch, *bias.shape[1:])).astype(query.dtype)
    seen = jnp.broadcast_to(seen, (batch, 1, length, length))
    return jax.nn.dot_product_attention(query, key, value, bias, seen, implementation="cudnn"), None


KERNEL = Kernel(attention, EVERYTHING - {"queries", "dropout", "probabilities"}, obstacle)

PRODUCTS = {"__cudnn$fmhaScaleBiasSoftmax": 2, "__cudnn$fmhaScaleBiasSoftmaxBackward": 5}
"""Of queries × keys × size of a head, by the name of a call; backward, scores are computed again."""


def cudnn_flops(target: str, results: Sequence[Any]) -> int:
    """Return the operations of a call of cuDNN, a multiply-add counting as two; 0 for any other call.

    Args:
      target: its name.
      results: of which the first is [B, A, L, D].
    """
    if target not in PRODUCTS:
        return 0
    batch, heads, length, size = results[0].dims
    return 2 * PRODUCTS[target] * batch * heads * length**2 * size


PLATFORMS = {"pallas": ("tpu", "a TPU"), "triton": ("gpu", "an NVIDIA GPU"), "cudnn": ("gpu", "an NVIDIA GPU")}
"""Where a kernel runs that does not run everywhere. These keep no probabilities."""
SHORTEST = 128
"""Tokens of a row from which on `pallas` is predicted to be faster on a TPU than `xla`, and `triton` was measured to be
on a GPU, in bfloat16 (docs/speed.md)."""


def declared(name: str) -> Kernel:
    """Return pallas, triton, cudnn or windowed."""
    # Most processes compute attention in JAX, and the imports take a while.
    if name == "pallas":
        from bert_jax.models.kernels import tpu

        return tpu.KERNEL
    if name == "triton":
        from bert_jax.models.kernels import gpu

        return gpu.KERNEL
    return {"cudnn": KERNEL, "windowed": windowed.KERNEL}[name]


def attention_kernel(compute: ComputeConfig, in_jax: AttentionKernel) -> Kernel:
    """Return the kernel that the options choose, which computes every call.

    Args:
      compute: the options.
      in_jax: `plain.attention`, in the form of products that the platform computes fastest. It computes what no kernel
        that the options allow supports.
    """
    if compute.attention == "xla":
        return Kernel(in_jax, EVERYTHING)
    return Kernel(functools.partial(chosen, compute.attention, in_jax), EVERYTHING)


def chosen(
    option: str,
    in_jax: AttentionKernel,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    dropout_key: jax.Array | None = None,
    rate: float = 0.0,
    collect: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """See `AttentionKernel`; computed by the first kernel that the option allows and that supports the call."""
    call = call_of(query, key, mask, dropout_key, rate, collect)
    kernels = (declared(name) for name in _allowed(option, platform_in_use(), call))
    function = next((kernel.function for kernel in kernels if kernel.missing(call) is None), in_jax)
    return function(query, key, value, mask, dropout_key, rate, collect)


def _allowed(option: str, platform: str, call: Call) -> tuple[str, ...]:
    """Return the kernels that an option of compute.attention allows before attention in plain JAX, the best first."""
    if option != "auto":
        return () if option == "xla" else (option,)
    if call.length < SHORTEST:
        return ("windowed",)
    if platform == "gpu" and call.dtype == jnp.bfloat16 and _since_ampere():
        return ("triton", "windowed")
    return ("pallas", "windowed") if platform == "tpu" else ("windowed",)


def _since_ampere() -> bool:
    """Return whether the cards of this process, if it has any, are NVIDIA's since Ampere; plans are for no others."""
    capability = getattr(jax.local_devices()[0], "compute_capability", "9.0")  # of AMD's a name, such as gfx90a
    return jax.default_backend() != "gpu" or (capability.partition(".")[0].isdigit() and float(capability) >= 8)


def check_attention(compute: ComputeConfig, platform: str) -> None:
    """Raise a UserError if the options name a kernel that `platform` (cpu, gpu, tpu) cannot run."""
    needed, machine = PLATFORMS.get(compute.attention, (platform, ""))
    if platform != needed:
        raise UserError(
            f"compute.attention={compute.attention} needs {machine}, but this runs on {platform}; set "
            "compute.attention=auto, which takes what the machine has"
        )


def attention_path(compute: ComputeConfig, platform: str, call: Call, disentangled: bool = False) -> str:
    """Return how the attention of a training step is computed, and if not as the options say, why; for people.

    Args:
      compute: the options.
      platform: of the devices.
      call: what a layer asks for.
      disentangled: whether scores have a bias that depends on queries and keys, which `xla` alone is given.
    """
    bias = "scores have a bias that depends on queries and keys (model.disentangled, XLNet)" if disentangled else None
    reasons: dict[str, str] = {}
    for name in _allowed(compute.attention, platform, call):
        reason = bias or declared(name).missing(call)
        if reason is None:
            return name
        reasons[name] = reason
    return next((f"xla, not {name}: {reason}" for name, reason in reasons.items() if name in PLATFORMS), "xla")

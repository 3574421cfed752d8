"""The choice of an attention kernel by platform, options and shape, made here alone; and attention by cuDNN.

With cuDNN on NVIDIA GPUs, scores and probabilities never leave the chip. JAX offers it without dropout. cuDNN could
drop probabilities, but by generators of its own, whose draws depend on how the batch is split over devices; so
plain.py computes its steps with attention dropout. Kernels that have not been measured, cuDNN and Triton, run only on
request.
"""

import dataclasses
import functools
from types import ModuleType

import jax
import jax.numpy as jnp

from bert_jax.config import ComputeConfig
from bert_jax.errors import UserError
from bert_jax.models.kernels import plain, windowed
from bert_jax.models.kernels.plain import AttentionKernel, AttentionMask

LARGEST_SIZE = 128  # of a head, in the forward and backward pass of every card since Ampere


def obstacle(length: int, size: int, rate: float, dtype: jnp.dtype) -> str | None:
    """Return why cuDNN cannot compute attention with heads of `size` and dropout of `rate`, or None if it can."""
    if dtype not in (jnp.bfloat16, jnp.float16):
        return f"it computes in bfloat16, not in {jnp.dtype(dtype).name}"
    if rate:
        return f"it has no dropout that is the same on any mesh, and the rate is {rate:g}"
    if size % 8 or size > LARGEST_SIZE:
        return f"heads of size {size} are no multiple of 8 up to {LARGEST_SIZE}"
    return f"length {length} is odd" if length % 2 else None


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    dropout_key: jax.Array | None = None,
    rate: float = 0.0,
    collect: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """See `AttentionKernel`; `collect` and what has an `obstacle` is computed by `kernels.xla.attention`."""
    rate = 0.0 if dropout_key is None else rate
    if collect or obstacle(query.shape[1], query.shape[3], rate, query.dtype):
        return plain.attention(query, key, value, mask, dropout_key, rate, collect)
    (batch, length), adder = query.shape[:2], mask.adder()
    bias = jnp.broadcast_to(adder, (batch, adder.shape[1], length, length)).astype(query.dtype)
    return jax.nn.dot_product_attention(query, key, value, bias=bias, implementation="cudnn"), None


PLATFORMS = {"pallas": ("tpu", "a TPU"), "triton": ("gpu", "an NVIDIA GPU"), "cudnn": ("gpu", "an NVIDIA GPU")}
"""Where a kernel runs; those that are not named here run everywhere. Those that are named keep no probabilities."""
OURS = ("pallas", "triton")
"""Modules beside this one with kernels of ours, which take the same masks."""
SHORTEST = 128
"""Tokens of a row from which on `pallas` is predicted to be faster on a TPU than `xla` (docs/speed.md)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """What attention gets: B rows of L positions on a device, A heads of size D, the rate of dropout and the type."""

    batch: int
    length: int
    heads: int
    """Heads on all devices; the mesh splits them into `head_parts`."""
    size: int
    rate: float
    dtype: jnp.dtype
    head_parts: int = 1
    window: int | None = None
    """Positions that a layer sees to either side; None: all."""
    global_tokens: int = 0
    """Tokens of a row that no window restricts: those at the start of each of its texts."""
    disentangled: bool = False
    """Whether scores have a bias that depends on queries and keys, which `xla` alone is given."""


def attention_kernel(compute: ComputeConfig, in_jax: AttentionKernel) -> AttentionKernel:
    """Return the kernel that the options choose; where it has an obstacle it calls `kernels.xla.attention` itself.

    Args:
      compute: the options.
      in_jax: `kernels.xla.attention`, in the form of products that the platform computes fastest.
    """
    if compute.attention in OURS:
        return _ours(compute.attention).attention
    chosen = {"auto": functools.partial(automatic, in_jax=in_jax), "xla": in_jax, "cudnn": attention}
    return chosen[compute.attention]


def automatic(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    dropout_key: jax.Array | None = None,
    rate: float = 0.0,
    collect: bool = False,
    *,
    in_jax: AttentionKernel = plain.attention,
) -> tuple[jax.Array, jax.Array | None]:
    """See `AttentionKernel`; in a window far shorter than the row computed block by block, by `pallas` or in JAX."""
    kernel = _automatic_kernel(_platform(), mask, *query.shape[1:])
    if kernel == "pallas":
        return _ours("pallas").attention(query, key, value, mask, dropout_key, rate, collect)
    if kernel == "windowed" and not collect:
        return windowed.attention(query, key, value, mask, dropout_key, rate), None
    return in_jax(query, key, value, mask, dropout_key, rate, collect)


def _best(platform: str, length: int) -> str:
    # triton and cudnn have not been measured, so nobody gets them without asking.
    return "pallas" if platform == "tpu" and length >= SHORTEST else "xla"


def _automatic_kernel(platform: str, mask: AttentionMask, length: int, heads: int, size: int) -> str:
    """Return pallas, windowed or xla; on a mesh `pallas` may still have too few heads per device, and call `xla`."""
    whole = mask.global_positions is None
    if whole and _best(platform, length) == "pallas" and _ours("pallas").obstacle(1, length, heads, size) is None:
        return "pallas"
    return "windowed" if windowed.obstacle(mask, length) is None else "xla"


def _platform() -> str:
    """Return the platform of the mesh in use, which a plan makes of chips that are not there, else of this process."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def _ours(name: str) -> ModuleType:
    """Return the module `pallas` or `triton`."""
    # Most processes compute attention in JAX, and the imports take a while.
    if name == "pallas":
        from bert_jax.models.kernels import tpu

        return tpu
    from bert_jax.models.kernels import gpu

    return gpu


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
    mask = AttentionMask(
        padding=jnp.ones((1, shape.length)),
        window=shape.window,
        global_positions=jnp.zeros((1, shape.global_tokens), jnp.int32) if shape.global_tokens else None,
    )
    name, reason, chosen = compute.attention, None, compute.attention == "auto"
    if chosen:
        name = _best(platform, shape.length)
        kernel = _automatic_kernel(platform, mask, shape.length, shape.heads, shape.size)
        if kernel == "windowed" and not shape.disentangled:
            return kernel
    if shape.disentangled and name != "xla":
        reason = "scores have a bias that depends on queries and keys (model.disentangled, XLNet)"
    elif chosen and platform == "gpu" and not shape.disentangled:
        name = "triton"
        reason = _obstacle(name, shape) or "it has not been measured; --compute.attention=triton takes it"
    elif name != "xla":
        reason = _obstacle(name, shape)
    return name if reason is None else f"xla, not {name}: {reason}"


def _obstacle(name: str, shape: Shape) -> str | None:
    if name == "cudnn":
        return obstacle(shape.length, shape.size, shape.rate, shape.dtype)
    if shape.global_tokens:
        return "it has no tokens that see the whole row (model.global_tokens)"
    if shape.heads % shape.head_parts:
        return f"{shape.heads} heads are not a multiple of mesh.tensor={shape.head_parts}"
    return _ours(name).obstacle(shape.batch, shape.length, shape.heads // shape.head_parts, shape.size)

"""Fused attention for NVIDIA GPUs, with dropout: scores and probabilities never leave the chip, forward or backward.

Pallas gives the kernels to Triton, which is part of XLA. Dropout draws the very bits that `kernels.xla` draws, from the
place of an element in the whole batch, so a run may change between the two, and is the same on any mesh.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as triton_params

from bert_jax.models.kernels import on_devices, triton_blocks
from bert_jax.models.kernels.contract import AttentionMask
from bert_jax.models.kernels.on_devices import Arrays
from bert_jax.models.kernels.triton_blocks import Blocks
from bert_jax.models.kernels.triton_costs import kernel_name

SMALLEST, LARGEST = 16, 64  # places of a block; a matrix unit takes 16 at least
LONGEST = 2**15  # a place times the length, the number of a word of dropout, stays below 2³¹
SIZES = (16, 32, 64, 128)  # of a head, as powers of two that leave room for blocks in shared memory


def obstacle(_batch: int, length: int, _heads: int, size: int) -> str | None:
    """Return why the kernels cannot compute this, or None if they can; any number of rows and heads will do."""
    if length % SMALLEST or length > LONGEST:
        return f"length {length} is not a multiple of {SMALLEST} up to {LONGEST}"
    if size not in SIZES:
        return f"heads of size {size} are not {', '.join(map(str, SIZES[:-1]))} or {SIZES[-1]} wide"
    return None


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    dropout_key: jax.Array | None = None,
    rate: float = 0.0,
    collect: bool = False,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """See `AttentionKernel` and `on_devices.attend`; within a window that is an int, only keys in reach are computed.

    `interpret` runs the kernels without a GPU, slowly; it is meant for tests.
    """
    kernel = functools.partial(_on_a_device, interpret)
    return on_devices.attend(kernel, obstacle, query, key, value, mask, dropout_key, rate, collect)


def _on_a_device(interpret: bool, arrays: Arrays, threshold: int, reach: int | None) -> jax.Array:
    _, length, _, size = arrays["query"].shape
    together = max(many for many in (SMALLEST, 32, LARGEST) if length % many == 0)
    blocks = Blocks(length=length, size=size, together=together, threshold=threshold, reach=reach)
    return _attention(blocks, interpret, arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(blocks: Blocks, interpret: bool, arrays: Arrays) -> jax.Array:
    return _forward(blocks, interpret, arrays)[0]


def _forward(blocks: Blocks, interpret: bool, arrays: Arrays) -> tuple[jax.Array, tuple[Any, ...]]:
    batch, length, heads, _ = arrays["query"].shape
    outputs = [arrays["query"], jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)]
    grid = blocks.count, heads, batch
    output, logarithms = _run(triton_blocks.forward, blocks, interpret, arrays, outputs, grid)
    # Both are named, so that no remat policy that saves the output runs this kernel again.
    output, logarithms = (checkpoint_name(x, "attention_output") for x in (output, logarithms))
    return output, (arrays, output, logarithms)


def _backward(blocks: Blocks, interpret: bool, kept: tuple[Any, ...], gradient: jax.Array) -> tuple[Arrays]:
    arrays, output, logarithms = kept
    batch, _, heads, _ = output.shape
    # Σ over keys of weight × its gradient, which is the same as Σ over the head of output × gradient.
    common = jnp.einsum("blad,blad->bal", output, gradient, preferred_element_type=jnp.float32)
    more = arrays | {"gradient": gradient, "logarithms": logarithms, "common": common}
    names = ("query", "key", "value")
    grid = blocks.count, heads, batch
    found = _run(triton_blocks.backward, blocks, interpret, more, [arrays[name] for name in names], grid)
    gradients: Arrays = dict.fromkeys(arrays)  # of integers there are none
    gradients |= dict(zip(names, found, strict=True))
    if "bias" in arrays:
        # A call of its own, which XLA drops where nothing wants this gradient.
        bias = arrays["bias"]
        grid = blocks.count, blocks.count, bias.shape[0] * bias.shape[1]
        of_bias = [jax.ShapeDtypeStruct(bias.shape, jnp.float32)]
        (total,) = _run(triton_blocks.backward_of_bias, blocks, interpret, more, of_bias, grid)
        gradients["bias"] = total.astype(bias.dtype)
    return (gradients,)


_attention.defvjp(_forward, _backward)


def _run(
    kernel: Any, blocks: Blocks, interpret: bool, arrays: Arrays, outputs: list[Any], grid: tuple[int, ...]
) -> list[jax.Array]:
    return pl.pallas_call(
        functools.partial(kernel, blocks, tuple(arrays)),
        grid=grid,
        out_shape=[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in outputs],
        compiler_params=triton_params.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name=kernel_name(kernel.__name__, blocks.pairs),
    )(*arrays.values())

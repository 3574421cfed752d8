"""Fused attention for TPUs: scores and probabilities never leave the core, forward or backward.

Dropout draws the very bits that `kernels.xla` draws, from the place of an element in the whole batch, so a run may
change between the two, and is the same on any mesh.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas import tpu as pltpu

from bert_jax.models.kernels import on_devices, pallas_blocks
from bert_jax.models.kernels.contract import AttentionMask
from bert_jax.models.kernels.on_devices import Arrays
from bert_jax.models.kernels.pallas_blocks import LANES, Blocks, keys_met
from bert_jax.models.kernels.pallas_grid import run

LONGEST = 8192
SCORES = 512 * 512  # of one head that are held at once, unless 128 queries have more
WORDS = 2**17  # of the state of dropout, which lies in scalar memory
TOGETHER, TOGETHER_IN_REACH = 2048, 16384
"""Most positions of all heads of a step of the grid, unless one group of heads has more."""


def obstacle(batch: int, length: int, heads: int, size: int) -> str | None:
    """Return why the kernels cannot compute this, or None if they can; all sizes are those of one device."""
    if length % LANES or not length <= LONGEST:
        return f"length {length} is not a multiple of {LANES} up to {LONGEST}"
    if LANES % size and size % LANES:
        return f"heads of size {size} neither divide {LANES} nor are multiples of it"
    if heads * size % LANES:
        return f"{heads} heads of size {size} on a device are {heads * size} wide, no multiple of {LANES}"
    if 2 * batch * heads > WORDS:
        return f"{batch} rows × {heads} heads on a device are more than {WORDS // 2}"
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

    Time then grows linearly with the length; the memory of the core still holds whole rows of keys and values.

    `interpret` runs the kernels without a TPU, slowly; it is meant for tests.
    """
    kernel = functools.partial(_on_a_device, interpret)
    return on_devices.attend(kernel, obstacle, query, key, value, mask, dropout_key, rate, collect)


def _on_a_device(interpret: bool, arrays: Arrays, threshold: int, reach: int | None) -> jax.Array:
    batch, length, heads, size = arrays["query"].shape
    queries = _queries_together(length, reach)
    blocks = Blocks(
        batch=batch,
        length=length,
        heads=heads,
        size=size,
        together=_heads_together(length, heads, size, queries, reach),
        queries=queries,
        threshold=threshold,
        segments="query_numbers" in arrays,
        window="reach" in arrays,
        bias="bias" in arrays,
        reach=reach,
    )
    output: Any = _attention(blocks, interpret, _as_tiles(arrays))
    return output.reshape(arrays["query"].shape)


def _heads_together(length: int, heads: int, size: int, queries: int, reach: int | None) -> int:
    """Return how many heads a step of the grid takes: enough to outweigh the start of a step.

    Within reach each head has less work, so a step takes more of them, up to a program as long as that of the others.
    """
    group, most = max(1, LANES // size), TOGETHER // length
    if reach is not None:
        of_a_head = queries * keys_met(length, queries, reach)
        most = max(most, min(TOGETHER_IN_REACH // length, 4 * SCORES // of_a_head))
    fits = [count for count in range(group, heads + 1, group) if heads % count == 0]
    return max((count for count in fits if count <= most), default=fits[0])


def _queries_together(length: int, reach: int | None) -> int:
    """Return how many queries a step of the grid takes: a multiple of 128 that divides the length."""
    fits = [count for count in range(LANES, length + 1, LANES) if length % count == 0]
    return max((count for count in fits if count * keys_met(length, count, reach) <= SCORES), default=LANES)


def _as_tiles(arrays: Arrays) -> Arrays:
    """Return the arrays as the kernels read them: heads side by side, and what belongs to keys along sublanes."""
    tiles = arrays | {name: arrays[name].reshape(*arrays[name].shape[:2], -1) for name in ("query", "key", "value")}
    tiles["key_numbers"] = arrays["key_numbers"][:, :, None]
    if "query_numbers" in arrays:
        tiles["query_numbers"] = arrays["query_numbers"][:, None, :]
    if "bias" in arrays:
        tiles["bias"] = jnp.swapaxes(arrays["bias"], 2, 3)
    return tiles


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(blocks: Blocks, interpret: bool, arrays: dict[str, jax.Array]) -> jax.Array:
    return _forward(blocks, interpret, arrays)[0]


def _forward(blocks: Blocks, interpret: bool, arrays: dict[str, jax.Array]) -> tuple[jax.Array, tuple[Any, ...]]:
    query = arrays["query"]
    output, logarithms = run(
        pallas_blocks.forward,
        blocks,
        interpret,
        arrays,
        outputs={"output": query, "logarithms": _logarithms(blocks)},
        products=2,
    )
    # Both are named, so that no remat policy that saves the output runs this kernel again.
    output, logarithms = (checkpoint_name(x, "attention_output") for x in (output, logarithms))
    return output, (arrays, output, logarithms)


def _logarithms(blocks: Blocks) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((blocks.batch, blocks.heads, 1, blocks.length), jnp.float32)


def _backward(blocks: Blocks, interpret: bool, kept: tuple[Any, ...], gradient: jax.Array) -> tuple[dict[str, Any]]:
    arrays, output, logarithms = kept
    more = arrays | {"logarithms": logarithms, "gradient": gradient, "output": output}
    names: tuple[str, ...] = ("query", "key", "value")
    sums = [pltpu.VMEM((blocks.length, blocks.together * blocks.size), jnp.float32)] * 2
    found = run(
        pallas_blocks.backward,
        blocks,
        interpret,
        more,
        outputs={name: arrays[name] for name in names},
        products=5,
        scratch=sums,
    )
    gradients: dict[str, Any] = dict.fromkeys(arrays)  # of integers there are none
    gradients |= dict(zip(names, found, strict=True))
    if blocks.bias:
        # A call of its own, which XLA drops where nothing wants this gradient.
        alone = dataclasses.replace(blocks, together=blocks.group_heads)
        of_bias = jax.ShapeDtypeStruct(arrays["bias"].shape, jnp.float32)
        (total,) = run(
            pallas_blocks.backward_of_bias, alone, interpret, more, outputs={"bias_gradient": of_bias}, products=2
        )
        gradients["bias"] = total.astype(arrays["bias"].dtype)
    return (gradients,)


_attention.defvjp(_forward, _backward)

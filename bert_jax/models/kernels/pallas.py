"""Fused attention for TPUs: scores and probabilities never leave the core, forward or backward.

Dropout draws the very bits that `kernels.xla` draws, from the place of an element in the whole batch, so a run may
change between the two, and is the same on any mesh.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from bert_jax.models import counter_bits
from bert_jax.models.kernels import pallas_blocks, xla
from bert_jax.models.kernels.contract import AttentionMask
from bert_jax.models.kernels.pallas_blocks import LANES, Blocks, keys_met
from bert_jax.models.kernels.pallas_grid import run

LONGEST = 8192
SCORES = 512 * 512  # of one head that are held at once, unless 128 queries have more
WORDS = 2**17  # of the state of dropout, which lies in scalar memory
TOGETHER, TOGETHER_IN_REACH = 2048, 16384
"""Most positions of all heads of a step of the grid, unless one group of heads has more."""
HEADS_AXIS = "tensor"  # of the mesh; all other axes split the batch
PADDING = -(2**31)  # number of a key that no query has


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
    """See `AttentionKernel`; what has an `obstacle`, `collect` and global tokens are left to `kernels.xla.attention`.

    Within a window that is an int, each block of queries meets only the keys in its reach, so time grows linearly with
    the length; the memory of the core still holds whole rows of keys and values.

    Of queries that see nothing but masked keys, which no loss reads, gradients are right to about 5e-4: their scores of
    -10,000 leave that much of the logarithm of a sum in float32. Within such a window their output is another one.

    Under a mesh (`devices.sharding.under`), every device computes its own rows and heads. `interpret` runs the kernels
    without a TPU, slowly; it is meant for tests.
    """
    batch, length, heads, size = query.shape
    axes = _free_axes()
    rows = tuple(axis for axis in axes if axis != HEADS_AXIS)
    split = P(rows or None, None, HEADS_AXIS if HEADS_AXIS in axes else None)
    parts = math.prod(axes[axis] for axis in rows), axes.get(HEADS_AXIS, 1)
    whole = not (batch % parts[0] or heads % parts[1])
    if (
        collect
        or mask.global_positions is not None
        or not whole
        or obstacle(batch // parts[0], length, heads // parts[1], size)
    ):
        return xla.attention(query, key, value, mask, dropout_key, rate, collect)
    threshold = 0 if dropout_key is None else counter_bits.drop_threshold(rate)
    arrays, specs = _arrays(query, key, value, mask, dropout_key if threshold else None, split)
    reach = mask.window if isinstance(mask.window, int) else None
    queries = _queries_together(length, reach)
    blocks = Blocks(
        batch=batch // parts[0],
        length=length,
        heads=heads // parts[1],
        size=size,
        together=_heads_together(length, heads // parts[1], size, queries, reach),
        queries=queries,
        threshold=threshold,
        segments=mask.segments is not None,
        window="reach" in arrays,
        bias=mask.bias is not None,
        reach=reach,
    )
    local = functools.partial(_attention, blocks, interpret)
    if math.prod(parts) > 1:
        local = jax.shard_map(local, in_specs=(specs,), out_specs=split, axis_names=set(axes), check_vma=False)
    return local(arrays).reshape(query.shape), None


def _free_axes() -> dict[str, int]:
    """Return the axes of the mesh in use that no surrounding shard_map has split, and their sizes."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return {}
    kinds = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    return {name: size for name, size, kind in kinds if kind == AxisType.Auto}


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


def _arrays(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    dropout_key: jax.Array | None,
    split: P,
) -> tuple[dict[str, jax.Array], dict[str, P]]:
    """Return what the kernels read, by the names in `pallas_grid.ORDER`, and how the mesh splits it."""
    batch, length, heads, _ = query.shape
    rows, tensor = split[0], split[2]
    arrays = {name: x.reshape(batch, length, -1) for name, x in (("query", query), ("key", key), ("value", value))}
    specs = dict.fromkeys(arrays, split)
    numbers = jnp.zeros_like(mask.padding, jnp.int32) if mask.segments is None else mask.segments.astype(jnp.int32)
    arrays["key_numbers"] = jnp.where(mask.padding > 0, numbers, PADDING)[:, :, None]
    specs["key_numbers"] = P(rows)
    if mask.segments is not None:
        arrays["query_numbers"], specs["query_numbers"] = numbers[:, None, :], P(rows)
    if mask.window is not None and not isinstance(mask.window, int):
        arrays["reach"], specs["reach"] = jnp.asarray(mask.window, jnp.int32).reshape(1), P()
    if mask.bias is not None:
        arrays["bias"] = jnp.swapaxes(mask.bias, 2, 3)
        specs["bias"] = P(*(axis if n > 1 else None for axis, n in zip((rows, tensor), mask.bias.shape, strict=False)))
    if dropout_key is not None:
        state, _ = counter_bits.leading_streams(counter_bits.stream(dropout_key), (batch, heads, length, length))
        arrays["words"], specs["words"] = jnp.stack([part[:, :, 0, 0] for part in state]), P(None, rows, tensor)
    return arrays, specs


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

"""What our fused kernels of attention share: what they read, and how a mesh splits it over its devices."""

import functools
import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from bert_jax.models import counter_bits
from bert_jax.models.kernels import xla
from bert_jax.models.kernels.contract import AttentionMask

HEADS_AXIS = "tensor"  # of the mesh; all other axes split the batch
PADDING = -(2**31)  # number of a key that no query has

Arrays = dict[str, Any]
"""What a kernel reads on one device, for B rows of L positions and A heads of size D:

- query, key, value: [B, L, A, D];
- key_numbers: int32 [B, L], of the text that a key belongs to, or PADDING;
- query_numbers: int32 [B, L], of the text of a query; missing where all are 0;
- reach: int32 [1], the window, where it is known only when the kernel runs;
- bias: [B or 1, A or 1, L (query), L (key)];
- words: uint32 [2, B, A], the state of dropout, where some is dropped.
"""


class DeviceKernel(Protocol):
    """Attention on one device."""

    def __call__(self, arrays: Arrays, threshold: int, reach: int | None) -> jax.Array:
        """Return the output, [B, L, A, D], with dropout by that threshold of `counter_bits.keeps` (0: none).

        `reach` is the window, where it is known when the kernel is built.
        """
        ...


def attend(
    kernel: DeviceKernel,
    obstacle: Callable[[int, int, int, int], str | None],
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    dropout_key: jax.Array | None,
    rate: float,
    collect: bool,
) -> tuple[jax.Array, jax.Array | None]:
    """Compute attention on every device of the mesh in use (`devices.sharding.under`), each its own rows and heads.

    Of queries that see nothing but masked keys, which no loss reads, gradients are right to about 5e-4: their scores of
    -10,000 leave that much of the logarithm of a sum in float32. Within a window that is an int, whose keys out of
    reach are not computed, their output is another one.

    Args:
      kernel: what a device computes.
      obstacle: says why the kernel cannot compute some rows, positions, heads and size of heads on a device. What it
        cannot compute, `collect` and global tokens are left to `kernels.xla.attention`.
      query, key, value, mask, dropout_key, rate, collect: see `AttentionKernel`.
    """
    batch, length, heads, size = query.shape
    axes = _free_axes()
    rows = tuple(axis for axis in axes if axis != HEADS_AXIS)
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
    split = P(rows or None, None, HEADS_AXIS if HEADS_AXIS in axes else None)
    arrays, specs = _arrays(query, key, value, mask, dropout_key if threshold else None, split)
    reach = mask.window if isinstance(mask.window, int) else None
    local: Callable[[Arrays], jax.Array] = functools.partial(kernel, threshold=threshold, reach=reach)
    if math.prod(parts) > 1:
        local = jax.shard_map(local, in_specs=(specs,), out_specs=split, axis_names=set(axes), check_vma=False)
    return local(arrays), None


def _free_axes() -> dict[str, int]:
    """Return the axes of the mesh in use that no surrounding shard_map has split, and their sizes."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return {}
    kinds = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    return {name: size for name, size, kind in kinds if kind == AxisType.Auto}


def _arrays(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    dropout_key: jax.Array | None,
    split: P,
) -> tuple[Arrays, dict[str, P]]:
    """Return what the kernel reads, of all devices together, and how the mesh splits it."""
    batch, length, heads, _ = query.shape
    rows, tensor = split[0], split[2]
    arrays: Arrays = {"query": query, "key": key, "value": value}
    specs = dict.fromkeys(arrays, split)
    numbers = jnp.zeros_like(mask.padding, jnp.int32) if mask.segments is None else mask.segments.astype(jnp.int32)
    arrays["key_numbers"], specs["key_numbers"] = jnp.where(mask.padding > 0, numbers, PADDING), P(rows)
    if mask.segments is not None:
        arrays["query_numbers"], specs["query_numbers"] = numbers, P(rows)
    if mask.window is not None and not isinstance(mask.window, int):
        arrays["reach"], specs["reach"] = jnp.asarray(mask.window, jnp.int32).reshape(1), P()
    if (bias := mask.whole_bias()) is not None:
        arrays["bias"] = bias
        specs["bias"] = P(*(axis if n > 1 else None for axis, n in zip((rows, tensor), bias.shape, strict=False)))
    if dropout_key is not None:
        state, _ = counter_bits.leading_streams(counter_bits.stream(dropout_key), (batch, heads, length, length))
        arrays["words"], specs["words"] = jnp.stack([part[:, :, 0, 0] for part in state]), P(None, rows, tensor)
    return arrays, specs

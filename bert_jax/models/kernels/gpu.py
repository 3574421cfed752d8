"""Fused attention for NVIDIA GPUs by Pallas and Triton, with dropout; and how a mesh splits fused attention.

Scores and probabilities never leave the multiprocessor, forward or backward. A block of queries of one head goes over
the keys of its row and keeps the largest score and the sum of exponentials so far (Dao 2023, FlashAttention-2,
algorithms 1 and 2). In the backward pass one block of threads computes the gradients of a block of keys and values,
going over all queries, and then that of a block of queries, going over all keys: no two blocks add to one number, so
a run repeats bit for bit. `tiling` says how large blocks are. References are whole arrays in the memory of the card.

Dropout draws the very bits that plain.py draws, from the place of an element in the whole batch, so a run may change
between the two, and is the same on any mesh. Triton is part of XLA. The operations of these kernels are counted here
for plans, because a compiled program does not show them. tpu.py splits its work over a mesh by the same `attend`.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as triton_params
from jax.sharding import PartitionSpec as P

from bert_jax.models import layers
from bert_jax.models.kernels.plain import (
    EVERYTHING,
    HEADS_AXIS,
    MASKED_SCORE,
    AttentionMask,
    Call,
    Kernel,
    free_axes,
)

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
        """Return the output, [B, L, A, D], with dropout by that threshold of `layers.keeps` (0: none).

        `reach` is the window, where it is known when the kernel is built.
        """
        ...


FEATURES = EVERYTHING - {"global_tokens", "queries", "probabilities"}
"""What fused attention supports, here and on TPUs."""


def obstacle_on_devices(obstacle: Callable[[int, int, int, int], str | None], call: Call) -> str | None:
    """Return why devices that each have some rows and heads cannot compute a call, or None if they can.

    Args:
      obstacle: says why a device cannot compute some rows, positions, heads and size of heads, or returns None.
      call: what is asked for.
    """
    if call.heads % call.head_parts:
        return f"{call.heads} heads are not a multiple of mesh.{HEADS_AXIS}={call.head_parts}"
    if call.rows % call.row_parts:
        return f"{call.rows} rows are not a multiple of the {call.row_parts} parts of the mesh that split them"
    return obstacle(call.rows // call.row_parts, call.length, call.heads // call.head_parts, call.size)


def attend(
    kernel: DeviceKernel,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    dropout_key: jax.Array | None,
    rate: float,
) -> tuple[jax.Array, None]:
    """Compute attention on every device of the mesh in use (`devices.sharding.under`), each its own rows and heads.

    Of queries that see nothing but masked keys, which no loss reads, gradients are right to about 5e-4: their scores of
    -10,000 leave that much of the logarithm of a sum in float32. Within a window that is an int, whose keys out of
    reach are not computed, their output is another one.

    Args:
      kernel: what a device computes.
      query, key, value, mask, dropout_key, rate: see `AttentionKernel`.
    """
    axes = free_axes()
    rows = tuple(axis for axis in axes if axis != HEADS_AXIS)
    threshold = 0 if dropout_key is None else layers.drop_threshold(rate)
    split = P(rows or None, None, HEADS_AXIS if HEADS_AXIS in axes else None)
    arrays, specs = _arrays(query, key, value, mask, dropout_key if threshold else None, split)
    reach = mask.window if isinstance(mask.window, int) else None
    local: Callable[[Arrays], jax.Array] = functools.partial(kernel, threshold=threshold, reach=reach)
    if math.prod(axes.values()) > 1:
        local = jax.shard_map(local, in_specs=(specs,), out_specs=split, axis_names=set(axes), check_vma=False)
    return local(arrays), None


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
        stream, shape = layers.counter_stream(dropout_key), (batch, heads, length, length)
        state, _ = layers.leading_streams(stream, shape, numbers=layers.row_numbers(query))
        arrays["words"], specs["words"] = jnp.stack([part[:, :, 0, 0] for part in state]), P(None, rows, tensor)
    return arrays, specs


@dataclasses.dataclass(frozen=True)
class Tiling:
    """How a kernel divides a row; sizes are powers of two from 16 on, halved until they divide the length."""

    own: int = 64
    """Queries, or backward also keys, that a block of threads computes something for."""
    other: int = 64
    """Keys, or backward also queries, that those meet at once."""
    warps: int = 4
    """Groups of 32 threads in a block of threads."""
    stages: int = 2
    """How many steps of a loop are under way at once, for Triton's pipeline of loads."""


def tiling(kernel: str, length: int, size: int) -> Tiling:
    """Return how `forward` or `backward` divides rows of a length with heads of a size; not measured.

    A measurement of others replaces this function before a step is traced.
    """
    del kernel, length, size
    return Tiling()


@dataclasses.dataclass(frozen=True)
class Blocks:
    """What is known when a kernel is built; with it, a call is a function of arrays."""

    length: int
    """Positions of a row, L."""
    size: int
    """Width of a head, D."""
    threshold: int
    """Of `layers.keeps`; 0 for no dropout."""
    reach: int | None = None
    """Positions that a query sees to either side, where the window is known when the kernels are built."""
    tiling: Tiling = Tiling()

    @property
    def scale(self) -> float:
        return self.size**-0.5

    @property
    def kept_scale(self) -> float:
        return layers.kept_scale(self.threshold)

    @property
    def own(self) -> int:
        """Positions of a block that something is computed for."""
        return math.gcd(self.length, self.tiling.own)

    @property
    def other(self) -> int:
        """Positions of a block that those meet at once."""
        return math.gcd(self.length, self.tiling.other)

    @property
    def count(self) -> int:
        """Number of blocks in a row that something is computed for."""
        return self.length // self.own

    def own_places(self, number: Any) -> Any:
        return pl.ds(number * self.own, self.own)

    def other_places(self, number: Any) -> Any:
        return pl.ds(number * self.other, self.other)

    def met(self, number: Any) -> tuple[Any, Any]:
        """Return the first and the last other block, not included, that own block number `number` can see."""
        if self.reach is None or self.reach >= self.length - 1:
            return 0, self.length // self.other
        first, last = number * self.own - self.reach, (number + 1) * self.own - 1 + self.reach
        if isinstance(number, int):
            return max(first, 0) // self.other, min(last, self.length - 1) // self.other + 1
        first, last = jnp.maximum(first, 0), jnp.minimum(last, self.length - 1)
        return _divided(first, self.other)[0], _divided(last, self.other)[0] + 1

    @property
    def pairs(self) -> int:
        """Queries of a row times the keys that each of them meets; backward, for one of both sums."""
        ends = (self.met(number) for number in range(self.count))
        return sum(last - first for first, last in ends) * self.own * self.other


def forward(blocks: Blocks, names: tuple[str, ...], *refs: Any) -> None:
    """Write the output [B, L, A, D] and the logarithms of the sums of exponentials, float32 [B, A, L].

    The grid is (blocks of queries, heads, rows).
    """
    arrays, (output_ref, logarithms_ref) = dict(zip(names, refs[:-2], strict=True)), refs[-2:]
    number = pl.program_id(0)
    own, head = blocks.own_places(number), _Head(blocks, arrays, row=pl.program_id(2), head=pl.program_id(1))
    query = head.block("query", own)

    def step(other: Any, so_far: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        (output, largest, total), keys = so_far, blocks.other_places(other)
        scores = head.scores(query, head.block("key", keys), own, keys)
        larger = jnp.maximum(largest, jnp.max(scores, axis=1))
        weights, shrink = jnp.exp(scores - larger[:, None]), jnp.exp(largest - larger)
        value = head.block("value", keys)
        added = _dot(head.dropped(weights, own, keys).astype(value.dtype), value, (1, 0))
        return output * shrink[:, None] + added, larger, total * shrink + jnp.sum(weights, axis=1)

    zeros = jnp.zeros(blocks.own, jnp.float32)
    start = jnp.zeros(query.shape, jnp.float32), zeros - jnp.inf, zeros
    output, largest, total = jax.lax.fori_loop(*blocks.met(number), step, start)
    head.write(output_ref, own, output * (blocks.kept_scale / total)[:, None])
    logarithms_ref[head.row, head.head, own] = largest + jnp.log(total)


def backward(blocks: Blocks, names: tuple[str, ...], *refs: Any) -> None:
    """Write the gradients of query, key and value, [B, L, A, D].

    The grid is (blocks of keys, then of queries; heads; rows).
    """
    arrays, (of_query, of_key, of_value) = dict(zip(names, refs[:-3], strict=True)), refs[-3:]
    number, scale = pl.program_id(0), blocks.scale * blocks.kept_scale
    own, head = blocks.own_places(number), _Head(blocks, arrays, row=pl.program_id(2), head=pl.program_id(1))
    key, value = head.block("key", own), head.block("value", own)

    def add_queries(other: Any, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        met = blocks.other_places(other)
        query, gradient = head.block("query", met), head.block("gradient", met)
        kept, of_scores = head.gradient_of_scores(query, key, value, gradient, met, own)
        return (
            sums[0] + _dot(of_scores.astype(query.dtype), query, (0, 0)),
            sums[1] + _dot(kept.astype(query.dtype), gradient, (0, 0)),
        )

    zeros = jnp.zeros(key.shape, jnp.float32)
    key_sum, value_sum = jax.lax.fori_loop(*blocks.met(number), add_queries, (zeros, zeros))
    head.write(of_key, own, key_sum * scale)
    head.write(of_value, own, value_sum * blocks.kept_scale)
    query, gradient = head.block("query", own), head.block("gradient", own)

    def add_keys(other: Any, total: jax.Array) -> jax.Array:
        met = blocks.other_places(other)
        key, value = head.block("key", met), head.block("value", met)
        of_scores = head.gradient_of_scores(query, key, value, gradient, own, met)[1]
        return total + _dot(of_scores.astype(key.dtype), key, (1, 0))

    head.write(of_query, own, jax.lax.fori_loop(*blocks.met(number), add_keys, zeros) * scale)


def backward_of_bias(blocks: Blocks, names: tuple[str, ...], *refs: Any) -> None:
    """Write the gradient of a bias, float32 [B or 1, A or 1, L (query), L (key)], summed over what shares it.

    The grid is (blocks of queries, blocks of keys, rows × heads of the bias).
    """
    arrays, of_bias = dict(zip(names, refs[:-1], strict=True)), refs[-1]
    batch, _, heads, _ = arrays["query"].shape
    rows_sharing, heads_sharing = batch // of_bias.shape[0], heads // of_bias.shape[1]
    row, first = _divided(pl.program_id(2), of_bias.shape[1])
    queries, keys = blocks.own_places(pl.program_id(0)), blocks.other_places(pl.program_id(1))

    def add(number: Any, total: jax.Array) -> jax.Array:
        further, next_head = _divided(number, heads_sharing)
        head = _Head(blocks, arrays, row=row + further, head=first + next_head)
        query, gradient = head.block("query", queries), head.block("gradient", queries)
        key, value = head.block("key", keys), head.block("value", keys)
        return total + head.gradient_of_scores(query, key, value, gradient, queries, keys)[1]

    zeros = jnp.zeros((blocks.own, blocks.other), jnp.float32)
    total = jax.lax.fori_loop(0, rows_sharing * heads_sharing, add, zeros)
    of_bias[row, first, queries, keys] = total * blocks.kept_scale


@dataclasses.dataclass(frozen=True)
class _Head:
    """One head of one row of the batch, and what all kernels compute of it."""

    blocks: Blocks
    arrays: dict[str, Any]
    row: Any
    head: Any

    def block(self, name: str, places: pl.Slice) -> jax.Array:
        """Return a block of an array [B, L, A, D], as [positions, D]."""
        return self.arrays[name][self.row, places, self.head, :]

    def write(self, ref: Any, places: pl.Slice, values: jax.Array) -> None:
        ref[self.row, places, self.head, :] = values.astype(ref.dtype)

    def scores(self, query: jax.Array, key: jax.Array, queries: pl.Slice, keys: pl.Slice) -> jax.Array:
        """Return the scores [queries, keys] of two blocks with everything that is added to them, float32."""
        scores = _dot(query, key, (1, 1)) * self.blocks.scale
        if "bias" in self.arrays:
            bias = self.arrays["bias"]
            row, head = self.row if bias.shape[0] > 1 else 0, self.head if bias.shape[1] > 1 else 0
            scores = scores + bias[row, head, queries, keys].astype(jnp.float32)
        return jnp.where(self._seen(queries, keys), scores, scores + MASKED_SCORE)

    def _seen(self, queries: pl.Slice, keys: pl.Slice) -> jax.Array:
        of_keys = self.arrays["key_numbers"][self.row, keys][None, :]
        of_queries: Any = 0
        if "query_numbers" in self.arrays:
            of_queries = self.arrays["query_numbers"][self.row, queries][:, None]
        seen = of_keys == of_queries
        reach = self.arrays["reach"][0] if "reach" in self.arrays else self.blocks.reach
        if reach is None:
            return seen
        query, key = self._places(queries, keys)
        return seen & (jnp.abs(query - key) <= reach)

    def gradient_of_scores(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        gradient: jax.Array,
        queries: pl.Slice,
        keys: pl.Slice,
    ) -> tuple[jax.Array, jax.Array]:
        """Return the dropped probabilities and the gradient of the scores, both [queries, keys] float32.

        Both lack the factor `kept_scale`. `gradient` is that of the output.
        """
        logarithms, common = (
            self.arrays[name][self.row, self.head, queries][:, None] for name in ("logarithms", "common")
        )
        weights = jnp.exp(self.scores(query, key, queries, keys) - logarithms)
        of_weights = self.dropped(_dot(gradient, value, (1, 1)), queries, keys)
        of_scores = weights * (of_weights - common * (1 / self.blocks.kept_scale))
        return self.dropped(weights, queries, keys), of_scores

    def dropped(self, values: jax.Array, queries: pl.Slice, keys: pl.Slice) -> jax.Array:
        """Return the values [queries, keys] with zeros where dropout falls."""
        if not self.blocks.threshold:
            return values
        words = self.arrays["words"]
        state = layers.Stream(words[0, self.row, self.head], words[1, self.row, self.head])
        query, key = self._places(queries, keys)
        index = (query * self.blocks.length + key).astype(jnp.uint32)
        return jnp.where(layers.keeps(layers.words(state, index), self.blocks.threshold), values, 0.0)

    def _places(self, queries: pl.Slice, keys: pl.Slice) -> tuple[jax.Array, jax.Array]:
        """Return the places in the row of the queries, int32 [queries, 1], and of the keys, int32 [1, keys]."""
        query, key = (places.start + jnp.arange(places.size) for places in (queries, keys))
        return query[:, None], key[None, :]


def _divided(number: Any, by: int) -> tuple[Any, Any]:
    """Return quotient and remainder of a scalar; Triton would take a Python number for an integer of fewer bits."""
    return jax.lax.div(number, jnp.int32(by)), jax.lax.rem(number, jnp.int32(by))


def _dot(left: jax.Array, right: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Return the product of two matrices over one axis of each, summed in float32."""
    return jax.lax.dot_general(left, right, (((axes[0],), (axes[1],)), ((), ())), preferred_element_type=jnp.float32)


PRODUCTS = {"forward": 2, "backward": 7}
"""Of queries × keys × size of a head. Backward, scores and the gradients of weights are computed twice: for the sums
over queries and for those over keys."""


def kernel_name(kernel: str, pairs: int) -> str:
    """Return the name by which a compiled program shows a kernel in which so many pairs of query and key meet in a row.

    It is unlike the names of the kernels for TPUs, whose number has another meaning.
    """
    return f"triton_{kernel}_{pairs}"


def attention_flops(name: str, results: Sequence[Any]) -> int:
    """Return the operations of one call, a multiply-add counting as two; 0 for any other kernel.

    The gradient of a bias, two more products, is not counted: the result does not say for how many rows it is.

    Args:
      name: text that has a `kernel_name` in it.
      results: the first is [B, L, A, D].
    """
    found = re.search(r"triton_(forward|backward)_(\d+)", name)
    if found is None:
        return 0
    batch, _, heads, size = results[0].dims
    return 2 * PRODUCTS[found[1]] * int(found[2]) * math.prod((batch, heads, size))


SMALLEST = 16  # places of a block: a matrix unit takes as many at least
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
) -> tuple[jax.Array, None]:
    """See `AttentionKernel` and `attend`; within a window that is an int, only keys in reach are computed.

    `interpret` runs the kernels without a GPU, slowly; it is meant for tests.
    """
    assert not collect, "a Kernel gives its function what it supports"
    return attend(functools.partial(_on_a_device, interpret), query, key, value, mask, dropout_key, rate)


KERNEL = Kernel(attention, FEATURES, functools.partial(obstacle_on_devices, obstacle))


def _on_a_device(interpret: bool, arrays: Arrays, threshold: int, reach: int | None) -> jax.Array:
    _, length, _, size = arrays["query"].shape
    both = (
        Blocks(length=length, size=size, threshold=threshold, reach=reach, tiling=tiling(kernel, length, size))
        for kernel in ("forward", "backward")
    )
    return _attention(tuple(both), interpret, arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(both: tuple[Blocks, ...], interpret: bool, arrays: Arrays) -> jax.Array:
    return _forward(both, interpret, arrays)[0]


def _forward(both: tuple[Blocks, ...], interpret: bool, arrays: Arrays) -> tuple[jax.Array, tuple[Any, ...]]:
    blocks = both[0]
    batch, length, heads, _ = arrays["query"].shape
    outputs = [arrays["query"], jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)]
    grid = blocks.count, heads, batch
    output, logarithms = _run(forward, blocks, interpret, arrays, outputs, grid)
    # Both are named, so that no remat policy that saves the output runs this kernel again.
    output, logarithms = (checkpoint_name(x, "attention_output") for x in (output, logarithms))
    return output, (arrays, output, logarithms)


def _backward(both: tuple[Blocks, ...], interpret: bool, kept: tuple[Any, ...], gradient: jax.Array) -> tuple[Arrays]:
    blocks, (arrays, output, logarithms) = both[1], kept
    batch, _, heads, _ = output.shape
    # Σ over keys of weight × its gradient, which is the same as Σ over the head of output × gradient.
    common = jnp.einsum("blad,blad->bal", output, gradient, preferred_element_type=jnp.float32)
    more = arrays | {"gradient": gradient, "logarithms": logarithms, "common": common}
    names = ("query", "key", "value")
    grid = blocks.count, heads, batch
    found = _run(backward, blocks, interpret, more, [arrays[name] for name in names], grid)
    gradients: Arrays = dict.fromkeys(arrays)  # of integers there are none
    gradients |= dict(zip(names, found, strict=True))
    if "bias" in arrays:
        # A call of its own, which XLA drops where nothing wants this gradient.
        bias = arrays["bias"]
        grid = blocks.count, blocks.length // blocks.other, bias.shape[0] * bias.shape[1]
        of_bias = [jax.ShapeDtypeStruct(bias.shape, jnp.float32)]
        (total,) = _run(backward_of_bias, blocks, interpret, more, of_bias, grid)
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
        compiler_params=triton_params.CompilerParams(num_warps=blocks.tiling.warps, num_stages=blocks.tiling.stages),
        interpret=interpret,
        name=kernel_name(kernel.__name__, blocks.pairs),
    )(*arrays.values())

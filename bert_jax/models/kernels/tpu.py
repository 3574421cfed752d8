"""Fused attention for TPUs by Pallas: scores and probabilities never leave the core, forward or backward.

Dropout draws the very bits that plain.py draws, from the place of an element in the whole batch, so a run may change
between the two, and is the same on any mesh.

Scores are held as [keys, queries]. Maxima, sums and the gradient's row terms are then reductions over sublanes, and
their results lie along lanes, as do the logarithms that are kept for the backward pass; of its five products none
needs a transposed block of scores. Queries, keys, values and outputs stay [positions, heads × size], as the
projections make them: no copy is transposed, and none is padded from a head's 64 lanes to 128. Where several heads
share 128 lanes, one head is picked by zeros in all lanes but its own. A product of 64 lanes would take the matrix
unit as long.

Costs for plans, because the compiler estimates no cycles of such kernels: they count the instructions (VLIW bundles)
that libtpu 0.0.51 schedules for v5e, in the final bundles that it writes with LIBTPU_INIT_ARGS="--xla_jf_dump_to=DIR
--xla_jf_dump_llo_text=true", for heads of 64 in bfloat16 with segments and dropout of 0.1, on 2026-11-22. The start of
each step of the grid is left out. A bundle is issued each cycle. Stalls are left out too; copies between chip and
memory run at the same time. v5p has as many bundles (0.99 to 1.03 of these), v6e fewer (0.75 to 0.93). Never measured
on a TPU.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.models import layers
from bert_jax.models.kernels import gpu
from bert_jax.models.kernels.gpu import Arrays
from bert_jax.models.kernels.plain import MASKED_SCORE, AttentionMask, Kernel

LANES = 128


@dataclasses.dataclass(frozen=True)
class Blocks:
    """What is known when the kernels are built; with it, a call is a function of arrays."""

    batch: int
    """Rows of the batch on one device, B."""
    length: int
    """Positions of a row, L: a multiple of 128."""
    heads: int
    """Heads on one device, A."""
    size: int
    """Width of a head, D: a divisor or a multiple of 128."""
    together: int
    """Heads of one step of the grid; their widths sum to a multiple of 128."""
    queries: int
    """Queries of one step of the grid, which `keys` of their row meet."""
    threshold: int
    """Of `layers.keeps`; 0 for no dropout."""
    segments: bool
    window: bool
    bias: bool
    """Whether these restrictions are given, the window as a number that is known when the kernels run."""
    reach: int | None = None
    """Positions that a query sees to either side, where the window is known when the kernels are built."""

    @property
    def keys(self) -> int:
        """Keys that a block of queries meets."""
        return keys_met(self.length, self.queries, self.reach)

    def first_key(self, first_query: Any) -> Any:
        """Return the place of the first of them."""
        if self.keys == self.length:
            return 0
        assert self.reach is not None, "without a window all keys are met"
        first = jnp.clip(first_query - _up_to_lanes(self.reach), 0, self.length - self.keys)
        return pl.multiple_of(first, LANES)

    @property
    def group(self) -> int:
        """Lanes that are worked on together: a whole head, or the heads that share 128 lanes."""
        return max(self.size, LANES)

    @property
    def group_heads(self) -> int:
        return self.group // self.size

    def group_of(self, head: Any) -> Any:
        """Return the number of the group with head number `head`; heads that share 128 lanes are a power of two."""
        return head >> (self.group_heads.bit_length() - 1)

    @property
    def exact_scale(self) -> bool:
        """Whether 1/√D is a power of two, so that queries can be scaled instead of scores, with no rounding."""
        return self.size.bit_count() == 1 and self.size.bit_length() % 2 == 1

    @property
    def scale(self) -> float:
        return self.size**-0.5

    @property
    def kept_scale(self) -> float:
        return layers.kept_scale(self.threshold)


def keys_met(length: int, queries: int, reach: int | None) -> int:
    """Return how many keys a block of queries meets: all of its row, or those within reach in multiples of 128."""
    return length if reach is None else min(length, queries + 2 * _up_to_lanes(reach))


def forward(blocks: Blocks, *refs: Any) -> None:
    """Write the output [1, queries, lanes] and the logarithms of the sums of exponentials [1, heads, 1, queries]."""
    inputs, (output, logarithms) = _Inputs(blocks, refs, *map(pl.program_id, range(3))), refs[-2:]
    for group in range(blocks.together // blocks.group_heads):
        lanes = inputs.lanes(group)
        values, rows = inputs.value[0, inputs.keys, lanes].T, []
        for number in range(blocks.group_heads):
            head = group * blocks.group_heads + number
            scores = inputs.scores(group, number)
            largest = jnp.max(scores, axis=0, keepdims=True)
            weights = jnp.exp(scores - largest)
            total = jnp.sum(weights, axis=0, keepdims=True)
            logarithms[0, head] = largest + jnp.log(total)
            kept = inputs.dropped(weights, head).astype(values.dtype)
            row = _dot(values[number * blocks.size : (number + 1) * blocks.size], kept, (1, 0))
            rows.append(row * (blocks.kept_scale / total))
        output[0, :, lanes] = jnp.concatenate(rows, axis=0).T.astype(output.dtype)


def backward(blocks: Blocks, *refs: Any) -> None:
    """Write the gradients of query [1, queries, lanes], and of key and value [1, L, lanes] after the last queries.

    Those of key and value are summed over the queries in the last two references, float32 [L, lanes].
    """
    inputs = _Inputs(blocks, refs, *map(pl.program_id, range(3)))
    query, key, value, key_sum, value_sum = refs[-5:]
    scale = blocks.scale * blocks.kept_scale

    @pl.when(pl.program_id(2) == 0)
    def _():
        key_sum[...] = jnp.zeros_like(key_sum)
        value_sum[...] = jnp.zeros_like(value_sum)

    for group in range(blocks.together // blocks.group_heads):
        lanes, rows = inputs.lanes(group), []
        keys = inputs.key[0, inputs.keys, lanes].T
        for number in range(blocks.group_heads):
            gradient = inputs.of_head(inputs.gradient, group, number)
            kept, of_scores = inputs.gradient_of_scores(gradient, group, number)
            value_sum[inputs.keys, lanes] += _dot(kept.astype(keys.dtype), gradient, (1, 0))
            of_scores = of_scores.astype(keys.dtype)
            key_sum[inputs.keys, lanes] += _dot(of_scores, inputs.of_head(inputs.query, group, number), (1, 0))
            rows.append(_dot(keys[number * blocks.size : (number + 1) * blocks.size], of_scores, (1, 0)))
        query[0, :, lanes] = (jnp.concatenate(rows, axis=0) * scale).T.astype(query.dtype)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        key[0] = (key_sum[...] * scale).astype(key.dtype)
        value[0] = (value_sum[...] * blocks.kept_scale).astype(value.dtype)


def backward_of_bias(blocks: Blocks, *refs: Any) -> None:
    """Add the gradient of a bias [1, 1, L (key), queries] over the rows and heads that share it.

    The grid is (rows of the bias, heads of the bias, blocks of queries, rows that share it, heads that share it).
    """
    row = pl.program_id(0) + pl.program_id(3)
    head = pl.program_id(1) + pl.program_id(4)
    number = head & (blocks.group_heads - 1)
    inputs = _Inputs(blocks, refs, row, blocks.group_of(head), pl.program_id(2))
    total = refs[-1]

    @pl.when((pl.program_id(3) == 0) & (pl.program_id(4) == 0))
    def _():
        total[...] = jnp.zeros_like(total)

    of_scores = inputs.gradient_of_scores(inputs.of_head(inputs.gradient, 0, number), 0, number)[1]
    total[0, 0, inputs.keys] += of_scores * blocks.kept_scale


class _Inputs:
    """The references that a kernel reads, by name, and what all kernels compute from them.

    `row` and `step` say where in the batch and in the heads the blocks begin; `part` is the block of queries.
    """

    def __init__(self, blocks: Blocks, refs: Sequence[Any], row: Any, step: Any, part: Any):
        self.blocks, self.row, self.first_head, self.first_query = (
            blocks,
            row,
            step * blocks.together,
            part * blocks.queries,
        )
        self.first_key = blocks.first_key(self.first_query)
        self.keys = slice(None) if blocks.keys == blocks.length else pl.ds(self.first_key, blocks.keys)
        rest = iter(refs)
        self.words: Any = next(rest) if blocks.threshold else None
        self.reach: Any = next(rest) if blocks.window else None
        self.query, self.key, self.value, self.key_numbers = (next(rest) for _ in range(4))
        self.query_numbers: Any = next(rest) if blocks.segments else None
        self.bias: Any = next(rest) if blocks.bias else None
        self.logarithms, self.gradient, self.output = (_next(rest) for _ in range(3))

    def lanes(self, group: int) -> slice:
        return slice(group * self.blocks.group, (group + 1) * self.blocks.group)

    def of_head(self, ref: Any, group: int, number: Any) -> jax.Array:
        """Return the lanes [queries, group] of a group with zeros in those of other heads than number `number`."""
        block = ref[0, :, self.lanes(group)]
        if self.blocks.group_heads == 1:
            return block
        bits = self.blocks.size.bit_length() - 1  # a shift, because Mosaic divides by asking what the device is
        own = jax.lax.broadcasted_iota(jnp.int32, block.shape, 1) >> bits == number
        return jnp.where(own, block, jnp.zeros_like(block))

    def scores(self, group: int, number: Any) -> jax.Array:
        """Return the scores [keys, queries] of one head with everything that is added to them, float32."""
        query = self.of_head(self.query, group, number)
        if self.blocks.exact_scale:
            query = query * self.blocks.scale
        scores = _dot(self.key[0, self.keys, self.lanes(group)], query, (1, 1))
        if not self.blocks.exact_scale:
            scores = scores * self.blocks.scale
        if self.bias is not None:
            head = group * self.blocks.group_heads + number
            scores = scores + self.bias[0, head if self.bias.shape[1] > 1 else 0, self.keys].astype(jnp.float32)
        return self._masked(scores)

    def _masked(self, scores: jax.Array) -> jax.Array:
        numbers = self.key_numbers[0, self.keys]
        reach = self.blocks.reach if self.reach is None else self.reach[0]
        if self.query_numbers is None and reach is None:
            return scores + jnp.where(numbers == 0, 0.0, MASKED_SCORE)
        seen = numbers == (0 if self.query_numbers is None else self.query_numbers[0])
        if reach is not None:
            query, key = self._places()
            seen = seen & (jnp.abs(query - key) <= reach)
        return jnp.where(seen, scores, scores + MASKED_SCORE)

    def gradient_of_scores(self, gradient: jax.Array, group: int, number: Any) -> tuple[jax.Array, jax.Array]:
        """Return the dropped probabilities and the gradient of the scores, both [keys, queries] float32.

        Both lack the factor `kept_scale`. `gradient` is that of the output, of this head alone.
        """
        head = group * self.blocks.group_heads + number
        weights = jnp.exp(self.scores(group, number) - self.logarithms[0, head])
        of_weights = _dot(self.value[0, self.keys, self.lanes(group)], gradient, (1, 1))
        kept = weights
        if self.words is not None:
            keep = self._keep(head)
            kept, of_weights = (jnp.where(keep, x, 0.0) for x in (weights, of_weights))
        output = self.output[0, :, self.lanes(group)].astype(jnp.float32)
        # Σ over keys of weight × its gradient, which is the same as Σ over the head of output × gradient.
        common = jnp.sum((output * gradient.astype(jnp.float32)).T, axis=0, keepdims=True)
        return kept, weights * (of_weights - common * (1 / self.blocks.kept_scale))

    def dropped(self, weights: jax.Array, head: int) -> jax.Array:
        """Return the weights [keys, queries] with zeros where dropout falls."""
        return weights if self.words is None else jnp.where(self._keep(head), weights, 0.0)

    def _keep(self, head: Any) -> jax.Array:
        query, key = self._places()
        index = (query * self.blocks.length + key).astype(jnp.uint32)
        place = self.row * self.blocks.heads + self.first_head + head
        state = layers.Stream(self.words[place], self.words[self.blocks.batch * self.blocks.heads + place])
        return layers.keeps(layers.words(state, index), self.blocks.threshold)

    def _places(self) -> tuple[jax.Array, jax.Array]:
        """Return the place of the query and of the key in the row, each int32 [keys, queries]."""
        shape = (self.blocks.keys, self.blocks.queries)
        key, query = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in range(2))
        return query + self.first_query, key + self.first_key


def _up_to_lanes(count: int) -> int:
    return -(-count // LANES) * LANES


def _next(rest: Iterator[Any]) -> Any:
    return next(rest, None)  # the forward kernel has fewer


def _dot(left: jax.Array, right: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Return the product of two matrices over one axis of each, summed in float32."""
    return jax.lax.dot_general(left, right, (((axes[0],), (axes[1],)), ((), ())), preferred_element_type=jnp.float32)


TILE = 128  # queries and keys
BUNDLES = {
    "forward": {128: 193, 256: 150, 512: 117, 1024: 138, 2048: 151},
    "backward": {128: 236, 256: 175, 512: 174, 1024: 183, 2048: 179},
    "backward_of_bias": {128: 236, 256: 175, 512: 174, 1024: 183, 2048: 179},
}
"""{kernel: {keys that a query meets: bundles for 128 queries and 128 keys of one head}}; more keys cost as much as
2048, and the last kernel, which was not counted, at most as much as the one before."""


BUNDLES_WITHIN_REACH = {"forward": 161, "backward": 217, "backward_of_bias": 217}
"""The same where queries meet the keys in reach alone: libtpu 0.0.42.1 for v5e, on 2026-11-26, for 16 rows of 2,048 and
12 heads, 2 of them in a step, 256 queries, 512 keys and a window of 64; a tenth fewer with the 6 heads that a step then
has. Of the backward pass, what is done once for all queries of a row counts as often as it runs."""


def kernel_name(kernel: str, keys: int, within_reach: bool) -> str:
    """Return the name by which a compiled program shows a kernel whose queries meet so many keys."""
    return f"attention_{kernel}_{keys}{'_within_reach' * within_reach}"


def kernel_cycles(name: str, scores: int) -> int | None:
    """Return the cycles of one call for so many scores (rows × heads × queries × keys); None for another kernel.

    Args:
      name: text that has a `kernel_name` in it.
      scores: their number.
    """
    found = re.search(r"attention_(forward|backward|backward_of_bias)_(\d+)(_within_reach)?", name)
    if found is None:
        return None
    if found[3]:
        return scores // TILE**2 * BUNDLES_WITHIN_REACH[found[1]]
    table = BUNDLES[found[1]]
    nearest = min(table, key=lambda counted: abs(math.log(counted / int(found[2]))))
    return scores // TILE**2 * table[nearest]


VMEM_BYTES = 60 * 2**20  # of 64 MiB on v5p, 128 on v5e and v6e
ORDER = ("words", "reach", "query", "key", "value", "key_numbers", "query_numbers", "bias", "logarithms", "gradient")
"""Inputs as `pallas_blocks` takes them; "output" comes last."""


def run(
    kernel: Any,
    blocks: Blocks,
    interpret: bool,
    arrays: dict[str, jax.Array],
    outputs: dict[str, Any],
    products: int,
    scratch: Any = (),
) -> list[jax.Array]:
    """Run a kernel over its grid: rows, groups of heads and blocks of queries, or that of `backward_of_bias`."""
    steps, place = (blocks.batch, blocks.heads // blocks.together, blocks.length // blocks.queries), _same_place
    if "bias_gradient" in outputs:
        rows, heads = outputs["bias_gradient"].shape[:2]
        steps = (rows, heads, steps[2], blocks.batch // rows, blocks.heads // heads)
        place = functools.partial(_place_of_one_head, blocks)
    arrays = {name: arrays[name] for name in (*ORDER, "output") if name in arrays}
    scores = blocks.batch * blocks.heads * blocks.length * blocks.keys
    call = pl.pallas_call(
        functools.partial(kernel, blocks),
        grid=steps,
        in_specs=[_spec(blocks, name, array.shape, place) for name, array in arrays.items()],
        out_specs=[_spec(blocks, name, array.shape, place) for name, array in outputs.items()],
        out_shape=[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in outputs.values()],
        scratch_shapes=scratch,
        cost_estimate=pl.CostEstimate(
            flops=2 * products * scores * blocks.size,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arrays.values(), *outputs.values())),
            transcendentals=scores,
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel") + ("arbitrary",) * (len(steps) - 2),
            vmem_limit_bytes=VMEM_BYTES,
        ),
        interpret=interpret,
        name=kernel_name(kernel.__name__, blocks.keys, within_reach=blocks.reach is not None),
    )
    return call(*(array.reshape(-1) if name == "words" else array for name, array in arrays.items()))


def _same_place(row: Any, step: Any, part: Any) -> tuple[Any, ...]:
    return row, step, part


def _place_of_one_head(blocks: Blocks, i: Any, j: Any, part: Any, row: Any, head: Any) -> tuple[Any, ...]:
    return i + row, blocks.group_of(j + head), part


def _spec(blocks: Blocks, name: str, shape: tuple[int, ...], place: Any) -> pl.BlockSpec:
    """Return which block of the array `name` a step gets; `place` gives its row, group of heads and part of queries."""
    if name in ("words", "reach"):
        return pl.BlockSpec(memory_space=pltpu.SMEM)
    length, together, queries = blocks.length, blocks.together, blocks.queries
    if name == "bias_gradient":
        return pl.BlockSpec((1, 1, length, queries), lambda i, j, part, row, head: (i, j, 0, part))
    block, index = {
        "query": ((1, queries, together * blocks.size), lambda row, step, part: (row, part, step)),
        "key": ((1, length, together * blocks.size), lambda row, step, part: (row, 0, step)),
        "key_numbers": ((1, length, 1), lambda row, step, part: (row, 0, 0)),
        "query_numbers": ((1, 1, queries), lambda row, step, part: (row, 0, part)),
        "logarithms": ((1, together, 1, queries), lambda row, step, part: (row, step, 0, part)),
        "bias": (
            (1, together if shape[1] > 1 else 1, length, queries),
            lambda row, step, part: (row if shape[0] > 1 else 0, step if shape[1] > 1 else 0, 0, part),
        ),
    }[{"value": "key", "gradient": "query", "output": "query"}.get(name, name)]
    return pl.BlockSpec(block, lambda *step: index(*place(*step)))


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
) -> tuple[jax.Array, None]:
    """See `AttentionKernel` and `gpu.attend`; within a window that is an int, only keys in reach are computed.

    Time then grows linearly with the length; the memory of the core still holds whole rows of keys and values.

    `interpret` runs the kernels without a TPU, slowly; it is meant for tests.
    """
    assert not collect, "a Kernel gives its function what it supports"
    return gpu.attend(functools.partial(_on_a_device, interpret), query, key, value, mask, dropout_key, rate)


KERNEL = Kernel(attention, gpu.FEATURES, functools.partial(gpu.obstacle_on_devices, obstacle))


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
        forward,
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
        backward,
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
        (total,) = run(backward_of_bias, alone, interpret, more, outputs={"bias_gradient": of_bias}, products=2)
        gradients["bias"] = total.astype(arrays["bias"].dtype)
    return (gradients,)


_attention.defvjp(_forward, _backward)

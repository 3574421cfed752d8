"""The bodies of the Pallas kernels of attention: what one core of a TPU computes for some heads of some queries.

Scores are held as [keys, queries]. Maxima, sums and the gradient's row terms are then reductions over sublanes, and
their results lie along lanes, as do the logarithms that are kept for the backward pass; of its five products none needs
a transposed block of scores. Queries, keys, values and outputs stay [positions, heads × size], as the projections make
them: no copy is transposed, and none is padded from a head's 64 lanes to 128. Where several heads share 128 lanes, one
head is picked by zeros in all lanes but its own. A product of 64 lanes would take the matrix unit as long.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bert_jax.models import counter_bits
from bert_jax.models.kernels.contract import MASKED_SCORE

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
    """Of `counter_bits.keeps`; 0 for no dropout."""
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
        return counter_bits.kept_scale(self.threshold)


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
        state = counter_bits.Stream(self.words[place], self.words[self.blocks.batch * self.blocks.heads + place])
        return counter_bits.keeps(counter_bits.words(state, index), self.blocks.threshold)

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

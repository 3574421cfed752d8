"""The bodies of the Pallas kernels of attention on NVIDIA GPUs: what one block of threads computes.

A block of queries of one head goes over the keys of its row and keeps the largest score and the sum of exponentials so
far (Dao 2023, FlashAttention-2, algorithms 1 and 2), so scores and probabilities never leave the multiprocessor. In
the backward pass a block of threads computes the gradients of a block of keys and values, going over all queries, and
then that of a block of queries, going over all keys: no two blocks add to one number, so a run repeats bit for bit.
Each reference is a whole array in the memory of the card.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bert_jax.models import counter_bits
from bert_jax.models.kernels.contract import MASKED_SCORE

Span = tuple[Any, int]
"""Places of a row that are worked on together: the first, and how many."""


@dataclasses.dataclass(frozen=True)
class Blocks:
    """What is known when the kernels are built; with it, a call is a function of arrays."""

    length: int
    """Positions of a row, L."""
    size: int
    """Width of a head, D."""
    queries: int
    keys: int
    """Queries and keys that meet at once; each divides the length."""
    threshold: int
    """Of `counter_bits.keeps`; 0 for no dropout."""
    reach: int | None = None
    """Positions that a query sees to either side, where the window is known when the kernels are built."""

    @property
    def scale(self) -> float:
        return self.size**-0.5

    @property
    def kept_scale(self) -> float:
        return counter_bits.kept_scale(self.threshold)

    @property
    def pairs(self) -> int:
        """Queries of a row times the keys that each of them meets."""
        spans = [(first, self.queries) for first in range(0, self.length, self.queries)]
        with jax.ensure_compile_time_eval():  # not as a part of the step that is being traced
            met = [self.met(span, self.keys) for span in spans]
            return sum(int(last) - int(first) for first, last in met) * self.queries * self.keys

    def met(self, span: Span, many: int) -> tuple[Any, Any]:
        """Return the first and the last block, not included, of `many` places each that `span` can see."""
        if self.reach is None:
            return 0, self.length // many
        first, count = span
        before, behind = jnp.maximum(first - self.reach, 0), first + count - 1 + self.reach
        return before // many, jnp.minimum(behind // many + 1, self.length // many)


def forward(blocks: Blocks, names: tuple[str, ...], *refs: Any) -> None:
    """Write the output [B, L, A, D] and the logarithms of the sums of exponentials, float32 [B, A, L].

    The grid is (blocks of queries, heads, rows).
    """
    arrays = dict(zip(names, refs[:-2], strict=True))
    head = _Head(blocks, arrays, row=pl.program_id(2), head=pl.program_id(1))
    own = pl.program_id(0) * blocks.queries, blocks.queries
    query = head.block("query", own)

    def step(number: Any, so_far: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        output, largest, total = so_far
        keys = number * blocks.keys, blocks.keys
        scores = head.scores(query, head.block("key", keys), own, keys)
        larger = jnp.maximum(largest, jnp.max(scores, axis=1))
        weights, shrink = jnp.exp(scores - larger[:, None]), jnp.exp(largest - larger)
        value = head.block("value", keys)
        added = _dot(head.dropped(weights, own, keys).astype(value.dtype), value, (1, 0))
        return output * shrink[:, None] + added, larger, total * shrink + jnp.sum(weights, axis=1)

    start = jnp.zeros(query.shape, jnp.float32), jnp.full(own[1], -jnp.inf, jnp.float32), jnp.zeros(own[1], jnp.float32)
    output, largest, total = jax.lax.fori_loop(*blocks.met(own, blocks.keys), step, start)
    head.write(refs[-2], own, output * (blocks.kept_scale / total)[:, None])
    refs[-1][head.row, head.head, pl.ds(*own)] = largest + jnp.log(total)


def backward(blocks: Blocks, names: tuple[str, ...], *refs: Any) -> None:
    """Write the gradients of query, key and value, [B, L, A, D].

    The grid is (blocks of keys, which are as many as blocks of queries; heads; rows).
    """
    arrays, (query_gradient, key_gradient, value_gradient) = dict(zip(names, refs[:-3], strict=True)), refs[-3:]
    head = _Head(blocks, arrays, row=pl.program_id(2), head=pl.program_id(1))
    keys = pl.program_id(0) * blocks.keys, blocks.keys
    key, value = head.block("key", keys), head.block("value", keys)

    def add_queries(number: Any, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        met = number * blocks.queries, blocks.queries
        query, gradient = head.block("query", met), head.block("gradient", met)
        kept, of_scores = head.gradient_of_scores(query, key, value, gradient, met, keys)
        return (
            sums[0] + _dot(of_scores.astype(query.dtype), query, (0, 0)),
            sums[1] + _dot(kept.astype(query.dtype), gradient, (0, 0)),
        )

    zeros = jnp.zeros(key.shape, jnp.float32)
    of_key, of_value = jax.lax.fori_loop(*blocks.met(keys, blocks.queries), add_queries, (zeros, zeros))
    scale = blocks.scale * blocks.kept_scale
    head.write(key_gradient, keys, of_key * scale)
    head.write(value_gradient, keys, of_value * blocks.kept_scale)

    own = pl.program_id(0) * blocks.queries, blocks.queries
    query, gradient = head.block("query", own), head.block("gradient", own)

    def add_keys(number: Any, total: jax.Array) -> jax.Array:
        met = number * blocks.keys, blocks.keys
        key, value = head.block("key", met), head.block("value", met)
        of_scores = head.gradient_of_scores(query, key, value, gradient, own, met)[1]
        return total + _dot(of_scores.astype(key.dtype), key, (1, 0))

    of_query = jax.lax.fori_loop(*blocks.met(own, blocks.keys), add_keys, jnp.zeros(query.shape, jnp.float32))
    head.write(query_gradient, own, of_query * scale)


def backward_of_bias(blocks: Blocks, names: tuple[str, ...], *refs: Any) -> None:
    """Write the gradient of a bias, float32 [B or 1, A or 1, L (query), L (key)], summed over what shares it.

    The grid is (blocks of queries, blocks of keys, rows × heads of the bias).
    """
    arrays, of_bias = dict(zip(names, refs[:-1], strict=True)), refs[-1]
    batch, _, heads, _ = arrays["query"].shape
    rows_sharing, heads_sharing = batch // of_bias.shape[0], heads // of_bias.shape[1]
    row, first = _divided(pl.program_id(2), of_bias.shape[1])
    queries, keys = (pl.program_id(0) * blocks.queries, blocks.queries), (pl.program_id(1) * blocks.keys, blocks.keys)

    def add(number: Any, total: jax.Array) -> jax.Array:
        further, next_head = _divided(number, heads_sharing)
        head = _Head(blocks, arrays, row=row + further, head=first + next_head)
        query, gradient = head.block("query", queries), head.block("gradient", queries)
        key, value = head.block("key", keys), head.block("value", keys)
        return total + head.gradient_of_scores(query, key, value, gradient, queries, keys)[1]

    zeros = jnp.zeros((blocks.queries, blocks.keys), jnp.float32)
    total = jax.lax.fori_loop(0, rows_sharing * heads_sharing, add, zeros)
    of_bias[row, first, pl.ds(*queries), pl.ds(*keys)] = total * blocks.kept_scale


@dataclasses.dataclass(frozen=True)
class _Head:
    """One head of one row of the batch, and what all kernels compute of it."""

    blocks: Blocks
    arrays: dict[str, Any]
    row: Any
    head: Any

    def block(self, name: str, span: Span) -> jax.Array:
        """Return some positions of an array [B, L, A, D], as [positions, D]."""
        return self.arrays[name][self.row, pl.ds(*span), self.head, :]

    def write(self, ref: Any, span: Span, values: jax.Array) -> None:
        ref[self.row, pl.ds(*span), self.head, :] = values.astype(ref.dtype)

    def scores(self, query: jax.Array, key: jax.Array, queries: Span, keys: Span) -> jax.Array:
        """Return the scores [queries, keys] with everything that is added to them, float32."""
        scores = _dot(query, key, (1, 1)) * self.blocks.scale
        if "bias" in self.arrays:
            bias = self.arrays["bias"]
            row, head = self.row if bias.shape[0] > 1 else 0, self.head if bias.shape[1] > 1 else 0
            scores = scores + bias[row, head, pl.ds(*queries), pl.ds(*keys)].astype(jnp.float32)
        return jnp.where(self._seen(queries, keys), scores, scores + MASKED_SCORE)

    def _seen(self, queries: Span, keys: Span) -> jax.Array:
        of_keys = self.arrays["key_numbers"][self.row, pl.ds(*keys)][None, :]
        of_queries: Any = 0
        if "query_numbers" in self.arrays:
            of_queries = self.arrays["query_numbers"][self.row, pl.ds(*queries)][:, None]
        seen = of_keys == of_queries
        reach = self.arrays["reach"][0] if "reach" in self.arrays else self.blocks.reach
        if reach is None:
            return seen
        query, key = _places(queries, keys)
        return seen & (jnp.abs(query - key) <= reach)

    def gradient_of_scores(
        self, query: jax.Array, key: jax.Array, value: jax.Array, gradient: jax.Array, queries: Span, keys: Span
    ) -> tuple[jax.Array, jax.Array]:
        """Return the dropped probabilities and the gradient of the scores, both [queries, keys] float32.

        Both lack the factor `kept_scale`. `gradient` is that of the output.
        """
        logarithms, common = (
            self.arrays[name][self.row, self.head, pl.ds(*queries)][:, None] for name in ("logarithms", "common")
        )
        weights = jnp.exp(self.scores(query, key, queries, keys) - logarithms)
        of_weights = self.dropped(_dot(gradient, value, (1, 1)), queries, keys)
        of_scores = weights * (of_weights - common * (1 / self.blocks.kept_scale))
        return self.dropped(weights, queries, keys), of_scores

    def dropped(self, values: jax.Array, queries: Span, keys: Span) -> jax.Array:
        """Return the values [queries, keys] with zeros where dropout falls."""
        if not self.blocks.threshold:
            return values
        words = self.arrays["words"]
        state = counter_bits.Stream(words[0, self.row, self.head], words[1, self.row, self.head])
        query, key = _places(queries, keys)
        index = (query * self.blocks.length + key).astype(jnp.uint32)
        return jnp.where(counter_bits.keeps(counter_bits.words(state, index), self.blocks.threshold), values, 0.0)


def _divided(number: Any, by: int) -> tuple[Any, Any]:
    """Return quotient and remainder of a scalar; Triton would take a Python number for an integer of fewer bits."""
    return jax.lax.div(number, jnp.int32(by)), jax.lax.rem(number, jnp.int32(by))


def _places(queries: Span, keys: Span) -> tuple[jax.Array, jax.Array]:
    """Return the places in the row of the queries, int32 [queries, 1], and of the keys, int32 [1, keys]."""
    return (queries[0] + jnp.arange(queries[1]))[:, None], (keys[0] + jnp.arange(keys[1]))[None, :]


def _dot(left: jax.Array, right: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Return the product of two matrices over one axis of each, summed in float32."""
    return jax.lax.dot_general(left, right, (((axes[0],), (axes[1],)), ((), ())), preferred_element_type=jnp.float32)
